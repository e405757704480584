"""Figures of the notebook on the results page."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from ipusim.study.audit_results import little_rows
from ipusim.study.book.charts import OKABE_ITO, SERIES, figure_style
from ipusim.study.results.study import table_frame


def published_and_predicted(frame: pd.DataFrame, table: str) -> Figure:
    """Draw the predicted rates of one table as shares of the published ones, with intervals.

    Parameters
    ----------
    frame : pandas.DataFrame
        From `ipusim.study.verdicts.compare.verdicts`.
    table : str
        One of `ipusim.study.results.study.TABLES`.

    Returns
    -------
    matplotlib.figure.Figure
        One line per throughput row, grouped by family: what is predicted, its 80 % interval and
        what nothing fitted gives, over what was published. Says so where no row is predicted.
    """
    data = table_frame(frame, table)
    data = data[(data["metric"] == "throughput") & data["calibrated"].notna()]
    if data.empty:
        return _empty_figure(f"{table}: no row of these families is predicted")
    places = np.arange(len(data))[::-1].astype(np.float64)
    scaled = data[["low80", "calibrated", "high80", "specification"]].div(data["published"], axis=0)
    with figure_style():
        figure = Figure(figsize=(9.4, 1.6 + 0.17 * len(data)))
        axis = figure.subplots()
        known = scaled["low80"].notna().to_numpy()
        axis.hlines(
            places[known],
            scaled["low80"][known],
            scaled["high80"][known],
            color=OKABE_ITO["vermilion"],
            alpha=0.35,
            linewidth=3.2,
            label="80 % interval",
        )
        for tier in ("specification", "calibrated"):
            look = SERIES[tier] | {"linestyle": "none", "markersize": 5.0}
            axis.plot(scaled[tier], places, label=tier, **look)
        axis.axvline(1.0, color=OKABE_ITO["black"], linewidth=1.0, label="published")
        axis.set_xscale("log")
        ticks = (0.25, 0.5, 0.67, 0.8, 1, 1.25, 1.5, 2, 4)
        axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.xaxis.set_minor_formatter(NullFormatter())
        values = scaled.to_numpy(dtype=np.float64)
        axis.set_xlim(0.9 * min(0.5, np.nanmin(values)), 1.1 * max(2.0, np.nanmax(values)))
        axis.set_ylim(-1, len(data))
        _mark_families(axis, data["family"].to_list(), places)
        axis.set_xlabel("predicted / published throughput (log scale)")
        axis.set_title(f"{table}: {len(data)} rows")
        figure.legend(loc="outside lower center", ncols=4)
    return figure


def _empty_figure(text: str) -> Figure:
    with figure_style():
        figure = Figure(figsize=(9.4, 0.8))
        axis = figure.subplots()
        axis.set_axis_off()
        axis.set_title(text)
    return figure


def _mark_families(axis: object, names: list[str], places: np.ndarray) -> None:
    """Write each family once beside its rows, with a line between families."""
    starts = [i for i, name in enumerate(names) if i == 0 or names[i - 1] != name]
    ends = [*starts[1:], len(names)]
    middles = [float(places[start:end].mean()) for start, end in zip(starts, ends, strict=True)]
    axis.set_yticks(middles, [names[start] for start in starts])
    axis.tick_params(axis="y", length=0)
    axis.grid(axis="y", visible=False)
    for start in starts[1:]:
        axis.axhline(places[start] + 0.5, color="#C9CED4", linewidth=0.7)


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
