"""Cycle estimates of the multiply-accumulate, SLIC and outer product vertices, one tile.

The formulas restate poplibs ``lib/poplin/PerformanceEstimation.hpp`` (MIT) by era, as
`vertices.conv` does for the AMP vertices.
"""

from __future__ import annotations

from ipusim.compiler.vertices.conv import (
    ERA_1_0,
    ERA_2_0,
    ERA_2_4,
    ERA_3_3,
    WORKERS,
    ceil_div,
    distinct_workers,
    worker_share,
    zero_partials_cycles,
)
from ipusim.kernel_cache import njit


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
    """Worker cycles for one run of `elements` (at least 1) outputs in one data pass."""
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
    """Slowest worker of one sub-kernel and, for the narrow chains, the merge of their halves."""
    half8 = chains == 2 and not float_partials
    data_passes = 1 if chains == 4 else 2
    prologue = 17
    if conv_groups_per_group > 4:
        prologue += 4
    if half8:
        prologue += 2
    per_row = (9 if half8 else 10) + (1 if zeroing else 0) + (3 if float_partials else 0)
    less = 1 if float_partials else 0
    whole_row = per_row + data_passes * (_slic_row(row_length, stride, half8, zeroing) - less)
    slowest = 0
    for worker in distinct_workers(rows):
        head, whole_rows, tail = worker_share(rows, row_length, worker)
        cycles = prologue + whole_rows * whole_row
        for elements in (head, tail):
            if elements > 0:
                row = _slic_row(elements, stride, half8, zeroing) - less
                cycles += per_row + data_passes * row
        slowest = max(slowest, cycles)
    merge = 2 + 2 * rows * row_length if (half8 and zeroing) else 0
    return slowest * WORKERS + merge


@njit(cache=True)
def vmac_cycles(
    positions: int,
    outputs: int,
    kernel_height: int,
    kernel_width: int,
    conv_group_groups: int,
    in_groups: int,
    conv_groups_per_group: int,
    float_partials: bool,
    era: int,
) -> int:
    """Cycles of the vertical MAC vertex (depthwise, half inputs) on one tile.

    References
    ----------
    poplibs PerformanceEstimation.hpp, estimateConvPartialVerticalMacInnerLoopCycles and
    getConvPartialVerticalMacSupervisorOuterLoopCycleEstimate.
    """
    split = WORKERS // _gcd(WORKERS, positions)
    worker_parts = ceil_div(positions * split, WORKERS)
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
    """Cycles of the outer product vertex on one tile (getOuterProductCycleEstimate x workers)."""
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
