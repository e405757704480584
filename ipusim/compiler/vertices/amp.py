"""Cycle estimates of the n x 1 convolution vertex (AMP) on one tile, by era as in `vertices.conv`.

The formulas restate poplibs ``lib/poplin/PerformanceEstimation.hpp`` (MIT).
"""

from __future__ import annotations

import numpy as np

from ipusim.compiler.vertices.conv import (
    ERA_1_0,
    ERA_2_0,
    ERA_2_4,
    ERA_3_3,
    WORKERS,
    distinct_workers,
    worker_share,
    zero_partials_cycles,
)
from ipusim.kernel_cache import njit


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
    """Slowest worker of one pass, prologue included."""
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
    whole_row = _n_by_one_row(row_length, float_input, narrow, era)
    slowest = 0
    fastest = 1 << 60
    for worker in distinct_workers(rows):
        head, whole_rows, tail = worker_share(rows, row_length, worker)
        cycles = prologue + whole_rows * whole_row
        for elements in (head, tail):
            if elements > 0:
                cycles += _n_by_one_row(elements, float_input, narrow, era)
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

    References
    ----------
    poplibs PerformanceEstimation.hpp, getConvPartialnx1Supervisor{Inner,Outer}LoopCycleEstimate.
    """
    workers = _n_by_one_worker_loop(rows, row_length, float_input, float_partials, units, era)
    zeroed = rows * row_length * out_chans_per_group
    return _n_by_one_supervisor(
        kernel_outer * kernel_inner * workers,
        zeroed,
        kernel_outer,
        kernel_inner,
        filter_height,
        conv_groups,
        in_groups,
        out_groups,
        out_chans_per_group,
        weight_load,
        float_partials,
        units,
        era,
    )


@njit(cache=True)
def amp_nx1_window_cycles(
    tap_rows: np.ndarray,
    tap_lengths: np.ndarray,
    positions: int,
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
    """Cycles of the same vertex where a kernel tap does not reach every output of the tile.

    Outputs that a tap would compute from padding only are not in its work list, so padded and tiny
    fields take less than the planner reckons with (poplibs ``lib/poplin/ConvVertices.cpp``,
    createConvPartialAmpVertex).
    """
    worker_sum = 0
    for rows in tap_rows:
        for length in tap_lengths:
            # A tap that reaches nothing still has its (empty) work lists looked at.
            empty = rows == 0 or length == 0
            worker_sum += _n_by_one_worker_loop(
                1 if empty else rows,
                0 if empty else length,
                float_input,
                float_partials,
                units,
                era,
            )
    return _n_by_one_supervisor(
        worker_sum,
        positions * out_chans_per_group,
        len(tap_rows),
        len(tap_lengths),
        filter_height,
        conv_groups,
        in_groups,
        out_groups,
        out_chans_per_group,
        weight_load,
        float_partials,
        units,
        era,
    )


@njit(cache=True)
def _n_by_one_supervisor(
    worker_sum: int,
    zeroed: int,
    kernel_outer: int,
    kernel_inner: int,
    filter_height: int,
    conv_groups: int,
    in_groups: int,
    out_groups: int,
    out_chans_per_group: int,
    weight_load: int,
    float_partials: bool,
    units: int,
    era: int,
) -> int:
    """Cycles around the workers' `worker_sum`, one pass over all kernel positions each."""
    passes = out_chans_per_group // units
    setup = 15 if filter_height == 1 else (46 if filter_height == 2 else 60)
    load = weight_load + setup
    zero = zero_partials_cycles(zeroed, out_groups * conv_groups, era)
    taps = kernel_outer * kernel_inner
    if era == ERA_1_0:
        inner = 15 * kernel_outer + 20 * taps + passes * (load * taps + worker_sum)
        return 95 + conv_groups * (16 + in_groups * (23 + out_groups * (23 + inner))) + zero
    load += 3
    inner = 14 * kernel_outer + 12 * taps + passes * (load * taps + worker_sum)
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
