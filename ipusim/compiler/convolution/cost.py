"""The planner's objective: what one partition of a convolution costs, as compiled kernels.

The vectors are those of `record`.

References
----------
poplibs ``lib/poplin/ConvModel.cpp`` (addEstimates and what it calls), tags 2.0.0 and 2.4.0, and
``lib/poplin/ConvPlan.cpp`` of tag 1.0.136 for era 0.
"""

from __future__ import annotations

import numpy as np

from ipusim.compiler.convolution import record as lay
from ipusim.compiler.convolution.reduction import cast_cycles, fill_reduction
from ipusim.compiler.convolution.tile_cycles import tile_cycles
from ipusim.compiler.vertices.conv import ERA_1_0, ERA_2_0, ERA_2_4, ceil_div
from ipusim.kernel_cache import njit


@njit(cache=True)
def slice_cycles(elements: int, element_bytes: int, splits: int, era: int, executing: bool) -> int:
    """Dynamic slice or update of one of `splits` serial parts (getDynamicSlice1dEstimate)."""
    if splits == 1:
        return 0
    size = ceil_div(elements, splits)
    if era == ERA_1_0 and not executing:
        # Tag 1.0.136 forgot that six workers share the elements.
        per_word = 2 if element_bytes == 2 else 1
        return (30 + 2 * size // per_word) * 6
    return 25 + (41 + 27 + ceil_div(size, 6) // (8 // element_bytes)) * 6


@njit(cache=True)
def input_range(problem: np.ndarray, dim: int, out_size: int, kernel: int) -> int:
    """Input extent needed for `out_size` outputs (getMaxInputRangeSize)."""
    if problem[lay.TRANSFORMED + dim]:
        return out_size
    whole = problem[lay.WHOLE_IN + dim]
    if out_size == problem[lay.OUT_FIELD + dim] and kernel == problem[lay.KERNEL + dim]:
        return whole
    reach = kernel
    if problem[lay.ERA] >= ERA_2_4:
        reach = 1 + (kernel - 1) * problem[lay.KERNEL_DILATION + dim]
    dilated = (out_size - 1) * problem[lay.STRIDE + dim] + reach
    return min((dilated - 1) // problem[lay.IN_DILATION + dim] + 1, whole)


@njit(cache=True)
def own_range(problem: np.ndarray, split: np.ndarray, dim: int, seen: int) -> int:
    """Part of the `seen` inputs of one dimension that lies on the tile itself.

    Every element lies on one of the tiles that use it (Convolution.cpp, mapActivations).  The
    planner forgets that parts overlap at their borders and that parts of the kernel share inputs.
    """
    if problem[lay.TRANSFORMED + dim]:
        return seen
    sharers = split[lay.S_FIELD + dim] * split[lay.S_KERNEL + dim]
    return min(seen, ceil_div(problem[lay.WHOLE_IN + dim], sharers))


@njit(cache=True)
def input_exchange_bytes(problem: np.ndarray, out_split: int) -> int:
    """Bytes a cycle into a tile, doubled where neighbours on one bus want the same inputs.

    References
    ----------
    poplibs ExchangeEstimator.hpp.
    """
    if out_split % problem[lay.TILES_PER_BUS] == 0:
        return problem[lay.TILES_PER_BUS] * problem[lay.EXCHANGE_BYTES]
    return problem[lay.EXCHANGE_BYTES]


@njit(cache=True)
def _pad_to(size: int, splits: int, multiple: int) -> int:
    """Zeros that bring each part of a split kernel dimension to a multiple."""
    return (multiple - max(size // splits % multiple, ceil_div(size, splits) % multiple)) % multiple


@njit(cache=True)
def kernel_padding(
    problem: np.ndarray, vertex: np.ndarray, totals: np.ndarray, kernel_split: int
) -> int:
    """Rows (AMP nx1) or columns (SLIC) of zeros that a tile adds to its part of the kernel."""
    if vertex[lay.METHOD] == lay.SLIC:
        return _pad_to(problem[lay.KERNEL + problem[lay.DIMS] - 1], 1, 4)
    height = totals[lay.T_FILTER_HEIGHT]
    if height == 1:
        return 0
    whole = problem[lay.KERNEL]
    if problem[lay.ERA] == ERA_1_0 and not problem[lay.EXECUTING]:
        # Tag 1.0.136 adds a whole filter height where nothing is missing.
        return height - max(whole // kernel_split % height, ceil_div(whole, kernel_split) % height)
    return _pad_to(whole, kernel_split, height)


@njit(cache=True)
def kernel_zeros(
    problem: np.ndarray, vertex: np.ndarray, padding: int, kernel_outer: int, kernel_elements: int
) -> int:
    """Kernel elements in the rows or columns of `kernel_padding`."""
    padded = kernel_outer
    if vertex[lay.METHOD] == lay.SLIC:
        padded = problem[lay.KERNEL + problem[lay.DIMS] - 1]
    return padding * (kernel_elements // padded)


@njit(cache=True)
def _fill_copies(
    problem: np.ndarray, totals: np.ndarray, used: int, cost: np.ndarray
) -> tuple[int, int]:
    """Fill the rearrangement terms; return the bytes of the largest and of the input's."""
    exchange = problem[lay.EXCHANGE_BYTES]
    element = problem[lay.OUT_BYTES]
    in_elements, w_elements = totals[lay.T_COPY_IN], totals[lay.T_COPY_WEIGHTS]
    if problem[lay.ERA] >= ERA_2_4:
        in_tile = ceil_div(in_elements * element, used)
        w_tile = ceil_div(w_elements * element, used)
    else:
        # Earlier planners copy both at once.
        both = ceil_div(in_elements + w_elements, used) * element
        in_tile, w_tile = (both, 0) if in_elements > 0 else (0, both)
    rate = totals[lay.T_COPY_RATE]
    cost[lay.C_MOVE_IN] = ceil_div(in_tile, exchange)
    cost[lay.C_COPY_IN] = ceil_div(in_tile * 5, rate)
    cost[lay.C_MOVE_WEIGHTS] = ceil_div(w_tile, exchange)
    cost[lay.C_COPY_WEIGHTS] = ceil_div(w_tile * 5, rate)
    regrouped = ceil_div(totals[lay.T_REGROUP_WEIGHTS], used) * element
    cost[lay.C_COPY_WEIGHTS] += ceil_div(regrouped * 5, totals[lay.T_REGROUP_RATE])
    out_tile = ceil_div(totals[lay.T_COPY_OUT], used) * element
    cost[lay.C_MOVE_OUT] = ceil_div(out_tile, exchange) if totals[lay.T_MOVE_OUT] else 0
    cost[lay.C_COPY_OUT] = ceil_div(out_tile * 5, totals[lay.T_COPY_OUT_RATE])
    return max(in_tile, w_tile, out_tile, regrouped), in_tile


@njit(cache=True)
def conv_cost(
    problem: np.ndarray,
    vertex: np.ndarray,
    totals: np.ndarray,
    split: np.ndarray,
    cost: np.ndarray,
) -> bool:
    """Fill `cost` for one partition; False where the vertex cannot do it.

    The innermost kernel dimension is never split.

    Notes
    -----
    With ``problem[EXECUTING]`` set, some terms are what runs rather than what the planner
    believes: the weight load of era 0 and its zero padding, and the inputs that arrive.
    """
    era = problem[lay.ERA]
    executing = problem[lay.EXECUTING] == 1
    dims = problem[lay.DIMS]
    last = dims - 1
    in_bytes = problem[lay.IN_BYTES]
    partial_bytes = vertex[lay.PARTIAL_BYTES]
    result_bytes = totals[lay.T_RESULT_BYTES]
    in_serial, out_serial = split[lay.S_IN_SERIAL], split[lay.S_OUT_SERIAL]
    serial = in_serial * out_serial

    group_grains = ceil_div(totals[lay.T_GROUP_GRAINS], split[lay.S_GROUP])
    in_grains = ceil_div(totals[lay.T_IN_GRAINS], split[lay.S_IN] * in_serial)
    out_grains = ceil_div(totals[lay.T_OUT_GRAINS], split[lay.S_OUT] * out_serial)
    groups = group_grains * vertex[lay.CONV_GROUPS_PER_GROUP]
    in_chans = in_grains * vertex[lay.IN_CHANS_PER_GROUP]
    out_chans = out_grains * vertex[lay.OUT_CHANS_PER_GROUP]
    batch = ceil_div(problem[lay.BATCH], split[lay.S_BATCH])
    kernel_outer = ceil_div(problem[lay.KERNEL], split[lay.S_KERNEL])
    pad = kernel_padding(problem, vertex, totals, split[lay.S_KERNEL])

    rows = batch
    row_length = lay.ONE
    positions = batch
    in_positions = batch
    own_positions = batch
    slic_positions = batch
    columns = batch
    kernel_elements = lay.ONE
    field_splits = lay.ONE
    kernel_splits = lay.ONE
    for d in range(dims):
        grain = totals[lay.T_FIELD_GRAIN] if d == last else 1
        grains = totals[lay.T_LAST_GRAINS] if d == last else problem[lay.OUT_FIELD + d]
        field = ceil_div(grains, split[lay.S_FIELD + d]) * grain
        kernel = ceil_div(problem[lay.KERNEL + d], split[lay.S_KERNEL + d])
        steps = ceil_div(field, totals[lay.T_STEP + d])
        padding = problem[lay.PADDING + d]
        if d == last:
            row_length = steps
            padding += pad * problem[lay.KERNEL_DILATION + d]
        else:
            rows *= steps
        if d > 0:
            columns *= field
        positions *= field
        spread = problem[lay.IN_DILATION + d] - 1
        if problem[lay.TRANSFORMED + d]:
            spread = 0
        elif spread > 0 and d == last:
            spread *= field + pad * problem[lay.KERNEL_DILATION + d] - 1
        else:
            spread *= field - 1
        slic_positions *= field + padding + spread
        seen = input_range(problem, d, field, kernel)
        in_positions *= seen
        own_positions *= own_range(problem, split, d, seen)
        kernel_elements *= kernel
        field_splits *= split[lay.S_FIELD + d]
        kernel_splits *= split[lay.S_KERNEL + d]
    depth = kernel_splits * split[lay.S_IN]
    weight_users = field_splits * split[lay.S_BATCH]
    used = split[lay.S_GROUP] * split[lay.S_OUT] * depth * weight_users

    calc = tile_cycles(
        problem,
        vertex,
        totals,
        rows,
        row_length,
        positions,
        batch,
        kernel_outer,
        kernel_elements,
        group_grains,
        in_grains,
        out_grains,
    )
    if calc < 0:
        return False

    # Exchange: what a tile does not hold already.
    exchange = problem[lay.EXCHANGE_BYTES]
    in_exchange = input_exchange_bytes(problem, split[lay.S_OUT])
    inputs = in_positions * in_chans * groups
    weights = kernel_elements * in_chans * out_chans * groups
    outputs = positions * out_chans * groups
    own = inputs
    if executing:
        own = own_positions * in_chans * groups
    cost[lay.C_INPUT] = ceil_div((inputs - own // split[lay.S_OUT]) * in_bytes, in_exchange)
    cost[lay.C_WEIGHTS] = ceil_div((weights - weights // weight_users) * in_bytes, exchange)
    reduce_bytes = fill_reduction(problem, result_bytes, outputs, depth, in_serial, cost)
    final_outputs = cost[lay.C_OUTPUTS]
    transform_bytes, in_transform_bytes = _fill_copies(problem, totals, used, cost)

    # Zeros made on the tile: short filter rows (AMP n x 1), window and field padding (SLIC).
    zeros = kernel_zeros(problem, vertex, pad, kernel_outer, kernel_elements)
    zeros *= in_chans * out_chans * groups
    input_zeros = 0
    if vertex[lay.METHOD] == lay.SLIC:
        input_zeros = (slic_positions - positions) * in_chans * groups
    elif pad > 0:
        # Tag 1.0.136 multiplies padding elements, not rows, by the size of an input row.
        padded_rows = zeros if era == ERA_1_0 and not executing else pad
        input_zeros = padded_rows * problem[lay.KERNEL_DILATION] * columns * in_chans * groups
    cost[lay.C_TILE_TRANSFORM] = ceil_div(zeros * in_bytes, exchange) + ceil_div(
        input_zeros * in_bytes, in_exchange
    )

    # Serial splits: slice operands, write outputs back, accumulate.
    cost[lay.C_SLICE] = 0
    cost[lay.C_UPDATE] = 0
    cost[lay.C_ADD] = 0
    cost[lay.C_BEFORE] = 0
    cost[lay.C_AFTER] = 0
    add_bytes = 0
    rearrange_bytes = 0
    if serial > 1:
        weights_held = ceil_div(totals[lay.T_WEIGHTS], used)
        cost[lay.C_SLICE] = slice_cycles(weights_held, in_bytes, serial, era, executing)
        cost[lay.C_UPDATE] = slice_cycles(final_outputs, result_bytes, out_serial, era, executing)
        if problem[lay.FULLY_CONNECTED] and not problem[lay.JOINT]:
            rearrange_bytes = weights_held * in_bytes
            cost[lay.C_BEFORE] = ceil_div(rearrange_bytes, exchange) + weights_held
    if in_serial > 1:
        inputs_held = ceil_div(totals[lay.T_INPUTS], used)
        cost[lay.C_SLICE] += slice_cycles(inputs_held, in_bytes, in_serial, era, executing)
        vector = 8 // result_bytes
        loop = ceil_div(ceil_div(final_outputs, 6), vector)
        cost[lay.C_ADD] = (58 + 3 * loop) * 6 + 11
        add_bytes = final_outputs * result_bytes
        if era == ERA_2_0:
            cost[lay.C_BEFORE] += ceil_div(final_outputs, 6 * vector) * 6
        cost[lay.C_AFTER] = cast_cycles(final_outputs, result_bytes, problem[lay.OUT_BYTES])

    # Inputs that all serial parts use can be fetched once, at the price of keeping them.
    input_storage = inputs * in_bytes
    broadcast_bytes = 0
    if split[lay.S_BROADCAST]:
        cost[lay.C_BEFORE] += cost[lay.C_COPY_IN] + cost[lay.C_MOVE_IN] + cost[lay.C_INPUT]
        broadcast_bytes = in_transform_bytes + input_storage
        cost[lay.C_COPY_IN] = 0
        cost[lay.C_MOVE_IN] = 0
        cost[lay.C_INPUT] = 0
        input_storage = 0
        transform_bytes = max(transform_bytes - in_transform_bytes, 0)

    partial_storage = outputs * partial_bytes
    if vertex[lay.METHOD] == lay.SLIC:
        partial_storage += ceil_div(partial_storage, group_grains) + 200
    conv_bytes = input_storage + weights * in_bytes + partial_storage
    zero_bytes = (zeros + input_zeros) * in_bytes

    loop_cycles = calc
    for item in range(lay.C_SLICE, lay.C_TILE_TRANSFORM + 1):
        loop_cycles += cost[item]
    loop_cycles += cost[lay.C_REDUCE] + cost[lay.C_UPDATE] + cost[lay.C_ADD]
    cost[lay.C_CALC] = calc
    cost[lay.C_SERIAL] = serial
    cost[lay.C_DEPTH] = depth
    cost[lay.C_TILES_USED] = used
    cost[lay.C_TOTAL] = loop_cycles * serial + cost[lay.C_BEFORE] + cost[lay.C_AFTER]
    cost[lay.C_TEMP_BYTES] = (
        broadcast_bytes
        + rearrange_bytes
        + max(2 * transform_bytes, zero_bytes + conv_bytes, reduce_bytes, rearrange_bytes)
        + add_bytes
    )
    cost[lay.C_PARTIAL_BYTES] = outputs * partial_bytes
    cost[lay.C_INPUT_BYTES] = inputs * in_bytes
    cost[lay.C_WEIGHT_BYTES] = weights * in_bytes
    cost[lay.C_ONE_BY_ONE] = totals[lay.T_ONE_BY_ONE] and kernel_elements == 1
    return True
