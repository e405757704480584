"""Figures of the notebook on the results page."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from ipusim.study.audit_results import little_rows
from ipusim.study.book.charts import OKABE_ITO, SERIES, figure_style

_MACHINES = {"Classic": "Classic (GC200)", "Bow": "Bow"}


def published_and_predicted(frame: pd.DataFrame, mode: str) -> Figure:
    """Draw the predicted rates as shares of the published ones, Classic beside Bow.

    Parameters
    ----------
    frame : pandas.DataFrame
        From `ipusim.study.verdicts.compare.verdicts`.
    mode : str
        ``"inference"`` or ``"training"``.

    Returns
    -------
    matplotlib.figure.Figure
        One line per throughput row, in bands of families that both panels share: what is predicted,
        its 80 % interval and the specification tier, over what was published.
    """
    names = {f"{machine} {mode}": title for machine, title in _MACHINES.items()}
    used = frame[frame["table"].isin(names) & (frame["metric"] == "throughput")]
    used = used[used["calibrated"].notna()]
    counts = used.groupby(["family", "table"], sort=False).size().unstack(fill_value=0)
    bands = (counts.max(axis=1) + 1).cumsum() if len(used) else pd.Series(dtype=int)
    ends = bands.to_dict()
    with figure_style():
        figure = Figure(figsize=(9.4, 1.6 + 0.105 * max(ends.values(), default=0)))
        axes = figure.subplots(1, 2, sharey=True)
        for axis, (table, title) in zip(axes, names.items(), strict=True):
            own = used[used["table"] == table]
            axis.set_title(f"{title}: {len(own)} rows")
            axis.set_xlabel("predicted / published throughput (log)")
            for end in ends.values():
                axis.axhline(end - 0.5, color="#C9CED4", linewidth=0.6)
            if own.empty:
                continue
            # the rows of a family lie in the middle of its band
            sizes = own["family"].map(own["family"].value_counts())
            widths = own["family"].map(counts.max(axis=1))
            first = own["family"].map(ends) - (widths + sizes) / 2
            _draw_shares(axis, own, first + own.groupby("family").cumcount())
        starts = [0, *ends.values()][: len(ends)]
        middles = [(a + b) / 2 - 0.5 for a, b in zip(starts, ends.values(), strict=True)]
        axes[0].set_yticks(middles, list(ends))
        axes[0].set_ylim(max(ends.values(), default=1), -1)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4)
    return figure


def _draw_shares(axis: Axes, own: pd.DataFrame, places: pd.Series) -> None:
    """Draw rows as shares of what was published, each at its place."""
    columns = ["low80", "calibrated", "high80", "specification"]
    scaled = own[columns].div(own["published"], axis=0)
    axis.hlines(
        places,
        scaled["low80"],
        scaled["high80"],
        color=OKABE_ITO["vermilion"],
        alpha=0.35,
        linewidth=2.4,
        label="80 % interval",
    )
    for tier in ("specification", "calibrated"):
        look = SERIES[tier] | {"linestyle": "none", "markersize": 3.5, "markeredgewidth": 0.8}
        axis.plot(scaled[tier], places, label=tier, **look)
    axis.axvline(1.0, color=OKABE_ITO["black"], linewidth=1.0, label="published")
    axis.set_xscale("log")
    ticks = (0.25, 0.5, 0.67, 0.8, 1, 1.25, 1.5, 2, 3, 4)
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.xaxis.set_minor_formatter(NullFormatter())
    shown = scaled[["calibrated", "specification"]].stack()
    axis.set_xlim(0.9 * min(0.6, shown.min()), 1.1 * max(1.7, shown.max()))
    axis.tick_params(axis="y", length=0)
    axis.tick_params(axis="x", labelsize=8)
    axis.grid(axis="y", visible=False)


def little_figure() -> Figure:
    """Draw the batches in flight of every row with a latency, by framework.

    Returns
    -------
    matplotlib.figure.Figure
        One mark per row; a cross where the printed batch is wrong and gives another number.
    """
    frame = little_rows()
    names = sorted(set(frame["framework"]), reverse=True)
    ticks = (0.1, 0.25, 0.5, 1, 2, 3, 5, 7)
    with figure_style():
        figure = Figure(figsize=(9.2, 3.8))
        axis = figure.subplots()
        for place, name in enumerate(names):
            own = frame[frame["framework"] == name]
            spread = place + 0.25 * np.sin(2.4 * np.arange(len(own)))
            wrong = own["label_differs"].to_numpy()
            marks = (
                ("batch as run", "o", "blue", own["batches_as_run"], spread),
                (
                    "printed batch, where wrong",
                    "x",
                    "vermilion",
                    own["batches_by_printed_label"][wrong],
                    spread[wrong],
                ),
            )
            for label, mark, colour, values, heights in marks:
                axis.plot(
                    values,
                    heights,
                    mark,
                    fillstyle="none",
                    markersize=4.5,
                    color=OKABE_ITO[colour],
                    label=None if place else label,
                )
        for whole in (1, 3, 5):
            axis.axvline(whole, color=OKABE_ITO["grey"], linewidth=0.8, linestyle=":")
        axis.set_xscale("log")
        axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.set_yticks(range(len(names)), names)
        axis.grid(axis="y", visible=False)
        axis.set_xlabel("batches in flight (log scale)")
        axis.set_title("What the latency column measures depends on the framework")
        figure.legend(loc="outside lower center", ncols=2)
    return figure
