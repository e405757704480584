"""Supersteps of casts, fills, moves and changes of layout over the whole chip.

Sources: poplibs lib/popops/Cast.cpp, Fill.cpp, Rearrange.cpp.
"""

from __future__ import annotations

from ipusim.compiler.superstep import (
    ChipLike,
    Era,
    Superstep,
    ceil_div,
    copy_cycles,
    element_bytes,
    parse_era,
    tile_share,
)
from ipusim.compiler.vertices import elementwise as codelets


def cast_steps(
    elements: int,
    from_dtype: str,
    to_dtype: str,
    chip: ChipLike,
    *,
    era: str | Era,
    tiles_used: int | None = None,
) -> list[Superstep]:
    """Return the supersteps of a type conversion; none if the types are equal.

    The output keeps the tile mapping of the input (popops::cast), so nothing is exchanged.
    """
    if from_dtype == to_dtype:
        return []
    era = parse_era(era)
    share = tile_share(elements, from_dtype, chip, tiles_used)
    cycles = codelets.cast_cycles(
        share.elements, from_dtype, to_dtype, chip, generation=era.estimator
    )
    return [Superstep(name="cast", vertex="popops::Cast1D", compute_cycles=cycles)]


def fill_steps(
    elements: int, dtype: str, chip: ChipLike, *, era: str | Era, tiles_used: int | None = None
) -> list[Superstep]:
    """Return the supersteps of filling a tensor with one value (popops::zero, popops::fill)."""
    era = parse_era(era)
    share = tile_share(elements, dtype, chip, tiles_used)
    cycles = codelets.fill_cycles(share.elements, dtype, chip, generation=era.estimator)
    return [Superstep(name="fill", vertex="popops::Fill", compute_cycles=cycles)]


def rearrange_steps(
    elements: int,
    dtype: str,
    chip: ChipLike,
    *,
    from_grouping: int,
    to_grouping: int,
    tiles_used: int | None = None,
) -> list[Superstep]:
    """Return the supersteps of moving a tensor to another layout.

    Parameters
    ----------
    elements : int
        Elements moved.
    dtype : str
        Data type.
    chip : Chip
        The chip.
    from_grouping, to_grouping : int
        Elements that sit together in memory before and after. Equal groupings mean that only the
        tile mapping changes.
    tiles_used : int, optional
        Tiles of the destination.

    Returns
    -------
    list of Superstep
        One exchange of everything. Where the groupings differ, transpose vertices run first if
        both are multiples of 4 float16 elements (poplibs lib/popops/Rearrange.cpp,
        regroupIfBeneficial); otherwise the destination tile copies element by element.
    """
    share = tile_share(elements, dtype, chip, tiles_used)
    tile_bytes = share.elements * element_bytes(dtype)
    if from_grouping == to_grouping:
        return [Superstep(name="move", vertex="copy", compute_cycles=0, exchange_bytes=tile_bytes)]
    fast = element_bytes(dtype) == 2 and from_grouping % 4 == 0 and to_grouping % 4 == 0
    if fast:
        matrices = ceil_div(share.elements, from_grouping * to_grouping)
        cycles = codelets.transpose_cycles(from_grouping, to_grouping, matrices, dtype, chip)
        return [
            Superstep(
                name="regroup",
                vertex="popops::Transpose1D",
                compute_cycles=cycles,
                exchange_bytes=tile_bytes,
                temp_bytes=tile_bytes,
            )
        ]
    return [
        Superstep(
            name="rearrange",
            vertex="copy",
            compute_cycles=0,
            exchange_bytes=tile_bytes,
            on_tile_copy_cycles=copy_cycles(tile_bytes, chip, atom_bytes=element_bytes(dtype)),
            temp_bytes=tile_bytes,
        )
    ]
