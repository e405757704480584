"""Sorting as a network of compare-and-swap steps over the whole chip.

Source: poplibs lib/popops/BitonicTopK.cpp and popopsCycleEstimators.cpp
(CompareAndSwapKeyValueCycleEstimate), tag sdk/poplar/3.2.0. Sorting 2^n elements takes 1 + 2 + ...
+ n steps; before each, the elements are brought to the tile of the one that they are compared with.
"""

from __future__ import annotations

from ipusim.compiler.superstep import (
    ChipLike,
    Superstep,
    ceil_div,
    element_bytes,
    require_positive,
)

_SUPERVISOR = 19
_WHOLE_NUMBERS = (42, 22, 3, 12)
_FLOATS = (40, 17, 3, 13)
"""Cycles of a worker: once, per entry of its list of work, per run, per comparison; keys only. Half
keys are sorted as floats."""


def compare_and_swap_cycles(comparisons: int, dtype: str, chip: ChipLike) -> int:
    """Return the cycles of one tile for so many comparisons, in one run per worker."""
    once, entry, run, each = _FLOATS if dtype.startswith("float") else _WHOLE_NUMBERS
    per_worker = ceil_div(comparisons, chip.workers)
    return _SUPERVISOR + chip.workers * (once + entry + run + each * per_worker)


def sort_steps(outer: int, length: int, dtype: str, chip: ChipLike) -> list[Superstep]:
    """Return the supersteps of sorting `outer` rows of `length` elements.

    Parameters
    ----------
    outer, length : int
        Rows, and elements of each.
    dtype : str
        Type of the elements; those of 16 bits are taken as 32 bits wide.
    chip : Chip
        The chip.

    Returns
    -------
    list of Superstep
        None for rows of one element.

    Raises
    ------
    ConfigError
        If a count is not positive.
    """
    require_positive(outer=outer, length=length)
    doublings = (length - 1).bit_length()
    comparisons = ceil_div(outer * (length // 2), chip.tiles)
    moved = 2 * comparisons * max(4, element_bytes(dtype))
    step = Superstep(
        name="compare and swap",
        vertex="popops::CompareAndSwapAtDistance",
        compute_cycles=compare_and_swap_cycles(max(1, comparisons), dtype, chip),
        exchange_bytes=moved,
        temp_bytes=moved,
    )
    return [step] * (doublings * (doublings + 1) // 2)
