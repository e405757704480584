"""The planner's objective: what one partition of a convolution costs, as compiled kernels.

Sources: poplibs ``lib/poplin/ConvModel.cpp`` (addEstimates and what it calls), tags 2.0.0 and
2.4.0, and ``lib/poplin/ConvPlan.cpp`` of tag 1.0.136 for era 0.
"""

import numpy as np

from ipusim.compiler.convolution.reduction import cast_cycles, fill_reduction
from ipusim.compiler.eras import ERA_1_0, ERA_2_0, ERA_2_4
from ipusim.compiler.vertices.amp import amp_1x1_cycles, amp_nx1_cycles
from ipusim.compiler.vertices.conv import AMP, HMAC, SLIC, VMAC
from ipusim.compiler.vertices.mac import hmac_cycles, outer_product_cycles, slic_cycles, vmac_cycles
from ipusim.kernel_cache import njit


@njit(cache=True)
def slice_cycles(problem: np.void, elements: int, element_bytes: int, splits: int) -> int:
    """Dynamic slice or update of one of `splits` serial parts (getDynamicSlice1dEstimate)."""
    if splits == 1:
        return 0
    size = -(-elements // splits)
    if problem.era == ERA_1_0 and not problem.executing:
        # Tag 1.0.136 forgot that six workers share the elements.
        return (30 + size * element_bytes // 2) * 6
    return 25 + (41 + 27 + -(-size // 6) // (8 // element_bytes)) * 6


@njit(cache=True)
def input_range(dim: np.void, era: int, out_size: int, kernel: int) -> int:
    """Input extent needed for `out_size` outputs (getMaxInputRangeSize)."""
    if dim.transformed:
        return out_size
    if out_size == dim.out and kernel == dim.kernel:
        return dim.whole_in
    reach = kernel
    if era >= ERA_2_4:
        reach = 1 + (kernel - 1) * dim.kernel_dilation
    dilated = (out_size - 1) * dim.stride + reach
    return min((dilated - 1) // dim.in_dilation + 1, dim.whole_in)


@njit(cache=True)
def fill_kernel(problem: np.void, vertex: np.void, work: np.void) -> None:
    """Fill the kernel's share of a tile, with the zeros that the tile adds to it.

    Padding is rows (AMP n x 1) or columns (SLIC) that bring each part of a split dimension to a
    multiple of what the vertex takes at once.
    """
    part, dims = work.part, work.split.dims
    whole, split = problem.dims[0].kernel, dims[0].kernel
    outer = -(-whole // split)
    middle = -(-problem.dims[1].kernel // dims[1].kernel)
    columns = problem.dims[2].kernel
    part.kernel_outer = outer
    part.kernel_elements = outer * middle * columns
    multiple, row = vertex.filter_height, middle * columns
    if vertex.method == SLIC:
        multiple, row = 4, outer * middle
        whole, split = columns, 1
    missing = multiple - max(whole // split % multiple, -(-whole // split) % multiple)
    # Tag 1.0.136 adds a whole filter height where nothing is missing.
    if multiple == 1 or problem.era != ERA_1_0 or problem.executing:
        missing %= multiple
    part.kernel_padding = missing
    part.kernel_zeros = missing * row


@njit(cache=True, inline="always")
def fill_part(problem: np.void, vertex: np.void, work: np.void) -> None:
    """Fill the largest share of one tile for the partition at hand.

    Every input lies on one of the tiles that use it (Convolution.cpp, mapActivations).  The planner
    forgets that parts overlap at their borders and that parts of the kernel share inputs.
    """
    totals, split, part = work.totals, work.split, work.part
    fill_kernel(problem, vertex, work)
    part.group_grains = -(-totals.group_grains // split.group)
    part.in_grains = -(-totals.in_grains // (split.in_chans * split.in_serial))
    part.out_grains = -(-totals.out_grains // (split.out_chans * split.out_serial))
    batch = -(-problem.batch // split.batch)
    rows = positions = in_positions = own_positions = slic_positions = columns = batch
    length, users, depth = 1, split.batch, split.in_chans
    for d in range(3):
        dim, parts = problem.dims[d], split.dims[d]
        size, pad = dim.out, 0
        if d == 2:
            size, pad = totals.last_grains, part.kernel_padding * dim.kernel_dilation
        field = -(-size // parts.field)
        if d == 2:
            field *= totals.field_grain
        rows *= length
        length = -(-field // totals.step[d])
        if d > 0:
            columns *= field
        spread = (dim.in_dilation - 1) * (field + pad - 1)
        if dim.transformed:
            spread = 0
        slic_positions *= field + dim.padding + pad + spread
        seen = input_range(dim, problem.era, field, -(-dim.kernel // parts.kernel))
        positions *= field
        in_positions *= seen
        if not dim.transformed:
            seen = min(seen, -(-dim.whole_in // (parts.field * parts.kernel)))
        own_positions *= seen
        users *= parts.field
        depth *= parts.kernel
    part.batch, part.rows, part.row_length = batch, rows, length
    part.positions, part.in_positions = positions, in_positions
    part.own_positions, part.slic_positions, part.columns = own_positions, slic_positions, columns
    part.weight_users, part.depth = users, depth
    part.tiles_used = split.group * split.out_chans * depth * users


@njit(cache=True)
def tile_cycles(problem: np.void, vertex: np.void, work: np.void) -> int:
    """Compute cycles of a tile that gets `work.part`, -1 where the vertex cannot do the work."""
    part, method = work.part, vertex.method
    if method == AMP:
        if work.totals.one_by_one and part.kernel_elements == 1:
            return amp_1x1_cycles(vertex, part)
        return amp_nx1_cycles(vertex, part)
    if method == HMAC:
        return hmac_cycles(vertex, part, problem.one_by_one)
    kernel_last = problem.dims[2].kernel
    if method == VMAC:
        return vmac_cycles(vertex, part, kernel_last) if part.out_grains == 1 else -1
    if part.in_grains != 1:
        return -1
    if method == SLIC:
        return slic_cycles(vertex, part, kernel_last) if part.out_grains == 1 else -1
    if part.rows != 1 or part.kernel_elements != 1:
        return -1
    return outer_product_cycles(vertex, part)


@njit(cache=True)
def conv_cost(problem: np.void, vertex: np.void, work: np.void) -> bool:
    """Fill the cost of one partition, and its share of a tile; False where the vertex cannot do it.

    The innermost kernel dimension is never split. Where `problem` is executing, some terms are what
    runs rather than what the planner believes: the zero padding of era 0, and the inputs that
    arrive.
    """
    totals, split, part, cost = work.totals, work.split, work.part, work.cost
    fill_part(problem, vertex, work)
    cost.calc = tile_cycles(problem, vertex, work)
    if cost.calc < 0:
        return False
    in_bytes, serial = problem.in_bytes, split.in_serial * split.out_serial
    groups = part.group_grains * vertex.conv_groups_per_group
    in_chans = part.in_grains * vertex.in_chans_per_group
    out_chans = part.out_grains * vertex.out_chans_per_group
    used = part.tiles_used

    # Exchange: what a tile does not hold already; neighbours on one bus that want the same inputs
    # receive them together (ExchangeEstimator.hpp).
    exchange = problem.exchange_bytes
    in_exchange = exchange
    if split.out_chans % problem.tiles_per_bus == 0:
        in_exchange *= problem.tiles_per_bus
    inputs = part.in_positions * in_chans * groups
    weights = part.kernel_elements * in_chans * out_chans * groups
    outputs = part.positions * out_chans * groups
    own = inputs // split.out_chans
    if problem.executing:
        own = part.own_positions * in_chans * groups // split.out_chans
        if in_exchange > exchange:
            # Each of two neighbours holds a share of its own; the other has to receive it alone, at
            # half of the rate of the bus. That takes as long as if neither held any.
            own = 0
    cost.input = -(-(inputs - own) * in_bytes // in_exchange)
    cost.weights = -(-(weights - weights // part.weight_users) * in_bytes // exchange)
    reduce_bytes = fill_reduction(problem, vertex, work, outputs)
    copied, in_copied = _fill_copies(problem, work)

    # Zeros made on the tile: short filter rows (AMP n x 1), window and field padding (SLIC).
    zeros = part.kernel_zeros * in_chans * out_chans * groups
    input_zeros = padding = 0
    if vertex.method == SLIC:
        input_zeros = (part.slic_positions - part.positions) * in_chans * groups
    elif vertex.method == AMP and vertex.filter_height > 1:
        rows = part.kernel_padding
        if problem.era == ERA_1_0 and not problem.executing:
            # Tag 1.0.136 multiplies padding elements, not rows, by the size of an input row.
            rows = zeros
        row = part.columns * in_chans * groups
        input_zeros = rows * problem.dims[0].kernel_dilation * row
        if problem.executing:
            # The padding of the field too is made there (ConvVertices.cpp,
            # truncateDilateAndPadInput), which no bound on memory counts: of a split field one end.
            padding = -(-problem.dims[0].padding // min(2, split.dims[0].field)) * row
    cost.tile_transform = -(-zeros * in_bytes // exchange)
    cost.tile_transform += -(-(input_zeros + padding) * in_bytes // in_exchange)

    arranged, summed = _fill_serial(problem, work)
    # Inputs that all serial parts use can be fetched once, at the price of keeping them.
    held = inputs * in_bytes
    fetched_once = 0
    cost.fetch = 0
    if split.broadcast:
        cost.fetch = cost.input
        cost.before += cost.copy_in + cost.move_in + cost.input
        fetched_once = in_copied + held
        cost.copy_in = cost.move_in = cost.input = 0
        held = 0
        copied = max(copied - in_copied, 0)

    partials = outputs * vertex.partial_bytes
    cost.partial_bytes = partials
    if vertex.method == SLIC:
        partials += -(-partials // part.group_grains) + 200
    computing = (zeros + input_zeros + weights) * in_bytes + held + partials
    cost.temp_bytes = fetched_once + arranged + summed
    cost.temp_bytes += max(2 * copied, computing, reduce_bytes, arranged)

    loop = cost.slice + cost.copy_in + cost.copy_weights + cost.copy_out
    loop += cost.move_in + cost.move_weights + cost.move_out + cost.input + cost.weights
    loop += cost.reduce_first + cost.reduce_rest + cost.tile_transform + cost.calc
    loop += cost.reduce + cost.update + cost.add
    cost.total = loop * serial + cost.before + cost.after
    cost.serial, cost.depth, cost.tiles_used = serial, part.depth, used
    cost.input_bytes, cost.weight_bytes = inputs * in_bytes, weights * in_bytes
    cost.one_by_one = totals.one_by_one and part.kernel_elements == 1
    return True


@njit(cache=True, inline="always")
def _fill_copies(problem: np.void, work: np.void) -> tuple[int, int]:
    """Fill the terms of rearrangements; return the bytes of the largest, and of the input's."""
    totals, cost, used = work.totals, work.cost, work.part.tiles_used
    exchange, element = problem.exchange_bytes, problem.out_bytes
    copy_in, copy_weights = totals.copy_in, totals.copy_weights
    if problem.executing:
        # Operands are sliced before they are rearranged (Convolution.cpp, convolutionImpl).
        copy_in = -(-copy_in // work.split.in_serial)
        copy_weights = -(-copy_weights // (work.split.in_serial * work.split.out_serial))
    if problem.era >= ERA_2_4:
        in_tile = -(-copy_in * element // used)
        w_tile = -(-copy_weights * element // used)
    else:
        # Earlier planners copy both at once.
        in_tile, w_tile = 0, -(-(copy_in + copy_weights) // used) * element
        if copy_in > 0:
            in_tile, w_tile = w_tile, in_tile
    cost.move_in = -(-in_tile // exchange)
    cost.copy_in = -(-in_tile * 5 // totals.copy_rate)
    cost.move_weights = -(-w_tile // exchange)
    regrouped = -(-totals.regroup_weights // used) * element
    cost.copy_weights = -(-w_tile * 5 // totals.copy_rate)
    cost.copy_weights += -(-regrouped * 5 // totals.regroup_rate)
    out_tile = -(-totals.copy_out // used) * element
    cost.move_out = -(-out_tile // exchange) * totals.move_out
    cost.copy_out = -(-out_tile * 5 // totals.copy_out_rate)
    return max(in_tile, w_tile, out_tile, regrouped), in_tile


@njit(cache=True, inline="always")
def _fill_serial(problem: np.void, work: np.void) -> tuple[int, int]:
    """Fill the terms of serial splits; return bytes of weights arranged for slices and of sums."""
    totals, split, cost, used = work.totals, work.split, work.cost, work.part.tiles_used
    in_bytes, result_bytes, outputs = problem.in_bytes, totals.result_bytes, cost.outputs
    cost.slice = cost.update = cost.add = cost.before = cost.after = cost.arrange = 0
    arranged = summed = 0
    serial = split.in_serial * split.out_serial
    if serial > 1:
        held = -(-totals.weights // used)
        cost.slice = slice_cycles(problem, held, in_bytes, serial)
        cost.update = slice_cycles(problem, outputs, result_bytes, split.out_serial)
        if problem.fully_connected and not problem.joint:
            arranged = held * in_bytes
            cost.before = cost.arrange = -(-arranged // problem.exchange_bytes) + held
    if split.in_serial > 1:
        held = -(-totals.inputs // used)
        cost.slice += slice_cycles(problem, held, in_bytes, split.in_serial)
        vector = 8 // result_bytes
        cost.add = (58 + 3 * -(-outputs // (6 * vector))) * 6 + 11
        summed = outputs * result_bytes
        if problem.era == ERA_2_0:
            cost.before += -(-outputs // (6 * vector)) * 6
        cost.after = cast_cycles(outputs, result_bytes, problem.out_bytes)
    return arranged, summed
