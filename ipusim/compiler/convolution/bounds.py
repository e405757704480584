"""Lower bounds of a convolution's cost, as compiled kernels: what the search may skip.

Each bound restates terms of `conv_cost` for the least work that a partly chosen split leaves to one
tile.
"""

import numpy as np

from ipusim.compiler.convolution.cost import slice_cycles, tile_cycles
from ipusim.compiler.convolution.record import NOTHING
from ipusim.compiler.convolution.reduction import reduction_floor
from ipusim.compiler.eras import ERA_1_0
from ipusim.compiler.vertices.conv import SLIC, VMAC, WORKERS
from ipusim.kernel_cache import njit


@njit(cache=True)
def serial_floor(problem: np.void, work: np.void) -> int:
    """Least cycles of arithmetic on all tiles, copies, slices; grows with each serial split."""
    split, totals = work.split, work.totals
    serial = split.in_serial * split.out_serial
    copies = totals.copy_floor // problem.tiles
    if split.out_serial == 1 or not problem.broadcast_allowed:
        copies *= serial
    floor = totals.arithmetic // problem.tiles + copies
    if serial == 1:
        return floor
    # Weights are sliced, and outputs are written or inputs are sliced too.
    return floor + 2 * serial * slice_cycles(problem, NOTHING, problem.in_bytes, serial)


@njit(cache=True, inline="always")
def summing_floor(problem: np.void, vertex: np.void, work: np.void) -> int:
    """Cycles to exchange and sum the part's partials, beside `serial_floor`; grows with them."""
    split, part, result_bytes = work.split, work.part, work.totals.result_bytes
    partials = part.positions * part.out_grains * vertex.out_chans_per_group
    partials *= part.group_grains * vertex.conv_groups_per_group
    cycles = partials * result_bytes // problem.exchange_bytes
    if part.depth > 1:
        # As `reduction_floor` has it, of any depth.
        cycles += 153 + partials * result_bytes // 8
    return split.in_serial * split.out_serial * cycles


@njit(cache=True, inline="always")
def tile_cycles_floor(problem: np.void, vertex: np.void, work: np.void) -> int:
    """Cycles that no tile with at least the part's positions can beat, however they form rows.

    One long row is the cheapest form.  More positions can be faster than fewer only up to the
    run length at which a worker enters its fast loop: below that a single position is the floor.
    """
    part, totals = work.part, work.totals
    positions = part.positions
    part.rows, part.batch = 1, problem.batch
    part.row_length = -(-positions // totals.steps)
    if totals.one_by_one:
        if part.row_length < 3 * WORKERS:
            part.row_length = 1
    elif vertex.method == SLIC:
        if part.row_length < 6 * WORKERS:
            part.row_length = 1
    elif vertex.method == VMAC:
        # Shares that differ between workers are never cheaper than the equal part of them.
        part.positions = max(1, positions // WORKERS * WORKERS)
        part.batch = min(problem.batch, part.positions)
    cycles = tile_cycles(problem, vertex, work)
    part.positions = positions
    return cycles


@njit(cache=True, inline="always")
def cycles_floor(problem: np.void, vertex: np.void, work: np.void) -> int:
    """Cycles that no completion of the split can beat if a tile gets at least the part.

    ``part.tiles_used`` is the largest possible number, all other fields of the part the smallest.
    Where the first terms alone exceed the best cost, the others are not added.
    """
    totals, split, part = work.totals, work.split, work.part
    in_bytes, exchange = problem.in_bytes, problem.exchange_bytes
    serial = split.in_serial * split.out_serial
    loop = tile_cycles_floor(problem, vertex, work)
    if loop * serial > work.best_cycles:
        return loop * serial
    groups = part.group_grains * vertex.conv_groups_per_group
    in_chans = part.in_grains * vertex.in_chans_per_group * groups
    out_chans = part.out_grains * vertex.out_chans_per_group
    weights = part.kernel_elements * in_chans * out_chans
    moved = part.kernel_zeros * in_chans * out_chans
    inputs = part.in_positions * in_chans
    outputs = part.positions * groups * out_chans

    loop += reduction_floor(problem, work, outputs)
    if loop * serial > work.best_cycles:
        return loop * serial
    if problem.era == ERA_1_0 and not problem.executing:
        moved += moved * in_chans // problem.tiles_per_bus
    if part.weight_users > 1:
        moved += weights - weights // part.weight_users
    moved = moved * in_bytes + outputs * totals.result_bytes
    fetched = 0
    if inputs > 0 and split.out_chans > 1:
        fetched = (inputs - inputs // split.out_chans) * in_bytes
        if split.out_chans % problem.tiles_per_bus == 0:
            fetched //= problem.tiles_per_bus
    copies = totals.copy_floor // part.tiles_used
    if serial == 1:
        return loop + (moved + fetched) // exchange + copies
    held = -(-totals.weights // part.tiles_used)
    loop += slice_cycles(problem, held, in_bytes, serial)
    held = -(-totals.inputs // part.tiles_used)
    loop += slice_cycles(problem, held, in_bytes, split.in_serial)
    written = outputs // part.depth
    loop += slice_cycles(problem, written, totals.result_bytes, split.out_serial)
    if problem.broadcast_allowed and split.out_serial > 1:
        return (loop + moved // exchange) * serial + fetched // exchange + copies
    return (loop + (moved + fetched) // exchange + copies) * serial


@njit(cache=True, inline="always")
def bytes_floor(problem: np.void, vertex: np.void, work: np.void) -> int:
    """Temporary bytes of a tile that gets at least the part: to compute with and to rearrange.

    ``part.tiles_used`` is the most possible; ``part.columns`` is 0 until the field is split.
    """
    totals, split, part = work.totals, work.split, work.part
    serial, in_bytes = split.in_serial * split.out_serial, problem.in_bytes
    groups = part.group_grains * vertex.conv_groups_per_group
    in_chans = part.in_grains * vertex.in_chans_per_group
    out_chans = part.out_grains * vertex.out_chans_per_group
    inputs, outputs = part.in_positions, part.positions * groups * out_chans
    if vertex.method != SLIC:
        inputs += part.kernel_padding * problem.dims[0].kernel_dilation * part.columns
    operands = ((part.kernel_elements + part.kernel_zeros) * out_chans + inputs) * in_chans
    computing = groups * operands * in_bytes + outputs * vertex.partial_bytes
    arranged = summed = 0
    if serial > 1 and problem.fully_connected and not problem.joint:
        arranged = totals.weights // part.tiles_used * in_bytes
    if split.in_serial > 1:
        summed = outputs // part.depth * totals.result_bytes
    # Shares are rounded up before they are subtracted.
    copied = (2 * totals.most_copied // part.tiles_used - 1) * problem.out_bytes
    most = max(computing, copied, arranged)
    if problem.broadcast_allowed and split.out_serial > 1:
        # Inputs may be copied once for all serial parts: they count once, not twice, but are kept.
        copied = 2 * totals.most_copied - totals.in_copied
        copied = (copied // part.tiles_used - 1) * problem.out_bytes
        kept = totals.copy_in // part.tiles_used * problem.out_bytes
        most = min(most, max(kept + computing, copied, arranged))
    return arranged + summed + most


@njit(cache=True)
def least_bytes(problem: np.void, vertex: np.void, work: np.void, serial_splits: bool) -> int:
    """Temporary bytes of a tile at the least, however the work is split: its share of the copies.

    With `serial_splits` channels are computed in parts, which may share inputs that are copied
    once.
    """
    part, split = work.part, work.split
    part.group_grains = part.positions = part.in_positions = part.columns = 0
    part.depth, part.tiles_used = 1, problem.tiles
    split.in_serial, split.out_serial = 1, 1 + serial_splits
    return bytes_floor(problem, vertex, work)
