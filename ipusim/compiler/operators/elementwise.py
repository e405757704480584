"""Supersteps of elementwise operations, casts and rearrangements over the whole chip.

Which vertex runs, and whether a broadcast operand is first materialised by a copy, follows poplibs
lib/popops/ElementWise.cpp; activations keep the tile mapping of the operation that made them.
"""

from __future__ import annotations

from ipusim.compiler.superstep import (
    ChipLike,
    Era,
    Superstep,
    TileShare,
    ceil_div,
    copy_cycles,
    element_bytes,
    parse_era,
    tile_share,
    vector_width,
)
from ipusim.compiler.vertices import elementwise as codelets, tables
from ipusim.compiler.vertices.broadcast import (
    INNER_VECTOR_FUNCTIONS,
    vector_inner_2d_cycles,
    vector_inner_cycles,
    vector_outer_cycles,
)
from ipusim.errors import ConfigError

# Channels that sit together in memory: what convolutions produce (partialChansPerGroup).
DEFAULT_CHANNEL_GROUPING = 16


def elementwise_step(
    function: str,
    elements: int,
    dtype: str,
    chip: ChipLike,
    *,
    era: str | Era,
    n_inputs: int = 1,
    broadcast: bool = False,
    in_place: bool = False,
    channels: int | None = None,
    channel_grouping: int = DEFAULT_CHANNEL_GROUPING,
    exchanged_inputs: int = 0,
    tiles_used: int | None = None,
    name: str | None = None,
) -> list[Superstep]:
    """Return the supersteps of one elementwise operation.

    Parameters
    ----------
    function : str
        Function name ("add", "relu", "exp", ...).
    elements : int
        Elements of the output.
    dtype : str
        "float16" or "float32".
    chip : Chip
        The chip.
    era : str or Era
        Generation of poplibs, see `superstep.parse_era`.
    n_inputs : int, optional
        Operands, 1 or 2.
    broadcast : bool, optional
        Whether the second operand is smaller than the first: one element where `channels` is 1,
        otherwise one value per channel.
    in_place : bool, optional
        Whether the output overwrites the first operand.
    channels : int, optional
        Length of the broadcast operand. None stands for one channel group.
    channel_grouping : int, optional
        Channels that sit together in memory.
    exchanged_inputs : int, optional
        Operands that lie on other tiles than the output, so that they arrive by exchange.
    tiles_used : int, optional
        Tiles that hold the output; None spreads it linearly over the chip.
    name : str, optional
        Name of the step.

    Returns
    -------
    list of Superstep
        One step; the copy that materialises a broadcast operand is part of it.

    Raises
    ------
    UnknownNameError
        If no vertex of that generation computes the function.
    ConfigError
        If the operands do not fit together.
    """
    if n_inputs not in (1, 2):
        raise ConfigError(
            f"An elementwise operation with {n_inputs} operands is not modelled: give 1 or 2."
        )
    if not 0 <= exchanged_inputs <= n_inputs:
        raise ConfigError(
            f"{exchanged_inputs} of {n_inputs} operands cannot arrive by exchange: "
            f"give 0 to {n_inputs}."
        )
    era = parse_era(era)
    function = codelets.canonical_function(function)
    share = tile_share(elements, dtype, chip, tiles_used)
    size = element_bytes(dtype)
    exchange_bytes = exchanged_inputs * share.elements * size
    step_name = name or function
    if n_inputs == 1:
        cycles, copied = _unary(function, share, dtype, chip, era, in_place=in_place)
        return [
            Superstep(
                name=step_name,
                vertex=_unary_vertex(function, era, in_place=in_place),
                compute_cycles=cycles,
                exchange_bytes=exchange_bytes,
                on_tile_copy_cycles=copied,
            )
        ]
    if not broadcast:
        cycles = codelets.binary_cycles(
            function, share.elements, dtype, chip, in_place=in_place, generation=era.estimator
        )
        return [
            Superstep(
                name=step_name,
                vertex="popops::BinaryOp1D" + ("InPlace" if in_place else ""),
                compute_cycles=cycles,
                exchange_bytes=exchange_bytes,
                temp_bytes=exchange_bytes,
            )
        ]
    return [
        _broadcast_step(
            step_name,
            function,
            elements,
            share,
            dtype,
            chip,
            era,
            in_place=in_place,
            channels=channel_grouping if channels is None else channels,
            channel_grouping=channel_grouping,
            exchange_bytes=exchange_bytes,
        )
    ]


def _unary_vertex(function: str, era: Era, *, in_place: bool) -> str:
    suffix = "InPlace" if in_place else ""
    if function in tables.NON_LINEARITY[era.library]:
        if era.library == "2020-01":
            return "popnn::NonLinearitySupervisor"
        return "popnn::NonLinearity1D" + suffix
    return "popops::UnaryOp1D" + suffix


def _unary(
    function: str, share: TileShare, dtype: str, chip: ChipLike, era: Era, *, in_place: bool
) -> tuple[int, int]:
    """Return vertex cycles and copy cycles of a one-operand operation.

    The 2020-01 non-linearities exist in place only; `popnn::nonLinearity` copies its input to the
    output first (lib/popnn/NonLinearity.cpp, tag 1.0.136).
    """
    # These vertices have no later estimate of their own, and their first one follows the assembly.
    non_linearity = function in tables.NON_LINEARITY[era.library]
    generation = era.library if non_linearity else era.estimator
    copied = 0
    in_place_only = non_linearity and era.library == "2020-01"
    if in_place_only and not in_place:
        copied = copy_cycles(share.elements * element_bytes(dtype), chip)
    cycles = codelets.unary_cycles(
        function,
        share.elements,
        dtype,
        chip,
        in_place=in_place or in_place_only,
        generation=generation,
    )
    return cycles, copied


def _broadcast_step(
    name: str,
    function: str,
    elements: int,
    share: TileShare,
    dtype: str,
    chip: ChipLike,
    era: Era,
    *,
    in_place: bool,
    channels: int,
    channel_grouping: int,
    exchange_bytes: int,
) -> Superstep:
    """Return the step of an operation whose second operand is a scalar or one value per channel."""
    generation = era.estimator
    size = element_bytes(dtype)
    suffix = "InPlace" if in_place else ""
    if channels < 1 or elements % channels:
        raise ConfigError(
            f"{channels} broadcast values do not divide {elements} elements: "
            "give the number of channels of the tensor."
        )
    scalar_vertex = function in tables.SCALAR_BROADCAST[era.library]
    if channels == 1 and scalar_vertex and function in tables.SCALAR_BROADCAST[generation]:
        cycles = codelets.scalar_broadcast_cycles(
            function, share.elements, dtype, chip, generation=generation
        )
        return Superstep(
            name=name,
            vertex="popops::BroadcastScalar1D" + suffix,
            compute_cycles=cycles,
            exchange_bytes=exchange_bytes + size,
        )
    block = min(channel_grouping, channels)
    # Groups that one tile touches; a producer's partition does not cut a group unless it must.
    regions = max(1, min(channels // block, ceil_div(share.elements * channels, elements * block)))
    vector_bytes = regions * block * size
    inner = function in INNER_VECTOR_FUNCTIONS and dtype == "float16" and channels > 1
    if not inner or block % vector_width(dtype, chip):
        # No vertex for this pattern: the operand is written out to full size, then added as usual.
        cycles = codelets.binary_cycles(
            function, share.elements, dtype, chip, in_place=in_place, generation=generation
        )
        full_bytes = share.elements * size
        return Superstep(
            name=name,
            vertex="popops::BinaryOp1D" + suffix,
            compute_cycles=cycles,
            exchange_bytes=exchange_bytes + vector_bytes,
            on_tile_copy_cycles=copy_cycles(full_bytes, chip, atom_bytes=block * size),
            temp_bytes=full_bytes,
        )
    blocks = ceil_div(share.elements, regions * block)
    if regions == 1:
        vertex = "popops::BroadcastVectorInner1D" + suffix
        cycles = vector_inner_cycles(
            function, block, blocks, chip, in_place=in_place, generation=generation
        )
    else:
        vertex = "popops::BroadcastVectorInner2D" + suffix
        cycles = vector_inner_2d_cycles(
            function, block, blocks, regions, chip, in_place=in_place, generation=generation
        )
    return Superstep(
        name=name,
        vertex=vertex,
        compute_cycles=cycles,
        exchange_bytes=exchange_bytes + vector_bytes,
    )


def channel_step(
    function: str,
    elements: int,
    channels: int,
    dtype: str,
    chip: ChipLike,
    *,
    era: str | Era,
    name: str,
    in_place: bool,
    channel_grouping: int = DEFAULT_CHANNEL_GROUPING,
    tiles_used: int | None = None,
) -> Superstep:
    """Return the step that combines activations with one value per channel.

    Parameters and errors are those of `elementwise_step`.
    """
    (step,) = elementwise_step(
        function,
        elements,
        dtype,
        chip,
        era=era,
        n_inputs=2,
        broadcast=True,
        in_place=in_place,
        channels=channels,
        channel_grouping=channel_grouping,
        tiles_used=tiles_used,
        name=name,
    )
    return step


def row_step(
    name: str,
    rows: int,
    columns: int,
    dtype: str,
    chip: ChipLike,
    *,
    era: Era,
    tiles_used: int | None,
) -> Superstep:
    """Return the step that combines a matrix with one value per row."""
    share = tile_share(rows * columns, dtype, chip, tiles_used)
    tile_rows = ceil_div(share.elements, columns)
    tile_columns = ceil_div(share.elements, tile_rows)
    width = vector_width(dtype, chip)
    return Superstep(
        name=name,
        vertex="popops::BroadcastVectorOuter",
        compute_cycles=vector_outer_cycles(
            tile_rows, tile_columns, width, chip, generation=era.estimator
        ),
        exchange_bytes=tile_rows * element_bytes(dtype),
    )


def bias_add_steps(
    elements: int,
    channels: int,
    dtype: str,
    chip: ChipLike,
    *,
    era: str | Era,
    channel_grouping: int = DEFAULT_CHANNEL_GROUPING,
    tiles_used: int | None = None,
) -> list[Superstep]:
    """Return the supersteps of adding one bias per channel in place (poplin::addBias)."""
    step = channel_step(
        "add",
        elements,
        channels,
        dtype,
        chip,
        era=era,
        name="bias add",
        in_place=True,
        channel_grouping=channel_grouping,
        tiles_used=tiles_used,
    )
    return [step]


def scaled_add_steps(
    elements: int,
    dtype: str,
    chip: ChipLike,
    *,
    era: str | Era,
    addend_dtype: str | None = None,
    constrained: bool = False,
    same_mapping: bool = True,
    tiles_used: int | None = None,
) -> list[Superstep]:
    """Return the supersteps of ``a += scale * b`` (popops::scaledAddTo, plain weight update).

    `constrained` says that the operands lie in different memory elements.
    """
    era = parse_era(era)
    share = tile_share(elements, dtype, chip, tiles_used)
    cycles = codelets.scaled_add_cycles(
        share.elements,
        dtype,
        chip,
        addend_dtype=addend_dtype,
        constrained=constrained,
        generation=era.estimator,
    )
    addend_bytes = share.elements * element_bytes(addend_dtype or dtype)
    return [
        Superstep(
            name="scaled add",
            vertex="popops::ScaledAddSupervisor",
            compute_cycles=cycles,
            exchange_bytes=0 if same_mapping else addend_bytes,
            temp_bytes=0 if same_mapping else addend_bytes,
        )
    ]
