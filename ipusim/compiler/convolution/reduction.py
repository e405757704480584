"""Sum of partial results over tiles, or the cast that stands in for it.

Sources: poplibs ``lib/poplin/ConvReducePlan.cpp`` and ``ConvModel.cpp`` (estimateReduceCycles). The
two vertices are those of ``lib/popops``; for operations on their own, see `vertices.reduce`.
"""

import numpy as np

from ipusim.compiler.eras import ERA_1_0
from ipusim.compiler.vertices.conv import WORKERS
from ipusim.kernel_cache import njit


@njit(cache=True)
def cast_cycles(elements: int, in_bytes: int, out_bytes: int) -> int:
    """Cast of conv partials to the output type (estimateCastCycles)."""
    per_worker = -(-elements // WORKERS)
    loop = max(-(-per_worker // (8 // in_bytes)), -(-per_worker // (8 // out_bytes)))
    return (loop + 26) * WORKERS


@njit(cache=True, inline="always")
def reduce_vertex_cycles(
    outputs: int, depth: int, float_out: bool, float_partials: bool, single_input: bool
) -> int:
    """Cycles to sum `depth` partials of `outputs` elements on one tile (getReduceCycleEstimate)."""
    width = 4 if float_partials else 8
    if single_input:
        over = (8 if float_out else 7) if float_partials else (10 if float_out else 9)
        loops = -(-(outputs // width) // WORKERS)
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
    """Partials left after the first and the second of up to three stages (ConvReducePlan.cpp)."""
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
def _dealt(outputs: int, channels: int, element_bytes: int, tiles: int) -> int:
    """Outputs on the fullest tile that shares groups (ConvReduce.cpp, partialGroupedReduce)."""
    width = 8 // element_bytes
    grain = -(-channels // width) * width
    groups = -(-outputs // grain)
    return -(-groups // tiles) * grain


@njit(cache=True, inline="always")
def fill_reduction(problem: np.void, vertex: np.void, work: np.void, outputs: int) -> int:
    """Fill the reduction's terms of the cost; return the bytes of partials that a tile receives.

    The planner deals out single outputs; what runs are groups of channels (`_dealt`).
    """
    cost, depth, out_bytes = work.cost, work.part.depth, problem.out_bytes
    exchange, result_bytes = problem.exchange_bytes, work.totals.result_bytes
    cost.outputs = -(-outputs // depth)
    cost.reduce_first = -(-outputs * result_bytes // exchange)
    cost.reduce_rest = cost.reduce = cost.stages = 0
    if depth == 1:
        if out_bytes != result_bytes and work.split.in_serial == 1:
            cost.reduce = cast_cycles(outputs, result_bytes, out_bytes)
        return 0
    float_partials, float_out = result_bytes == 4, out_bytes == 4
    received, remaining, size, moving = 0, depth, cost.outputs * depth, outputs
    after_first, after_second = reduce_stages(depth)
    for target in (after_first, after_second, 1):
        stage_depth = -(-remaining // target)
        if stage_depth <= 1:
            break
        if cost.stages > 0:
            cost.reduce_rest += -(-moving * result_bytes // exchange)
        cost.stages += 1
        received = max(received, size * result_bytes)
        remaining = -(-remaining // stage_depth)
        size = -(-size // stage_depth)
        moving = -(-moving // stage_depth)
        stage_float = float_partials
        if remaining == 1 or (problem.era == ERA_1_0 and not problem.executing):
            stage_float = float_out
        stage_bytes = 4 if stage_float else 2
        if problem.executing:
            size = _dealt(outputs, vertex.out_chans_per_group, stage_bytes, depth // target)
        held = (stage_depth - 1) * size * result_bytes
        single = size % (16 // result_bytes) == 0 and held <= problem.single_input_bytes
        terms = stage_depth - 1 if single else stage_depth
        cost.reduce += reduce_vertex_cycles(size, terms, stage_float, float_partials, single)
    return received


@njit(cache=True, inline="always")
def reduction_floor(problem: np.void, work: np.void, outputs: int) -> int:
    """Cycles that the reduction, or the cast, of at least `outputs` partials cannot beat.

    Every partial is loaded, two cycles a vector, and every sum stored; the cheaper of the two
    reduce vertices takes 153 cycles besides.
    """
    depth, result_bytes = work.part.depth, work.totals.result_bytes
    if depth == 1:
        if problem.out_bytes != result_bytes and work.split.in_serial == 1:
            return cast_cycles(outputs, result_bytes, problem.out_bytes)
        return 0
    width = 16 // result_bytes
    if depth < 16:
        return 153 + (2 * depth + 5) * outputs // (depth * width)
    return 2 * 153 + 2 * outputs // width
