"""Exact branch and bound for the cheapest partition of a convolution, as compiled kernels.

`search` finds the minimum of `conv_cost`.  A split is looked at only if it is the smallest that
gives its share (poplibs ``lib/popsolver/Model.cpp``, ceildivConstrainDivisor), and skipped with
all that it contains where a floor of `bounds` exceeds the best cost so far.

The vectors are those of `record`.
"""

from __future__ import annotations

import numpy as np

from ipusim.compiler.convolution import record as lay
from ipusim.compiler.convolution.bounds import (
    arithmetic_floor,
    bytes_floor,
    cycles_floor,
    serial_floor,
)
from ipusim.compiler.convolution.cost import conv_cost, input_range, kernel_padding, kernel_zeros
from ipusim.compiler.convolution.totals import fill_totals
from ipusim.compiler.vertices.conv import WORKERS, ceil_div
from ipusim.kernel_cache import njit

# --- state of a search ----------------------------------------------------------------------
TEMP_LIMIT, MINIMISE_MEMORY, PRUNED, COARSE, EVALUATIONS, ARITHMETIC = 0, 1, 2, 3, 4, 5
STATE_SIZE = 6


@njit(cache=True)
def next_split(size: int, split: int) -> int:
    """Smallest larger divisor that changes ceil(size / divisor); size + 1 when there is none."""
    share = ceil_div(size, split)
    if share <= 1:
        return size + 1
    return ceil_div(size, share - 1)


@njit(cache=True)
def _next_coarse_split(size: int, split: int, coarse: bool) -> int:
    """`next_split`; `coarse` leaves out splits that are neither even nor powers of two."""
    split = next_split(size, split)
    while coarse and size % split != 0 and split & (split - 1) != 0 and split <= size:
        split = next_split(size, split)
    return split


@njit(cache=True)
def next_channel_split(grains: int, split: int, serial: int, whole: bool, coarse: bool) -> int:
    """Next parallel split of channels that are also split into `serial` parts; start from 0.

    Returns
    -------
    int
        More than `grains` when there is none.
    """
    total = split * serial
    while total < grains:
        if whole:
            total = grains
        elif total == 0:
            total = 1
        else:
            total = next_split(grains, total)
        split = total // serial
        if split * serial != total:
            continue
        if not coarse or grains % split == 0 or split & (split - 1) == 0:
            return split
    return grains + 1


@njit(cache=True)
def search(
    problem: np.ndarray,
    vertices: np.ndarray,
    temp_limit: int,
    minimise_memory: bool,
    pruned: bool,
    serial_splits: bool,
    coarse: bool,
    best_cost: np.ndarray,
    best_split: np.ndarray,
) -> tuple[int, int]:
    """Best vertex (index, or -1) and the number of partitions evaluated.

    Parameters
    ----------
    problem, vertices : see `record`; vertices is (n, VERTEX_SIZE).
    temp_limit : most temporary bytes a tile may use.
    minimise_memory : order by (bytes, cycles) instead of (cycles, bytes).
    pruned : False evaluates every partition, the oracle of the tests.
    serial_splits : look at the splits into parts of the channels that are computed one after the
        other, or only at those without.
    coarse : look only at splits that divide evenly or are powers of two, to find a good cost to
        beat before the exact search.
    best_cost, best_split : filled with the winner; ``best_cost[C_TOTAL]`` on entry is the cost to
        beat, ``UNBOUNDED`` for none.
    """
    state = np.zeros(STATE_SIZE, np.int64)
    state[TEMP_LIMIT] = temp_limit
    state[MINIMISE_MEMORY] = minimise_memory
    state[PRUNED] = pruned
    state[COARSE] = coarse
    totals = np.zeros(lay.TOTALS_SIZE, np.int64)
    split = np.ones(lay.SPLIT_SIZE, np.int64)
    split[lay.S_BROADCAST] = 0
    part = np.zeros(lay.PART_SIZE, np.int64)
    cost = np.zeros(lay.COST_SIZE, np.int64)
    winner = -1
    for index in range(vertices.shape[0]):
        vertex = vertices[index]
        if not fill_totals(problem, vertex, totals):
            continue
        state[ARITHMETIC] = arithmetic_floor(problem, vertex, totals)
        found = False
        # Not serial, or in parts of the output channels.
        split[lay.S_IN_SERIAL] = 1
        first = 2 if serial_splits else 1
        last = totals[lay.T_OUT_GRAINS] if serial_splits else 1
        for serial in range(first, last + 1):
            if problem[lay.VIEW_OUT_CHANS] % serial != 0:
                continue
            split[lay.S_OUT_SERIAL] = serial
            if not _serial_hopeful(problem, totals, split, best_cost, state):
                break
            found |= _search_groups(
                problem, vertex, totals, split, part, cost, state, best_cost, best_split
            )
        # In parts of the input channels.
        split[lay.S_OUT_SERIAL] = 1
        last = totals[lay.T_IN_GRAINS] if serial_splits and problem[lay.IN_SERIAL_ALLOWED] else 1
        for serial in range(2, last + 1):
            if problem[lay.VIEW_IN_CHANS] % serial != 0:
                continue
            split[lay.S_IN_SERIAL] = serial
            if not _serial_hopeful(problem, totals, split, best_cost, state):
                break
            found |= _search_groups(
                problem, vertex, totals, split, part, cost, state, best_cost, best_split
            )
        if found:
            winner = index
    return winner, state[EVALUATIONS]


@njit(cache=True)
def _serial_hopeful(
    problem: np.ndarray,
    totals: np.ndarray,
    split: np.ndarray,
    best_cost: np.ndarray,
    state: np.ndarray,
) -> bool:
    """Whether a partition with these serial splits, or with more serial parts, may be the best."""
    if not state[PRUNED] or state[MINIMISE_MEMORY]:
        return True
    floor = state[ARITHMETIC] // problem[lay.TILES] + serial_floor(problem, totals, split)
    return floor <= best_cost[lay.C_TOTAL]


@njit(cache=True)
def _part_hopeful(
    problem: np.ndarray,
    vertex: np.ndarray,
    totals: np.ndarray,
    split: np.ndarray,
    part: np.ndarray,
    best_cost: np.ndarray,
    state: np.ndarray,
) -> bool:
    """Whether a completion of `split` that leaves at least `part` to a tile may be the best."""
    if not state[PRUNED]:
        return True
    least_bytes = bytes_floor(problem, vertex, part)
    if state[MINIMISE_MEMORY]:
        return least_bytes <= min(best_cost[lay.C_TEMP_BYTES], state[TEMP_LIMIT])
    if least_bytes > state[TEMP_LIMIT]:
        return False
    return cycles_floor(problem, vertex, totals, split, part) <= best_cost[lay.C_TOTAL]


@njit(cache=True)
def _better(cost: np.ndarray, best: np.ndarray, minimise_memory: bool) -> bool:
    """Strictly better in (cycles, bytes), or (bytes, cycles); ties keep the earlier partition."""
    first, second = lay.C_TOTAL, lay.C_TEMP_BYTES
    if minimise_memory:
        first, second = lay.C_TEMP_BYTES, lay.C_TOTAL
    if cost[first] != best[first]:
        return cost[first] < best[first]
    return cost[second] < best[second]


@njit(cache=True)
def _copy(source: np.ndarray, target: np.ndarray) -> None:
    for i in range(len(source)):
        target[i] = source[i]


@njit(cache=True)
def _search_groups(
    problem: np.ndarray,
    vertex: np.ndarray,
    totals: np.ndarray,
    split: np.ndarray,
    part: np.ndarray,
    cost: np.ndarray,
    state: np.ndarray,
    best_cost: np.ndarray,
    best_split: np.ndarray,
) -> bool:
    """Loop over splits of groups, kernel and input channels; whether a better one was found."""
    found = False
    dims = problem[lay.DIMS]
    tiles = problem[lay.TILES]
    group_grains, in_grains = totals[lay.T_GROUP_GRAINS], totals[lay.T_IN_GRAINS]
    in_serial, out_serial = split[lay.S_IN_SERIAL], split[lay.S_OUT_SERIAL]
    out_part = ceil_div(totals[lay.T_OUT_GRAINS], out_serial)
    one_in = vertex[lay.METHOD] == lay.SLIC or vertex[lay.METHOD] == lay.OUTER_PRODUCT
    inner_kernel = problem[lay.KERNEL + 1] if dims == 3 else 1
    s_group = lay.ONE
    while s_group <= min(group_grains, tiles):
        split[lay.S_GROUP] = s_group
        part[lay.P_GROUP_GRAINS] = ceil_div(group_grains, s_group)
        k0 = lay.ONE
        while k0 <= min(problem[lay.KERNEL], tiles // s_group):
            split[lay.S_KERNEL] = k0
            part[lay.P_KERNEL_OUTER] = ceil_div(problem[lay.KERNEL], k0)
            k1 = lay.ONE
            while k1 <= min(inner_kernel, tiles // (s_group * k0)):
                kernel = part[lay.P_KERNEL_OUTER] * problem[lay.KERNEL + dims - 1]
                if dims == 3:
                    split[lay.S_KERNEL + 1] = k1
                    kernel *= ceil_div(inner_kernel, k1)
                part[lay.P_KERNEL_ELEMENTS] = kernel
                padding = kernel_padding(problem, vertex, totals, k0)
                outer = part[lay.P_KERNEL_OUTER]
                part[lay.P_KERNEL_ZEROS] = kernel_zeros(problem, vertex, padding, outer, kernel)
                left = tiles // (s_group * k0 * k1)
                coarse = state[COARSE] == 1
                s_in = next_channel_split(in_grains, 0, in_serial, one_in, coarse)
                while s_in <= min(in_grains, left):
                    split[lay.S_IN] = s_in
                    part[lay.P_IN_GRAINS] = ceil_div(in_grains, s_in * in_serial)
                    part[lay.P_DEPTH] = k0 * k1 * s_in
                    split[lay.S_OUT] = 1
                    _least_outputs(problem, totals, part, out_part, left // s_in)
                    if _part_hopeful(problem, vertex, totals, split, part, best_cost, state):
                        found |= _search_outputs(
                            problem,
                            vertex,
                            totals,
                            split,
                            part,
                            cost,
                            state,
                            left // s_in,
                            best_cost,
                            best_split,
                        )
                    s_in = next_channel_split(in_grains, s_in, in_serial, one_in, coarse)
                k1 = next_split(inner_kernel, k1)
            k0 = next_split(problem[lay.KERNEL], k0)
        s_group = _next_coarse_split(group_grains, s_group, state[COARSE] == 1)
    return found


@njit(cache=True)
def _least_outputs(
    problem: np.ndarray, totals: np.ndarray, part: np.ndarray, out_grains: int, tiles: int
) -> None:
    """Fill `part` with the least outputs of a tile, channels and field being split over `tiles`.

    Few channels with many positions are the cheaper form of the same number of outputs.
    """
    share = ceil_div(out_grains * totals[lay.T_POSITIONS], tiles)
    channels = ceil_div(share, totals[lay.T_POSITIONS])
    positions = share
    if channels > 1:
        # Even shares only: what rounding adds for a worker differs from form to form.
        even = 2 * WORKERS * totals[lay.T_STEPS]
        positions = max(1, share // channels // even * even)
    part[lay.P_OUT_GRAINS] = channels
    part[lay.P_POSITIONS] = positions
    part[lay.P_IN_POSITIONS] = 0
    part[lay.P_WEIGHT_USERS] = 1
    part[lay.P_TILES_USED] = problem[lay.TILES]


@njit(cache=True)
def _least_positions(totals: np.ndarray, part: np.ndarray, positions: int, users: int) -> None:
    """Fill `part` with at least `positions` and the fewest `users` of the same weights."""
    part[lay.P_POSITIONS] = positions
    part[lay.P_IN_POSITIONS] = positions if totals[lay.T_PLAIN_INPUTS] else 0
    part[lay.P_WEIGHT_USERS] = users


@njit(cache=True, inline="always")
def _search_outputs(
    problem: np.ndarray,
    vertex: np.ndarray,
    totals: np.ndarray,
    split: np.ndarray,
    part: np.ndarray,
    cost: np.ndarray,
    state: np.ndarray,
    tiles: int,
    best_cost: np.ndarray,
    best_split: np.ndarray,
) -> bool:
    """Loop over splits of output channels on `tiles` tiles; whether a better one was found."""
    found = False
    out_grains, out_serial = totals[lay.T_OUT_GRAINS], split[lay.S_OUT_SERIAL]
    positions = totals[lay.T_POSITIONS]
    one_out = vertex[lay.METHOD] == lay.SLIC or vertex[lay.METHOD] == lay.VMAC
    coarse = state[COARSE] == 1
    s_out = next_channel_split(out_grains, 0, out_serial, one_out, coarse)
    while s_out <= min(out_grains, tiles):
        split[lay.S_OUT] = s_out
        part[lay.P_OUT_GRAINS] = ceil_div(out_grains, s_out * out_serial)
        left = tiles // s_out
        # Either at least half of the weights arrive by exchange or nothing splits the field.
        part[lay.P_TILES_USED] = problem[lay.TILES]
        _least_positions(totals, part, ceil_div(positions, left), min(left, positions, 2))
        hopeful = _part_hopeful(problem, vertex, totals, split, part, best_cost, state)
        used = split[lay.S_GROUP] * part[lay.P_DEPTH] * s_out
        if not hopeful and state[ARITHMETIC] // used <= best_cost[lay.C_TOTAL]:
            _least_positions(totals, part, positions, 1)
            hopeful = _part_hopeful(problem, vertex, totals, split, part, best_cost, state)
        if hopeful:
            found |= _search_field(
                problem,
                vertex,
                totals,
                split,
                part,
                cost,
                state,
                left,
                best_cost,
                best_split,
            )
        s_out = next_channel_split(out_grains, s_out, out_serial, one_out, coarse)
    return found


@njit(cache=True, inline="always")
def _search_field(
    problem: np.ndarray,
    vertex: np.ndarray,
    totals: np.ndarray,
    split: np.ndarray,
    part: np.ndarray,
    cost: np.ndarray,
    state: np.ndarray,
    tiles: int,
    best_cost: np.ndarray,
    best_split: np.ndarray,
) -> bool:
    """Loop over splits of batch and outer field on `tiles` tiles."""
    found = False
    batch = problem[lay.BATCH]
    dims = problem[lay.DIMS]
    inner_field = problem[lay.OUT_FIELD + 1] if dims == 3 else 1
    whole_rows = vertex[lay.METHOD] == lay.OUTER_PRODUCT
    coarse = state[COARSE] == 1
    s_batch = batch if whole_rows else lay.ONE
    while s_batch <= min(batch, tiles):
        split[lay.S_BATCH] = s_batch
        f0 = problem[lay.OUT_FIELD] if whole_rows else lay.ONE
        while f0 <= min(problem[lay.OUT_FIELD], tiles // s_batch):
            split[lay.S_FIELD] = f0
            f1 = lay.ONE
            while f1 <= min(inner_field, tiles // (s_batch * f0)):
                if dims == 3:
                    split[lay.S_FIELD + 1] = f1
                found |= _search_rows(
                    problem,
                    vertex,
                    totals,
                    split,
                    part,
                    cost,
                    state,
                    tiles // (s_batch * f0 * f1),
                    best_cost,
                    best_split,
                )
                f1 = _next_coarse_split(inner_field, f1, coarse)
            f0 = _next_coarse_split(problem[lay.OUT_FIELD], f0, coarse)
        s_batch = _next_coarse_split(batch, s_batch, coarse)
    split[lay.S_FIELD + dims - 1] = 1
    return found


@njit(cache=True, inline="always")
def _search_rows(
    problem: np.ndarray,
    vertex: np.ndarray,
    totals: np.ndarray,
    split: np.ndarray,
    part: np.ndarray,
    cost: np.ndarray,
    state: np.ndarray,
    tiles: int,
    best_cost: np.ndarray,
    best_split: np.ndarray,
) -> bool:
    """Loop over splits of the innermost dimension, from fine to coarse until none can be better."""
    found = False
    last = problem[lay.DIMS] - 1
    grains, grain = totals[lay.T_LAST_GRAINS], totals[lay.T_FIELD_GRAIN]
    rows = ceil_div(problem[lay.BATCH], split[lay.S_BATCH])
    in_rows = rows
    users = split[lay.S_BATCH]
    for d in range(last):
        field = ceil_div(problem[lay.OUT_FIELD + d], split[lay.S_FIELD + d])
        kernel = ceil_div(problem[lay.KERNEL + d], split[lay.S_KERNEL + d])
        rows *= field
        in_rows *= input_range(problem, d, field, kernel)
        users *= split[lay.S_FIELD + d]
    others = users * split[lay.S_GROUP] * split[lay.S_OUT] * part[lay.P_DEPTH]
    broadcasts = 2 if problem[lay.BROADCAST_ALLOWED] and split[lay.S_OUT_SERIAL] > 1 else 1
    share = ceil_div(grains, min(tiles, grains))
    while share <= grains:
        s_last = ceil_div(grains, share)
        share = ceil_div(grains, s_last)
        in_length = input_range(problem, last, share * grain, problem[lay.KERNEL + last])
        part[lay.P_POSITIONS] = rows * share * grain
        part[lay.P_IN_POSITIONS] = in_rows * in_length
        part[lay.P_WEIGHT_USERS] = users * s_last
        part[lay.P_TILES_USED] = others * s_last
        if _part_hopeful(problem, vertex, totals, split, part, best_cost, state):
            split[lay.S_FIELD + last] = s_last
            for broadcast in range(broadcasts):
                split[lay.S_BROADCAST] = broadcast
                state[EVALUATIONS] += 1
                if (
                    conv_cost(problem, vertex, totals, split, cost)
                    and cost[lay.C_TEMP_BYTES] <= state[TEMP_LIMIT]
                    and _better(cost, best_cost, state[MINIMISE_MEMORY] == 1)
                ):
                    _copy(cost, best_cost)
                    _copy(split, best_split)
                    found = True
            split[lay.S_BROADCAST] = 0
        else:
            # Coarser splits compute more on each tile; they save at most the weights' exchange.
            part[lay.P_WEIGHT_USERS] = users
            part[lay.P_TILES_USED] = others * min(tiles, grains)
            if not _part_hopeful(problem, vertex, totals, split, part, best_cost, state):
                break
        if state[COARSE]:
            break
        share = ceil_div(grains, s_last - 1) if s_last > 1 else grains + 1
    return found
