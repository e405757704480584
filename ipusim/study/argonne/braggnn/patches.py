"""From crops to what BraggNN sees: shift, crop, keep one component, scale.

The preparation of the authors' code (github lzhengchun/BraggNN at 0d3fdc3, ``dataset.py``): an
11 x 11 patch around the detected pixel, moved by a random whole number of pixels in training; of
the connected pixels above zero only the component whose brightest pixel is nearest to the labelled
centre is kept; values are scaled to 0..1; the target is the centre inside the patch divided by its
size, column first.
"""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ipusim.errors import DataError
from ipusim.kernel_cache import njit
from ipusim.numerics.kernels.threads import over_ranges
from ipusim.study.argonne.braggnn.peaks import CROP_SIZE

PATCH_SIZE = 11
MARGIN = (CROP_SIZE - PATCH_SIZE) // 2
"""Largest shift that a crop has room for, in pixels."""

_CHUNK = 1024


@njit(cache=True, nogil=True)
def _keep_component(patch, column, row, labels, stack):
    """Zero all pixels outside the component nearest to a position."""
    size = patch.shape[0]
    labels[:] = 0
    components = 0
    best, best_distance = 0, np.inf
    for i in range(size):
        for j in range(size):
            if patch[i, j] <= 0 or labels[i, j]:
                continue
            components += 1
            labels[i, j] = components
            stack[0] = i * size + j
            depth = 1
            peak, peak_row, peak_column = patch[i, j], i, j
            while depth:
                depth -= 1
                y, x = stack[depth] // size, stack[depth] % size
                if patch[y, x] > peak:
                    peak, peak_row, peak_column = patch[y, x], y, x
                for v in range(max(0, y - 1), min(size, y + 2)):
                    for u in range(max(0, x - 1), min(size, x + 2)):
                        if patch[v, u] > 0 and not labels[v, u]:
                            labels[v, u] = components
                            stack[depth] = v * size + u
                            depth += 1
            distance = (peak_column - column) ** 2 + (peak_row - row) ** 2
            if distance < best_distance:
                best, best_distance = components, distance
    for i in range(size):
        for j in range(size):
            if labels[i, j] != best:
                patch[i, j] = 0


@njit(cache=True, nogil=True)
def _keep_components(patches, inside, start, stop):
    size = patches.shape[2]
    labels = np.zeros((size, size), np.int64)
    stack = np.empty(size * size, np.int64)
    for n in range(start, stop):
        _keep_component(patches[n, 0], inside[n, 0], inside[n, 1], labels, stack)


def check_crops(crops: np.ndarray, centres: np.ndarray) -> None:
    """Refuse images that are none, misshapen or not finite, before anything is computed."""
    if crops.ndim != 3 or crops.shape[1:] != (CROP_SIZE, CROP_SIZE):
        raise DataError(
            f"The crops have shape {crops.shape}, which must be (count, {CROP_SIZE}, {CROP_SIZE})."
        )
    if not len(crops):
        raise DataError("The data set holds no peaks; simulate or load at least one.")
    if centres.shape != (len(crops), 2):
        raise DataError(f"The centres have shape {centres.shape}, which must be ({len(crops)}, 2).")
    bad = ~np.isfinite(crops).all(axis=(1, 2)) | ~np.isfinite(centres).all(axis=1)
    if bad.any():
        raise DataError(
            f"{int(bad.sum())} of {len(crops)} images hold NaN or infinite values (the first is "
            f"number {int(bad.argmax())}); remove them."
        )


def random_shifts(count: int, generator: np.random.Generator) -> np.ndarray:
    """Draw whole-pixel shifts (count, 2) of at most one pixel, column first."""
    return generator.integers(-1, 1, (count, 2), endpoint=True)


def prepare_patches(
    crops: np.ndarray,
    centres: np.ndarray,
    shifts: np.ndarray | None = None,
    *,
    clean: bool = True,
) -> tuple[np.ndarray, np.ndarray]:
    """Make patches float32 (count, 1, 11, 11), scaled to 0..1, and targets (count, 2).

    Crops are (count, 15, 15), centres in pixels of the crop, `shifts` the whole-pixel movement of
    each patch (none by default), column first as the targets, which are fractions of the patch.
    With `clean` one component only is kept.
    """
    check_crops(crops, centres)
    corners = np.full((len(crops), 2), MARGIN) + (0 if shifts is None else shifts)
    windows = sliding_window_view(np.asarray(crops, np.float32), (PATCH_SIZE,) * 2, axis=(1, 2))
    patches = windows[np.arange(len(crops)), corners[:, 1], corners[:, 0]][:, None]
    inside = centres - corners
    if clean:
        over_ranges(len(crops), _CHUNK, _keep_components, patches, inside)
    low, high = patches.min(axis=(2, 3), keepdims=True), patches.max(axis=(2, 3), keepdims=True)
    np.divide(patches - low, high - low, out=patches, where=high > low)
    return patches, (inside / PATCH_SIZE).astype(np.float32)
