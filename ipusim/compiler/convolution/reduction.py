"""Sum of partial results over tiles, or the cast that stands in for it.

References
----------
poplibs ``lib/poplin/ConvReducePlan.cpp`` and ``ConvModel.cpp`` (estimateReduceCycles); the two
vertices are those of ``lib/popops``, which `reduce_vertices` models for operations on their own.
"""

from __future__ import annotations

import numpy as np

from ipusim.compiler.convolution.record import (
    C_OUTPUTS,
    C_REDUCE,
    C_REDUCE_FIRST,
    C_REDUCE_REST,
    C_STAGES,
    ERA,
    EXCHANGE_BYTES,
    OUT_BYTES,
    SINGLE_INPUT_BYTES,
)
from ipusim.compiler.vertices.conv import ERA_1_0, WORKERS, ceil_div
from ipusim.kernel_cache import njit


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


@njit(cache=True)
def _best_two_stage(depth: int) -> int:
    down = int(float(depth) ** 0.5)
    up = down + 1
    return down if depth / down + down < depth / up + up else up


@njit(cache=True)
def reduce_stages(depth: int) -> tuple[int, int]:
    """Partials left after the first and after the second of up to three stages, 1 at the end.

    References
    ----------
    poplibs ConvReducePlan.cpp: two stages from depth 16, three from 125.
    """
    if depth < 16:
        return 1, 1
    if depth < 125:
        return _best_two_stage(depth), 1
    down = int(float(depth) ** (2.0 / 3.0))
    up = down + 1
    down_next = _best_two_stage(down)
    up_next = _best_two_stage(up)
    down_cost = depth / down + down / down_next + down_next
    up_cost = depth / up + up / up_next + up_next
    if down_cost < up_cost:
        return down, down_next
    return up, up_next


@njit(cache=True)
def fill_reduction(
    problem: np.ndarray,
    result_bytes: int,
    outputs: int,
    depth: int,
    in_serial: int,
    cost: np.ndarray,
) -> int:
    """Fill the reduction's terms of `cost`; return the bytes of partials that a tile receives."""
    exchange = problem[EXCHANGE_BYTES]
    out_bytes = problem[OUT_BYTES]
    final_outputs = ceil_div(outputs, depth)
    cost[C_OUTPUTS] = final_outputs
    cost[C_REDUCE_FIRST] = ceil_div(outputs * result_bytes, exchange)
    cost[C_REDUCE_REST] = 0
    cost[C_REDUCE] = 0
    cost[C_STAGES] = 0
    if depth == 1:
        if out_bytes != result_bytes and in_serial == 1:
            cost[C_REDUCE] = cast_cycles(final_outputs, result_bytes, out_bytes)
        return 0
    float_partials = result_bytes == 4
    float_out = out_bytes == 4
    width = 4 if float_partials else 8
    received = 0
    remaining = depth
    size = final_outputs * depth
    moving = outputs
    after_first, after_second = reduce_stages(depth)
    for target in (after_first, after_second, 1):
        stage_depth = ceil_div(remaining, target)
        if stage_depth <= 1:
            break
        if cost[C_STAGES] > 0:
            cost[C_REDUCE_REST] += ceil_div(moving * result_bytes, exchange)
        cost[C_STAGES] += 1
        received = max(received, size * result_bytes)
        remaining = ceil_div(remaining, stage_depth)
        size = ceil_div(size, stage_depth)
        moving = ceil_div(moving, stage_depth)
        stage_float = float_out if (remaining == 1 or problem[ERA] == ERA_1_0) else float_partials
        single = (
            size % width == 0
            and (stage_depth - 1) * size * result_bytes <= problem[SINGLE_INPUT_BYTES]
        )
        terms = stage_depth - 1 if single else stage_depth
        cost[C_REDUCE] += reduce_vertex_cycles(size, terms, stage_float, float_partials, single)
    return received


@njit(cache=True)
def reduction_floor(
    problem: np.ndarray, result_bytes: int, outputs: int, depth: int, in_serial: int
) -> int:
    """Cycles that the reduction, or the cast, of at least `outputs` partials cannot beat.

    Every partial is loaded, two cycles a vector, and every sum stored; the cheaper of the two
    reduce vertices takes 153 cycles besides.
    """
    if depth == 1:
        if problem[OUT_BYTES] != result_bytes and in_serial == 1:
            return cast_cycles(outputs, result_bytes, problem[OUT_BYTES])
        return 0
    width = 4 if result_bytes == 4 else 8
    if depth < 16:
        return 153 + (2 * depth + 5) * outputs // (depth * width)
    return 2 * 153 + 2 * outputs // width
