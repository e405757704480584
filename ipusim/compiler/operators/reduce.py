"""Reductions over the whole chip: stages, exchange, and the vertices of each stage.

A reduction first reduces what each tile holds. Where an output's partials lie on several tiles it
goes on either straight to the tiles of the output or, if much data is left, through intermediate
stages that spread the partials over the chip. Sources: poplibs lib/popops/reduction/Reduction.cpp
(reduceFirstDim2D), ReductionPlan.cpp (calculateNextStep, calculateSplit), ReductionStages.cpp,
tags 1.0.136 and sdk/poplar/2.0.0 .. 2.4.0.
"""

from __future__ import annotations

from functools import lru_cache
from math import isqrt, prod

from ipusim.compiler.operators.reduce_layout import InputLayout, collapse, examine_layout
from ipusim.compiler.superstep import (
    ChipLike,
    Era,
    Superstep,
    ceil_div,
    element_bytes,
    largest_part,
    linear_share,
    parse_era,
    require_float,
    require_positive,
    vector_width,
)
from ipusim.compiler.vertices.elementwise import cast_cycles
from ipusim.compiler.vertices.reduce import (
    ACCUMULATING,
    REDUCE_FUNCTIONS,
    Region,
    grain_size,
    tile_reduction,
)
from ipusim.errors import ConfigError, unknown_name

# poplibs lib/popops/reduction/ReductionPlan.hpp: partials per output above which another
# intermediate stage is worth it, and the smallest piece of such a stage.
MORE_STAGES_THRESHOLD = 64
MIN_PIECE_ROWS = 2


def _worst(
    patterns: tuple[tuple[Region, ...], ...],
    function: str,
    dtypes: tuple[str, str, str],
    chip: ChipLike,
    generation: str,
) -> list[int]:
    """Return the slowest tile's cycles of each compute set over all patterns."""
    dtype, partials, out_dtype = dtypes
    stages: list[int] = []
    for pattern in patterns:
        costs = tile_reduction(
            pattern,
            function,
            dtype=dtype,
            partials=partials,
            out_dtype=out_dtype,
            chip=chip,
            generation=generation,
        )
        for index, cycles in enumerate(costs):
            if index == len(stages):
                stages.append(0)
            stages[index] = max(stages[index], cycles)
    return stages


def _compute_steps(
    name: str, stages: list[int], exchange_bytes: int = 0, temp_bytes: int = 0
) -> list[Superstep]:
    """Return one superstep per compute set; data arrives before the first."""
    return [
        Superstep(
            name=name if index == 0 else f"{name}, combine workers",
            vertex="popops::Reduce",
            compute_cycles=cycles,
            exchange_bytes=exchange_bytes if index == 0 else 0,
            temp_bytes=temp_bytes,
        )
        for index, cycles in enumerate(stages)
    ]


def _validate(
    shape: tuple[int, ...], dims: tuple[int, ...], function: str, dtypes: tuple[str, ...]
) -> None:
    if function not in REDUCE_FUNCTIONS:
        raise unknown_name("reduction", function, REDUCE_FUNCTIONS)
    for dtype in dtypes:
        require_float(dtype)
    for dim, size in enumerate(shape):
        require_positive(**{f"Dimension {dim} of the reduction's input": size})
    for dim in dims:
        if not 0 <= dim < len(shape):
            raise ConfigError(
                f"Dimension {dim} cannot be reduced: the input has dimensions 0 to "
                f"{len(shape) - 1}."
            )


def reduce_steps(
    shape: tuple[int, ...],
    dims: tuple[int, ...],
    dtype: str,
    chip: ChipLike,
    *,
    era: str | Era,
    function: str = "add",
    out_dtype: str | None = None,
    elements_per_tile: int | None = None,
) -> list[Superstep]:
    """Return the supersteps of one reduction.

    Parameters
    ----------
    shape : tuple of int
        Input shape in memory order, outermost first.
    dims : tuple of int
        Dimensions that are reduced.
    dtype : str
        "float16" or "float32".
    chip : Chip
        The chip.
    era : str or Era
        Generation of poplibs.
    function : str, optional
        "add", "square_add", "max", "min" or "mul".
    out_dtype : str, optional
        Output type, the input's by default.
    elements_per_tile : int, optional
        Elements on each tile where the input is not spread linearly over the chip.

    Returns
    -------
    list of Superstep
        Empty if nothing is reduced.

    Raises
    ------
    ConfigError
        If a size or dimension is out of range.
    UnknownNameError
        If the function or type does not exist.
    """
    shape, dims = tuple(shape), tuple(dims)
    out_dtype = out_dtype or dtype
    _validate(shape, dims, function, (dtype, out_dtype))
    era = parse_era(era)
    return list(_steps(shape, dims, dtype, chip, era, function, out_dtype, elements_per_tile))


@lru_cache(maxsize=4096)
def _steps(
    shape: tuple[int, ...],
    dims: tuple[int, ...],
    dtype: str,
    chip: ChipLike,
    era: Era,
    function: str,
    out_dtype: str,
    elements_per_tile: int | None,
) -> tuple[Superstep, ...]:
    """Return the supersteps of a reduction; networks repeat the same ones many times."""
    sizes, reduced = collapse(shape, dims)
    if not any(reduced):
        return ()
    total = prod(sizes)
    share = elements_per_tile or linear_share(total, dtype, chip).elements
    tiles = min(chip.tiles, ceil_div(total, share))
    layout = examine_layout(sizes, reduced, share, tiles, vector_width(dtype, chip))
    outputs = prod(size for size, flag in zip(sizes, reduced, strict=True) if not flag)
    widened = out_dtype == "float16" and function in (*ACCUMULATING, "mul")
    partials = "float32" if widened else out_dtype
    generation = era.estimator

    # Early vertices give out what they accumulate; a cast on the same tiles follows.
    cast_after = era.library == "2020-01" and partials != out_dtype
    vertex_out = partials if cast_after else out_dtype

    if layout.spread == 1:
        local = _worst(layout.patterns, function, (dtype, partials, vertex_out), chip, generation)
        steps = _compute_steps("reduce on tile", local)
        cast_elements = layout.columns_per_tile
        cast = _final_cast(cast_after, cast_elements, partials, out_dtype, chip, generation)
        return (*steps, *cast)
    steps: list[Superstep] = []
    stage_dtype = dtype
    if layout.repeats:
        local = _worst(layout.patterns, function, (dtype, partials, partials), chip, generation)
        steps += _compute_steps("reduce on tile", local)
        stage_dtype = partials
        function = "add" if function == "square_add" else function
    steps += _between_tiles(
        layout, tiles, outputs, function, (stage_dtype, partials, vertex_out), chip, generation
    )
    cast_elements = _output_elements(outputs, partials, chip)
    cast = _final_cast(cast_after, cast_elements, partials, out_dtype, chip, generation)
    return (*steps, *cast)


def _output_elements(outputs: int, partials: str, chip: ChipLike) -> int:
    """Return the outputs on the fullest tile (mapping of intermediateToOutput)."""
    width = vector_width(partials, chip)
    return largest_part(outputs, width, chip.tiles, 4 * width).elements


def _final_cast(
    needed: bool, elements: int, partials: str, out_dtype: str, chip: ChipLike, generation: str
) -> list[Superstep]:
    """Return the step that casts accumulated results to the output type, if one is needed."""
    if not needed:
        return []
    cycles = cast_cycles(elements, partials, out_dtype, chip, generation=generation)
    return [Superstep(name="cast result", vertex="popops::Cast", compute_cycles=cycles)]


def _gathered(columns: int, rows: int) -> Region:
    """Return the region that arrives as `rows` rows; those of a single output are contiguous."""
    return Region(1, rows, 1) if columns == 1 else Region(columns, 1, rows)


def _between_tiles(
    layout: InputLayout,
    tiles: int,
    outputs: int,
    function: str,
    dtypes: tuple[str, str, str],
    chip: ChipLike,
    generation: str,
) -> list[Superstep]:
    """Return the steps that gather and reduce partials lying on several tiles."""
    stage_dtype, partials, out_dtype = dtypes
    steps: list[Superstep] = []
    sources, data, width = layout.spread, layout.partial_elements, layout.columns_per_tile
    while data > outputs * MORE_STAGES_THRESHOLD and not (
        sources < 2 * isqrt(chip.tiles) and tiles > chip.tiles * 3 // 4
    ):
        grain = grain_size(function, stage_dtype, chip)
        # Narrow partials stay whole; wide ones are cut so that pieces are roughly square.
        least = max(grain, width // grain // max(1, isqrt(data // outputs)) * grain)
        columns = largest_part(min(width, outputs), grain, chip.tiles, least).elements
        ideal = max(1, data // chip.tiles)
        pieces = max(1, sources * columns // ideal)
        if sources * columns // pieces < MORE_STAGES_THRESHOLD:
            pieces = max(1, sources * columns // MORE_STAGES_THRESHOLD)
        if sources // pieces < MIN_PIECE_ROWS:
            pieces = max(1, sources // MIN_PIECE_ROWS)
        rows = max(2, ceil_div(sources, pieces))
        compute = tile_reduction(
            [_gathered(columns, rows)],
            function,
            dtype=stage_dtype,
            partials=stage_dtype,
            out_dtype=partials,
            chip=chip,
            generation=generation,
            divide_columns=False,
            pieces=rows,
        )
        received = rows * columns * element_bytes(stage_dtype)
        steps += _compute_steps("reduce between tiles", compute, received, received)
        stage_dtype = partials
        sources = ceil_div(sources, rows)
        data = outputs * sources
        width = columns
        tiles = min(chip.tiles, ceil_div(data, columns))
    mapped = _output_elements(outputs, partials, chip)
    compute = tile_reduction(
        [_gathered(mapped, sources)],
        function,
        dtype=stage_dtype,
        partials=partials,
        out_dtype=out_dtype,
        chip=chip,
        generation=generation,
        pieces=sources,
    )
    received = mapped * sources * element_bytes(stage_dtype)
    return steps + _compute_steps("reduce to output", compute, received, received)
