"""How many outputs of the busiest tile each kernel tap really computes, and the cycles of that.

The planner reckons as if every tap reached every output.  At the borders of padded fields, and
between the zeros of spread inputs, it does not, and vertices skip what would be zero.

References
----------
poplibs ``lib/poplin/ConvVertices.cpp`` (createPartitions) and ``Convolution.cpp``
(iteratePartitionParallel).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from ipusim.compiler.convolution import record as lay
from ipusim.compiler.convolution.params import Dim
from ipusim.compiler.convolution.tile_cycles import weight_load
from ipusim.compiler.vertices.amp import amp_nx1_window_cycles
from ipusim.compiler.vertices.conv import ceil_div


def windowed_cycles(
    problem: np.ndarray,
    vertex: np.ndarray,
    totals: np.ndarray,
    split: np.ndarray,
    dims: tuple[Dim, ...],
) -> int | None:
    """Return the cycles of the AMP n x 1 vertex on the busiest tile, None for other vertices.

    Parameters
    ----------
    problem, vertex, totals, split : numpy.ndarray
        See `record`.
    dims : tuple of Dim
        Spatial dimensions after all transforms.
    """
    if vertex[lay.METHOD] != lay.AMP or _one_by_one(totals, split, dims):
        return None
    height = int(totals[lay.T_FILTER_HEIGHT])
    counts = [
        _tap_counts(
            dim,
            int(split[lay.S_FIELD + d]),
            int(split[lay.S_KERNEL + d]),
            height if d == 0 else 1,
        )
        for d, dim in enumerate(dims)
    ]
    batch = ceil_div(int(problem[lay.BATCH]), int(split[lay.S_BATCH]))
    rows = batch * counts[0]
    lengths = counts[-1]
    for middle in counts[1:-1]:
        # Of three dimensions the middle one adds rows and taps.
        rows = (rows[:, None] * middle[None, :]).ravel()
    grains = [
        ceil_div(int(totals[total]), int(math.prod(int(split[s]) for s in splits)))
        for total, splits in (
            (lay.T_GROUP_GRAINS, (lay.S_GROUP,)),
            (lay.T_IN_GRAINS, (lay.S_IN, lay.S_IN_SERIAL)),
            (lay.T_OUT_GRAINS, (lay.S_OUT, lay.S_OUT_SERIAL)),
        )
    ]
    positions = batch * math.prod(
        _part(problem, totals, split, d, len(dims)) for d in range(len(dims))
    )
    units = int(vertex[lay.UNITS])
    return int(
        amp_nx1_window_cycles(
            rows,
            lengths,
            positions,
            height,
            *grains,
            int(vertex[lay.OUT_CHANS_PER_GROUP]),
            int(weight_load(problem, units)),
            problem[lay.IN_BYTES] == 4,
            vertex[lay.PARTIAL_BYTES] == 4,
            units,
            int(problem[lay.ERA]),
        )
    )


def _one_by_one(totals: np.ndarray, split: np.ndarray, dims: tuple[Dim, ...]) -> bool:
    taps = math.prod(
        ceil_div(dim.kernel.size, int(split[lay.S_KERNEL + d])) for d, dim in enumerate(dims)
    )
    return bool(totals[lay.T_ONE_BY_ONE]) and taps == 1


def _part(problem: np.ndarray, totals: np.ndarray, split: np.ndarray, d: int, rank: int) -> int:
    """Return the most outputs of one dimension on a tile."""
    parts = int(split[lay.S_FIELD + d])
    if d == rank - 1:
        return ceil_div(int(totals[lay.T_LAST_GRAINS]), parts) * int(totals[lay.T_FIELD_GRAIN])
    return ceil_div(int(problem[lay.OUT_FIELD + d]), parts)


@lru_cache(maxsize=4096)
def _tap_counts(dim: Dim, field_splits: int, kernel_splits: int, height: int) -> np.ndarray:
    """Return how many outputs each kernel tap computes on the tile with the most to do."""
    out, taps = dim.out, dim.kernel.size
    index = np.arange(out)
    computed = (index >= dim.pad_low) & (index < out - dim.pad_high)
    hits = np.repeat(computed[:, None], taps, axis=1)
    if height == 1:
        taken = np.zeros(dim.data.extent, bool)
        taken[dim.data.places()] = True
        used = slice(dim.kernel.cut_low, taps - dim.kernel.cut_high)
        place = dim.cut_low + (index - dim.pad_low) * dim.stride
        at = place[:, None] + dim.kernel.places()[None, :]
        inside = (at >= 0) & (at < dim.data.extent)
        hits[:, used] &= taken[np.where(inside, at, 0)] & inside
        hits[:, : dim.kernel.cut_low] = False
        hits[:, taps - dim.kernel.cut_high :] = False
    begins = [part * out // field_splits for part in range(field_splits)]
    counts = np.add.reduceat(hits.astype(np.int64), begins, axis=0)
    begins = [part * taps // kernel_splits for part in range(kernel_splits)]
    busy = np.add.reduceat(counts, begins, axis=1)
    field, kernel = np.unravel_index(int(busy.argmax()), busy.shape)
    end = (int(kernel) + 1) * taps // kernel_splits
    return counts[field, begins[int(kernel)] : end : height]
