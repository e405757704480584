"""How many outputs of the busiest tile each kernel tap really computes, and the cycles of that.

The planner reckons as if every tap reached every output.  At the borders of padded fields, and
where inputs are dilated with zeros, it does not, and vertices skip what would be zero.

Sources: poplibs ``lib/poplin/ConvVertices.cpp`` (createPartitions) and ``Convolution.cpp``
(iteratePartitionParallel).
"""

from functools import lru_cache

import numpy as np

from ipusim.compiler.convolution.params import Dim
from ipusim.compiler.convolution.record import Split
from ipusim.compiler.vertices.amp import amp_nx1_window_cycles
from ipusim.compiler.vertices.conv import AMP


def windowed_cycles(vertex: np.ndarray, work: np.ndarray, dims: tuple[Dim, ...]) -> int | None:
    """Return the cycles of the AMP n x 1 vertex on the busiest tile, None for other vertices.

    `work` is that of an executed plan; `dims` are the spatial dimensions after all transforms.
    """
    if vertex["method"] != AMP or work["cost"]["one_by_one"]:
        return None
    height, part = int(vertex["filter_height"][0]), work["part"]
    split = Split.of(work["split"][0], len(dims))
    outer, *middle, inner = (
        _tap_counts(dim, fields, kernels, height if d == 0 else 1)
        for d, (dim, fields, kernels) in enumerate(
            zip(dims, split.field, split.kernel, strict=True)
        )
    )
    rows = int(part["batch"][0]) * outer
    for counts in middle:
        # Of three dimensions the middle one adds rows and taps.
        rows = (rows[:, None] * counts[None, :]).ravel()
    return amp_nx1_window_cycles(vertex, part, rows, inner)


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
        reached = np.zeros_like(hits)
        reached[:, used] = taken[np.where(inside, at, 0)] & inside
        hits &= reached
    begins = [part * out // field_splits for part in range(field_splits)]
    counts = np.add.reduceat(hits.astype(np.int64), begins, axis=0)
    begins = [part * taps // kernel_splits for part in range(kernel_splits)]
    busy = np.add.reduceat(counts, begins, axis=1)
    field, kernel = np.unravel_index(int(busy.argmax()), busy.shape)
    end = (int(kernel) + 1) * taps // kernel_splits
    return counts[field, begins[int(kernel)] : end : height]
