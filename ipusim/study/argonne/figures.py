"""The figure of the Argonne study that is no chart: Bragg peaks."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from ipusim.errors import StudyError
from ipusim.look import OKABE_ITO
from ipusim.study.book.charts import sheet

_MARKS = (
    {"marker": "x", "color": OKABE_ITO["vermilion"], "markersize": 10, "markeredgewidth": 1.8},
    {"marker": "o", "color": OKABE_ITO["sky"], "markersize": 10, "fillstyle": "none"},
    {"marker": "^", "color": OKABE_ITO["yellow"], "markersize": 9, "fillstyle": "none"},
)
_NEAR_PIXELS = 2.5
"""Pixels shown around a centre: the marks lie within a few tenths of one."""


def peaks_with_centres(
    patches: np.ndarray,
    centres: np.ndarray,
    predicted: Mapping[str, np.ndarray],
    *,
    columns: int = 6,
    rows: int = 2,
) -> Figure:
    """Draw the middle of the first patches with their true centre and what each method found.

    Patches are (count, 1, size, size), scaled to 0..1; centres (count, 2) in pixels, column first,
    those that are predicted by method. A StudyError for too few patches or more than three methods.
    """
    if len(patches) < columns * rows:
        raise StudyError(
            f"There are {len(patches)} patches for {columns * rows} panels; show fewer panels."
        )
    if len(predicted) > len(_MARKS):
        raise StudyError(f"{len(predicted)} methods are too many for one figure; show at most 3.")
    with sheet(1.7 * columns, 1.8 * rows + 0.5, down=rows, across=columns) as (figure, axes):
        for number, axis in enumerate(axes):
            axis.imshow(patches[number, 0], cmap="gray", vmin=0, vmax=1)
            look = {"marker": "+", "markersize": 16, "markeredgewidth": 1.8}
            green = OKABE_ITO["green"]
            axis.plot(*centres[number], linestyle="none", color=green, label="true centre", **look)
            for (method, found), mark in zip(predicted.items(), _MARKS, strict=False):
                axis.plot(*found[number], linestyle="none", label=method, **mark)
            # a row of an image counts downwards
            (column, row), near = centres[number], _NEAR_PIXELS
            limits = {"xlim": (column - near, column + near), "ylim": (row + near, row - near)}
            axis.set(xticks=[], yticks=[], **limits)
        figure.suptitle(f"{len(axes)} held-out peaks: the middle of each patch, and its centre")
    return figure
