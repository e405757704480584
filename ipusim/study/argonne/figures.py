"""Figures of Bragg peaks: patches with true and predicted centres, errors, losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ipusim.errors import StudyError
from ipusim.study.book.charts import OKABE_ITO, figure_style

_MARKS = (
    {"marker": "x", "color": OKABE_ITO["vermilion"], "markersize": 9},
    {"marker": "o", "color": OKABE_ITO["sky"], "markersize": 9, "fillstyle": "none"},
    {"marker": "^", "color": OKABE_ITO["yellow"], "markersize": 8, "fillstyle": "none"},
)
_LINES = (
    {"color": OKABE_ITO["black"], "linestyle": "-"},
    {"color": OKABE_ITO["green"], "linestyle": "-."},
    {"color": OKABE_ITO["vermilion"], "linestyle": "--"},
    {"color": OKABE_ITO["blue"], "linestyle": ":"},
    {"color": OKABE_ITO["purple"], "linestyle": "-"},
    {"color": OKABE_ITO["orange"], "linestyle": "--"},
    {"color": OKABE_ITO["grey"], "linestyle": "-."},
)


def peaks_with_centres(
    patches: np.ndarray,
    centres: np.ndarray,
    predicted: Mapping[str, np.ndarray],
    *,
    columns: int = 6,
    rows: int = 2,
) -> Figure:
    """Draw patches with their true centre and what each method found.

    Parameters
    ----------
    patches : numpy.ndarray
        (count, 1, size, size), scaled to 0..1.
    centres : numpy.ndarray
        (count, 2) true centres in pixels, column first.
    predicted : mapping of str to numpy.ndarray
        Centres in pixels by method; at most three methods.
    columns, rows : int
        Patches shown, the first ones.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    StudyError
        If there are too few patches or too many methods.
    """
    if len(patches) < columns * rows:
        raise StudyError(
            f"There are {len(patches)} patches for {columns * rows} panels; show fewer panels."
        )
    if len(predicted) > len(_MARKS):
        raise StudyError(f"{len(predicted)} methods are too many for one figure; show at most 3.")
    with figure_style():
        figure = Figure(figsize=(1.7 * columns, 1.8 * rows + 0.5))
        axes = figure.subplots(rows, columns, squeeze=False)
        for number, axis in enumerate(axes.flat):
            axis.imshow(patches[number, 0], cmap="gray", vmin=0, vmax=1)
            axis.plot(
                *centres[number],
                linestyle="none",
                marker="+",
                markersize=13,
                color=OKABE_ITO["green"],
                label="true centre",
            )
            for (method, found), mark in zip(predicted.items(), _MARKS, strict=False):
                axis.plot(*found[number], linestyle="none", label=method, **mark)
            axis.set_xticks([])
            axis.set_yticks([])
            axis.grid(visible=False)
        handles, labels = axes.flat[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return figure


def error_distributions(
    errors: Mapping[str, np.ndarray], marks: Sequence[tuple[float, float]] = ()
) -> Figure:
    """Draw the share of peaks within each error, per method.

    Parameters
    ----------
    errors : mapping of str to numpy.ndarray
        Errors in pixels by method.
    marks : sequence of (error in pixels, percent of peaks)
        Published points.
    """
    with figure_style():
        figure = Figure(figsize=(7.5, 4.2))
        axis = figure.subplots()
        for number, (method, values) in enumerate(errors.items()):
            ordered = np.sort(values)
            share = 100 * np.arange(1, len(ordered) + 1) / len(ordered)
            axis.plot(ordered, share, label=method, **_LINES[number % len(_LINES)])
        for number, (error, share) in enumerate(marks):
            axis.plot(
                error,
                share,
                linestyle="none",
                marker="o",
                markersize=8,
                color=OKABE_ITO["black"],
                label="published" if number == 0 else None,
            )
        axis.set_xlim(0, 1)
        axis.set_ylim(0, 100)
        axis.set_xlabel("error of the centre, pixels")
        axis.set_ylabel("peaks within that error, %")
        axis.legend(loc="lower right")
    return figure


def loss_curves(frame: pd.DataFrame) -> Figure:
    """Draw training errors over steps, one line per run.

    Parameters
    ----------
    frame : pandas.DataFrame
        Columns method, step, rms_px (`ipusim.study.argonne.braggnn.loss_table`).
    """
    with figure_style():
        figure = Figure(figsize=(7.5, 3.8))
        axis = figure.subplots()
        for number, (method, part) in enumerate(frame.groupby("method", sort=False)):
            axis.plot(part["step"], part["rms_px"], label=method, **_LINES[number % len(_LINES)])
        axis.set_yscale("log")
        axis.set_xlabel("training step")
        axis.set_ylabel("error of the batch, root mean square, pixels")
        axis.legend(loc="upper right")
    return figure
