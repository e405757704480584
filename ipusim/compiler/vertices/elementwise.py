"""Vertex costs in cycles of one tile: elementwise, broadcast, cast, fill, slice, transpose.

Every function gives the cycles of the vertex that poplibs would run on one tile with all worker
threads. The work is cut into equal shares and the slowest worker counts, times the number of
workers, because each worker issues once per round. Formulas are those of
poplibs lib/popops/popopsCycleEstimators.cpp, lib/popops/PerformanceEstimation.cpp and
lib/popnn/popnnCycleEstimators.cpp of the era of a `Tile`.
"""

from functools import cache
from math import gcd
from typing import NamedTuple

from ipusim.compiler.eras import ERA_1_0
from ipusim.compiler.tiles import Runs, Tile, ceil_div, element_bytes
from ipusim.compiler.vertices import tables
from ipusim.machine import Chip

TRANSPOSE = "popops::Transpose1D"
"""Name of the vertex that transposes blocks where they lie."""

REGROUP_GRAIN_BYTES = 8
"""Bytes of a row of the smallest block that is worth a transposition."""

_FLOATING = {"float16", "float32"}


WHOLE = ("UnaryOp1D", "BinaryOp1D", "Select")
"""Vertices of one, two and three operands of one shape."""


@cache
def vertex_of(function: str, era: int) -> str:
    """Return the vertex of `WHOLE` that has a function, or ""; non-linearities are unary."""
    if function in tables.NON_LINEARITY[era]:
        return "UnaryOp1D"
    return next((vertex for vertex in WHOLE if function in tables.LOOPS[vertex][era]), "")


def loop_of(tile: Tile, vertex: str, function: str, dtype: str) -> tuple[int, int]:
    """Return the cycles and the elements of one pass of a worker's loop (`tables.LOOPS`)."""
    name = vertex.replace("2D", "1D")
    if name not in tables.LOOPS:
        name = name.removesuffix("InPlace")
    return tables.LOOPS[name][tile.era][function][dtype]


def loop_cycles(tile: Tile, vertex: str, function: str, elements: int, dtype: str) -> int:
    """Return the cycles of a vertex whose workers share elements and loop over their part.

    UnaryOp1D, BinaryOp1D with two operands of one shape, BroadcastScalar1D where the second is one
    element, Select with three operands, each also InPlace. UnaryOp2D and BinaryOp2D of several
    regions, and Select, have no supervisor but a vertex for each worker: these share the elements
    of all regions of a tile in whole vectors, two at least.
    """
    cycles, per_loop = loop_of(tile, vertex, function, dtype)
    around = tables.AROUND[tile.era]
    start, supervisor = around.get(f"{vertex} {function}", around[vertex])[dtype]
    per_worker = tile.per_worker(elements)
    if not supervisor:
        width = tile.width(dtype)
        vectors = ceil_div(elements, width)
        per_worker = min(vectors, max(2, tile.per_worker(vectors))) * width
    if tile.era == ERA_1_0 and vertex.startswith("UnaryOp1D"):
        # The early estimator divides after multiplying, so a part vector costs a part loop.
        loops = cycles * (per_worker + per_loop - 1) // per_loop
    else:
        loops = cycles * ceil_div(per_worker, per_loop)
    return tile.workers * (start + loops) + supervisor


def integer_cycles(tile: Tile, vertex: str, function: str, elements: int) -> int:
    """Return the cycles of a vertex of 32-bit integers, which none computes in vectors."""
    start, supervisor, each = tables.INTEGERS[tile.era][f"{vertex} {function}"]["float32"]
    return supervisor + tile.workers * (start + each * tile.per_worker(elements))


def non_linearity_cycles(
    tile: Tile, function: str, elements: int, dtype: str, *, gradient: bool = False
) -> int:
    """Return the cycles of a pipelined popnn vertex or its gradient.

    NonLinearity1D (NonLinearitySupervisor in era 0, where also relu, sigmoid and tanh are such),
    and NonLinearityGrad1D. The 2021 source mis-nests a conditional so that the prologue counts as
    one cycle; the sum that its comments describe is used here.
    """
    table = tables.NON_LINEARITY_GRAD if gradient else tables.NON_LINEARITY
    single, per_vector = table[tile.era][function][dtype]
    # Cycles of a worker: `start` before the loop, `first` for the first vector. Then at the end and
    # for elements that fill no vector: (end, one float), or (end, a pair of halves, a single half).
    if gradient:
        # State, sharing, identity, remaining vectors, offsets, first loads, branch; and, in the
        # later estimator only where pointers are scaled, five more to unpack them.
        start = 8 + 5 + 2 + 3 + 3 + 3 + 1 if tile.era == ERA_1_0 else 20
        first, floats, halves = 4 + 1, (4, 1), (6, 2, 4)
    else:
        start, first, floats, halves = 20, 2 + single + 1 + single, (3, 2), (4, 2, 3)
    width = tile.width(dtype)
    vectors, remainder = tile.per_worker(elements // width), elements % width
    worker = start + (first + (vectors - 1) * per_vector if vectors else 0)
    if dtype == "float32":
        end, one = floats
        worker += end + (one + single if remainder else 0)
    else:
        end, pair, one = halves
        worker += end + (pair + single if remainder & 2 else 0)
        worker += one + single if remainder & 1 else 0
    return 9 + tile.workers * worker


def scaled_add_cycles(
    tile: Tile, elements: int, dtype: str, addend_dtype: str = "", *, constrained: bool = False
) -> int:
    """Return the cycles of ``a += scale * b`` with a constant scale, b of `addend_dtype`.

    getScaledArithmeticSupervisorCycleEstimate: float32 added to float16 takes 4 cycles per vector
    (in era 0 from the fourth on 2), two equal types 3, float16 added to float32 takes 4 (3 in
    era 0). `constrained` to different memory elements, a vector takes 2 instead of 3.
    """
    addend = addend_dtype or dtype
    width = tile.width(dtype)
    vectors = tile.per_worker(elements // width)
    remainder = elements % width
    early = tile.era == ERA_1_0
    supervisor = tables.SUPERVISOR_CYCLES[tile.era] + (7 if remainder == 0 else 13) + 12
    supervisor += 12 if early else 27
    if dtype == "float16" and addend == "float32":
        start, first, per_vector = 16, 8, 4
        if early and vectors > 2:
            first, per_vector, vectors = 16, 2, vectors - 2
    else:
        mixed = dtype != addend and not early
        start, first, per_vector = 15, 6, 4 if mixed else (2 if constrained else 3)
    worker = start + (first + per_vector * (vectors - 1) if vectors else 0)
    worker += 2 + 1 + 1
    if remainder and dtype == "float32":
        worker += 8
    elif remainder:
        worker += 5 + (7 if remainder >= 2 else 0) + (6 if remainder == 3 else 0)
    return supervisor + tile.workers * worker


def scaled_add_runs_cycles(tile: Tile, runs: Runs, dtype: str) -> int:
    """Return the cycles of ``a += scale * b`` with a constant scale, where a and b lie in runs.

    Several runs have a ScaledAdd2D per worker (poplibs lib/popops/ScaledAdd.cpp). Up to tag 2.4.0
    its estimate hands its two flags on in the wrong order, so a constant scale counts as operands
    in different memory elements: 2 cycles a vector, of which the codelet takes 3.
    """
    if runs.one:
        return scaled_add_cycles(tile, runs.elements, dtype)
    width, around = tile.width(dtype), 11 if tile.era == ERA_1_0 else 15
    slowest = 0
    for pieces in runs.dealt(width, tile.workers):
        cycles = 9
        for piece in pieces:
            vectors, remainder = divmod(piece, width)
            cycles += around + (5 + 2 * vectors if vectors else 0)
            if dtype == "float32":
                cycles += 7 if remainder else 0
            elif remainder:
                cycles += 4 + (6 if remainder >= 2 else 0) + (7 if remainder % 2 else 0)
        slowest = max(slowest, cycles)
    return tile.workers * slowest


def running_mean_cycles(tile: Tile, elements: int) -> int:
    """Return the cycles of ``a = s * a + t * b`` in float16 with float32 numbers s and t.

    aXPlusbYMixedSupervisorCycleEstimate for pointers of 64 bits: a thread looks whether float16
    would do for the two numbers, then each pair of elements takes 5 cycles.
    """
    pairs = tile.per_worker(ceil_div(elements, 2))
    loop = 11 + 5 * (pairs - 3) + 4 if pairs > 2 else 1 + 13
    supervisor = 1 + 12 + 10 + 15 * 6 + 9 + 5 + 28 + 2
    return supervisor + tile.workers * (19 + 4 + loop + 1)


def cast_cycles(tile: Tile, elements: int, from_dtype: str, to_dtype: str) -> int:
    """Return the cycles of a type conversion (CastSupervisor, then getCast1DCycleEstimate)."""
    worker = _cast_worker_cycles(tile, tile.per_worker(elements), from_dtype, to_dtype)
    supervisor, start = 12, 18
    if tile.era == ERA_1_0:
        supervisor, start = (7, 20) if {from_dtype, to_dtype} <= _FLOATING else (0, 0)
    return supervisor + tile.workers * (start + worker)


def cast_runs_cycles(tile: Tile, runs: Runs, from_dtype: str, to_dtype: str) -> int:
    """Return the cycles of converting float16 or float32 that sits in runs to the other type.

    Several runs have a vertex per worker: Cast2D, or Cast1DSingleWorker where a worker has one
    piece (poplibs lib/popops/Cast.cpp and getCast2DCycleEstimate; Cast2d and Cast of tag 1.0.136).
    """
    if runs.one:
        return cast_cycles(tile, runs.elements, from_dtype, to_dtype)
    early, width = tile.era == ERA_1_0, tile.width("float32")
    slowest = 0
    for pieces in runs.dealt(width, tile.workers):
        cycles = 0 if early and len(pieces) == 1 else 5
        for piece in pieces:
            if early and len(pieces) > 1:
                cycles += 6 + ceil_div(piece, width)
            else:
                cycles += 11 if len(pieces) > 1 else 0
                cycles += _cast_worker_cycles(tile, piece, from_dtype, to_dtype)
        slowest = max(slowest, cycles)
    return tile.workers * slowest


def _cast_worker_cycles(tile: Tile, elements: int, from_dtype: str, to_dtype: str) -> int:
    """Return the cycles of one worker to convert so many elements (castWorkerCycles)."""
    if tile.era == ERA_1_0:
        # The early supervisor vertex exists for the floating-point pair; other casts run one
        # element pair per cycle on plain workers.
        if {from_dtype, to_dtype} <= _FLOATING:
            worker = 2 + (2 if to_dtype == "float16" else 0)
            if elements < 4:
                return worker + 11 + elements * 14 // 3
            return worker + 26 + 2 * (elements // 4) + (elements % 4) * 14 // 3
        return 5 + ceil_div(elements, tile.chip.data_path_bytes // 4)
    if from_dtype == "uint8" and to_dtype == "float16":
        atoms, rest = divmod(elements, 4)
        return 4 + (14 + (atoms - 1) * 9 if atoms else 0) + (2, 12, 14, 22)[rest]
    load, store = tile.width(from_dtype), tile.width(to_dtype)
    on_float_pipeline = {from_dtype, to_dtype} <= _FLOATING | {"float8"}
    width = min(2 * load, store) if on_float_pipeline else 1
    per_vector = max(ceil_div(width, load), ceil_div(width, store))
    per_vector += 0 if on_float_pipeline else 1
    worker = 19 + per_vector * (elements // width)
    for bit in range((width - 1).bit_length()):
        worker += 1 + (2 if (elements % width) >> bit & 1 else 0)
    return worker


def fill_cycles(tile: Tile, elements: int, dtype: str) -> int:
    """Return the cycles of writing one value to every element on the tile.

    Source: Zero (era 0), getFill1DCycleEstimate and modelContiguousFill (era 2), whose workers
    take at least two vectors each.
    """
    width = tile.width(dtype)
    per_worker = max(tile.per_worker(ceil_div(elements, width)), 2) * width
    per_worker = min(elements, per_worker)
    if tile.era == ERA_1_0:
        return tile.workers * (20 + per_worker // width)
    if element_bytes(dtype) == 1:
        worker = 28 + per_worker // 4 if per_worker < 64 else 39 + per_worker // 8
    elif element_bytes(dtype) == 2:
        worker = {1: 15, 2: 21}.get(per_worker, 26 + per_worker // width)
    else:
        worker = 23 + per_worker // width + (1 if per_worker % width == 1 else 0)
    return tile.workers * worker


def iota_cycles(tile: Tile, elements: int) -> int:
    """Return the cycles of counting up over the 32-bit elements on the tile, one run per worker."""
    vectors = tile.per_worker(ceil_div(elements, tile.width("float32")))
    return tile.workers * (10 + 4 + 3 * vectors)


def dynamic_slice_cycles(tile: Tile, elements: int, dtype: str) -> int:
    """Return the cycles of DynamicSlice1D or DynamicUpdateSlice1D, which cost the same."""
    copies = tile.per_worker(elements) // tile.width(dtype)
    supervisor = tables.SUPERVISOR_CYCLES[tile.era] + 14
    if tile.era == ERA_1_0:
        worker = 41 + 27 + copies
    elif element_bytes(dtype) == 1:
        worker = 72 + 70 + 2 * copies
    else:
        worker = 35 + 24 + 2 * copies
    return supervisor + tile.workers * worker


class Regrouping(NamedTuple):
    """A transposition of blocks on all tiles: bytes received and cycles of the fullest tile."""

    received: int
    cycles: int


def found_group(grouping: int, size: int) -> int:
    """Return the group of adjacent neighbours that poplibs finds along a dimension, 1 if none.

    It must divide the size of the dimension (lib/poputil/VarStructure.cpp,
    detectInnermostGrouping).
    """
    group = min(grouping, size)
    return 1 if size % group else group


def regrouping(elements: int, rows: int, columns: int, dtype: str, chip: Chip) -> Regrouping | None:
    """Return what it takes to transpose ``rows x columns`` blocks, on as many tiles as possible.

    None where a side is no multiple of a grain: elements then move one by one (poplibs
    lib/popops/Rearrange.cpp, regroupIfBeneficial). Blocks are halved while tiles without a block
    get one by it and both sides stay such multiples (updateGroupingInternal there, tag 2.4.0).
    """
    grain = REGROUP_GRAIN_BYTES // element_bytes(dtype)
    if rows % grain or columns % grain:
        return None
    blocks, parts = ceil_div(elements, rows * columns), 1
    while rows * columns // (grain * grain) % (2 * parts) == 0 and 2 * parts * blocks <= chip.tiles:
        parts *= 2
    of_rows = gcd(parts, rows // grain)
    rows, columns = rows // of_rows, columns // gcd(parts // of_rows, columns // grain)
    each = ceil_div(ceil_div(elements, rows * columns), chip.tiles)
    received = each * rows * columns * element_bytes(dtype)
    # Adjacent elements before the transposition, `rows` of them, are columns of the vertex's input.
    return Regrouping(received, transpose_cycles(columns, rows, each, dtype, chip))


MOST_STRIDE = 512
"""Words; the stride of a load or store instruction must be smaller."""


def transpose_cycles(rows: int, columns: int, matrices: int, dtype: str, chip: Chip) -> int:
    """Return the cycles of transposing `matrices` matrices of ``rows x columns`` on a tile.

    Transpose1D (float16, multiples of 4) and Transpose2D of lib/popops/popopsCycleEstimators.cpp
    (tag 2.4.0); in era 0 the same vertices live in poplin. Pairs of float32 are moved together as
    long as an instruction's stride reaches from one to the next.
    """
    per_worker = ceil_div(matrices, chip.workers)
    if element_bytes(dtype) == 2 and rows % 4 == 0 and columns % 4 == 0:
        return 7 + chip.workers * (_half_transpose_worker(rows // 4, columns // 4, per_worker) - 7)
    if element_bytes(dtype) == 2:
        worker = 15 + per_worker * (8 + columns * (5 + rows * 5 // 2))
    elif rows % 2 == columns % 2 == 0 and max(rows, rows * (columns - 2) // 2) < MOST_STRIDE:
        worker = 27 + per_worker * (11 + rows // 2 * (6 + 3 * (columns // 2 - 1)))
    else:
        worker = 13 + per_worker * (8 + columns * (5 + rows * 2))
    return chip.workers * worker


def _half_transpose_worker(row_blocks: int, column_blocks: int, matrices: int) -> int:
    """Return one worker's cycles for float16 matrices made of 4 x 4 blocks (Transpose1D)."""
    if row_blocks == 1 and column_blocks == 1:
        return 29 if matrices == 1 else 37 + (matrices - 2) * 4
    if column_blocks == 1:
        return 27 + matrices * (35 + 4 * (row_blocks - 2))
    return 29 + matrices * (18 + row_blocks * (12 + 4 * (column_blocks - 2)))
