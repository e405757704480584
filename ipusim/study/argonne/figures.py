"""Figures of the Argonne study: Bragg peaks, and what the time to train draws."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ipusim.errors import StudyError
from ipusim.look import OKABE_ITO
from ipusim.study.argonne.dataflow import GpuRun
from ipusim.study.book.charts import sheet

SLIDES_CHIP = "GC200"
"""The chip of the slides, which say Mk2."""
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


def time_to_train(
    frame: pd.DataFrame,
    boards: Sequence[GpuRun],
    *,
    published_s: Mapping[str, tuple[float, float]],
    goal_s: float,
) -> dict[str, pd.DataFrame]:
    """Return the seconds of 500 epochs on GPUs and in dataflows (`dataflow_frame`).

    `published_s` are the seconds that follow from the slides for a board or the name of a dataflow,
    as two ends (equal ones are one value), a line for each in their table; `goal_s` is the slides'
    goal.
    """
    on_gpus = [(f"{run.board}, stock loader", run.training_s, "GPU", run.board) for run in boards]
    chips = zip(frame["chip"], frame["title"], frame["training_s"], frame["flow"], strict=True)
    on_ipus = [
        (f"{chip}, {title}", seconds, chip, flow if chip == SLIDES_CHIP else "")
        for chip, title, seconds, flow in chips
    ]
    bars = pd.DataFrame([*on_gpus, *on_ipus], columns=["name", "training_s", "chip", "key"])
    ends = [
        (place, end) for place, key in enumerate(bars["key"]) for end in published_s.get(key, ())
    ]
    bars = bars.assign(written_at=21, goal_s=goal_s)
    return {"bars": bars, "slides": pd.DataFrame(ends, columns=["bar", "s"])}
