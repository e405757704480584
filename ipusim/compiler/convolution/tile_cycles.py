"""Compute cycles of the slowest tile, by vertex type, as compiled kernels.

The vectors are those of `record`.
"""

from __future__ import annotations

import numpy as np

from ipusim.compiler.convolution import record as lay
from ipusim.compiler.vertices.amp import amp_nx1_cycles
from ipusim.compiler.vertices.conv import ERA_1_0, WORKERS, amp_1x1_cycles, ceil_div
from ipusim.compiler.vertices.mac import (
    hmac_cycles,
    outer_product_cycles,
    slic_cycles,
    vmac_cycles,
)
from ipusim.kernel_cache import njit


@njit(cache=True)
def tile_cycles(
    problem: np.ndarray,
    vertex: np.ndarray,
    totals: np.ndarray,
    rows: int,
    row_length: int,
    positions: int,
    batch: int,
    kernel_outer: int,
    kernel_elements: int,
    group_grains: int,
    in_grains: int,
    out_grains: int,
) -> int:
    """Compute cycles of one tile, -1 where the vertex cannot do the work."""
    era = problem[lay.ERA]
    method = vertex[lay.METHOD]
    last = problem[lay.DIMS] - 1
    kernel_last = problem[lay.KERNEL + last]
    float_input = problem[lay.IN_BYTES] == 4
    float_partials = vertex[lay.PARTIAL_BYTES] == 4
    if method == lay.AMP:
        units = vertex[lay.UNITS]
        if totals[lay.T_ONE_BY_ONE] and kernel_elements == 1:
            return amp_1x1_cycles(
                rows,
                row_length,
                group_grains,
                in_grains,
                out_grains,
                vertex[lay.OUT_CHANS_PER_GROUP],
                weight_load(problem, units),
                float_input,
                float_partials,
                units,
                era,
            )
        return amp_nx1_cycles(
            rows,
            row_length,
            ceil_div(kernel_outer, totals[lay.T_FILTER_HEIGHT]),
            kernel_elements // kernel_outer,
            totals[lay.T_FILTER_HEIGHT],
            group_grains,
            in_grains,
            out_grains,
            vertex[lay.OUT_CHANS_PER_GROUP],
            weight_load(problem, units),
            float_input,
            float_partials,
            units,
            era,
        )
    if method == lay.SLIC:
        if in_grains != 1 or out_grains != 1:
            return -1
        return slic_cycles(
            rows,
            row_length,
            ceil_div(kernel_last, 4) * (kernel_elements // kernel_last),
            group_grains,
            vertex[lay.CONV_GROUPS_PER_GROUP],
            vertex[lay.IN_CHANS_PER_GROUP],
            vertex[lay.UNITS],
            1 if problem[lay.TRANSFORMED + last] else problem[lay.STRIDE + last],
            float_partials,
            era,
        )
    if method == lay.HMAC:
        return hmac_cycles(
            rows,
            row_length,
            kernel_elements,
            group_grains,
            in_grains,
            out_grains,
            vertex[lay.IN_CHANS_PER_GROUP],
            vertex[lay.OUT_CHANS_PER_GROUP],
            float_input,
            float_partials,
            era,
        )
    if method == lay.VMAC:
        if out_grains != 1:
            return -1
        return vmac_cycles(
            positions,
            positions // batch,
            kernel_elements // kernel_last,
            kernel_last,
            group_grains,
            in_grains,
            vertex[lay.CONV_GROUPS_PER_GROUP],
            float_partials,
            era,
        )
    if rows != 1 or in_grains != 1 or kernel_elements != 1:
        return -1
    out_per = vertex[lay.OUT_CHANS_PER_GROUP]
    return outer_product_cycles(
        row_length,
        out_grains * out_per * group_grains,
        out_per,
        float_input or problem[lay.OUT_BYTES] == 4,
    )


@njit(cache=True)
def weight_load(problem: np.ndarray, units: int) -> int:
    """Cycles to load one set of AMP weights through the 64-bit path: 32 bytes a unit.

    The planner of tag 1.0.136 halved the wrong operand and counted a quarter of it
    (ConvPlan.cpp, addPartialCalcCycleEstimate against poplinCycleEstimators.cpp), so what it
    chooses by and what runs differ.
    """
    if problem[lay.ERA] == ERA_1_0 and not problem[lay.EXECUTING]:
        return units
    return units * 32 // 8


@njit(cache=True)
def tile_cycles_floor(
    problem: np.ndarray, vertex: np.ndarray, totals: np.ndarray, part: np.ndarray
) -> int:
    """Cycles that no tile with at least `part`'s positions can beat, however they form rows.

    One long row is the cheapest form.  More positions can be faster than fewer only up to the
    run length at which a worker enters its fast loop: below that a single position is the floor.
    """
    positions = part[lay.P_POSITIONS]
    batch = problem[lay.BATCH]
    row_length = positions
    if totals[lay.T_STEPS] > 1:
        row_length = ceil_div(positions, totals[lay.T_STEPS])
    if totals[lay.T_ONE_BY_ONE]:
        if row_length < 3 * WORKERS:
            row_length = 1
    elif vertex[lay.METHOD] == lay.SLIC:
        if row_length < 6 * WORKERS:
            row_length = 1
    elif vertex[lay.METHOD] == lay.VMAC:
        # Shares that differ between workers are never cheaper than the equal part of them.
        positions = max(1, positions // WORKERS * WORKERS)
        batch = min(batch, positions)
    one_row = lay.ONE
    return tile_cycles(
        problem,
        vertex,
        totals,
        one_row,
        row_length,
        positions,
        batch,
        part[lay.P_KERNEL_OUTER],
        part[lay.P_KERNEL_ELEMENTS],
        part[lay.P_GROUP_GRAINS],
        part[lay.P_IN_GRAINS],
        part[lay.P_OUT_GRAINS],
    )
