"""Cycle estimates of the convolution vertices, one tile, as compiled integer functions.

Every formula restates poplibs ``lib/poplin/PerformanceEstimation.hpp`` (MIT).  The file changed
with the SDK, so each function takes the *era* of its constants:

====  =====================  =====================================
era   poplibs tag            used for
====  =====================  =====================================
0     1.0.136 (2020-01)      SDK 1.0, the C2 card of Qwant's report
1     sdk/poplar/2.0.0       the IPUModel snapshot of 2021-03
2     sdk/poplar/2.4.0       the published Classic rows
3     sdk/poplar/3.3.0       the published Bow rows
====  =====================  =====================================

All arguments and results are integers.  A tile has six worker contexts that issue in turn, so a
worker's instruction count is multiplied by six to give tile cycles.
"""

from __future__ import annotations

from numba import njit

ERA_1_0 = 0
ERA_2_0 = 1
ERA_2_4 = 2
ERA_3_3 = 3

WORKERS = 6


@njit(cache=True, inline="always")
def ceil_div(numerator: int, denominator: int) -> int:
    """Round the quotient of two non-negative integers up."""
    return (numerator + denominator - 1) // denominator


@njit(cache=True)
def worker_range(rows: int, row_length: int, worker: int) -> tuple[int, int]:
    """First and one-past-last element that `worker` gets (partitionConvPartialByWorker)."""
    total = rows * row_length
    return worker * total // WORKERS, (worker + 1) * total // WORKERS


@njit(cache=True)
def zero_partials_cycles(elements: int, groups: int, era: int) -> int:
    """Clear `groups` blocks of `elements` float partials (getZeroSupervisorVertexCycleEstimate)."""
    vectors = ceil_div(ceil_div(elements, WORKERS), 2)
    if era == ERA_1_0:
        return (vectors + 5) * groups * WORKERS + 12
    return (vectors + 5) * groups * WORKERS


@njit(cache=True)
def _one_by_one_worker(
    elements: int, zeroing: bool, float_input: bool, float_partials: bool, units: int, era: int
) -> int:
    """Worker cycles of the 1x1 AMP vertex for one run of `elements` field positions."""
    core = 8 if float_input else 4
    if era == ERA_1_0:
        per_zero = 8 if float_input else (4 if float_partials else 2)
        extra = 0 if (float_partials or float_input) else 2
        if elements == 0:
            return 28
        zero = 2 + per_zero * elements if zeroing else 0
        if float_input:
            return 50 + zero + max(elements - 3, 0) * core
        fixed = 41 if elements == 1 else (42 if elements == 2 else 43)
        return fixed + zero + extra + max(elements - 3, 0) * core
    shared_path = float_partials or ((not float_input) and units == 16)
    savings = 0
    if (not float_input) and shared_path:
        savings = 10 if era == ERA_2_0 else 7
    if float_input or not shared_path:
        per_zero = 8 if (float_input and units == 16) else (4 if float_partials else 2)
        zero = 2 + per_zero * elements if zeroing else 0
        if elements == 0:
            return 24 - savings
        if float_input:
            fixed = 47 if elements == 1 else 46
        else:
            fixed = 39 if elements == 1 else (40 if elements == 2 else 41)
        return fixed + zero + max(elements - 3, 0) * core - savings
    if era == ERA_2_0:
        pass_cost = 2 if zeroing else 4
    else:
        pass_cost = 1 if zeroing else 2
    if elements == 0:
        return 20 + pass_cost - savings
    if elements == 1:
        return 31 + pass_cost - savings
    if elements == 2:
        return 40 + pass_cost - savings
    return 36 + pass_cost + (elements - 3) * core - savings


@njit(cache=True)
def _one_by_one_inner(
    rows: int,
    row_length: int,
    zeroing: bool,
    float_input: bool,
    float_partials: bool,
    units: int,
    era: int,
) -> int:
    """Slowest worker of one pass; only era 0 allows more than one row a worker."""
    slowest = 0
    fastest = 1 << 60
    for worker in range(WORKERS):
        begin, end = worker_range(rows, row_length, worker)
        cycles = 0
        while begin < end:
            stop = min(end, (begin // row_length + 1) * row_length)
            cycles += _one_by_one_worker(
                stop - begin, zeroing, float_input, float_partials, units, era
            )
            begin = stop
        slowest = max(slowest, WORKERS * cycles)
        fastest = min(fastest, WORKERS * cycles)
    return max(slowest, fastest + 14)


@njit(cache=True)
def amp_1x1_cycles(
    rows: int,
    row_length: int,
    conv_groups: int,
    in_groups: int,
    out_groups: int,
    out_chans_per_group: int,
    weight_load: int,
    float_input: bool,
    float_partials: bool,
    units: int,
    era: int,
) -> int:
    """Cycles of the ConvPartial1x1 (AMP) vertex on one tile.

    Parameters
    ----------
    rows, row_length : output rows on the tile and field positions in one row.
    conv_groups, in_groups, out_groups : counts of groups on the tile.
    out_chans_per_group : output channels in one group; units : convolution units in use.
    weight_load : cycles to load the weights of all units.

    References
    ----------
    poplibs PerformanceEstimation.hpp, getConvPartial1x1SupervisorOuterLoopCycleEstimate.
    Era 2 agrees with 128 sizes measured on a Bow IPU (data/evidence/ipu_microbench.csv).
    """
    passes = ceil_div(out_chans_per_group, units)
    first = _one_by_one_inner(rows, row_length, True, float_input, float_partials, units, era)
    later = 0
    if in_groups > 1:
        later = _one_by_one_inner(rows, row_length, False, float_input, float_partials, units, era)
    if era == ERA_1_0:
        return 50 + conv_groups * (
            11
            + (in_groups - 1) * (13 + out_groups * (18 + passes * (6 + weight_load + later)))
            + (10 + out_groups * (18 + passes * (6 + weight_load + first)))
        )
    shared_path = 1 if (float_partials or ((not float_input) and units == 16)) else 0
    save_all = 0
    save_inputs = 0
    if (not float_input) and shared_path == 1:
        save_all = 10 if era == ERA_2_0 else 7
        save_inputs = 2 if era == ERA_2_0 else 3
    if era == ERA_2_0:
        shared_path = 0
    return (
        50
        + WORKERS * (save_all + save_inputs * (in_groups * conv_groups - 1))
        + conv_groups
        * (
            12
            + shared_path
            + (in_groups - 1)
            * (16 - shared_path + out_groups * (19 + passes * (6 + weight_load + later)))
            + (11 + out_groups * (19 - shared_path + passes * (7 + weight_load + first)))
        )
    )


@njit(cache=True)
def _n_by_one_row(elements: int, float_input: bool, narrow_stride: bool, era: int) -> int:
    """Worker cycles for one row of `elements` outputs in the n x 1 AMP vertex."""
    core = 8 if float_input else 4
    if era == ERA_1_0:
        if elements == 1:
            return 34 if float_input else 30
        if elements == 2:
            return 45 if float_input else 34
        return (46 if float_input else 35) + (elements - 3) * core
    if era == ERA_2_0:
        fixed = -6
    elif era == ERA_2_4:
        fixed = 7 - 4
    else:
        fixed = 3 - 9
    if elements == 1:
        return fixed + (33 if float_input else 29)
    if elements == 2:
        extra = 1 if (era >= ERA_2_4 and narrow_stride) else 0
        return fixed + (44 if float_input else 33 + extra)
    return fixed + (45 if float_input else 34) + (elements - 3) * core


@njit(cache=True)
def _n_by_one_worker_loop(
    rows: int, row_length: int, float_input: bool, float_partials: bool, units: int, era: int
) -> int:
    narrow = (not float_input) and (
        (units == 16 and not float_partials) or (units == 8 and float_partials)
    )
    prologue = 19
    if era == ERA_2_0:
        prologue = 17
    elif era == ERA_2_4:
        prologue = 15
    elif era == ERA_3_3:
        prologue = 17
    if not float_partials:
        prologue += 1
    slowest = 0
    fastest = 1 << 60
    for worker in range(WORKERS):
        begin, end = worker_range(rows, row_length, worker)
        cycles = prologue
        if end > begin:
            first_row = begin // row_length
            last_row = (end - 1) // row_length
            if first_row == last_row:
                cycles += _n_by_one_row(end - begin, float_input, narrow, era)
            else:
                cycles += _n_by_one_row(row_length - begin % row_length, float_input, narrow, era)
                cycles += (last_row - first_row - 1) * _n_by_one_row(
                    row_length, float_input, narrow, era
                )
                cycles += _n_by_one_row((end - 1) % row_length + 1, float_input, narrow, era)
        slowest = max(slowest, WORKERS * cycles)
        fastest = min(fastest, WORKERS * cycles)
    return max(slowest, fastest + 9)


@njit(cache=True)
def amp_nx1_cycles(
    rows: int,
    row_length: int,
    kernel_outer: int,
    kernel_inner: int,
    filter_height: int,
    conv_groups: int,
    in_groups: int,
    out_groups: int,
    out_chans_per_group: int,
    weight_load: int,
    float_input: bool,
    float_partials: bool,
    units: int,
    era: int,
) -> int:
    """Cycles of the ConvPartialnx1 (AMP) vertex on one tile, zeroing of partials included.

    Parameters
    ----------
    rows, row_length : active output rows (batch times outer field) and their length.
    kernel_outer : kernel positions in the outermost dimension after grouping by filter_height.
    kernel_inner : the remaining kernel positions.
    filter_height : kernel rows that share one pass, 1, 2 or 4.

    References
    ----------
    poplibs PerformanceEstimation.hpp, getConvPartialnx1Supervisor{Inner,Outer}LoopCycleEstimate.
    """
    passes = out_chans_per_group // units
    setup = 15 if filter_height == 1 else (46 if filter_height == 2 else 60)
    load = weight_load + setup
    workers = _n_by_one_worker_loop(rows, row_length, float_input, float_partials, units, era)
    zero = zero_partials_cycles(
        rows * row_length * out_chans_per_group, out_groups * conv_groups, era
    )
    if era == ERA_1_0:
        inner = kernel_outer * (15 + kernel_inner * (20 + passes * (load + workers)))
        return 95 + conv_groups * (16 + in_groups * (23 + out_groups * (23 + inner))) + zero
    load += 3
    inner = kernel_outer * (14 + kernel_inner * (12 + passes * (load + workers)))
    overhead = 109 if era == ERA_3_3 else 103
    retained = 6 if era == ERA_2_0 else (4 if era == ERA_2_4 else 9)
    zero_retained = 9 if float_partials else 10
    return (
        overhead
        + WORKERS * (retained + zero_retained)
        + conv_groups * (out_groups * 17 + (out_groups - 1) * 6 + 1)
        + (conv_groups - 1) * 6
        + 1
        + conv_groups * (16 + in_groups * (14 + out_groups * (14 + inner)))
        + zero
    )


@njit(cache=True)
def _dense_dot(size: int, float_input: bool, float_partials: bool, era: int) -> int:
    """Cycles of one dot product over `size` input channels (getDenseDotProductCycles)."""
    if era == ERA_1_0:
        if float_input:
            return 4 + size if size % 2 == 0 else 4 + 2 * size
        return 6 + size // 4 if size % 4 == 0 else 4 + size
    if era <= ERA_2_4:
        if float_input:
            return 7 + size if size % 2 == 0 else 7 + 2 * size
        if float_partials:
            return 7 + size // 4 if size % 4 == 0 else 7 + size
        return 11 + size // 4 if size % 4 == 0 else 12 + size
    per_64_bits = 2 if float_input else 4
    half_half = (not float_input) and (not float_partials)
    outputs = 2 if half_half else 1
    fixed = 3 * outputs + (1 if half_half else 0) + 4
    width = per_64_bits
    while size % width != 0:
        width //= 2
    step = 1 if width >= per_64_bits else 2
    warm_up = 0 if width >= per_64_bits else outputs
    return fixed + warm_up + size // width * step - (0 if float_input else 1)


@njit(cache=True)
def hmac_cycles(
    rows: int,
    row_length: int,
    kernel_elements: int,
    conv_groups: int,
    in_groups: int,
    out_groups: int,
    in_chans_per_group: int,
    out_chans_per_group: int,
    float_input: bool,
    float_partials: bool,
    era: int,
) -> int:
    """Cycles of the horizontal MAC vertex on one tile, zeroing of partials included.

    References
    ----------
    poplibs PerformanceEstimation.hpp, estimateConvPartialHorizontalMacInnerLoopCycles and
    getConvPartialHorizontalMacSupervisorOuterLoopCycleEstimate.
    """
    split = WORKERS // _gcd(WORKERS, rows)
    worker_parts = ceil_div(rows * split, WORKERS)
    whole_rows = worker_parts // split
    part_rows = worker_parts % split
    one_by_one = era == ERA_3_3 and kernel_elements == 1 and float_partials and not float_input
    outputs = out_chans_per_group
    if era == ERA_3_3 and not float_partials:
        outputs = (outputs + 1) // 2
    elif era != ERA_1_0 and not float_partials:
        outputs = outputs // 2
    dot = _dense_dot(in_chans_per_group, float_input, float_partials, era)
    retained = 0
    if era == ERA_3_3:
        retained = 15 if one_by_one else (0 if float_input else 6)
    per_row = 13 if one_by_one else 19
    worker = 16 - retained
    part_size = 0
    if part_rows > 0:
        part_size = part_rows * (row_length + split - 1) // split
    if one_by_one and outputs == 1:
        worker += whole_rows * (per_row + 1 + row_length * (2 + dot))
        if part_rows > 0:
            worker += per_row + 1 + part_size * (2 + dot)
    else:
        worker += whole_rows * (per_row + row_length * (7 + outputs * dot))
        if part_rows > 0:
            worker += per_row + part_size * (7 + outputs * dot)
    inner = WORKERS * (kernel_elements * worker + 16)
    overhead = 58 if float_input else (65 if era == ERA_3_3 else 63)
    if one_by_one:
        overhead -= 10
    if era != ERA_1_0:
        overhead += WORKERS * (9 if float_partials else 10)
    if era == ERA_3_3:
        overhead += WORKERS * (15 if one_by_one else (0 if float_partials else 6))
    zero_groups = out_groups * conv_groups
    zero = zero_partials_cycles(rows * row_length * out_chans_per_group, zero_groups, era)
    return overhead + conv_groups * (23 + in_groups * (15 + out_groups * (10 + inner))) + zero


@njit(cache=True)
def _gcd(a: int, b: int) -> int:
    while b:
        a, b = b, a % b
    return a


@njit(cache=True)
def slic_cycles(
    rows: int,
    row_length: int,
    sub_kernels: int,
    conv_group_groups: int,
    conv_groups_per_group: int,
    chans_per_group: int,
    chains: int,
    stride: int,
    float_partials: bool,
    era: int,
) -> int:
    """Cycles of the SLIC 1x4 vertex (half inputs) on one tile.

    References
    ----------
    poplibs PerformanceEstimation.hpp, getConvPartialSlicSupervisor*CycleEstimate.
    """
    if chans_per_group == 4:
        load = 18 + 16
    else:
        per_worker = 12 if conv_groups_per_group == 2 else 10
        if conv_groups_per_group > 4:
            per_worker += 1
        load = 9 + 6 + per_worker * WORKERS + 6 + 16
    half8 = chains == 2 and not float_partials
    first = _slic_inner(
        rows, row_length, conv_groups_per_group, chains, stride, float_partials, True
    )
    later = _slic_inner(
        rows, row_length, conv_groups_per_group, chains, stride, float_partials, False
    )
    group_body = 12 if half8 else 15
    if conv_groups_per_group <= 4:
        sync = 12 if era == ERA_2_0 else 13
        sub_body = load + (0 if half8 else 3) + 2 + (0 if half8 else 1) + sync + 1
    else:
        strides = conv_groups_per_group // 4
        stride_body = load + 6 + 1 + 6 + 2 + 6
        sub_body = stride_body * strides + 6 * (strides - 1) + 1 + 2 + 8 + 3 + 2
        group_body += 8
        later *= strides
    return (
        (25 if half8 else 28)
        + group_body * conv_group_groups
        + 6 * (conv_group_groups - 1)
        + 1
        + sub_body * sub_kernels
        + 6 * (sub_kernels - 1)
        + 1
        + conv_group_groups * (first + (sub_kernels - 1) * later)
    )


@njit(cache=True)
def _slic_row(elements: int, stride: int, half8: bool, zeroing: bool) -> int:
    if stride == 1:
        threshold = 6 if half8 else 5
        if elements < threshold:
            if zeroing:
                return 13 + (elements if elements > 1 else 0)
            if elements == 1:
                return 13
            # The terms in 4 - elements cancel for every length below the threshold.
            return 7 + 1 + (elements - 1) + 2 + 2 + 3 + 3
        return 15 + (elements - 5) + (3 if (half8 and not zeroing) else 0)
    if elements < 3:
        return 13 if elements == 1 else 15
    return 15 + 2 * (elements - 3)


@njit(cache=True)
def _slic_inner(
    rows: int,
    row_length: int,
    conv_groups_per_group: int,
    chains: int,
    stride: int,
    float_partials: bool,
    zeroing: bool,
) -> int:
    half8 = chains == 2 and not float_partials
    data_passes = 1 if chains == 4 else 2
    prologue = 17
    if conv_groups_per_group > 4:
        prologue += 4
    per_row = (9 if half8 else 10) + (1 if zeroing else 0) + (3 if float_partials else 0)
    less = 1 if float_partials else 0
    slowest = 0
    for worker in range(WORKERS):
        begin, end = worker_range(rows, row_length, worker)
        cycles = prologue + (2 if half8 else 0)
        position = begin
        if end > begin:
            first_row = begin // row_length
            last_row = (end - 1) // row_length
            if first_row == last_row:
                row = _slic_row(end - begin, stride, half8, zeroing) - less
                cycles += per_row + row * data_passes
            else:
                row = _slic_row(row_length - position % row_length, stride, half8, zeroing) - less
                cycles += per_row + row * data_passes
                row = _slic_row(row_length, stride, half8, zeroing) - less
                cycles += (last_row - first_row - 1) * (per_row + row * data_passes)
                row = _slic_row((end - 1) % row_length + 1, stride, half8, zeroing) - less
                cycles += per_row + row * data_passes
        slowest = max(slowest, cycles)
    merge = 2 + 2 * rows * row_length if (half8 and zeroing) else 0
    return slowest * WORKERS + merge


@njit(cache=True)
def vmac_cycles(
    outputs: int,
    batch: int,
    kernel_height: int,
    kernel_width: int,
    conv_group_groups: int,
    in_groups: int,
    conv_groups_per_group: int,
    float_partials: bool,
    era: int,
) -> int:
    """Cycles of the vertical MAC vertex (depthwise, half inputs) on one tile.

    Parameters
    ----------
    outputs : output field positions on the tile, without the batch.

    References
    ----------
    poplibs PerformanceEstimation.hpp, estimateConvPartialVerticalMacInnerLoopCycles and
    getConvPartialVerticalMacSupervisorOuterLoopCycleEstimate.
    """
    rows = outputs * batch
    split = WORKERS // _gcd(WORKERS, rows)
    worker_parts = ceil_div(rows * split, WORKERS)
    whole_rows = worker_parts // split
    part_rows = worker_parts % split
    part_width = ceil_div(kernel_width, split)
    whole = kernel_height * whole_rows
    part = kernel_height * part_rows
    wide = era >= ERA_2_4 and conv_groups_per_group >= 8 and not float_partials
    if era <= ERA_2_0:
        inner = 6 + whole * (20 + 2 * (kernel_width - 1)) + part * (20 + 2 * (part_width - 1))
        zero = 4 + outputs
        per_worker = ceil_div(outputs, WORKERS)
        reduce = 10 + (9 + 2 * (WORKERS - 1)) * per_worker // 4
        fixed = 61 + 13 + 26
    else:
        if wide:
            inner = 22 * (whole + part)
            inner += whole * (3 + 3 * (kernel_width - 1)) + part * (3 + 3 * (part_width - 1))
            if conv_groups_per_group == 8:
                inner += 13
            else:
                inner = 25 + 2 * inner
        else:
            fixed_row = 7 + (5 if float_partials else 3) + 3
            inner = 19 if float_partials else 18
            inner += whole * (fixed_row + 2 * (kernel_width - 1))
            inner += part * (fixed_row + 2 * (part_width - 1))
        zero = 4 + ceil_div(outputs, 2 if float_partials else 4)
        per_worker = ceil_div(outputs, WORKERS)
        per_elem = (9 if float_partials else 7) + (2 if float_partials else 1) * (WORKERS - 1)
        reduce = (9 if float_partials else 10) + per_elem * per_worker // conv_groups_per_group
        fixed = 61 + 14 + 25 + (1 if float_partials else 0)
    inner *= WORKERS
    return fixed + (zero + 32 + in_groups * (24 + inner) + reduce) * conv_group_groups


@njit(cache=True)
def outer_product_cycles(width: int, channels: int, chans_per_group: int, is_float: bool) -> int:
    """Cycles of the outer product vertex on one tile (getOuterProductCycleEstimate x workers).

    Parameters
    ----------
    width : field positions on the tile.
    channels : output channels on the tile, all groups together.
    """
    groups = channels // chans_per_group
    per_worker = ceil_div(width, WORKERS)
    if is_float:
        if chans_per_group >= 6 and chans_per_group % 2 == 0:
            cycles = 25 + groups * (11 + per_worker * (6 + (chans_per_group - 6) // 2))
        else:
            cycles = 25 + groups * (11 + per_worker * (10 + chans_per_group * 2))
    elif chans_per_group >= 12 and chans_per_group % 4 == 0:
        cycles = 25 + groups * (10 + per_worker * (6 + (chans_per_group - 12) // 4))
    else:
        cycles = 25 + groups * (10 + per_worker * (10 + chans_per_group * 5 // 2))
    return cycles * WORKERS


@njit(cache=True)
def cast_cycles(elements: int, in_bytes: int, out_bytes: int) -> int:
    """Cast of conv partials to the output type (estimateCastCycles)."""
    per_worker = ceil_div(elements, WORKERS)
    loop = max(ceil_div(per_worker, 8 // in_bytes), ceil_div(per_worker, 8 // out_bytes))
    return (loop + 26) * WORKERS


@njit(cache=True)
def reduce_vertex_cycles(
    outputs: int, depth: int, float_out: bool, float_partials: bool, single_input: bool
) -> int:
    """Cycles to sum `depth` partials of `outputs` elements on one tile (getReduceCycleEstimate)."""
    width = 4 if float_partials else 8
    if single_input:
        over = (8 if float_out else 7) if float_partials else (10 if float_out else 9)
        loops = ceil_div(outputs // width, WORKERS)
        return (20 + (2 * depth + over) * loops) * WORKERS + 33
    cycles = 32
    loops = outputs // width
    bit = 1
    while bit < width:
        if outputs & bit:
            loops += 1
        bit *= 2
    busy = loops // WORKERS
    if loops % WORKERS:
        if outputs & (width - 1):
            cycles += 2 * depth + (13 if float_partials else 11)
        else:
            busy += 1
    over = (7 if float_out else 6) if float_partials else (9 if float_out else 8)
    return (cycles + (3 * depth + over) * busy) * WORKERS
