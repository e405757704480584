"""Reduction on one tile: which vertices run and what they cost.

Sources: poplibs lib/popops/reduction/CycleEstimationFunctions.cpp (cycles) and
lib/popops/reduction/ReductionConnection.cpp (choice of vertex, sharing among workers), tags
1.0.136 and sdk/poplar/2.0.0 .. 2.4.0.
"""

from collections.abc import Sequence
from math import gcd
from typing import NamedTuple

from ipusim.compiler.tiles import ChipLike, ceil_div, element_bytes, split_sizes, vector_width

ENTRY_EXIT_CYCLES = 7
ACCUMULATING = ("add", "square_add")
REDUCE_FUNCTIONS = ("add", "square_add", "max", "min", "mul")


class ReduceTypes(NamedTuple):
    """Types of one reduction stage and its function."""

    function: str
    inputs: str
    output: str


class Region(NamedTuple):
    """Adjacent outputs (`columns`) of one tile that are reduced alike.

    `inner` consecutive partials of one output lie in memory; ``columns x inner`` repeats `outer`
    times.
    """

    columns: int
    inner: int
    outer: int

    @property
    def rows(self) -> int:
        """Partials per output."""
        return self.inner * self.outer

    @property
    def elements(self) -> int:
        """Partials of all outputs."""
        return self.columns * self.rows


def _op_width(types: ReduceTypes, chip: ChipLike) -> int:
    """Return the elements one operation takes: accumulators are twice as wide as the data path."""
    width = vector_width(types.inputs, chip)
    return 2 * width if types.function in ACCUMULATING else width


def grain_size(function: str, dtype: str, chip: ChipLike) -> int:
    """Return the columns in which work is shared (findGrainSizeForOp)."""
    width = vector_width(dtype, chip)
    return 2 * width if function in ACCUMULATING else width


def strided_cycles(columns: int, rows: int, types: ReduceTypes, chip: ChipLike) -> int:
    """Return a worker's cycles where the partials form one regular array (STRIDED_REDUCE)."""
    width = min(_op_width(types, chip), vector_width(types.inputs, chip))
    per_loop = gcd(width, columns)
    loops = ceil_div(columns, per_loop)
    return ENTRY_EXIT_CYCLES + 17 + loops * 6 + columns * rows // per_loop


def continuous_cycles(outputs: int, rows: int, types: ReduceTypes, chip: ChipLike) -> int:
    """Return a worker's cycles where each output's partials are contiguous.

    The estimator from SDK 1.2 on is handed the number of outputs less one; the cost of all outputs
    is given here.
    """
    width = min(_op_width(types, chip), vector_width(types.inputs, chip))
    return outputs * (rows // width) + (2 if rows % 2 else 0) + 12 * outputs + 10 + 7


def _remainder_bits(width: int, columns: int) -> list[int]:
    """Return the powers of two that make up what is left of `columns` after whole vectors."""
    remainder = columns % width
    return [1 << bit for bit in range((width - 1).bit_length()) if remainder >> bit & 1]


def default_cycles(
    columns: int, pieces: int, rows_per_piece: int, types: ReduceTypes, chip: ChipLike
) -> int:
    """Return a worker's cycles for `pieces` separate partials, each of so many rows of columns."""
    accumulates = types.function in ACCUMULATING
    width = _op_width(types, chip)
    path = vector_width(types.inputs, chip)
    out_width = vector_width(types.output, chip)
    checks = (width - 1).bit_length()
    vectors = columns // width

    def store(count: int) -> int:
        return 2 * min(count, out_width) + (1 if accumulates else 0)

    per_load = (2 if accumulates else 0) + 2 + width // min(width, path)
    cycles = ENTRY_EXIT_CYCLES + 26 + 16 + 6 + 2 * checks + 2
    cycles += vectors * ((5 if accumulates else 3) + store(width) + 1 + 10 * pieces)
    cycles += vectors * rows_per_piece * pieces * (per_load + 3)
    for part in _remainder_bits(width, columns):
        cycles += (4 if accumulates else 2) + store(part) + 10 * pieces
        cycles += pieces * rows_per_piece * (2 + part // min(part, path) + 3)
    return cycles


def early_default_cycles(
    columns: int, pieces: int, rows_per_piece: int, types: ReduceTypes, chip: ChipLike
) -> int:
    """Return a worker's cycles of the general vertex as tag 1.0.136 estimates it.

    Parameters are those of `default_cycles`. The partials of every piece are charged a set-up of
    11 cycles per vector besides the loop.
    """
    accumulates = types.function in ACCUMULATING
    width = vector_width(types.inputs, chip)
    elements = columns * rows_per_piece
    if accumulates:
        width *= 2
        tests, loop_setup, remainder_setup, remainder_loop = 6, 22, 8, 8
        per_vector = 7 if width == 4 else (11 if columns // width else 6) + 3
    else:
        tests, loop_setup, remainder_setup, remainder_loop = 4, 6, 4, 4
        per_vector = 5 if width == 2 else 8
    vectors = columns // width
    remainders = len(_remainder_bits(width, columns))
    cycles = ENTRY_EXIT_CYCLES + 26 + 16 + 5 + tests + 2
    cycles += (loop_setup if vectors else 0) + remainder_setup * remainders
    for _ in range(pieces):
        if vectors:
            cycles += 11 * elements // (width * rows_per_piece)
        cycles += per_vector * vectors * rows_per_piece + 11 * remainders
        cycles += remainder_loop * remainders * elements // columns
    return cycles


def region_cycles(
    region: Region, types: ReduceTypes, chip: ChipLike, version: str, *, pieces: int = 1
) -> int:
    """Return a worker's cycles for one region with the vertex that poplibs would pick.

    ``inner`` or ``columns`` or ``outer`` is 1; separate partials, if any, did not arrive as one
    regular array.
    """
    if region.rows > 1 and (region.inner > 1 or region.columns == 1) and region.outer == 1:
        return continuous_cycles(region.columns, region.rows, types, chip)
    in_bytes = region.columns * element_bytes(types.inputs)
    out_bytes = region.columns * element_bytes(types.output)
    if in_bytes % 8 == 0 and out_bytes % 4 == 0:
        return strided_cycles(region.columns, region.rows, types, chip)
    default = early_default_cycles if version == "2020-01" else default_cycles
    return default(region.columns, pieces, ceil_div(region.rows, pieces), types, chip)


def compute_set_cycles(vertices: Sequence[int], chip: ChipLike) -> int:
    """Return the cycles of a tile whose vertices start in order on the first free worker."""
    loads = list(vertices[: chip.workers])
    for cost in vertices[chip.workers :]:
        loads[loads.index(min(loads))] += cost
    return chip.workers * max(loads, default=0)


def _split_columns(regions: Sequence[Region], types: ReduceTypes, chip: ChipLike) -> list[Region]:
    """Cut regions of single partials into column ranges for the workers (dividePartials)."""
    kept = [r for r in regions if r.inner > 1 or r.columns == 3]
    simple = [r for r in regions if not (r.inner > 1 or r.columns == 3)]
    if not simple:
        return kept
    free = max(1, chip.workers - len(kept))
    grain = grain_size(types.function, types.inputs, chip)
    total = sum(r.columns for r in simple)
    cuts: list[Region] = []
    sizes = iter(split_sizes(total, grain, free))
    left = next(sizes)
    for region in simple:
        columns = region.columns
        while columns:
            taken = min(columns, left)
            cuts.append(Region(taken, region.inner, region.outer))
            columns -= taken
            left -= taken
            if left == 0:
                left = next(sizes, 0)
    return kept + cuts


def _row_splits(
    regions: Sequence[Region], types: ReduceTypes, workers: int, chip: ChipLike
) -> list[int]:
    """Return how many workers share the rows of each region (splitTwoStageReductions...)."""
    width = vector_width(types.output, chip)
    if types.function in ACCUMULATING:
        width *= 2

    def loop_cycles(region: Region) -> int:
        per_cycle = width
        while region.columns % per_cycle and region.columns not in (width, width // 2, width // 4):
            per_cycle //= 2
        return ceil_div(region.elements, per_cycle)

    splits = [1] * len(regions)
    costs = [30 + loop_cycles(r) for r in regions]
    unsplit = max(costs)
    limits = [min(r.rows // 2, cost // 4) for r, cost in zip(regions, costs, strict=True)]
    for _ in range(max(0, workers - len(regions))):
        slowest = costs.index(max(costs))
        if splits[slowest] + 1 >= limits[slowest]:
            break
        after = 60 + loop_cycles(regions[slowest]) // (splits[slowest] + 1)
        if after >= costs[slowest]:
            break
        costs[slowest] = after
        splits[slowest] += 1
    return splits if max(costs) < unsplit else [1] * len(regions)


def _share_outputs(
    region: Region, parts: int, types: ReduceTypes, chip: ChipLike, version: str
) -> list[int]:
    """Return vertex costs after sharing the outputs of a region among workers."""
    return [
        region_cycles(Region(columns, region.inner, 1), types, chip, version)
        for columns in split_sizes(region.columns, 1, parts)
    ]


def tile_vertices(
    regions: Sequence[Region],
    types: ReduceTypes,
    chip: ChipLike,
    version: str,
    *,
    partials: str,
    divide_columns: bool = True,
    pieces: int = 1,
) -> list[list[int]]:
    """Return the vertices of the one or two compute sets that reduce what one tile holds.

    Each is said by the cycles of its worker. The second set combines what several workers made of
    one output, stored as `partials`. With `divide_columns` workers share columns first; stages
    between tiles reduce each piece as it is.
    """
    workers = chip.workers
    function = types.function
    first = ReduceTypes(function, types.inputs, partials)
    second = ReduceTypes("add" if function == "square_add" else function, partials, types.output)
    todo = _split_columns(regions, types, chip) if divide_columns else list(regions)
    stage1: list[int] = []
    stage2: list[int] = []
    remaining: list[Region] = []
    share = max(1, workers // len(todo))
    for region in todo:
        if region.inner > 1 and region.columns > 1 and region.outer == 1:
            stage1 += _share_outputs(region, share, types, chip, version)
        elif region.inner > 1 and region.columns > 1:
            # Even and odd partials first, as columns of their own; then each output's few.
            wide = Region(region.columns * region.inner, 1, region.outer)
            for columns in split_sizes(wide.columns, region.inner, share):
                part = Region(columns, 1, wide.outer)
                stage1.append(region_cycles(part, first, chip, version))
                outputs = columns // region.inner
                stage2.append(continuous_cycles(outputs, region.inner, second, chip))
        else:
            remaining.append(region)
    free = max(0, workers - len(stage1))
    splits = (
        _row_splits(remaining, types, free, chip)
        if remaining and len(remaining) < free
        else [1] * len(remaining)
    )
    for region, parts in zip(remaining, splits, strict=True):
        if parts == 1:
            stage1.append(region_cycles(region, types, chip, version, pieces=pieces))
            continue
        contiguous = region.inner > 1 or region.columns == 1
        grain = vector_width(types.inputs, chip) if region.columns == 1 else 1
        for rows in split_sizes(region.rows, grain, parts):
            part = Region(region.columns, rows if contiguous else 1, 1 if contiguous else rows)
            stage1.append(region_cycles(part, first, chip, version, pieces=min(pieces, rows)))
        inner = parts if region.columns == 1 else 1
        combined = Region(region.columns, inner, parts // inner)
        stage2.append(region_cycles(combined, second, chip, version))
    return [stage1, stage2] if stage2 else [stage1]
