"""Reductions over the whole chip: stages, exchange, and the vertices of each stage.

A reduction first reduces what each tile holds. Where an output's partials lie on several tiles it
goes on either straight to the tiles of the output or, if much data is left, through intermediate
stages that spread the partials over the chip. Sources: poplibs lib/popops/reduction/Reduction.cpp
(reduceFirstDim2D), ReductionPlan.cpp (calculateNextStep, calculateSplit), ReductionStages.cpp,
tags 1.0.136 and sdk/poplar/2.0.0 .. 2.4.0.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import zip_longest
from math import isqrt, prod
from typing import NamedTuple, Self

from ipusim.compiler.eras import ERA_1_0
from ipusim.compiler.reduction_layout import InputLayout, collapse, examine_layout
from ipusim.compiler.tiles import (
    Tile,
    ceil_div,
    element_bytes,
    largest_part,
    tile_share,
    vector_width,
)
from ipusim.compiler.vertices.elementwise import cast_cycles
from ipusim.compiler.vertices.reduce import ReduceVertex, Region, TileVertices, compute_set_cycles
from ipusim.machine import Chip

_SUMS = ("add", "square_add")

# poplibs lib/popops/reduction/ReductionPlan.hpp: partials per output above which another
# intermediate stage is worth it, and the smallest piece of such a stage.
MORE_STAGES_THRESHOLD = 64
MIN_PIECE_ROWS = 2


class TempBytes(NamedTuple):
    """Bytes of partials on the fullest tile, and on all tiles together."""

    tile: int = 0
    chip: int = 0


class Stage(NamedTuple):
    """One compute set of a reduction, in cycles of the slowest tile.

    A tile receives `received` bytes before it and holds `temp` bytes during it, all tiles together
    `chip_temp` (0: `temp` on each). `vertices` are the worker cycles of each vertex on the slowest
    tile.
    """

    name: str
    vertex: str
    cycles: int
    received: int = 0
    temp: int = 0
    vertices: tuple[int, ...] = ()
    chip_temp: int = 0

    def beside(self, held: TempBytes) -> Self:
        """Return this stage while partials lie on tiles besides."""
        temp, chip_temp = self.temp + held.tile, self.chip_temp + held.chip
        return self._replace(temp=temp, chip_temp=chip_temp)


def together(stages: Sequence[Stage], chip: Chip) -> Stage:
    """Return the compute set in which stages run at once: their vertices share the workers.

    So poplibs reduces several tensors (lib/popops/reduction/Reduction.cpp, reduceMany).
    """
    first = stages[0]
    vertices = tuple(cost for stage in stages for cost in stage.vertices)
    if all(stage.vertices for stage in stages):
        cycles = compute_set_cycles(vertices, chip.workers)
    else:
        cycles = sum(stage.cycles for stage in stages)
    received, temp = sum(stage.received for stage in stages), sum(stage.temp for stage in stages)
    chip_temp = sum(stage.chip_temp for stage in stages)
    return Stage(first.name, first.vertex, cycles, received, temp, vertices, chip_temp)


class Reduction(NamedTuple):
    """A reduction over `dims` of a tensor whose `shape` is in memory order, from `dtype` to `out`.

    ``per_tile`` are the elements on each tile, None where the input is spread linearly.
    """

    shape: tuple[int, ...]
    dims: tuple[int, ...]
    function: str
    dtype: str
    out: str
    per_tile: int | None


_vertex = lru_cache(maxsize=64)(ReduceVertex)
"""`ReduceVertex`, remembered by its fields together with the properties that it caches."""
_vertices = lru_cache(maxsize=4096)(ReduceVertex.tile_vertices)
"""Its vertices for the regions of a tile, remembered as many layouts have equal ones."""


@lru_cache(maxsize=4096)
def stages_of(asked: Reduction, tile: Tile, era: int) -> tuple[Stage, ...]:
    """Return the stages of a reduction in order; networks repeat the same ones many times."""
    levels, total, chip = collapse(asked.shape, asked.dims), prod(asked.shape), tile.chip
    if not any(level.reduced for level in levels):
        return ()
    outputs = prod(size for dim, size in enumerate(asked.shape) if dim not in asked.dims)
    share = asked.per_tile or tile_share(total, asked.dtype, chip)
    tiles = min(chip.tiles, ceil_div(total, share))
    layout = examine_layout(levels, share, tiles, vector_width(asked.dtype, chip))
    # Sums and products of halves are accumulated as floats.
    widened = asked.out == "float16" and asked.function in (*_SUMS, "mul")
    partials = "float32" if widened else asked.out
    # Vertices of era 0 write the type they accumulate in; a cast on the same tiles follows.
    casts = era == ERA_1_0 and partials != asked.out
    output = partials if casts else asked.out
    vertex = _vertex(tile, asked.dtype, output, partials, asked.function in _SUMS)
    stages: list[Stage] = []
    if layout.spread == 1:
        stages += _on_tile(layout, vertex, tiles)
        results = layout.columns_per_tile
    else:
        held = TempBytes()
        if layout.repeats:
            first, vertex = vertex.halves
            size = element_bytes(partials)
            held = TempBytes(layout.columns_per_tile * size, layout.partial_elements * size)
            stages += [stage.beside(held) for stage in _on_tile(layout, first, tiles)]
        stages += _between_tiles(outputs, layout, tiles, vertex, held)
        results = _results_per_tile(outputs, partials, chip)
    if casts:
        cycles = cast_cycles(tile, results, partials, asked.out)
        stages.append(Stage("cast result", "popops::Cast", cycles))
    return tuple(stages)


@lru_cache(maxsize=64)
def _on_tile(layout: InputLayout, vertex: ReduceVertex, tiles: int) -> tuple[Stage, ...]:
    """Return the stages in which each tile reduces what it holds; the slowest pattern counts."""
    workers = vertex.tile.workers
    patterns = [_vertices(vertex, pattern) for pattern in layout.patterns]
    slowest = [
        max(each, key=partial(compute_set_cycles, workers=workers))
        for each in zip_longest(*(one.sets for one in patterns), fillvalue=())
    ]
    found = TileVertices(tuple(slowest), max(one.between_bytes for one in patterns))
    return tuple(_compute_sets("reduce on tile", found, workers, tiles))


def _between_tiles(
    outputs: int, layout: InputLayout, tiles: int, vertex: ReduceVertex, held: TempBytes
) -> list[Stage]:
    """Return the stages that gather and reduce partials lying on several tiles.

    `held` are the partials if tiles made them; those of a stage stay until the next has run.
    """
    partials, chip = vertex.partials, vertex.tile.chip
    stages: list[Stage] = []
    sources, data, width = layout.spread, layout.partial_elements, layout.columns_per_tile
    while data > outputs * MORE_STAGES_THRESHOLD and not (
        sources**2 < 4 * chip.tiles and tiles > chip.tiles * 3 // 4
    ):
        grain = vertex.grain
        # Narrow partials stay whole; wide ones are cut so that pieces are roughly square.
        least = max(grain, width // grain // max(1, isqrt(data // outputs)) * grain)
        columns = largest_part(min(width, outputs), grain, chip.tiles, least)
        # A piece is the share of a tile, or the smallest that is worth a stage.
        piece = max(data // chip.tiles, MORE_STAGES_THRESHOLD)
        pieces = max(1, min(sources * columns // piece, sources // MIN_PIECE_ROWS))
        rows = max(2, ceil_div(sources, pieces))
        narrow = replace(vertex, output=partials, partials=vertex.inputs)
        name = "reduce between tiles"
        region = Region.gathered(columns, rows)
        sources = ceil_div(sources, rows)
        data = outputs * sources
        width = columns
        tiles = min(chip.tiles, ceil_div(data, columns))
        size = element_bytes(partials)
        made = TempBytes(columns * size, data * size)
        gathered = gathered_stages(name, narrow, region, divide_columns=False, tiles=tiles)
        stages += [stage.beside(held).beside(made) for stage in gathered]
        vertex, held = vertex.halves[1], made
    # Outputs are laid out by the type that arrives, which workers that share an output keep.
    mapped = _results_per_tile(outputs, vertex.inputs, chip)
    vertex = replace(vertex, partials=vertex.inputs)
    region, tiles = Region.gathered(mapped, sources), ceil_div(outputs, mapped)
    last = gathered_stages("reduce to output", vertex, region, tiles=tiles)
    return stages + [stage.beside(held) for stage in last]


def _results_per_tile(outputs: int, partials: str, chip: Chip) -> int:
    """Return the outputs on the fullest tile (mapping of intermediateToOutput)."""
    width = vector_width(partials, chip)
    return largest_part(outputs, width, chip.tiles, 4 * width)


def gathered_stages(
    name: str,
    vertex: ReduceVertex,
    region: Region,
    *,
    divide_columns: bool = True,
    tiles: int = 0,
) -> list[Stage]:
    """Return the stages that reduce a region whose rows arrive from other tiles.

    So many `tiles` have one, or all that take part in the operation.
    """
    found = vertex.tile_vertices([region], divide_columns=divide_columns, pieces=region.rows)
    received = region.elements * vertex.column_bytes[0]
    return _compute_sets(name, found, vertex.tile.workers, tiles, received)


def _compute_sets(
    name: str, found: TileVertices, workers: int, tiles: int, received: int = 0
) -> list[Stage]:
    """Return one stage per compute set; data arrives before the first, and stays until the last.

    So do the partials between them, on so many `tiles` as `gathered_stages` has it.
    """
    temp = received + found.between_bytes
    return [
        Stage(
            f"{name}, combine workers" if index else name,
            "popops::Reduce",
            compute_set_cycles(each, workers),
            0 if index else received,
            temp,
            tuple(each),
            temp * tiles,
        )
        for index, each in enumerate(found.sets)
    ]
