"""Reduction on one tile: which vertices run and what they cost.

Sources: poplibs lib/popops/reduction/CycleEstimationFunctions.cpp (cycles) and
lib/popops/reduction/ReductionConnection.cpp (choice of vertex, sharing among workers), tags
1.0.136 and sdk/poplar/2.0.0 .. 2.4.0.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from math import gcd
from typing import NamedTuple, Self

from ipusim.compiler.eras import ERA_1_0, ERA_2_4
from ipusim.compiler.tiles import Tile, ceil_div, element_bytes, split_sizes

ENTRY_EXIT_CYCLES = 7


class Region(NamedTuple):
    """Adjacent outputs (`columns`) of one tile that are reduced alike.

    `inner` consecutive partials of one output lie in memory; ``columns x inner`` repeats `outer`
    times.
    """

    columns: int
    inner: int
    outer: int

    @classmethod
    def gathered(cls, columns: int, rows: int) -> Self:
        """Return the region that arrives as rows; those of a single output are contiguous."""
        return cls(1, rows, 1) if columns == 1 else cls(columns, 1, rows)

    @property
    def rows(self) -> int:
        """Partials per output."""
        return self.inner * self.outer

    @property
    def elements(self) -> int:
        """Partials of all outputs."""
        return self.columns * self.inner * self.outer


class TileVertices(NamedTuple):
    """The compute sets of a tile, each as a list of the worker cycles of its vertices.

    A second one, if any, combines the partials of the first, which take `between_bytes`.
    """

    sets: tuple[list[int], ...]
    between_bytes: int


@dataclass(frozen=True)
class ReduceVertex:
    """A vertex that reduces elements of type `inputs` to `output`; methods return worker cycles.

    Sums, of squares too, go into accumulators (`accumulates`); other functions, all alike, do not.
    Where several workers share the rows of an output, each stores its result in type `partials`.
    """

    tile: Tile
    inputs: str
    output: str
    partials: str
    accumulates: bool = True

    @cached_property
    def path(self) -> int:
        """Elements that are loaded at once."""
        return self.tile.width(self.inputs)

    @cached_property
    def grain(self) -> int:
        """Elements that one operation takes, and the columns in which work is shared.

        Accumulators are twice as wide as the data path (findGrainSizeForOp).
        """
        return self.path * (2 if self.accumulates else 1)

    @cached_property
    def stored(self) -> int:
        """Elements that are stored at once."""
        return self.tile.width(self.output)

    @cached_property
    def halves(self) -> tuple[Self, Self]:
        """The vertex that makes partials, and that which combines them."""
        return replace(self, output=self.partials), replace(self, inputs=self.partials)

    @cached_property
    def column_bytes(self) -> tuple[int, int]:
        """Bytes of a partial and of an output."""
        return element_bytes(self.inputs), element_bytes(self.output)

    def strided(self, columns: int, rows: int) -> int:
        """Return the cycles where the partials form one regular array (STRIDED_REDUCE).

        From SDK 2.1 on the cycles that complete a loop depend on the types
        (getCyclesEstimateForStridedReduce, whose table lacks sums of squares; they are taken to
        complete as sums do).
        """
        around, completed = ENTRY_EXIT_CYCLES + 17, 6
        if self.tile.era >= ERA_2_4:
            in_bytes, out_bytes = self.column_bytes
            around, completed = 16, 10 if self.accumulates else 9
            if in_bytes == 2:
                completed = 12 if self.accumulates and out_bytes == 4 else 13
        return around + columns // gcd(self.path, columns) * (completed + rows)

    def continuous(self, outputs: int, rows: int) -> int:
        """Return the cycles where each output's partials are contiguous.

        The estimator from SDK 1.2 on is handed the number of outputs less one; the cost of all
        outputs is given here.
        """
        return outputs * (rows // self.path) + (2 if rows % 2 else 0) + 12 * outputs + 10 + 7

    def default(self, columns: int, pieces: int, rows_per_piece: int) -> int:
        """Return the cycles of the general vertex, for partials in `pieces` separate arrays."""
        accumulates, width = self.accumulates, self.grain
        vectors = columns // width

        def store(count: int) -> int:
            return 2 * min(count, self.stored) + (1 if accumulates else 0)

        per_load = (2 if accumulates else 0) + 2 + width // self.path
        cycles = ENTRY_EXIT_CYCLES + 26 + 16 + 6 + 2 * (width - 1).bit_length() + 2
        cycles += vectors * ((5 if accumulates else 3) + store(width) + 1 + 10 * pieces)
        cycles += vectors * rows_per_piece * pieces * (per_load + 3)
        for part in _remainder_bits(width, columns):
            cycles += (4 if accumulates else 2) + store(part) + 10 * pieces
            cycles += pieces * rows_per_piece * (2 + part // min(part, self.path) + 3)
        return cycles

    def early_default(self, columns: int, pieces: int, rows_per_piece: int) -> int:
        """As `default`, by the general vertex as tag 1.0.136 estimates it.

        The partials of every piece are charged a set-up of 11 cycles per vector besides the loop.
        """
        width, elements = self.grain, columns * rows_per_piece
        if self.accumulates:
            tests, loop_setup, remainder_setup, remainder_loop = 6, 22, 8, 8
            per_vector = 7 if width == 4 else (11 if columns // width else 6) + 3
        else:
            tests, loop_setup, remainder_setup, remainder_loop = 4, 6, 4, 4
            per_vector = 5 if width == 2 else 8
        vectors = columns // width
        remainders = len(_remainder_bits(width, columns))
        cycles = ENTRY_EXIT_CYCLES + 26 + 16 + 5 + tests + 2
        cycles += (loop_setup if vectors else 0) + remainder_setup * remainders
        of_piece = 11 * elements // (width * rows_per_piece) if vectors else 0
        of_piece += per_vector * vectors * rows_per_piece + 11 * remainders
        of_piece += remainder_loop * remainders * elements // columns
        return cycles + pieces * of_piece

    def region(self, region: Region, pieces: int = 1) -> int:
        """Return the cycles of one region, with the vertex that poplibs would pick.

        ``inner`` or ``columns`` or ``outer`` is 1. Partials that arrived as several `pieces` do not
        form one regular array, which only the general vertex charges.
        """
        columns, inner, outer = region
        rows = inner * outer
        if rows > 1 and (inner > 1 or columns == 1) and outer == 1:
            return self.continuous(columns, rows)
        in_bytes, out_bytes = self.column_bytes
        if columns * in_bytes % 8 == 0 and columns * out_bytes % 4 == 0:
            return self.strided(columns, rows)
        default = self.early_default if self.tile.era == ERA_1_0 else self.default
        return default(columns, pieces, ceil_div(rows, pieces))

    def tile_vertices(
        self, regions: Sequence[Region], *, divide_columns: bool = True, pieces: int = 1
    ) -> TileVertices:
        """Return the vertices that reduce the regions of a tile.

        With `divide_columns` workers share the columns first. Rows from other tiles are `pieces`,
        which stay separate arrays.
        """
        workers = self.tile.workers
        if len(regions) == 1 and pieces == 1 and (few := self._few_columns(*regions)):
            return few
        first, second = self.halves
        todo = _split_columns(regions, self.grain, workers) if divide_columns else list(regions)
        stage1: list[int] = []
        stage2: list[int] = []
        between = 0
        adjacent = [one for one in todo if one.columns > 1 and one.inner > 1 and one.outer == 1]
        share = _most_parts(workers, len(todo), len(adjacent))
        for columns, inner, _ in adjacent:
            # Workers share the outputs.
            for outputs in _shared_outputs(columns, share):
                stage1.append(self.region(Region(outputs, inner, 1)))
        free = max(0, workers - len(stage1))
        repeated = [one for one in todo if one.columns > 1 and one.inner > 1 and one.outer > 1]
        share = _most_parts(free, len(todo) - len(adjacent), len(repeated))
        for columns, inner, outer in repeated:
            # Even and odd partials first, as columns of their own; then each output's few.
            between += columns * inner
            parts = _column_parts(columns, inner, share, self.path)
            stage1 += parts * [first.region(Region(columns * inner // parts, 1, outer))]
            stage2 += parts * [second.continuous(columns // parts, inner)]
        remaining = [one for one in todo if one.columns == 1 or one.inner == 1]
        free = max(0, workers - len(stage1))
        splits = [1] * len(remaining)
        if remaining and len(remaining) < free:
            splits = _row_splits(remaining, self.stored * (2 if self.accumulates else 1), free)
        for region, parts in zip(remaining, splits, strict=True):
            if parts == 1:
                stage1.append(self.region(region, pieces))
                continue
            columns = region.columns
            contiguous = region.inner > 1 or columns == 1
            for rows in split_sizes(region.rows, self.path if columns == 1 else 1, parts):
                part = Region(columns, rows, 1) if contiguous else Region(columns, 1, rows)
                stage1.append(first.region(part, min(pieces, rows)))
            between += columns * parts
            stage2.append(second.region(Region.gathered(columns, parts)))
        sets = (stage1, stage2) if stage2 else (stage1,)
        return TileVertices(sets, between * element_bytes(self.partials))

    def _few_columns(self, region: Region) -> TileVertices | None:
        """Return the vertices for two or three columns that fill no vector, or None.

        Several rows are taken as one that fills vectors; then each output's few partials are
        combined (connectProblemColumnCountReductions, splitPartialsIntoGroups).
        """
        columns, inner, outer = region
        if columns not in (2, 3) or inner > 1 or columns % self.path == 0:
            return None
        together = 2 if columns == 2 else self.path
        rows = outer // together
        if outer % together or rows < 2:
            return None
        first, second = self.halves
        workers = self.tile.workers
        groups = workers if rows > 4 * workers else 1
        shares = [rows // groups] * (groups - 1) + [rows // groups + rows % groups]
        stage1 = [first.strided(columns * together, share) for share in shares]
        stage2 = columns * [second.continuous(1, groups * together)]
        between = groups * columns * together * element_bytes(self.partials)
        return TileVertices((stage1, stage2), between)


def _remainder_bits(width: int, columns: int) -> list[int]:
    """Return the powers of two that add up to the columns beyond the last whole vector."""
    remainder = columns % width
    return [1 << bit for bit in range((width - 1).bit_length()) if remainder >> bit & 1]


def compute_set_cycles(vertices: Sequence[int], workers: int) -> int:
    """Return the cycles of a tile whose vertices start in order on the first free worker."""
    loads = list(vertices[:workers])
    for cost in vertices[workers:]:
        loads[loads.index(min(loads))] += cost
    return workers * max(loads, default=0)


def _split_columns(regions: Sequence[Region], grain: int, workers: int) -> list[Region]:
    """Cut regions of single partials into column ranges for the workers (dividePartials)."""
    kept: list[Region] = []
    simple: list[Region] = []
    for region in regions:
        (kept if region.inner > 1 or region.columns == 3 else simple).append(region)
    if not simple:
        return kept
    free = max(1, workers - len(kept))
    ends = [*accumulate([region.columns for region in simple])]
    shares = accumulate(split_sizes(ends[-1], grain, free))
    at = 0
    for begin, end in pairwise(sorted({0, *ends, *shares})):
        _, inner, outer = simple[at]
        kept.append(Region(end - begin, inner, outer))
        at += end == ends[at]
    return kept


def _row_splits(regions: Sequence[Region], width: int, workers: int) -> list[int]:
    """Return how many workers share the rows of each region (splitTwoStageReductions...).

    An operation stores `width` elements.
    """
    splits = [1] * len(regions)
    loops = [ceil_div(one.elements, _per_cycle(one.columns, width)) for one in regions]
    costs = [30 + loop for loop in loops]
    unsplit = max(costs)
    for _ in range(max(0, workers - len(regions))):
        slowest = costs.index(max(costs))
        parts = splits[slowest] + 1
        after = 60 + loops[slowest] // parts
        limit = min(regions[slowest].rows // 2, (30 + loops[slowest]) // 4)
        if parts >= limit or after >= costs[slowest]:
            break
        costs[slowest] = after
        splits[slowest] = parts
    return splits if max(costs) < unsplit else [1] * len(regions)


def _most_parts(workers: int, regions: int, divided: int) -> int:
    """Return in how many parts each of some regions is cut, others one (findMaxSplits)."""
    return max(1, (workers - (regions - divided)) // divided) if divided else 1


def _shared_outputs(outputs: int, workers: int) -> list[int]:
    """Return the outputs of each worker (findSplitsBetweenWorkers).

    Single outputs come in pairs where some worker has two anyway.
    """
    parts = min(outputs, workers)
    if outputs < 2 * workers:
        parts = ceil_div(outputs, ceil_div(outputs, parts))
    return [outputs // parts + (part < outputs % parts) for part in range(parts)]


def _column_parts(columns: int, inner: int, most: int, width: int) -> int:
    """Return in how many equal parts of whole vectors columns are cut (getAllowedColumnSplits)."""
    for parts in range(most, 1, -1):
        if columns % parts == 0 and columns // parts * inner % width == 0:
            return parts
    return 1


def _per_cycle(columns: int, width: int) -> int:
    """Return how many elements of rows of so many columns are reckoned to take one cycle."""
    if columns < width and columns & (columns - 1) == 0:
        return width
    return gcd(columns, width)
