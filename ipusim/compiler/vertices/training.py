"""Vertices that only training runs: cycles on one tile.

Sources: poplibs lib/popnn/popnnCycleEstimators.cpp and PerformanceEstimation.hpp (gradients of
non-linearities, losses), lib/popops/PerformanceEstimation.cpp (multiUpdateAdd),
lib/popops/popopsCycleEstimators.cpp (one-hot encoding), lib/popops/ExpressionGenerator.cpp
(generated vertices), lib/poprand/poprandCycleEstimators.cpp (dropout, uniform), tags 1.0.136 and
sdk/poplar/2.4.0. All workers issue in turn: a vertex takes its slowest worker times the workers.
"""

from dataclasses import dataclass

from ipusim.compiler.tiles import ChipLike, ceil_div, element_bytes, vector_width
from ipusim.compiler.vertices import tables
from ipusim.compiler.vertices.elementwise import gather_cycles
from ipusim.errors import unknown_name

_ATOMIC_STORE_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """An expression of popops::map that becomes one generated vertex.

    Each of its operations runs once per vector of each input tensor. Those in `slow` take longer
    than one cycle a vector: besides, they cost what their own vertices do (poplibs' estimate of
    generated vertices counts them like the rest).
    """

    operations: int
    tensors: int = 2
    slow: tuple[str, ...] = ()


def non_linearity_grad_cycles(
    function: str, elements: int, dtype: str, chip: ChipLike, *, version: str
) -> int:
    """Return the cycles of the gradient of a non-linearity (NonLinearityGrad1D)."""
    table = tables.NON_LINEARITY_GRAD[version]
    if function not in table:
        raise unknown_name("non-linearity with a gradient vertex", function, table)
    single, per_vector = table[function][dtype]
    width = vector_width(dtype, chip)
    vectors = ceil_div(elements // width, chip.workers)
    remainder = elements % width
    # State, sharing, identity, remaining vectors, offsets, first loads, branch; and, in the later
    # estimator only where pointers are scaled, five more to unpack them.
    worker = 8 + 5 + 2 + 3 + 3 + 3 + 1 if version == "2020-01" else 20
    if vectors:
        worker += 4 + (vectors - 1) * per_vector + 1
    if dtype == "float32":
        worker += 4 + (single + 1 if remainder else 0)
    else:
        worker += 6 + (single + 2 if remainder & 2 else 0) + (single + 4 if remainder & 1 else 0)
    return 9 + chip.workers * worker


def generated_cycles(
    expression: Expression, elements: int, dtype: str, chip: ChipLike, *, version: str
) -> int:
    """Return the cycles of a vertex that popops::map generates from an expression.

    Every operator runs once per vector of every input, and per element of the remainder.
    """
    width = vector_width(dtype, chip)
    loops = elements // width + elements % width
    once = 20 + expression.tensors * loops * expression.operations
    return ceil_div(once, chip.workers) * chip.workers + sum(
        slow_operator_cycles(function, elements, dtype, chip, version=version)
        for function in expression.slow
    )


def slow_operator_cycles(
    function: str, elements: int, dtype: str, chip: ChipLike, *, version: str
) -> int:
    """Return what an operator of several cycles costs inside a generated vertex.

    Its loop in the vertex of its own (`tables`), less two cycles to load and store.
    """
    table = tables.BINARY if function in tables.BINARY[version] else tables.UNARY
    cycles, per_loop = table[version][function][dtype]
    loops = ceil_div(ceil_div(elements, chip.workers), per_loop)
    return chip.workers * max(0, cycles - 2) * loops


def loss_transform_cycles(kind: str, elements: int, dtype: str, chip: ChipLike) -> int:
    """Return the cycles of a loss and its gradient, mean squared or cross entropy of probabilities.

    getLossTransformCycles, the same at both tags; workers share elements in whole vectors. Two
    halves take one pass of the loop.
    """
    softmax = kind == "cross_entropy"
    width = vector_width(dtype, chip)
    size = min(elements, ceil_div(ceil_div(elements, width), chip.workers) * width)
    worker = 5 + (6 if softmax else 5) + 5 + 2 + 1 + 1
    loop = 9 if softmax else 4
    if dtype == "float32":
        worker += loop * size
    else:
        worker += 1 + loop * (size // 2) + 2
        if size % 2:
            worker += 11 if softmax else 6
    return chip.workers * worker


def one_hot_cycles(indices: int, dtype: str) -> int:
    """Return the cycles of setting one element per index in zeroed memory (EncodeOneHot).

    One supervisor handles all indices of a tile: 74 cycles each for halves, 100 otherwise.
    """
    return 100 * indices if dtype != "float16" else 11 + 74 * indices


def dropout_cycles(elements: int, dtype: str, chip: ChipLike) -> int:
    """Return the cycles of masking and scaling by fresh random bits (poprand::Dropout)."""
    width = vector_width(dtype, chip)
    rest = (1 if dtype == "float32" else 9) if elements % width else 0
    return 6 + 24 * chip.workers + 2 * ceil_div(elements, width) + rest


def uniform_integer_cycles(elements: int, chip: ChipLike) -> int:
    """Return the cycles of drawing 32-bit integers of the whole range (poprand::Uniform)."""
    return 4 + 22 * chip.workers + elements // 2


SEED_BYTES = 8
"""A seed of poprand: two 32-bit integers."""


def set_seed_cycles(chip: ChipLike) -> int:
    """Return the cycles of seeding every worker's generator (poprand::SetSeed)."""
    return 14 + 27 * chip.workers


def multi_slice_cycles(
    offsets: int, in_range: int, row_elements: int, dtype: str, chip: ChipLike, *, version: str
) -> int:
    """Return the cycles of copying rows chosen by index, one vertex per worker (MultiSlice).

    One worker looks at `offsets` indices and finds `in_range` of them.
    """
    found = offsets if version == "2020-01" else in_range
    missed = 8 * (offsets - found)
    cycles = gather_cycles(chip.workers * found, row_elements, dtype, chip, version=version)
    return cycles + chip.workers * missed


def multi_update_add_cycles(
    offsets: int,
    in_range: int,
    row_elements: int,
    dtype: str,
    chip: ChipLike,
    *,
    version: str,
) -> int:
    """Return the cycles of adding scaled rows into the part of a table that lies on this tile.

    The tile looks at `offsets` indices, of which one worker finds `in_range` at most.
    getMultiUpdateOpCycleEstimate for unsorted indices; before it (tags 1.0.136 to sdk/poplar/2.0.0)
    MultiUpdateAdd, which ran on one worker. Rows of 64 bits have a path of their own since. Rows
    that are not whole 32-bit words take a C++ path at 20 cycles per element.
    """
    size = element_bytes(dtype)
    words = size == 4
    early = version == "2020-01"
    special = (words and row_elements in (2, 4)) or (not words and row_elements == 4)
    special = special and not early
    if early:
        cycles = 3 + (14 if words else 15)
    else:
        cycles = 3 + (29 if words else 30) - (1 if special else 0) + 4 + (2 if words else 0)
    if not offsets:
        return cycles * chip.workers
    per_atom = max(1, _ATOMIC_STORE_BYTES // size)
    if special:
        per_row = (8 if row_elements == 2 else 16) if words else 9
    else:
        per_row = 11 if words else 12 + (0 if early else 1)
        if row_elements % per_atom:
            per_row += 20 * row_elements
        else:
            per_row += 3 * (row_elements // per_atom - 1)
    cycles += per_row * in_range + 5 * (offsets - in_range)
    return cycles * chip.workers
