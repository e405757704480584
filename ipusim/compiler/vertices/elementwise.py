"""Vertex costs in cycles of one tile: elementwise, broadcast, cast, fill, slice, transpose.

Every function gives the cycles of the vertex that poplibs would run on one tile with all worker
threads. The work is cut into equal shares and the slowest worker counts, times the number of
workers, because each worker issues once per round. Formulas are those of
poplibs lib/popops/popopsCycleEstimators.cpp, lib/popops/PerformanceEstimation.cpp and
lib/popnn/popnnCycleEstimators.cpp at the version named by `version`.
"""

from math import gcd
from typing import NamedTuple

from ipusim.compiler.tiles import ChipLike, ceil_div, element_bytes, vector_width
from ipusim.compiler.vertices import tables
from ipusim.errors import ConfigError, unknown_name

TRANSPOSE = "popops::Transpose1D"
"""Name of the vertex that transposes blocks where they lie."""

REGROUP_GRAIN_BYTES = 8
"""Bytes of a row of the smallest block that is worth a transposition."""


def canonical_function(function: str) -> str:
    """Return the name under which a function is tabulated."""
    key = function.lower()
    return tables.SYNONYMS.get(key, key)


def unary_functions(version: str) -> list[str]:
    """Return the one-operand functions that have a vertex."""
    return sorted(tables.UNARY[version].keys() | tables.NON_LINEARITY[version].keys())


def binary_functions(version: str) -> list[str]:
    """Return the two-operand functions that have a vertex."""
    return sorted(tables.BINARY[version])


def _loop(table: tables.LoopTable, function: str, dtype: str) -> tables.Loop:
    if dtype not in table[function]:
        raise unknown_name("floating-point type", dtype, table[function])
    return table[function][dtype]


def unary_cycles(
    function: str, elements: int, dtype: str, chip: ChipLike, *, in_place: bool, version: str
) -> int:
    """Return the cycles of a one-operand vertex.

    UnaryOp1D, UnaryOp1DInPlace (popops) and NonLinearity1D / NonLinearitySupervisor (popnn). In
    2020-01 relu, sigmoid, tanh and gelu are popnn non-linearities, later only gelu and swish are.
    """
    function = canonical_function(function)
    if function in tables.NON_LINEARITY[version]:
        return _non_linearity_cycles(function, elements, dtype, chip, version)
    if function not in tables.UNARY[version]:
        raise unknown_name("elementwise function", function, unary_functions(version))
    table = tables.UNARY[version]
    prologue = tables.UNARY_PROLOGUE[version]
    if function == "exp":
        prologue = tables.EXP_PROLOGUE[version]
    if in_place:
        table = table | tables.UNARY_IN_PLACE[version]
        prologue = tables.UNARY_IN_PLACE_PROLOGUE[version]
    cycles, per_loop = _loop(table, function, dtype)
    per_worker = ceil_div(elements, chip.workers)
    if version == "2020-01":
        # The early estimator divides after multiplying, so a part vector costs a part loop.
        loops = cycles * (per_worker + per_loop - 1) // per_loop
    else:
        loops = cycles * ceil_div(per_worker, per_loop)
    return chip.workers * (prologue + loops) + 9 + tables.SUPERVISOR_CYCLES[version]


def _non_linearity_cycles(
    function: str, elements: int, dtype: str, chip: ChipLike, version: str
) -> int:
    """Return the cycles of a pipelined popnn non-linearity (see `unary_cycles`).

    The 2021 source mis-nests a conditional so that the prologue counts as one cycle; the sum that
    its comments describe is used here.
    """
    single, per_vector = _loop(tables.NON_LINEARITY[version], function, dtype)
    width = vector_width(dtype, chip)
    vectors = ceil_div(elements // width, chip.workers)
    remainder = elements % width
    worker = 20
    if vectors:
        worker += 2 + single + (vectors - 1) * per_vector + 1 + single
    if dtype == "float32":
        worker += 3 + (2 + single if remainder else 0)
    else:
        worker += 4 + (2 + single if remainder & 2 else 0) + (3 + single if remainder & 1 else 0)
    return 9 + chip.workers * worker


def binary_cycles(
    function: str, elements: int, dtype: str, chip: ChipLike, *, in_place: bool, version: str
) -> int:
    """Return the cycles of a two-operand vertex whose operands have the same shape.

    Source: BinaryOp1D, BinaryOp1DInPlace.
    """
    function = canonical_function(function)
    if function not in tables.BINARY[version]:
        raise unknown_name("elementwise function", function, binary_functions(version))
    cycles, per_loop = _loop(tables.BINARY[version], function, dtype)
    per_worker = ceil_div(elements, chip.workers)
    if in_place:
        prologue = tables.BINARY_IN_PLACE_PROLOGUE[version]
    else:
        prologue = tables.BINARY_PROLOGUE[version][dtype]
    loops = cycles * ceil_div(per_worker, per_loop)
    return chip.workers * (prologue + loops) + tables.SUPERVISOR_CYCLES[version]


def regions_cycles(
    function: str,
    elements: int,
    dtype: str,
    chip: ChipLike,
    *,
    in_place: bool,
    version: str,
) -> int:
    """Return the cycles of a function of several regions of one tile, one vertex per worker.

    Workers share the `elements` of all regions in whole vectors, two at least (UnaryOp2D,
    UnaryOp2DInPlace, BinaryOp2D, BinaryOp2DInPlace).
    """
    function = canonical_function(function)
    binary = function in tables.BINARY[version]
    table = tables.BINARY[version] if binary else tables.UNARY[version]
    if in_place and not binary:
        table = table | tables.UNARY_IN_PLACE[version]
    if function not in table:
        known = sorted({*tables.BINARY[version], *tables.UNARY[version]})
        raise unknown_name("elementwise function", function, known)
    cycles, per_loop = _loop(table, function, dtype)
    vectors = ceil_div(elements, vector_width(dtype, chip))
    share = min(vectors, max(2, ceil_div(vectors, chip.workers))) * vector_width(dtype, chip)
    prologue = tables.BINARY_2D_PROLOGUE if binary and not in_place else tables.OTHER_2D_PROLOGUE
    return chip.workers * (prologue + cycles * ceil_div(share, per_loop))


def scalar_broadcast_cycles(
    function: str, elements: int, dtype: str, chip: ChipLike, *, version: str
) -> int:
    """Return the cycles of a two-operand vertex whose second operand is one element.

    Source: BroadcastScalar1D.
    """
    function = canonical_function(function)
    table = tables.SCALAR_BROADCAST[version]
    if function not in table:
        raise unknown_name("scalar broadcast function", function, sorted(table))
    cycles, per_loop = _loop(table, function, dtype)
    loops = cycles * ceil_div(ceil_div(elements, chip.workers), per_loop)
    worker = tables.SCALAR_BROADCAST_PROLOGUE + loops
    return chip.workers * worker + tables.SUPERVISOR_CYCLES[version]


def scaled_add_cycles(
    elements: int,
    dtype: str,
    chip: ChipLike,
    *,
    addend_dtype: str | None = None,
    constrained: bool = False,
    version: str,
) -> int:
    """Return the cycles of ``a += scale * b`` with a constant scale, b of `addend_dtype`.

    getScaledArithmeticSupervisorCycleEstimate: float32 added to float16 takes 4 cycles per vector,
    two equal types 3, float16 added to float32 takes 4 (3 in 2020-01). `constrained` to different
    memory elements, one vector takes 2.
    """
    addend = addend_dtype or dtype
    width = vector_width(dtype, chip)
    vectors = ceil_div(elements // width, chip.workers)
    remainder = elements % width
    supervisor = tables.SUPERVISOR_CYCLES[version] + (7 if remainder == 0 else 13) + 12
    supervisor += 12 if version == "2020-01" else 27
    widening = dtype == "float16" and addend == "float32"
    if widening and version == "2020-01":
        worker = 16
        if vectors:
            worker += 8 + 4 * (vectors - 1) if vectors < 3 else 16 + 2 * (vectors - 3)
    elif widening:
        worker = 16 + (8 + 4 * (vectors - 1) if vectors else 0)
    else:
        mixed = dtype != addend and version != "2020-01"
        per_vector = 4 if mixed else (2 if constrained else 3)
        worker = 15 + (6 + per_vector * (vectors - 1) if vectors else 0)
    worker += 2 + 1 + 1
    if remainder and dtype == "float32":
        worker += 8
    elif remainder:
        worker += 5 + (7 if remainder >= 2 else 0) + (6 if remainder == 3 else 0)
    return supervisor + chip.workers * worker


def running_mean_cycles(elements: int, chip: ChipLike) -> int:
    """Return the cycles of ``a = s * a + t * b`` in float16 with float32 numbers s and t.

    aXPlusbYMixedSupervisorCycleEstimate for pointers of 64 bits: a thread looks whether float16
    would do for the two numbers, then each pair of elements takes 5 cycles.
    """
    pairs = ceil_div(ceil_div(elements, 2), chip.workers)
    loop = 11 + 5 * (pairs - 3) + 4 if pairs > 2 else 1 + 13
    supervisor = 1 + 12 + 10 + 15 * 6 + 9 + 5 + 28 + 2
    return supervisor + chip.workers * (19 + 4 + loop + 1)


def cast_cycles(
    elements: int, from_dtype: str, to_dtype: str, chip: ChipLike, *, version: str
) -> int:
    """Return the cycles of a type conversion (CastSupervisor, then getCast1DCycleEstimate)."""
    per_worker = ceil_div(elements, chip.workers)
    floating = {"float16", "float32"}
    if version == "2020-01":
        # The early supervisor vertex exists for the floating-point pair; other casts run one
        # element pair per cycle on plain workers.
        if {from_dtype, to_dtype} <= floating:
            worker = 2 + (2 if to_dtype == "float16" else 0)
            if per_worker < 4:
                worker += 11 + per_worker * 14 // 3
            else:
                worker += 26 + 2 * (per_worker // 4) + (per_worker % 4) * 14 // 3
            return 7 + chip.workers * (20 + worker)
        return chip.workers * (5 + ceil_div(per_worker, chip.data_path_bytes // 4))
    if from_dtype == "uint8" and to_dtype == "float16":
        atoms, rest = divmod(per_worker, 4)
        worker = 4 + (14 + (atoms - 1) * 9 if atoms else 0) + (2, 12, 14, 22)[rest]
    else:
        load = vector_width(from_dtype, chip)
        store = vector_width(to_dtype, chip)
        on_float_pipeline = {from_dtype, to_dtype} <= floating | {"float8"}
        width = min(2 * load, store) if on_float_pipeline else 1
        per_vector = max(ceil_div(width, load), ceil_div(width, store))
        per_vector += 0 if on_float_pipeline else 1
        worker = 19 + per_vector * (per_worker // width)
        for bit in range((width - 1).bit_length()):
            worker += 1 + (2 if (per_worker % width) >> bit & 1 else 0)
    return 12 + chip.workers * (worker + 18)


def fill_cycles(elements: int, dtype: str, chip: ChipLike, *, version: str) -> int:
    """Return the cycles of writing one value to every element on the tile.

    Source: Zero (2020-01), getFill1DCycleEstimate and modelContiguousFill (2021-11), whose workers
    take at least two vectors each.
    """
    width = vector_width(dtype, chip)
    per_worker = max(ceil_div(ceil_div(elements, width), chip.workers), 2) * width
    per_worker = min(elements, per_worker)
    if version == "2020-01":
        return chip.workers * (20 + per_worker // width)
    if element_bytes(dtype) == 1:
        worker = 28 + per_worker // 4 if per_worker < 64 else 39 + per_worker // 8
    elif element_bytes(dtype) == 2:
        worker = {1: 15, 2: 21}.get(per_worker, 26 + per_worker // width)
    else:
        worker = 23 + per_worker // width + (1 if per_worker % width == 1 else 0)
    return chip.workers * worker


def dynamic_slice_cycles(
    region_elements: int, slices: int, dtype: str, chip: ChipLike, *, version: str
) -> int:
    """Return the cycles of copying `slices` rows of `region_elements` at a run-time offset.

    Source: DynamicSlice1D; DynamicUpdateSlice1D costs the same.
    """
    copies = ceil_div(region_elements, chip.workers) // vector_width(dtype, chip)
    supervisor = tables.SUPERVISOR_CYCLES[version] + 14
    if version == "2020-01":
        worker = 41 + (27 + copies) * slices
    elif element_bytes(dtype) == 1:
        worker = 72 + (70 + 2 * copies) * slices
    else:
        worker = 35 + (24 + 2 * copies) * slices
    return supervisor + chip.workers * worker


def gather_cycles(rows: int, row_elements: int, dtype: str, chip: ChipLike, *, version: str) -> int:
    """Return the cycles of copying `rows` rows chosen by index, all of them on this tile.

    Source: MultiSlice, one worker vertex per group of indices. The 2021-11 loop moves four bytes
    of a float16 row in two cycles.
    """
    per_worker = ceil_div(rows, chip.workers)
    if version == "2020-01":
        vectors = ceil_div(row_elements, vector_width(dtype, chip))
        return chip.workers * (16 + per_worker * (19 + 3 * vectors))
    width, per_vector = {1: (4, 3), 2: (2, 2)}.get(
        element_bytes(dtype), (vector_width(dtype, chip), 2)
    )
    vectors = ceil_div(row_elements, width)
    return chip.workers * (19 + per_worker * (19 + per_vector * vectors))


class Regrouping(NamedTuple):
    """Blocks that are transposed on all tiles: bytes and cycles of the fullest."""

    received: int
    cycles: int


def regrouping(elements: int, rows: int, columns: int, dtype: str, chip: ChipLike) -> Regrouping:
    """Return what it takes to transpose blocks of rows and columns, on as many tiles as can be.

    Blocks are halved while that gives tiles without a block one of their own and both sides stay
    multiples of the grain (poplibs lib/popops/Rearrange.cpp, updateGroupingInternal, tag 2.4.0).
    """
    grain = REGROUP_GRAIN_BYTES // element_bytes(dtype)
    blocks, parts = ceil_div(elements, rows * columns), 1
    while rows * columns // (grain * grain) % (2 * parts) == 0 and 2 * parts * blocks <= chip.tiles:
        parts *= 2
    of_rows = gcd(parts, rows // grain)
    rows, columns = rows // of_rows, columns // gcd(parts // of_rows, columns // grain)
    each = ceil_div(ceil_div(elements, rows * columns), chip.tiles)
    received = each * rows * columns * element_bytes(dtype)
    return Regrouping(received, transpose_cycles(rows, columns, each, dtype, chip))


def transpose_cycles(rows: int, columns: int, matrices: int, dtype: str, chip: ChipLike) -> int:
    """Return the cycles of transposing `matrices` matrices of ``rows x columns`` on a tile.

    Transpose1D (float16, multiples of 4) and Transpose2D of lib/popops/popopsCycleEstimators.cpp
    (tag 2.4.0); in 2020-01 the same vertices live in poplin.
    """
    if min(rows, columns, matrices) < 1:
        raise ConfigError(
            f"Cannot transpose {matrices} matrices of {rows} x {columns}: give at least 1 of each."
        )
    per_worker = ceil_div(matrices, chip.workers)
    if element_bytes(dtype) == 2 and rows % 4 == 0 and columns % 4 == 0:
        return 7 + chip.workers * (_half_transpose_worker(rows // 4, columns // 4, per_worker) - 7)
    if element_bytes(dtype) == 2:
        worker = 15 + per_worker * (8 + columns * (5 + rows * 5 // 2))
    elif rows % 2 == 0 and columns % 2 == 0:
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
