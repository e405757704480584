"""From crops to what BraggNN sees: shift, crop, keep one component, scale.

The preparation of the authors' code (github lzhengchun/BraggNN at 0d3fdc3, ``dataset.py``): an
11 x 11 patch around the detected pixel, moved by a random whole number of pixels in training; of
the connected pixels above zero only the component whose brightest pixel is nearest to the labelled
centre is kept; values are scaled to 0..1; the target is the centre inside the patch divided by its
size, column first.
"""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from scipy import ndimage

from ipusim.errors import DataError
from ipusim.study.argonne.braggnn.peaks import CROP_SIZE

PATCH_SIZE = 11
MARGIN = (CROP_SIZE - PATCH_SIZE) // 2
"""Largest shift that a crop has room for, in pixels."""

_TOUCHING = np.zeros((3, 3, 3), bool)
_TOUCHING[1] = True
"""Pixels of one patch are connected along sides and corners, those of two never."""


def _keep_components(patches: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Return patches (count, size, size) without pixels outside the component of their centre."""
    labels, count = ndimage.label(patches > 0, _TOUCHING)
    lit = np.nonzero(labels)
    # the brightest pixel of each component; of several the first
    order = np.lexsort((-patches[lit], labels[lit]))
    _, first = np.unique(labels[lit][order], return_index=True)
    patch, row, column = (index[order][first] for index in lit)
    distance = (column - centres[patch, 0]) ** 2 + (row - centres[patch, 1]) ** 2
    order = np.lexsort((distance, patch))
    _, first = np.unique(patch[order], return_index=True)
    kept = np.zeros(count + 1, bool)
    kept[1 + order[first]] = True
    return np.where(kept[labels], patches, 0)


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
    patches = windows[np.arange(len(crops)), corners[:, 1], corners[:, 0]]
    inside = centres - corners
    if clean:
        patches = _keep_components(patches, inside)
    low, high = patches.min(axis=(1, 2), keepdims=True), patches.max(axis=(1, 2), keepdims=True)
    np.divide(patches - low, high - low, out=patches, where=high > low)
    return patches[:, None], (inside / PATCH_SIZE).astype(np.float32)
