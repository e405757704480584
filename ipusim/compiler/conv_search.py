"""Cost of one partition of a convolution, and the search for the cheapest, as compiled kernels.

A convolution after its transforms (``planner.py``) is a vector of integers, `problem`; a vertex
type is a vector `vertex`; a partition over the tiles is a vector `split`.  The layouts of the
three are the index constants below.  `conv_cost` restates the planner's objective and
`search` finds its minimum by exact branch and bound.

References
----------
poplibs ``lib/poplin/ConvModel.cpp`` (addEstimates and what it calls), tags 2.0.0 and 2.4.0, and
``lib/poplin/ConvPlan.cpp`` of tag 1.0.136 for era 0.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from ipusim.compiler.conv_vertices import (
    ERA_1_0,
    ERA_2_0,
    ERA_2_4,
    amp_1x1_cycles,
    amp_nx1_cycles,
    cast_cycles,
    ceil_div,
    hmac_cycles,
    outer_product_cycles,
    reduce_vertex_cycles,
    slic_cycles,
    vmac_cycles,
)

# --- problem vector -------------------------------------------------------------------------
# Per-dimension entries take three places; dimension 0 is the outermost, dims-1 the innermost.
GROUPS, BATCH, IN_CHANS, OUT_CHANS, DIMS = 0, 1, 2, 3, 4
OUT_FIELD, KERNEL, WHOLE_IN, STRIDE = 5, 8, 11, 14
IN_DILATION, KERNEL_DILATION, TRANSFORMED, PADDED = 17, 20, 23, 26
PADDING, IN_FIELD = 29, 32
IN_BYTES, OUT_BYTES, INTER_TILE_BYTES = 35, 36, 37
FULLY_CONNECTED, COPY_INPUT, COPY_WEIGHTS, COPY_OUTPUT = 38, 39, 40, 41
ERA, TILES, EXCHANGE_BYTES, TILES_PER_BUS, MEMCPY_BYTES = 42, 43, 44, 45, 46
IN_SERIAL_ALLOWED, VIEW_OUT_CHANS, VIEW_IN_CHANS, BROADCAST_ALLOWED = 47, 48, 49, 50
SINGLE_INPUT_BYTES, WEIGHTS_PER_UNIT, UNITS_ON_CHIP = 51, 52, 53
EXECUTING, ORIGINAL_IN_CHANS, ORIGINAL_OUT_CHANS = 54, 55, 56
PROBLEM_SIZE = 57

# --- vertex vector --------------------------------------------------------------------------
METHOD, CONV_GROUPS_PER_GROUP, IN_CHANS_PER_GROUP, OUT_CHANS_PER_GROUP = 0, 1, 2, 3
UNITS, PARTIAL_BYTES = 4, 5
VERTEX_SIZE = 6
AMP, SLIC, HMAC, VMAC, OUTER_PRODUCT = 0, 1, 2, 3, 4
METHOD_NAMES = ("AMP", "SLIC", "HMAC", "VMAC", "OUTER_PRODUCT")

# --- split vector ---------------------------------------------------------------------------
S_GROUP, S_BATCH, S_FIELD, S_KERNEL = 0, 1, 2, 5
S_IN, S_IN_SERIAL, S_OUT, S_OUT_SERIAL, S_BROADCAST = 8, 9, 10, 11, 12
SPLIT_SIZE = 13

# --- cost vector (cycles unless the name says bytes) ----------------------------------------
C_SLICE, C_COPY_IN, C_COPY_WEIGHTS, C_COPY_OUT = 0, 1, 2, 3
C_MOVE_IN, C_MOVE_WEIGHTS, C_MOVE_OUT = 4, 5, 6
C_INPUT, C_WEIGHTS, C_REDUCE_FIRST, C_REDUCE_REST = 7, 8, 9, 10
C_TILE_TRANSFORM, C_CALC, C_REDUCE, C_UPDATE, C_ADD = 11, 12, 13, 14, 15
C_BEFORE, C_AFTER, C_SERIAL, C_DEPTH, C_TILES_USED = 16, 17, 18, 19, 20
C_TOTAL, C_TEMP_BYTES, C_PARTIAL_BYTES, C_INPUT_BYTES, C_WEIGHT_BYTES = 21, 22, 23, 24, 25
C_STAGES, C_ONE_BY_ONE, C_OUTPUTS = 26, 27, 28
COST_SIZE = 29

UNBOUNDED = np.int64(1) << np.int64(60)


@njit(cache=True)
def reduce_stages(depth: int, stages: np.ndarray) -> int:
    """Intermediate depths of a reduction over tiles; returns how many there are (0, 1 or 2).

    References
    ----------
    poplibs ConvReducePlan.cpp: two stages from depth 16, three from 125.
    """
    if depth < 16:
        return 0
    if depth < 125:
        stages[0] = _best_two_stage(depth)
        return 1
    down = int(float(depth) ** (2.0 / 3.0))
    up = down + 1
    down_next = _best_two_stage(down)
    up_next = _best_two_stage(up)
    down_cost = depth / down + down / down_next + down_next
    up_cost = depth / up + up / up_next + up_next
    if down_cost < up_cost:
        stages[0], stages[1] = down, down_next
    else:
        stages[0], stages[1] = up, up_next
    return 2


@njit(cache=True)
def _best_two_stage(depth: int) -> int:
    down = int(float(depth) ** 0.5)
    up = down + 1
    return down if depth / down + down < depth / up + up else up


@njit(cache=True)
def _slice_cycles(elements: int, element_bytes: int, splits: int, era: int, executing: bool) -> int:
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
def _input_range(problem: np.ndarray, dim: int, out_size: int, kernel: int) -> int:
    """Input extent needed for `out_size` outputs (getMaxInputRangeSize)."""
    if problem[TRANSFORMED + dim]:
        return out_size
    whole = problem[WHOLE_IN + dim]
    if out_size == problem[OUT_FIELD + dim] and kernel == problem[KERNEL + dim]:
        return whole
    reach = kernel
    if problem[ERA] >= ERA_2_4:
        reach = 1 + (kernel - 1) * problem[KERNEL_DILATION + dim]
    dilated = (out_size - 1) * problem[STRIDE + dim] + reach
    return min((dilated - 1) // problem[IN_DILATION + dim] + 1, whole)


@njit(cache=True)
def _weight_load(problem: np.ndarray, units: int) -> int:
    """Cycles to load one set of AMP weights through the 64-bit path: 32 bytes a unit.

    The planner of tag 1.0.136 halved the wrong operand and counted a quarter of it
    (ConvPlan.cpp, addPartialCalcCycleEstimate against poplinCycleEstimators.cpp), so what it
    chooses by and what runs differ.
    """
    if problem[ERA] == ERA_1_0 and not problem[EXECUTING]:
        return units
    return units * 32 // 8


@njit(cache=True)
def _vertex_cycles(
    problem: np.ndarray,
    vertex: np.ndarray,
    field: np.ndarray,
    kernel: np.ndarray,
    batch: int,
    group_grains: int,
    in_grains: int,
    out_grains: int,
) -> tuple[int, int]:
    """Compute cycles of the slowest tile and whether the 1x1 AMP vertex is used.

    Returns -1 where the vertex cannot do the work.
    """
    era = problem[ERA]
    dims = problem[DIMS]
    float_input = problem[IN_BYTES] == 4
    float_partials = vertex[PARTIAL_BYTES] == 4
    last = dims - 1
    # Zero-dilated inputs leave only every n-th output to compute.
    row_length = field[last]
    rows = batch
    kernel_elements = 1
    unit_strides = True
    for d in range(dims):
        kernel_elements *= kernel[d]
        step = 1
        if not problem[TRANSFORMED + d]:
            dilation = problem[IN_DILATION + d]
            stride = problem[STRIDE + d]
            if dilation != stride:
                unit_strides = False
            a, b = dilation, stride
            while b:
                a, b = b, a % b
            step = dilation // a
        if d == last:
            row_length = ceil_div(row_length, step)
        else:
            rows *= ceil_div(field[d], step)
    method = vertex[METHOD]
    if method == AMP:
        height = _filter_height(problem, vertex)
        units = vertex[UNITS]
        load = _weight_load(problem, units)
        one_by_one = height == 1 and unit_strides and kernel_elements == 1
        if one_by_one:
            for d in range(dims):
                if problem[PADDED + d] and not problem[TRANSFORMED + d]:
                    one_by_one = False
            if era != ERA_1_0:
                if problem[BATCH] != 1:
                    one_by_one = False
                for d in range(last):
                    if problem[IN_FIELD + d] != 1:
                        one_by_one = False
        if one_by_one:
            cycles = amp_1x1_cycles(
                rows,
                row_length,
                group_grains,
                in_grains,
                out_grains,
                vertex[OUT_CHANS_PER_GROUP],
                load,
                float_input,
                float_partials,
                units,
                era,
            )
            return cycles, 1
        outer = ceil_div(kernel[0], height)
        cycles = amp_nx1_cycles(
            rows,
            row_length,
            outer,
            kernel_elements // kernel[0],
            height,
            group_grains,
            in_grains,
            out_grains,
            vertex[OUT_CHANS_PER_GROUP],
            load,
            float_input,
            float_partials,
            units,
            era,
        )
        return cycles, 0
    if method == SLIC:
        if in_grains != 1 or out_grains != 1 or problem[STRIDE + last] > 2:
            return -1, 0
        for d in range(dims):
            if problem[KERNEL_DILATION + d] != 1 or problem[IN_DILATION + d] != 1:
                return -1, 0
        sub_kernels = ceil_div(kernel[last], 4) * (kernel_elements // kernel[last])
        stride = 1 if problem[TRANSFORMED + last] else problem[STRIDE + last]
        cycles = slic_cycles(
            rows,
            row_length,
            sub_kernels,
            group_grains,
            vertex[CONV_GROUPS_PER_GROUP],
            vertex[IN_CHANS_PER_GROUP],
            vertex[UNITS],
            stride,
            float_partials,
            era,
        )
        return cycles, 0
    if method == HMAC:
        cycles = hmac_cycles(
            rows,
            row_length,
            kernel_elements,
            group_grains,
            in_grains,
            out_grains,
            vertex[IN_CHANS_PER_GROUP],
            vertex[OUT_CHANS_PER_GROUP],
            float_input,
            float_partials,
            era,
        )
        return cycles, 0
    if method == VMAC:
        if out_grains != 1:
            return -1, 0
        outputs = 1
        for d in range(dims):
            outputs *= field[d]
        cycles = vmac_cycles(
            outputs,
            batch,
            kernel_elements // kernel[last],
            kernel[last],
            group_grains,
            in_grains,
            vertex[CONV_GROUPS_PER_GROUP],
            float_partials,
            era,
        )
        return cycles, 0
    # Outer product: one input channel, one row.
    if batch != 1 or in_grains != 1 or kernel_elements != 1:
        return -1, 0
    for d in range(dims):
        if d != last and field[d] != 1:
            return -1, 0
        if problem[STRIDE + d] != 1 or problem[IN_DILATION + d] != 1:
            return -1, 0
    is_float = float_input or problem[OUT_BYTES] == 4
    chans = out_grains * vertex[OUT_CHANS_PER_GROUP] * group_grains
    return outer_product_cycles(field[last], chans, vertex[OUT_CHANS_PER_GROUP], is_float), 0


@njit(cache=True)
def _filter_height(problem: np.ndarray, vertex: np.ndarray) -> int:
    """Kernel rows that one AMP pass covers when the input grouping leaves depth unused."""
    depth = problem[WEIGHTS_PER_UNIT]
    if vertex[IN_CHANS_PER_GROUP] != depth:
        depth = depth * vertex[UNITS] // problem[UNITS_ON_CHIP]
    return depth // vertex[IN_CHANS_PER_GROUP]


@njit(cache=True)
def _pad_to(size: int, splits: int, multiple: int) -> int:
    """Zeros that bring each part of a split kernel dimension to a multiple."""
    return (multiple - max(size // splits % multiple, ceil_div(size, splits) % multiple)) % multiple


@njit(cache=True)
def conv_cost(problem: np.ndarray, vertex: np.ndarray, split: np.ndarray, cost: np.ndarray) -> bool:
    """Fill `cost` for one partition; False where the vertex cannot do it.

    Notes
    -----
    With ``problem[EXECUTING]`` set, two terms are what runs rather than what the planner
    believes: the weight load of era 0 and its zero padding.
    """
    era = problem[ERA]
    executing = problem[EXECUTING] == 1
    dims = problem[DIMS]
    last = dims - 1
    in_bytes = problem[IN_BYTES]
    out_bytes = problem[OUT_BYTES]
    partial_bytes = vertex[PARTIAL_BYTES]
    tile_result_bytes = min(problem[INTER_TILE_BYTES], partial_bytes)
    groups_per, in_per, out_per = (
        vertex[CONV_GROUPS_PER_GROUP],
        vertex[IN_CHANS_PER_GROUP],
        vertex[OUT_CHANS_PER_GROUP],
    )
    in_serial, out_serial = split[S_IN_SERIAL], split[S_OUT_SERIAL]
    serial = in_serial * out_serial

    all_groups = ceil_div(problem[GROUPS], groups_per) * groups_per
    all_in = ceil_div(problem[IN_CHANS], in_per) * in_per
    all_out = ceil_div(problem[OUT_CHANS], out_per) * out_per
    group_grains = ceil_div(all_groups // groups_per, split[S_GROUP])
    in_grains = ceil_div(all_in // in_per, split[S_IN] * in_serial)
    out_grains = ceil_div(all_out // out_per, split[S_OUT] * out_serial)
    groups, in_chans, out_chans = (
        group_grains * groups_per,
        in_grains * in_per,
        out_grains * out_per,
    )
    batch = ceil_div(problem[BATCH], split[S_BATCH])

    field = np.empty(3, np.int64)
    kernel = np.empty(3, np.int64)
    field_elements = 1
    input_elements = 1
    kernel_elements = 1
    field_splits = 1
    kernel_splits = 1
    all_field = 1
    all_kernel = 1
    all_input = 1
    all_input_range = 1
    grain = field_grain(problem, vertex)
    for d in range(dims):
        g = grain if d == last else 1
        field[d] = ceil_div(ceil_div(problem[OUT_FIELD + d], g), split[S_FIELD + d]) * g
        kernel[d] = ceil_div(problem[KERNEL + d], split[S_KERNEL + d])
        field_elements *= field[d]
        kernel_elements *= kernel[d]
        input_elements *= _input_range(problem, d, field[d], kernel[d])
        field_splits *= split[S_FIELD + d]
        kernel_splits *= split[S_KERNEL + d]
        all_field *= ceil_div(problem[OUT_FIELD + d], g) * g
        all_kernel *= problem[KERNEL + d]
        all_input *= problem[IN_FIELD + d]
        all_input_range *= (
            problem[OUT_FIELD + d] if problem[TRANSFORMED + d] else problem[WHOLE_IN + d]
        )
    depth = kernel_splits * split[S_IN]
    used = (
        split[S_GROUP] * split[S_BATCH] * split[S_IN] * split[S_OUT] * field_splits * kernel_splits
    )

    calc, one_by_one = _vertex_cycles(
        problem, vertex, field, kernel, batch, group_grains, in_grains, out_grains
    )
    if calc < 0:
        return False

    inputs = input_elements * batch * in_chans * groups
    weights = kernel_elements * in_chans * out_chans * groups
    outputs = field_elements * batch * out_chans * groups

    # Exchange: what a tile does not hold already, one bus of `exchange` bytes a cycle, doubled for
    # inputs where neighbours that share a bus want the same ones (ExchangeEstimator.hpp).
    exchange = problem[EXCHANGE_BYTES]
    in_exchange = exchange
    if problem[TILES_PER_BUS] == 2 and split[S_OUT] % 2 == 0:
        in_exchange = 2 * exchange
    weight_users = field_splits * split[S_BATCH]
    cost[C_INPUT] = ceil_div((inputs - inputs // split[S_OUT]) * in_bytes, in_exchange)
    cost[C_WEIGHTS] = ceil_div((weights - weights // weight_users) * in_bytes, exchange)
    cost[C_REDUCE_FIRST] = ceil_div(outputs * tile_result_bytes, exchange)

    # Reduction of partials over tiles, or the cast that stands in for it.
    stages = np.zeros(2, np.int64)
    count = reduce_stages(depth, stages) if depth > 1 else 0
    final_outputs = ceil_div(outputs, depth)
    rest = 0
    reduce = 0
    reduce_bytes = 0
    float_partials = tile_result_bytes == 4
    float_out = out_bytes == 4
    if depth == 1:
        if float_out != float_partials and in_serial == 1:
            reduce = cast_cycles(final_outputs, tile_result_bytes, out_bytes)
    else:
        remaining = depth
        size = final_outputs * depth
        moving = outputs
        width = 4 if float_partials else 8
        for stage in range(count + 1):
            if stage < count:
                stage_depth = ceil_div(remaining, stages[stage])
            else:
                stage_depth = remaining
            if stage_depth <= 1:
                break
            if stage > 0:
                rest += ceil_div(moving * tile_result_bytes, exchange)
            reduce_bytes = max(reduce_bytes, size * tile_result_bytes)
            remaining = ceil_div(remaining, stage_depth)
            size = ceil_div(size, stage_depth)
            moving = ceil_div(moving, stage_depth)
            stage_float = float_out if (remaining == 1 or era == ERA_1_0) else float_partials
            single = (
                size % width == 0
                and (stage_depth - 1) * size * tile_result_bytes <= problem[SINGLE_INPUT_BYTES]
            )
            terms = stage_depth - 1 if single else stage_depth
            reduce += reduce_vertex_cycles(size, terms, stage_float, float_partials, single)
    cost[C_REDUCE_REST] = rest
    cost[C_REDUCE] = reduce

    # Rearrangement of whole operands between the neighbours' layout and the plan's.
    if era == ERA_1_0:
        pad_in = problem[ORIGINAL_IN_CHANS] % in_per != 0
        pad_out = problem[ORIGINAL_OUT_CHANS] % out_per != 0
    else:
        pad_in = problem[IN_CHANS] % in_per != 0
        pad_out = problem[OUT_CHANS] % out_per != 0
    copy_in = problem[COPY_INPUT] or pad_in
    copy_weights = problem[COPY_WEIGHTS] or pad_in or pad_out
    copy_out = problem[COPY_OUTPUT] or pad_out
    regroup_out = (not problem[FULLY_CONNECTED]) and out_per != problem[WEIGHTS_PER_UNIT]
    cost[C_COPY_IN] = 0
    cost[C_COPY_WEIGHTS] = 0
    cost[C_COPY_OUT] = 0
    cost[C_MOVE_IN] = 0
    cost[C_MOVE_WEIGHTS] = 0
    cost[C_MOVE_OUT] = 0
    transform_bytes = 0
    in_transform_bytes = 0
    element = out_bytes
    granularity = 2 if in_bytes == 4 else 4
    three_or_four = 4 if (problem[IN_CHANS] * problem[OUT_CHANS]) % granularity == 0 else 3
    reorder = min(problem[MEMCPY_BYTES], element)
    if copy_in or copy_weights:
        in_total = all_input_range * problem[BATCH] * all_in * all_groups if copy_in else 0
        w_total = all_kernel * all_in * all_out * all_groups if copy_weights else 0
        if era >= ERA_2_4:
            in_transform_bytes = ceil_div(in_total * element, used)
            w_tile = ceil_div(w_total * element, used)
            transform_bytes = max(in_transform_bytes, w_tile)
        else:
            both = ceil_div(in_total + w_total, used) * element
            transform_bytes = both
            in_transform_bytes = both if copy_in else 0
            w_tile = 0 if copy_in else both
        cost[C_MOVE_IN] = ceil_div(in_transform_bytes, exchange)
        cost[C_COPY_IN] = ceil_div(in_transform_bytes * 5, reorder * three_or_four)
        cost[C_MOVE_WEIGHTS] = ceil_div(w_tile, exchange)
        cost[C_COPY_WEIGHTS] = ceil_div(w_tile * 5, reorder * three_or_four)
    if copy_out or regroup_out:
        out_granularity = 2 if out_bytes == 4 else 4
        factor = 4 if problem[OUT_CHANS] % out_granularity == 0 else 3
        out_tile = ceil_div(all_field * problem[BATCH] * all_out * all_groups, used) * out_bytes
        if copy_out:
            per_cycle = min(problem[MEMCPY_BYTES], out_bytes)
            cost[C_MOVE_OUT] = ceil_div(out_tile, exchange)
        else:
            per_cycle = min(problem[MEMCPY_BYTES], out_per * out_bytes)
        cost[C_COPY_OUT] = ceil_div(out_tile * 5, per_cycle * factor)
        transform_bytes = max(transform_bytes, out_tile)

    # Zeros made on the tile: short filter rows (AMP n x 1), window and field padding (SLIC).
    kernel_zeros = 0
    input_zeros = 0
    if vertex[METHOD] == AMP:
        height = _filter_height(problem, vertex)
        if height > 1:
            if era == ERA_1_0 and not problem[EXECUTING]:
                whole = problem[KERNEL]
                parts = split[S_KERNEL]
                remainder = max(whole // parts % height, ceil_div(whole, parts) % height)
                kernel_zeros = (
                    (height - remainder)
                    * (kernel_elements // kernel[0])
                    * in_chans
                    * out_chans
                    * groups
                )
                # Tag 1.0.136 multiplies padding elements, not rows, by the size of an input row.
                input_zeros = (
                    kernel_zeros
                    * problem[KERNEL_DILATION]
                    * (field_elements // field[0])
                    * in_chans
                    * batch
                    * groups
                )
            else:
                pad = _pad_to(problem[KERNEL], split[S_KERNEL], height)
                kernel_zeros = pad * (kernel_elements // kernel[0]) * in_chans * out_chans * groups
                input_zeros = (
                    pad
                    * problem[KERNEL_DILATION]
                    * (field_elements // field[0])
                    * in_chans
                    * batch
                    * groups
                )
    elif vertex[METHOD] == SLIC:
        pad = _pad_to(problem[KERNEL + last], split[S_KERNEL + last], 4)
        kernel_zeros = pad * (kernel_elements // kernel[last]) * in_chans * out_chans * groups
        padded_elements = 1
        for d in range(dims):
            extra = problem[PADDING + d]
            if d == last:
                extra += pad * problem[KERNEL_DILATION + d]
            padded_elements *= field[d] + extra
        input_zeros = (padded_elements - field_elements) * in_chans * batch * groups
    cost[C_TILE_TRANSFORM] = ceil_div(kernel_zeros * in_bytes, exchange) + ceil_div(
        input_zeros * in_bytes, in_exchange
    )
    zero_bytes = (kernel_zeros + input_zeros) * in_bytes

    # Serial splits: slice operands, write outputs back, accumulate.
    weights_per_tile = ceil_div(all_kernel * all_in * all_out * all_groups, used)
    inputs_per_tile = ceil_div(all_input * problem[BATCH] * all_in * all_groups, used)
    cost[C_SLICE] = _slice_cycles(weights_per_tile, in_bytes, serial, era, executing)
    if in_serial > 1:
        cost[C_SLICE] += _slice_cycles(inputs_per_tile, in_bytes, in_serial, era, executing)
    cost[C_UPDATE] = _slice_cycles(final_outputs, tile_result_bytes, out_serial, era, executing)
    cost[C_ADD] = 0
    add_bytes = 0
    cost[C_BEFORE] = 0
    cost[C_AFTER] = 0
    if in_serial > 1:
        vector = 8 // tile_result_bytes
        loop = ceil_div(ceil_div(final_outputs, 6), vector)
        cost[C_ADD] = (58 + 3 * loop) * 6 + 11
        add_bytes = final_outputs * tile_result_bytes
        if era == ERA_2_0:
            cost[C_BEFORE] += ceil_div(final_outputs, 6 * vector) * 6
        cost[C_AFTER] = cast_cycles(final_outputs, tile_result_bytes, out_bytes)
    rearrange_bytes = 0
    if problem[FULLY_CONNECTED] and serial > 1:
        cost[C_BEFORE] += ceil_div(weights_per_tile * in_bytes, exchange) + weights_per_tile
        rearrange_bytes = weights_per_tile * in_bytes

    input_storage = inputs * in_bytes
    broadcast_bytes = 0
    if split[S_BROADCAST]:
        cost[C_BEFORE] += cost[C_COPY_IN] + cost[C_MOVE_IN] + cost[C_INPUT]
        broadcast_bytes = in_transform_bytes + input_storage
        cost[C_COPY_IN] = 0
        cost[C_MOVE_IN] = 0
        cost[C_INPUT] = 0
        input_storage = 0
        transform_bytes = max(transform_bytes - in_transform_bytes, 0)

    partial_storage = outputs * partial_bytes
    if vertex[METHOD] == SLIC:
        partial_storage += ceil_div(partial_storage, group_grains) + 200
    conv_bytes = input_storage + weights * in_bytes + partial_storage

    loop_cycles = calc
    for item in range(C_SLICE, C_TILE_TRANSFORM + 1):
        loop_cycles += cost[item]
    loop_cycles += cost[C_REDUCE] + cost[C_UPDATE] + cost[C_ADD]
    cost[C_CALC] = calc
    cost[C_SERIAL] = serial
    cost[C_DEPTH] = depth
    cost[C_TILES_USED] = used
    cost[C_TOTAL] = loop_cycles * serial + cost[C_BEFORE] + cost[C_AFTER]
    cost[C_TEMP_BYTES] = (
        broadcast_bytes
        + rearrange_bytes
        + max(2 * transform_bytes, zero_bytes + conv_bytes, reduce_bytes, rearrange_bytes)
        + add_bytes
    )
    cost[C_PARTIAL_BYTES] = outputs * partial_bytes
    cost[C_INPUT_BYTES] = inputs * in_bytes
    cost[C_WEIGHT_BYTES] = weights * in_bytes
    cost[C_STAGES] = count + 1 if depth > 1 else 0
    cost[C_ONE_BY_ONE] = one_by_one
    cost[C_OUTPUTS] = final_outputs
    return True


@njit(cache=True)
def field_grain(problem: np.ndarray, vertex: np.ndarray) -> int:
    """Grain of the innermost field dimension (ConvPlan.cpp createPlan, from tag 1.2.0 on)."""
    width = problem[OUT_FIELD + problem[DIMS] - 1]
    odd = vertex[OUT_CHANS_PER_GROUP] % 2 == 1
    if problem[ERA] != ERA_1_0 and problem[OUT_BYTES] == 2 and odd and width % 2 == 0:
        return 2
    return 1


@njit(cache=True)
def _next_split(size: int, split: int) -> int:
    """Smallest larger divisor that changes ceil(size / divisor); size + 1 when there is none."""
    part = ceil_div(size, split)
    if part <= 1:
        return size + 1
    return ceil_div(size, part - 1)


@njit(cache=True)
def _pass_bound(
    problem: np.ndarray,
    vertex: np.ndarray,
    group_grains: int,
    in_grains: int,
    out_grains: int,
    kernel_elements: int,
    outer_kernel: int,
    rows: int,
    field: int,
) -> int:
    """A number of cycles that the vertex on one tile cannot beat, for `field` outputs in `rows`.

    Six workers share a tile, so six times the slowest is at least the sum over workers; the
    constants are the smallest prologues and row overheads of any era in `conv_vertices`.
    """
    method = vertex[METHOD]
    if method == AMP:
        height = _filter_height(problem, vertex)
        core = 8 if problem[IN_BYTES] == 4 else 4
        positions = kernel_elements // outer_kernel * ceil_div(outer_kernel, height)
        passes = vertex[OUT_CHANS_PER_GROUP] // vertex[UNITS] * positions
        load = _weight_load(problem, vertex[UNITS])
        per_pass = load + 100 + 14 * (rows - 1) + core * field
        return group_grains * in_grains * out_grains * passes * per_pass
    if method == HMAC:
        lanes = 2 if problem[IN_BYTES] == 4 else 4
        dot = vertex[IN_CHANS_PER_GROUP] // lanes + 5
        if vertex[PARTIAL_BYTES] == 2:
            dot = (dot + 1) // 2
        channels = out_grains * vertex[OUT_CHANS_PER_GROUP] * in_grains
        return group_grains * kernel_elements * channels * field * dot
    if method == SLIC:
        data_passes = 1 if vertex[UNITS] == 4 else 2
        sub_kernels = ceil_div(kernel_elements // outer_kernel, 4) * outer_kernel
        return group_grains * sub_kernels * (data_passes * (field + 5 * rows) + 10 * rows)
    if method == VMAC:
        return group_grains * in_grains * kernel_elements * field * 2
    lanes = 2 if problem[IN_BYTES] == 4 else 4
    return group_grains * out_grains * vertex[OUT_CHANS_PER_GROUP] * field // lanes


@njit(cache=True)
def _copy_bound(problem: np.ndarray, vertex: np.ndarray) -> int:
    """Cycles of rearrangements before and after the split if every tile took its share."""
    in_per, out_per = vertex[IN_CHANS_PER_GROUP], vertex[OUT_CHANS_PER_GROUP]
    if problem[ERA] == ERA_1_0:
        pad_in = problem[ORIGINAL_IN_CHANS] % in_per != 0
        pad_out = problem[ORIGINAL_OUT_CHANS] % out_per != 0
    else:
        pad_in = problem[IN_CHANS] % in_per != 0
        pad_out = problem[OUT_CHANS] % out_per != 0
    element = problem[OUT_BYTES]
    out_elements = problem[GROUPS] * problem[BATCH] * problem[OUT_CHANS]
    in_elements = problem[GROUPS] * problem[BATCH] * problem[IN_CHANS]
    weights = problem[GROUPS] * problem[IN_CHANS] * problem[OUT_CHANS]
    for d in range(problem[DIMS]):
        out_elements *= problem[OUT_FIELD + d]
        in_elements *= problem[OUT_FIELD + d] if problem[TRANSFORMED + d] else problem[WHOLE_IN + d]
        weights *= problem[KERNEL + d]
    moved = 0
    if problem[COPY_INPUT] or pad_in:
        moved += in_elements * element
    if problem[COPY_WEIGHTS] or pad_in or pad_out:
        moved += weights * element
    reorder = min(problem[MEMCPY_BYTES], element)
    tile = moved // problem[TILES]
    cycles = tile // problem[EXCHANGE_BYTES] + tile * 5 // (4 * reorder)
    if problem[COPY_OUTPUT] or pad_out:
        tile = out_elements * element // problem[TILES]
        cycles += tile // problem[EXCHANGE_BYTES] + tile * 5 // (4 * reorder)
    return cycles


@njit(cache=True)
def _bound(
    problem: np.ndarray,
    vertex: np.ndarray,
    group_grains: int,
    in_grains: int,
    out_grains: int,
    kernel_elements: int,
    outer_kernel: int,
    rows: int,
    field: int,
    in_field: int,
    users_min: int,
    depth: int,
    out_split: int,
    serial: int,
    copies: int,
) -> int:
    """Lower bound of the total for any completion with at least `field` outputs a tile."""
    calc = _pass_bound(
        problem,
        vertex,
        group_grains,
        in_grains,
        out_grains,
        kernel_elements,
        outer_kernel,
        rows,
        field,
    )
    exchange = problem[EXCHANGE_BYTES]
    groups = group_grains * vertex[CONV_GROUPS_PER_GROUP]
    out_chans = out_grains * vertex[OUT_CHANS_PER_GROUP]
    in_chans = in_grains * vertex[IN_CHANS_PER_GROUP]
    result_bytes = min(problem[INTER_TILE_BYTES], vertex[PARTIAL_BYTES])
    outputs = groups * out_chans * field
    moved = outputs * result_bytes // exchange
    if depth > 1 or result_bytes > problem[OUT_BYTES]:
        moved += outputs * result_bytes // 8
    weights = kernel_elements * in_chans * out_chans * groups
    moved += (weights - weights // users_min) * problem[IN_BYTES] // exchange
    inputs = groups * in_chans * in_field
    if out_split % 2 == 0:
        exchange *= problem[TILES_PER_BUS]
    moved += (inputs - inputs // out_split) * problem[IN_BYTES] // exchange
    return serial * (calc + moved + copies)


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
    problem, vertices : see the layouts at the head of this module; vertices is (n, VERTEX_SIZE).
    temp_limit : most temporary bytes a tile may use.
    minimise_memory : order by (bytes, cycles) instead of (cycles, bytes).
    pruned : False evaluates every partition, the oracle of the tests.
    serial_splits : whether parts of the channels may be computed one after the other.
    coarse : look only at splits that divide evenly or are powers of two, to find a good cost to
        beat before the exact search.
    best_cost, best_split : filled with the winner; ``best_cost[C_TOTAL]`` on entry is the cost to
        beat, ``UNBOUNDED`` for none.
    """
    winner = -1
    evaluations = 0
    tiles = problem[TILES]
    dims = problem[DIMS]
    last = dims - 1
    split = np.ones(SPLIT_SIZE, np.int64)
    cost = np.zeros(COST_SIZE, np.int64)
    for index in range(vertices.shape[0]):
        vertex = vertices[index]
        group_total = ceil_div(problem[GROUPS], vertex[CONV_GROUPS_PER_GROUP])
        in_total = ceil_div(problem[IN_CHANS], vertex[IN_CHANS_PER_GROUP])
        out_total = ceil_div(problem[OUT_CHANS], vertex[OUT_CHANS_PER_GROUP])
        grain = field_grain(problem, vertex)
        last_size = ceil_div(problem[OUT_FIELD + last], grain)
        outer_field = 1
        for d in range(last):
            outer_field *= problem[OUT_FIELD + d]
        all_kernel = 1
        for d in range(dims):
            all_kernel *= problem[KERNEL + d]
        work = _pass_bound(
            problem,
            vertex,
            group_total,
            in_total,
            out_total,
            all_kernel,
            problem[KERNEL],
            1,
            problem[BATCH] * outer_field * last_size * grain,
        )
        copies = _copy_bound(problem, vertex)
        if pruned and not minimise_memory and work // tiles + copies > best_cost[C_TOTAL]:
            continue
        for step in range(1, out_total + in_total if serial_splits else 2):
            # Serial splits: of the output channels first, then of the input channels.
            if step <= out_total:
                out_serial, in_serial = step, 1
                if problem[VIEW_OUT_CHANS] % out_serial != 0:
                    continue
            else:
                out_serial, in_serial = 1, step - out_total + 1
                if not problem[IN_SERIAL_ALLOWED] or in_serial > in_total:
                    break
                if problem[VIEW_IN_CHANS] % in_serial != 0:
                    continue
            split[S_OUT_SERIAL] = out_serial
            split[S_IN_SERIAL] = in_serial
            serial = out_serial * in_serial
            s_group = 1
            while s_group <= min(group_total, tiles):
                split[S_GROUP] = s_group
                group_grains = ceil_div(group_total, s_group)
                winner, evaluations = _search_channels(
                    problem,
                    vertex,
                    index,
                    split,
                    cost,
                    group_grains,
                    in_total,
                    out_total,
                    last_size,
                    grain,
                    serial,
                    copies,
                    tiles // s_group,
                    temp_limit,
                    minimise_memory,
                    pruned,
                    coarse,
                    best_cost,
                    best_split,
                    winner,
                    evaluations,
                )
                s_group = _next_split(group_total, s_group)
    return winner, evaluations


@njit(cache=True)
def _search_channels(
    problem,
    vertex,
    index,
    split,
    cost,
    group_grains,
    in_total,
    out_total,
    last_size,
    grain,
    serial,
    copies,
    tiles_left,
    temp_limit,
    minimise_memory,
    pruned,
    coarse,
    best_cost,
    best_split,
    winner,
    evaluations,
):
    """Loop over kernel, input-channel and output-channel splits."""
    dims = problem[DIMS]
    last = dims - 1
    in_serial, out_serial = split[S_IN_SERIAL], split[S_OUT_SERIAL]
    all_positions = problem[BATCH] * last_size * grain
    for d in range(last):
        all_positions *= problem[OUT_FIELD + d]
    prune = pruned and not minimise_memory
    # Each output needs at least one input of its own unless the input is dilated or cropped.
    plain_inputs = True
    for d in range(dims):
        if not problem[TRANSFORMED + d] and problem[WHOLE_IN + d] < problem[OUT_FIELD + d]:
            plain_inputs = False
    k0 = 1
    while k0 <= min(problem[KERNEL], tiles_left):
        k1_size = problem[KERNEL + 1] if dims == 3 else 1
        k1 = 1
        while k1 <= min(k1_size, tiles_left // k0):
            split[S_KERNEL] = k0
            split[S_KERNEL + 1] = k1 if dims == 3 else 1
            outer_kernel = ceil_div(problem[KERNEL], k0)
            kernel_elements = outer_kernel * problem[KERNEL + last]
            if dims == 3:
                kernel_elements *= ceil_div(k1_size, k1)
            left_k = tiles_left // (k0 * k1)
            s_in = 1
            while s_in * in_serial <= in_total and s_in <= left_k:
                in_grains = ceil_div(in_total, s_in * in_serial)
                distinct = s_in * in_serial == 1 or in_grains < ceil_div(
                    in_total, s_in * in_serial - 1
                )
                if distinct and not (coarse and _odd_split(in_total, s_in)):
                    split[S_IN] = s_in
                    left_in = left_k // s_in
                    s_out = 1
                    while s_out * out_serial <= out_total and s_out <= left_in:
                        out_grains = ceil_div(out_total, s_out * out_serial)
                        total = s_out * out_serial
                        distinct = total == 1 or out_grains < ceil_div(out_total, total - 1)
                        if distinct and not (coarse and _odd_split(out_total, s_out)):
                            split[S_OUT] = s_out
                            left = left_in // s_out
                            # Either the weights have one user, so nothing splits the field, or
                            # at least half of them arrive by exchange.
                            least = ceil_div(all_positions, left)
                            depth = k0 * k1 * s_in
                            bound = UNBOUNDED
                            for users in range(1, 3):
                                positions = all_positions if users == 1 else least
                                bound = min(
                                    bound,
                                    _bound(
                                        problem,
                                        vertex,
                                        group_grains,
                                        in_grains,
                                        out_grains,
                                        kernel_elements,
                                        outer_kernel,
                                        1,
                                        positions,
                                        positions if plain_inputs else 0,
                                        users,
                                        depth,
                                        s_out,
                                        serial,
                                        copies,
                                    ),
                                )
                            if not prune or bound <= best_cost[C_TOTAL]:
                                winner, evaluations = _search_field(
                                    problem,
                                    vertex,
                                    index,
                                    split,
                                    cost,
                                    group_grains,
                                    in_grains,
                                    out_grains,
                                    kernel_elements,
                                    outer_kernel,
                                    last_size,
                                    grain,
                                    serial,
                                    copies,
                                    left,
                                    temp_limit,
                                    minimise_memory,
                                    pruned,
                                    coarse,
                                    best_cost,
                                    best_split,
                                    winner,
                                    evaluations,
                                )
                        s_out += 1 if out_serial > 1 else _next_split(out_total, s_out) - s_out
                s_in += 1 if in_serial > 1 else _next_split(in_total, s_in) - s_in
            k1 = _next_split(k1_size, k1)
        k0 = _next_split(problem[KERNEL], k0)
    return winner, evaluations


@njit(cache=True)
def _search_field(
    problem,
    vertex,
    index,
    split,
    cost,
    group_grains,
    in_grains,
    out_grains,
    kernel_elements,
    outer_kernel,
    last_size,
    grain,
    serial,
    copies,
    tiles_left,
    temp_limit,
    minimise_memory,
    pruned,
    coarse,
    best_cost,
    best_split,
    winner,
    evaluations,
):
    """Loop over batch and field splits; the innermost runs from fine to coarse until bounded."""
    dims = problem[DIMS]
    last = dims - 1
    prune = pruned and not minimise_memory
    broadcasts = 2 if (problem[BROADCAST_ALLOWED] and split[S_OUT_SERIAL] > 1) else 1
    f1_size = problem[OUT_FIELD + 1] if dims == 3 else 1
    f1_kernel = problem[KERNEL + 1] if dims == 3 else 1
    depth = split[S_IN] * split[S_KERNEL] * (split[S_KERNEL + 1] if dims == 3 else 1)
    s_batch = 1
    while s_batch <= min(problem[BATCH], tiles_left):
        batch = ceil_div(problem[BATCH], s_batch)
        split[S_BATCH] = s_batch
        f0 = 1
        while f0 <= min(problem[OUT_FIELD], tiles_left // s_batch):
            split[S_FIELD] = f0
            f1 = 1
            while f1 <= min(f1_size, tiles_left // (s_batch * f0)):
                left = tiles_left // (s_batch * f0 * f1)
                rows = batch * ceil_div(problem[OUT_FIELD], f0)
                users = s_batch * f0
                if dims == 3:
                    split[S_FIELD + 1] = f1
                    rows *= ceil_div(f1_size, f1)
                    users *= f1
                in_rows = batch * _input_range(
                    problem, 0, ceil_div(problem[OUT_FIELD], f0), outer_kernel
                )
                if dims == 3:
                    in_rows *= _input_range(
                        problem, 1, ceil_div(f1_size, f1), ceil_div(f1_kernel, split[S_KERNEL + 1])
                    )
                part = ceil_div(last_size, min(left, last_size))
                while part <= last_size:
                    s_last = ceil_div(last_size, part)
                    if ceil_div(last_size, s_last) == part:
                        in_field = in_rows * _input_range(
                            problem, last, part * grain, problem[KERNEL + last]
                        )
                        bound = _bound(
                            problem,
                            vertex,
                            group_grains,
                            in_grains,
                            out_grains,
                            kernel_elements,
                            outer_kernel,
                            rows,
                            rows * part * grain,
                            in_field,
                            users * s_last,
                            depth,
                            split[S_OUT],
                            serial,
                            copies,
                        )
                        if prune and bound > best_cost[C_TOTAL]:
                            # Coarser splits compute more on each tile and save at most the
                            # weights' exchange, which the bound without users leaves out.
                            floor = _bound(
                                problem,
                                vertex,
                                group_grains,
                                in_grains,
                                out_grains,
                                kernel_elements,
                                outer_kernel,
                                rows,
                                rows * part * grain,
                                in_field,
                                1,
                                depth,
                                split[S_OUT],
                                serial,
                                copies,
                            )
                            if floor > best_cost[C_TOTAL]:
                                break
                        else:
                            split[S_FIELD + last] = s_last
                            for broadcast in range(broadcasts):
                                split[S_BROADCAST] = broadcast
                                evaluations += 1
                                if not conv_cost(problem, vertex, split, cost):
                                    continue
                                if cost[C_TEMP_BYTES] > temp_limit:
                                    continue
                                if _better(cost, best_cost, minimise_memory):
                                    best_cost[:] = cost
                                    best_split[:] = split
                                    winner = index
                            split[S_BROADCAST] = 0
                    if coarse:
                        break
                    part = ceil_div(last_size, s_last - 1) if s_last > 1 else last_size + 1
                split[S_FIELD + last] = 1
                f1 = _next_split(f1_size, f1)
            split[S_FIELD + 1] = 1
            f0 = _next_split(problem[OUT_FIELD], f0)
        s_batch = _next_split(problem[BATCH], s_batch)
    return winner, evaluations


@njit(cache=True)
def _odd_split(size: int, split: int) -> bool:
    """Whether a split is neither even nor a power of two."""
    return size % split != 0 and split & (split - 1) != 0


@njit(cache=True)
def _better(cost: np.ndarray, best: np.ndarray, minimise_memory: bool) -> bool:
    """Strictly better in (cycles, bytes), or (bytes, cycles); ties keep the earlier partition."""
    first, second = C_TOTAL, C_TEMP_BYTES
    if minimise_memory:
        first, second = C_TEMP_BYTES, C_TOTAL
    if cost[first] != best[first]:
        return cost[first] < best[first]
    return cost[second] < best[second]
