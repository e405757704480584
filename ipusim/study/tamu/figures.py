"""Figures of the TAMU study: micro-batch, parts of a step, scaling, memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from ipusim.study.book.charts import (
    OKABE_ITO,
    PARTS as PART_LOOKS,
    SERIES,
    figure_style,
    stacked_bars,
)
from ipusim.study.tamu.breakdown import PARTS
from ipusim.study.tamu.memory import STATED_LARGEST
from ipusim.study.tamu.scaling import SERIES_NAMES
from ipusim.study.tamu.study import PYTORCH_SERIES, RESULTS_SERIES, TENSORFLOW_SERIES

SERIES_LOOK = {
    SERIES_NAMES[TENSORFLOW_SERIES]: {"color": OKABE_ITO["vermilion"], "marker": "s"},
    SERIES_NAMES[RESULTS_SERIES]: {"color": OKABE_ITO["blue"], "marker": "^"},
    SERIES_NAMES[PYTORCH_SERIES]: {"color": OKABE_ITO["green"], "marker": "D"},
}

PUBLISHED_LOOK = {"color": OKABE_ITO["black"], "linestyle": "none", "markersize": 5.5, "zorder": 5}


def _ticks(axis: Axes, values: Sequence[float]) -> None:
    """Label a base-2 axis with the numbers that occur."""
    axis.set_xscale("log", base=2)
    axis.set_xticks(list(values), [f"{value:g}" for value in values])
    axis.xaxis.set_minor_locator(NullLocator())


def micro_batch_panels(frame: pd.DataFrame) -> Figure:
    """Draw Table 3 on one IPU: throughput and time per micro-batch.

    Parameters
    ----------
    frame : pandas.DataFrame
        The rows of one IPU of `ipusim.study.tamu.study.table_frame`.

    Returns
    -------
    matplotlib.figure.Figure
        Two panels over the micro-batch.
    """
    frame = frame.sort_values("micro_batch")
    size = frame["micro_batch"].to_numpy(dtype=np.float64)
    with figure_style():
        figure = Figure(figsize=(9.6, 4.0))
        left, right = figure.subplots(1, 2)
        for name in ("published", "specification", "calibrated"):
            rate = frame[name].to_numpy(dtype=np.float64)
            left.plot(size, rate, label=name, **SERIES[name])
            right.plot(size, 1e3 * size / rate, label=name, **SERIES[name])
        band = frame[["low80", "high80"]].to_numpy(dtype=np.float64)
        if np.isfinite(band).all():
            colour = {"color": SERIES["calibrated"]["color"], "alpha": 0.13}
            left.fill_between(size, band[:, 0], band[:, 1], label="80 % interval", **colour)
            right.fill_between(size, 1e3 * size / band[:, 1], 1e3 * size / band[:, 0], **colour)
        left.set_title("Throughput of one IPU")
        left.set_ylabel("images/s")
        right.set_title("Time per micro-batch")
        right.set_ylabel("ms")
        for axis in (left, right):
            axis.set_xlabel("micro-batch, images")
            axis.set_xticks(size)
            axis.set_ylim(bottom=0)
        handles, labels = left.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return figure


def step_parts(parts: pd.DataFrame) -> Figure:
    """Draw the time per micro-batch on several numbers of IPUs, stacked by part.

    Parameters
    ----------
    parts : pandas.DataFrame
        From `ipusim.study.tamu.breakdown.parts_by_ipus`.

    Returns
    -------
    matplotlib.figure.Figure
        Left all parts, right all but the device, which is the same on every system.
    """
    table = parts.pivot(index="ipus", columns="part", values="time_ms").fillna(0.0)
    names = [name for name in PARTS if name in table.columns]
    positions = np.arange(len(table))
    with figure_style():
        figure = Figure(figsize=(9.6, 4.4))
        axes = figure.subplots(1, 2)
        for axis, shown in zip(axes, (names, [n for n in names if n != "device"]), strict=True):
            heights = {name: table[name].to_numpy() for name in shown}
            tops = stacked_bars(axis, heights, PART_LOOKS, width=0.66, edge_width=0.6)
            for position, total in zip(positions, tops, strict=True):
                axis.text(position, total, f"{total:.2f}", ha="center", va="bottom", fontsize=8.5)
            axis.set_xticks(positions, [str(count) for count in table.index])
            axis.set_xlabel("IPUs")
            axis.set_ylabel("ms per micro-batch")
            axis.grid(axis="x", visible=False)
            axis.margins(y=0.1)
        axes[0].set_title("A micro-batch on every IPU")
        axes[1].set_title("The same without the device")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)))
    return figure


def scaling_efficiency(line: pd.DataFrame, rows: pd.DataFrame) -> Figure:
    """Draw efficiency and throughput over the number of IPUs.

    Parameters
    ----------
    line : pandas.DataFrame
        From `ipusim.study.tamu.scaling.scaling_line`.
    rows : pandas.DataFrame
        From `ipusim.study.tamu.scaling.scaling_frame`.

    Returns
    -------
    matplotlib.figure.Figure
        Black marks are published; coloured ones are predictions of the same runs.
    """
    with figure_style():
        figure = Figure(figsize=(9.6, 5.2))
        left, right = figure.subplots(1, 2, width_ratios=(1.6, 1.0))
        count = line["ipus"].to_numpy(dtype=np.float64)
        look = {"color": OKABE_ITO["vermilion"], "linewidth": 1.4, "alpha": 0.7}
        name = "simulated, Table 3 carried on"
        left.plot(count, line["efficiency_percent"], label=name, **look)
        right.plot(count, line["throughput_images_per_s"], label=name, **look)
        for series, look in SERIES_LOOK.items():
            group = rows[rows["series"] == series]
            # of several runs on as many IPUs the one with fewer instances is on the line
            best = group.sort_values("instances").drop_duplicates("ipus").sort_values("ipus")
            others = group[~group["row_id"].isin(best["row_id"])]
            style = {"linestyle": "--", "linewidth": 0.9, "fillstyle": "none", "markersize": 9.0}
            for axis, kind in ((left, "_efficiency_percent"), (right, "")):
                predicted, published = f"predicted{kind}", f"published{kind}"
                axis.plot(
                    best["ipus"], best[predicted], label=f"predicted: {series}", **look, **style
                )
                axis.plot(
                    others["ipus"], others[predicted], **look, **(style | {"linestyle": "none"})
                )
                axis.plot(
                    group["ipus"],
                    group[published],
                    marker=look["marker"],
                    label=f"published: {series}",
                    **PUBLISHED_LOOK,
                )
            for other in others.to_dict("records"):
                for kind in ("predicted", "published"):
                    left.annotate(
                        f"{other['instances']} processes",
                        (other["ipus"], other[f"{kind}_efficiency_percent"]),
                        xytext=(9, 0),
                        textcoords="offset points",
                        va="center",
                        fontsize=8,
                    )
        left.set_title("Efficiency against one IPU")
        left.set_ylabel("% of perfect scaling (axis cut)")
        right.set_title("Throughput")
        right.set_ylabel("images/s")
        right.set_yscale("log")
        right.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        right.yaxis.set_minor_formatter(NullFormatter())
        for axis in (left, right):
            _ticks(axis, sorted({*line["ipus"], *rows["ipus"]}))
            axis.set_xlabel("IPUs")
        entries = dict(zip(*reversed(left.get_legend_handles_labels()), strict=True))
        order = sorted(entries, key=lambda label: label.startswith("published"))
        handles = [entries[label] for label in order]
        figure.legend(handles, order, loc="outside lower center", ncols=2)
    return figure


def memory_over_micro_batch(frame: pd.DataFrame) -> Figure:
    """Draw how full the fullest tile is over the micro-batch.

    Parameters
    ----------
    frame : pandas.DataFrame
        From `ipusim.study.tamu.memory.memory_by_micro_batch`.

    Returns
    -------
    matplotlib.figure.Figure
        Peak and always-live bytes as areas, the memory of a tile as a line, the micro-batch that
        the study calls the largest as a mark.
    """
    size = frame["micro_batch"].to_numpy(dtype=np.float64)
    peak = frame["peak_tile_bytes"].to_numpy(dtype=np.float64) / 1e3
    live = frame["always_live_bytes"].to_numpy(dtype=np.float64) / 1e3
    limit = frame["tile_bytes"].iloc[0] / 1e3
    stated = STATED_LARGEST[frame["run_id"].iloc[0]]
    fits = frame["fits"].to_numpy(dtype=bool)
    with figure_style():
        figure = Figure(figsize=(8.0, 4.4))
        axis = figure.subplots()
        axis.fill_between(size, 0, live, color=OKABE_ITO["blue"], alpha=0.75,
                          label="always live: weights, gradients, momentum, code")  # fmt: skip
        axis.fill_between(size, live, peak, color=OKABE_ITO["sky"], alpha=0.55,
                          label="at the peak: activations, temporaries")  # fmt: skip
        mark = {"linestyle": "none", "markersize": 7, "color": OKABE_ITO["black"]}
        axis.plot(size[fits], peak[fits], marker="o", label="fits", **mark)
        if not fits.all():
            axis.plot(size[~fits], peak[~fits], marker="X", label="does not fit",
                      **(mark | {"color": OKABE_ITO["vermilion"], "markersize": 9}))  # fmt: skip
        axis.axhline(
            limit, color=OKABE_ITO["vermilion"], label=f"memory of a tile, {limit:,.0f} kB"
        )
        axis.axvline(
            stated, color=OKABE_ITO["black"], linestyle="--", linewidth=1.2,
            label=f"largest by the study: {stated}",
        )  # fmt: skip
        axis.set_xticks(size)
        axis.set_xlim(size.min() - 1, size.max() + 1)
        axis.set_ylim(0, 1.15 * max(limit, peak.max()))
        axis.set_title("The fullest tile of one GC200, ResNet-50 training")
        axis.set_xlabel("micro-batch, images")
        axis.set_ylabel("kB")
        figure.legend(loc="outside lower center", ncols=2)
    return figure
