"""Vertices that only training runs: cycles on one tile.

Sources: poplibs lib/popnn/popnnCycleEstimators.cpp and PerformanceEstimation.hpp (gradients of
non-linearities, losses), lib/popops/PerformanceEstimation.cpp (multiUpdateAdd),
lib/popops/popopsCycleEstimators.cpp (one-hot encoding), lib/popops/ExpressionGenerator.cpp
(generated vertices), lib/poprand/poprandCycleEstimators.cpp (dropout, normal, uniform), tags
1.0.136 and sdk/poplar/2.4.0. All workers issue in turn: a vertex takes its slowest worker times
the workers.
"""

from dataclasses import dataclass

from ipusim.compiler.eras import ERA_1_0
from ipusim.compiler.tiles import Tile, ceil_div, element_bytes
from ipusim.compiler.vertices.elementwise import loop_of, vertex_of
from ipusim.compiler.vertices.tables import RANDOM

_ATOMIC_STORE_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """An expression of popops::map that becomes one generated vertex.

    Each of its `operations` runs once per vector of each of the input `tensors`. Functions in
    `slow` take more than one cycle a vector: they also cost the loop of their own vertex (poplibs'
    estimate of generated vertices counts them like the rest).
    """

    operations: int
    tensors: int = 2
    slow: tuple[str, ...] = ()


def generated_cycles(tile: Tile, expression: Expression, elements: int, dtype: str) -> int:
    """Return the cycles of a vertex that popops::map generates from an expression."""
    width = tile.width(dtype)
    loops = elements // width + elements % width
    once = 20 + expression.tensors * loops * expression.operations
    return tile.workers * tile.per_worker(once) + sum(
        slow_operator_cycles(tile, function, elements, dtype) for function in expression.slow
    )


def slow_operator_cycles(tile: Tile, function: str, elements: int, dtype: str) -> int:
    """Return what a slow operator costs in it: its own loop, less two cycles of each pass."""
    cycles, per_loop = loop_of(tile, vertex_of(function, tile.era), function, dtype)
    loops = ceil_div(tile.per_worker(elements), per_loop)
    return tile.workers * max(0, cycles - 2) * loops


def loss_transform_cycles(tile: Tile, kind: str, elements: int, dtype: str) -> int:
    """Return the cycles of a loss and its gradient, mean squared or cross entropy of probabilities.

    getLossTransformCycles, the same at both tags; workers share elements in whole vectors. Two
    halves take one pass of the loop.
    """
    softmax = kind == "cross_entropy"
    width = tile.width(dtype)
    size = min(elements, tile.per_worker(ceil_div(elements, width)) * width)
    worker = 5 + (6 if softmax else 5) + 5 + 2 + 1 + 1
    loop = 9 if softmax else 4
    if dtype == "float32":
        worker += loop * size
    else:
        worker += 1 + loop * (size // 2) + 2
        if size % 2:
            worker += 11 if softmax else 6
    return tile.workers * worker


def one_hot_cycles(indices: int, dtype: str) -> int:
    """Return the cycles of EncodeOneHot, whose supervisor sets one element per index."""
    return 100 * indices if dtype != "float16" else 11 + 74 * indices


def random_cycles(tile: Tile, vertex: str, elements: int, dtype: str) -> int:
    """Return the cycles of a vertex of poprand, by `tables.RANDOM`.

    Dropout masks and scales by fresh random bits, Normal and Uniform draw numbers, SetSeed seeds
    every worker's generator.
    """
    supervisor, worker, per_vector, rest = RANDOM[tile.era][vertex][dtype]
    width = tile.width(dtype)
    cycles = supervisor + worker * tile.workers + per_vector * ceil_div(elements, width)
    return cycles + (rest if elements % width else 0)


SEED_BYTES = 8
"""A seed of poprand: two 32-bit integers."""


def multi_slice_cycles(
    tile: Tile, offsets: int, in_range: int, row_elements: int, dtype: str
) -> int:
    """Return the cycles of copying rows chosen by index, one vertex per worker (MultiSlice).

    One worker looks at `offsets` indices and finds `in_range` of them; early ones are charged as if
    it found all. The loop of era 2 moves four bytes of a float16 row in two cycles.
    """
    if tile.era == ERA_1_0:
        vectors = ceil_div(row_elements, tile.width(dtype))
        return tile.workers * (16 + offsets * (19 + 3 * vectors))
    whole = tile.width(dtype), 2
    width, per_vector = {1: (4, 3), 2: (2, 2)}.get(element_bytes(dtype), whole)
    found = in_range * (19 + per_vector * ceil_div(row_elements, width))
    return tile.workers * (19 + found + 8 * (offsets - in_range))


def multi_update_add_cycles(
    tile: Tile, offsets: int, in_range: int, row_elements: int, dtype: str
) -> int:
    """Return the cycles of adding scaled rows into the part of a table that lies on this tile.

    The tile looks at `offsets` indices, of which one worker finds `in_range` at most.
    getMultiUpdateOpCycleEstimate for unsorted indices; before it (tags 1.0.136 to sdk/poplar/2.0.0)
    MultiUpdateAdd, which ran on one worker. Rows of 64 bits, and of 128 bits of float32, have paths
    of their own since. Rows that are not whole 32-bit words take a C++ path at 20 cycles per
    element.
    """
    size, early = element_bytes(dtype), tile.era == ERA_1_0
    words, per_atom = size == 4, max(1, _ATOMIC_STORE_BYTES // size)
    if early:
        cycles, per_row = (3 + 14, 11) if words else (3 + 15, 12)
    else:
        cycles, per_row = (3 + 29 + 4 + 2, 11) if words else (3 + 30 + 4, 13)
    if not early and row_elements in ((2, 4) if words else (4,)):
        cycles -= 1
        per_row = (8 if row_elements == 2 else 16) if words else 9
    elif row_elements % per_atom:
        per_row += 20 * row_elements
    else:
        per_row += 3 * (row_elements // per_atom - 1)
    cycles += per_row * in_range + 5 * (offsets - in_range)
    return cycles * tile.workers
