"""Distances between all rows of two matrices, and their gradient: one vertex per result.

Source: github graphcore/distributed-kge-poplar, src/poplar_extensions/distance.cpp (square blocks
of results on every tile, to which the rows travel) and l1distance.codelet.cpp. The codelets are
C++; their cycles are counted as instructions of the vector loop, two elements of 32 bits or four of
16 at a time [inferred: loads run beside the arithmetic].
"""

from __future__ import annotations

from math import isqrt

from ipusim.compiler.superstep import (
    ChipLike,
    Superstep,
    ceil_div,
    element_bytes,
    require_positive,
    vector_width,
)

_FORWARD_LOOP = 3
"""Subtract, absolute value, add."""
_GRADIENT_LOOP = 7
"""Subtract, compare, mask, copy of the sign in two, multiply, add."""
_AROUND = 20
"""Cycles of a vertex outside its loop: pointers, sum over the vector, store [inferred]."""


def distance_steps(
    rows: int, others: int, width: int, dtype: str, chip: ChipLike, *, backward: bool = False
) -> list[Superstep]:
    """Return the superstep of the distances of `rows` rows to `others` rows of `width` elements.

    Parameters
    ----------
    rows, others, width : int
        Sizes.
    dtype : str
        "float16" or "float32".
    chip : Chip
        The chip.
    backward : bool, optional
        Whether the gradient of the first matrix is computed instead, from both matrices and the
        gradient of the distances.

    Raises
    ------
    ConfigError
        If a size is not positive.
    """
    require_positive(rows=rows, others=others, width=width)
    columns, length = (width, others) if backward else (others, width)
    results = ceil_div(rows * columns, chip.tiles)
    side = isqrt(results - 1) + 1
    received = (min(side, rows) + min(ceil_div(results, min(side, rows)), columns)) * length
    loop = _GRADIENT_LOOP if backward else _FORWARD_LOOP
    vertex = _AROUND + loop * ceil_div(length, vector_width(dtype, chip))
    moved = received * element_bytes(dtype)
    return [
        Superstep(
            name="distance gradient" if backward else "distance",
            vertex="L1DistanceGradSingleVertex" if backward else "L1DistanceSingleVertex",
            compute_cycles=chip.workers * ceil_div(results, chip.workers) * vertex,
            exchange_bytes=moved,
            temp_bytes=moved,
        )
    ]
