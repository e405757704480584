"""Exact branch and bound for the cheapest partition of a convolution, as compiled kernels.

`search_vertex` finds the minimum of `conv_cost` for one vertex type.  A split is looked at only if
it is the smallest that gives its share (poplibs ``lib/popsolver/Model.cpp``,
ceildivConstrainDivisor), and skipped with all that it contains where a floor of `bounds` exceeds
the best cost so far.
"""

import numpy as np

from ipusim.compiler.convolution.bounds import (
    bytes_floor,
    cycles_floor,
    least_bytes,
    serial_floor,
    summing_floor,
)
from ipusim.compiler.convolution.cost import conv_cost, fill_kernel, input_range
from ipusim.compiler.convolution.record import EVERY, NOTHING, ONE
from ipusim.compiler.convolution.totals import fill_copies, fill_grains
from ipusim.compiler.eras import ERA_3_3
from ipusim.compiler.vertices.conv import OUTER_PRODUCT, SLIC, VMAC, WORKERS
from ipusim.kernel_cache import njit


@njit(cache=True)
def next_split(size: int, split: int, coarse: bool) -> int:
    """Smallest larger split that changes ceil(size / split); size + 1 when there is none.

    `coarse` leaves out splits that neither divide `size` nor are powers of two.
    """
    while True:
        share = -(-size // split)
        if share <= 1:
            return size + 1
        split = -(-size // (share - 1))
        if not coarse or size % split == 0 or split & (split - 1) == 0:
            return split


@njit(cache=True)
def next_divisor(number: int, divisor: int) -> int:
    """Smallest divisor of a number above `divisor`; number + 1 when there is none."""
    divisor += 1
    while divisor * divisor <= number:
        if number % divisor == 0:
            return divisor
        divisor += 1
    # Above the root, the cofactor of a divisor is found sooner than the divisor.
    left = number // divisor
    while left > 0:
        if number % left == 0:
            return number // left
        left -= 1
    return number + 1


@njit(cache=True)
def next_serial_split(channels: int, grains: int, split: int, era: int) -> int:
    """Next number of serial parts of channels, which are computed one after the other.

    Until SDK 3.0 parts were equal, since then the last may be smaller (poplibs
    ``lib/poplin/ConvModel.cpp``, constructModel, tags sdk/poplar/2.5.1 and 3.0.0). Start from 0;
    more than `grains` when there is none.
    """
    if era < ERA_3_3:
        split = next_divisor(channels, split)
        return split if split <= channels else grains + 1
    return 1 if split == 0 else next_split(grains, split, EVERY)


@njit(cache=True)
def next_channel_split(grains: int, split: int, serial: int, coarse: bool) -> int:
    """Next parallel split of channels that are also split into `serial` parts.

    Start from 0; more than `grains` when there is none.
    """
    total = split * serial
    while total < grains:
        total = 1 if total == 0 else next_split(grains, total, EVERY)
        split = total // serial
        if split * serial == total and (
            not coarse or grains % split == 0 or split & (split - 1) == 0
        ):
            return split
    return grains + 1


@njit(cache=True)
def _first_channel_split(grains: int, serial: int, whole: bool, coarse: bool) -> int:
    """First split for `next_channel_split`; with `whole` the one that leaves a tile one grain."""
    if not whole:
        return next_channel_split(grains, NOTHING, serial, coarse)
    return grains // serial if grains % serial == 0 else grains + 1


@njit(cache=True, inline="always")
def search_vertex(problem: np.void, vertex: np.void, work: np.void, serial_splits: bool) -> None:
    """Search the partitions of a vertex type for one that is better than what `work` holds.

    Without `serial_splits` no channels are computed in parts one after the other; a coarse search
    looks only at splits that divide evenly or are powers of two.
    """
    split, totals = work.split, work.totals
    prunes = work.pruned and not work.minimise_memory
    if not fill_grains(problem, vertex, work):
        return
    # Copies and splits only add to the arithmetic.
    if prunes and totals.arithmetic // problem.tiles > work.best_cycles:
        return
    fill_copies(problem, vertex, work)
    if work.pruned and least_bytes(problem, vertex, work, serial_splits) > work.temp_limit:
        return
    for of_inputs in range(2):
        # In parts of the output channels, or not serial; then in parts of the input channels.
        split.in_serial = split.out_serial = 1
        first, last, channels, grains = 1, 1, problem.view_out_chans, totals.out_grains
        if serial_splits:
            first, last = 2, grains
        if of_inputs:
            first, channels, grains = 2, problem.view_in_chans, totals.in_grains
            last = grains if serial_splits and problem.in_serial_allowed else 1
        serial = next_serial_split(channels, grains, first - 1, problem.era)
        while serial <= last:
            if of_inputs:
                split.in_serial = serial
            else:
                split.out_serial = serial
            # More serial parts cost more.
            floor = serial_floor(problem, work)
            if prunes and floor > work.best_cycles:
                break
            _search_groups(problem, vertex, work, floor)
            serial = next_serial_split(channels, grains, serial, problem.era)


@njit(cache=True)
def _may_improve(problem: np.void, vertex: np.void, work: np.void) -> bool:
    """Whether the split, completed so that a tile gets at least `work.part`, may be the best."""
    if not work.pruned:
        return True
    # Bytes first: they end most splits of operands that have to be computed in serial parts.
    least_bytes = bytes_floor(problem, vertex, work)
    if work.minimise_memory:
        return least_bytes <= min(work.best_bytes, work.temp_limit)
    if least_bytes > work.temp_limit:
        return False
    return cycles_floor(problem, vertex, work) <= work.best_cycles


@njit(cache=True)
def _may_leave(
    problem: np.void, vertex: np.void, work: np.void, positions: int, users: int
) -> bool:
    """Whether the split may be the best if a tile gets at least so many positions.

    `users` is the least number of tiles that use the same weights.
    """
    part = work.part
    part.positions, part.weight_users, part.tiles_used = positions, users, problem.tiles
    part.in_positions = positions * work.totals.plain_inputs
    part.columns = positions // problem.dims[0].out
    return _may_improve(problem, vertex, work)


@njit(cache=True, inline="always")
def _evaluate(problem: np.void, vertex: np.void, work: np.void) -> None:
    """Evaluate a partition; keep it if strictly better, bytes first where memory is minimised."""
    work.evaluations += 1
    cost = work.cost
    if not conv_cost(problem, vertex, work) or cost.temp_bytes > work.temp_limit:
        return
    fewer_cycles = cost.total < work.best_cycles
    fewer_bytes = cost.temp_bytes < work.best_bytes
    if work.minimise_memory:
        if not fewer_bytes and not (cost.temp_bytes == work.best_bytes and fewer_cycles):
            return
    elif not fewer_cycles and not (cost.total == work.best_cycles and fewer_bytes):
        return
    work.best_cycles, work.best_bytes = cost.total, cost.temp_bytes
    work.best_problem, work.best_vertex, work.best = work.problem, work.vertex, work.split


@njit(cache=True, inline="always")
def _search_groups(problem: np.void, vertex: np.void, work: np.void, floor: int) -> None:
    """Loop over splits of groups, kernel and input channels; `floor` is `serial_floor`."""
    totals, split, part, tiles = work.totals, work.split, work.part, problem.tiles
    outer, middle = problem.dims[0].kernel, problem.dims[1].kernel
    in_grains = totals.in_grains
    out_part = -(-totals.out_grains // split.out_serial)
    one_in = vertex.method == SLIC or vertex.method == OUTER_PRODUCT
    prunes = work.pruned and not work.minimise_memory
    split.group = 1
    while split.group <= min(totals.group_grains, tiles):
        part.group_grains = -(-totals.group_grains // split.group)
        kernels = split.dims[0]
        kernels.kernel = 1
        while kernels.kernel <= min(outer, tiles // split.group):
            inner = split.dims[1]
            inner.kernel = 1
            while inner.kernel <= min(middle, tiles // (split.group * kernels.kernel)):
                fill_kernel(problem, vertex, work)
                depth = kernels.kernel * inner.kernel
                left = tiles // (split.group * depth)
                s_in = _first_channel_split(in_grains, split.in_serial, one_in, work.coarse)
                while s_in <= min(in_grains, left):
                    split.in_chans = s_in
                    part.in_grains = -(-in_grains // (s_in * split.in_serial))
                    part.depth = depth * s_in
                    split.out_chans = 1
                    _least_outputs(problem, work, out_part, left // s_in)
                    # More partials cost more to sum.
                    if prunes and floor + summing_floor(problem, vertex, work) > work.best_cycles:
                        break
                    if _may_improve(problem, vertex, work):
                        _search_outputs(problem, vertex, work, left // s_in)
                    s_in = next_channel_split(in_grains, s_in, split.in_serial, work.coarse)
                inner.kernel = next_split(middle, inner.kernel, EVERY)
            kernels.kernel = next_split(outer, kernels.kernel, EVERY)
        split.group = next_split(totals.group_grains, split.group, work.coarse)


@njit(cache=True, inline="always")
def _least_outputs(problem: np.void, work: np.void, out_grains: int, tiles: int) -> None:
    """Fill the part with the fewest outputs that a tile can get: a share of all on `tiles` tiles.

    Of the forms of that share, few channels with many positions are the cheapest.
    """
    totals, part = work.totals, work.part
    share = -(-out_grains * totals.positions // tiles)
    channels = -(-share // totals.positions)
    part.out_grains, part.positions = channels, share
    if channels > 1:
        # Even shares only: what rounding adds for a worker differs from form to form.
        even = 2 * WORKERS * totals.steps
        part.positions = max(1, share // channels // even * even)
    part.in_positions = part.columns = 0
    part.weight_users, part.tiles_used = 1, problem.tiles


@njit(cache=True, inline="always")
def _search_outputs(problem: np.void, vertex: np.void, work: np.void, tiles: int) -> None:
    """Loop over splits of output channels on `tiles` tiles."""
    totals, split, part = work.totals, work.split, work.part
    out_grains, positions = totals.out_grains, totals.positions
    one_out = vertex.method == SLIC or vertex.method == VMAC
    s_out = _first_channel_split(out_grains, split.out_serial, one_out, work.coarse)
    while s_out <= min(out_grains, tiles):
        split.out_chans = s_out
        part.out_grains = -(-out_grains // (s_out * split.out_serial))
        left = tiles // s_out
        # Either at least half of the weights arrive by exchange or nothing splits the field.
        users = min(left, positions, 2)
        hopeful = _may_leave(problem, vertex, work, -(-positions // left), users)
        used = split.group * part.depth * s_out
        if not hopeful and totals.arithmetic // used <= work.best_cycles:
            hopeful = _may_leave(problem, vertex, work, positions, ONE)
        if hopeful:
            _search_field(problem, vertex, work, left)
        s_out = next_channel_split(out_grains, s_out, split.out_serial, work.coarse)


@njit(cache=True, inline="always")
def _search_field(problem: np.void, vertex: np.void, work: np.void, tiles: int) -> None:
    """Loop over splits of batch and outer field on `tiles` tiles."""
    split, batch = work.split, problem.batch
    outer, middle = problem.dims[0].out, problem.dims[1].out
    rows, planes = split.dims[0], split.dims[1]
    item = work.totals.positions // batch
    whole_rows = vertex.method == OUTER_PRODUCT
    split.batch = batch if whole_rows else 1
    while split.batch <= min(batch, tiles):
        for_item = tiles // split.batch
        positions = -(-batch // split.batch) * -(-item // for_item)
        if _may_leave(problem, vertex, work, positions, split.batch):
            rows.field = outer if whole_rows else 1
            while rows.field <= min(outer, for_item):
                for_rows = for_item // rows.field
                planes.field = 1
                while planes.field <= min(middle, for_rows):
                    _search_rows(problem, vertex, work, for_rows // planes.field)
                    planes.field = next_split(middle, planes.field, work.coarse)
                rows.field = next_split(outer, rows.field, work.coarse)
        split.batch = next_split(batch, split.batch, work.coarse)
    split.dims[2].field = 1


@njit(cache=True)
def _search_rows(problem: np.void, vertex: np.void, work: np.void, tiles: int) -> None:
    """Loop over splits of the innermost dimension, from fine to coarse until none can be better."""
    totals, split, part, last = work.totals, work.split, work.part, problem.dims[2]
    grains, grain = totals.last_grains, totals.field_grain
    rows = in_rows = columns = -(-problem.batch // split.batch)
    users = split.batch
    for d in range(2):
        dim, parts = problem.dims[d], split.dims[d]
        field = -(-dim.out // parts.field)
        rows *= field
        if d > 0:
            columns *= field
        in_rows *= input_range(dim, problem.era, field, -(-dim.kernel // parts.kernel))
        users *= parts.field
    others = users * split.group * split.out_chans * part.depth
    broadcasts = 2 if problem.broadcast_allowed and split.out_serial > 1 else 1
    share = -(-grains // min(tiles, grains))
    while share <= grains:
        s_last = -(-grains // share)
        share = -(-grains // s_last)
        length = share * grain
        part.positions, part.columns = rows * length, columns * length
        part.in_positions = in_rows * input_range(last, problem.era, length, last.kernel)
        # Coarser splits compute more on each tile; they save at most the weights' exchange.
        part.weight_users, part.tiles_used = users, others * min(tiles, grains)
        if not _may_improve(problem, vertex, work):
            break
        part.weight_users, part.tiles_used = users * s_last, others * s_last
        if _may_improve(problem, vertex, work):
            split.dims[2].field = s_last
            for broadcast in range(broadcasts):
                split.broadcast = broadcast
                _evaluate(problem, vertex, work)
            split.broadcast = 0
        if work.coarse:
            break
        share = -(-grains // (s_last - 1)) if s_last > 1 else grains + 1
