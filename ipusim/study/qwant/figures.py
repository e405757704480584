"""Figures of the Qwant study that show the inside of a prediction."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, ScalarFormatter

from ipusim.study.book.charts import (
    OKABE_ITO,
    PARTS as PART_LOOKS,
    SERIES,
    figure_style,
    stacked_bars,
    system_looks,
)
from ipusim.study.qwant.breakdown import PARTS, PHASES
from ipusim.study.verdicts.compare import HIT_PERCENT, NEAR_PERCENT

_STAGE_LOOK = {
    2: {"color": OKABE_ITO["vermilion"], "marker": "o"},
    3: {"color": OKABE_ITO["blue"], "marker": "^"},
    5: {"color": OKABE_ITO["green"], "marker": "s"},
}


def latency_anatomy(frame: pd.DataFrame) -> Figure:
    """Draw what the predicted latency is made of, beside the published one.

    Parameters
    ----------
    frame : pandas.DataFrame
        From `ipusim.study.qwant.breakdown.latency_parts`.

    Returns
    -------
    matplotlib.figure.Figure
        One stacked bar per batch size, the published latency as a mark.
    """
    with figure_style():
        figure = Figure(figsize=(9.0, 4.6))
        axis = figure.subplots()
        positions = np.arange(len(frame))
        heights = {part: frame[column].to_numpy(np.float64) for column, part in PARTS.items()}
        tops = stacked_bars(axis, heights, PART_LOOKS, width=0.62, edge_width=0.6)
        for position, total in zip(positions, tops, strict=True):
            axis.text(position - 0.33, total, f"{total:.2f}", ha="right", va="center", fontsize=8.5)
        published = frame["published_ms"].to_numpy(dtype=np.float64)
        axis.plot(
            positions,
            published,
            label="published",
            linestyle="none",
            marker="_",
            markersize=44,
            markeredgewidth=2.4,
            color=SERIES["published"]["color"],
        )
        for position, value in zip(positions, published, strict=True):
            if np.isfinite(value):
                axis.text(
                    position + 0.36,
                    value,
                    f"{value:.2f}",
                    ha="left",
                    va="center",
                    fontsize=8.5,
                    fontweight="bold",
                )
        axis.set_xticks(positions, [f"{size}" for size in frame["batch_size"]])
        axis.set_xlim(-0.75, len(frame) - 0.25)
        axis.set_ylim(bottom=0)
        axis.set_xlabel("batch size of the card (two IPUs)")
        axis.set_ylabel("latency, ms/batch")
        axis.set_title("What the predicted latency is made of, nothing fitted")
        axis.grid(axis="x", visible=False)
        handles, labels = axis.get_legend_handles_labels()
        marks = [handles[labels.index("published")]]
        bars = [handle for handle, name in zip(handles, labels, strict=True) if name != "published"]
        names = [name for name in labels if name != "published"]
        legend = axis.legend(
            [*marks, *reversed(bars)], ["published", *reversed(names)], loc="upper left"
        )
        legend.legend_handles[0].set_markersize(14)
    return figure


def block_times(profiles: Mapping[int, pd.DataFrame]) -> Figure:
    """Draw the device time of every block of the network, one panel per micro-batch.

    Parameters
    ----------
    profiles : mapping of int to pandas.DataFrame
        Micro-batch to `ipusim.study.qwant.breakdown.block_profile`.

    Returns
    -------
    matplotlib.figure.Figure
        Stacked bars in the order of the network, microseconds per block.
    """
    with figure_style():
        figure = Figure(figsize=(9.6, 0.8 + 2.3 * len(profiles)))
        axes = figure.subplots(len(profiles), 1, squeeze=False)[:, 0]
        for axis, (micro_batch, profile) in zip(axes, profiles.items(), strict=True):
            _draw_blocks(axis, profile)
            total = profile["time_us"].sum()
            axis.set_title(f"Micro-batch {micro_batch}: {total:,.0f} µs on the chip")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
        axes[-1].set_xlabel("block, numbered as in the ResNeXt paper")
    return figure


def _draw_blocks(axis: Axes, profile: pd.DataFrame) -> None:
    """Draw the blocks of one micro-batch."""
    positions = np.arange(len(profile))
    heights = {phase: profile[column].to_numpy(np.float64) for column, phase in PHASES.items()}
    stacked_bars(axis, heights, PART_LOOKS, width=0.8, edge_width=0.3)
    stages = list(profile["stage"])
    for position in positions[1:]:
        if stages[position] != stages[position - 1]:
            axis.axvline(position - 0.5, color="#B8BEC6", linewidth=0.8)
    # many blocks: name the first of each stage, number the others
    names = [
        name if index == 0 or stages[index - 1] != stages[index] else name.split(".")[-1]
        for index, name in enumerate(profile["block"])
    ]
    axis.set_xticks(positions, names, fontsize=7.5)
    for label, name in zip(axis.get_xticklabels(), names, strict=True):
        if not name.isdigit():
            label.set_fontweight("bold")
            label.set_rotation(40)
    axis.set_xlim(-0.6, len(profile) - 0.4)
    axis.set_ylabel("µs")
    axis.grid(axis="x", visible=False)


def what_if_panels(frame: pd.DataFrame, published: pd.DataFrame) -> Figure:
    """Draw latency and throughput per IPU of several systems over the micro-batch.

    Parameters
    ----------
    frame : pandas.DataFrame
        From `ipusim.study.qwant.study.what_if`.
    published : pandas.DataFrame
        From `ipusim.study.qwant.study.published_points`.

    Returns
    -------
    matplotlib.figure.Figure
        Two panels: predictions in the report's set-up as lines, measurements as black marks, and
        where those had another set-up its prediction as open marks.
    """
    looks = system_looks(frame["system"])
    measured = published[published["system"].isin(looks)]
    labels = {"latency_ms": "Latency, ms/batch", "images_per_s_per_ipu": "Images/s per IPU"}
    with figure_style():
        figure = Figure(figsize=(9.6, 4.6))
        axes = figure.subplots(1, 2)
        for axis, (column, label) in zip(axes, labels.items(), strict=True):
            for system, group in frame.groupby("system", sort=False):
                axis.plot(group["micro_batch"], group[column], label=system, **looks[system])
            for system, group in measured.groupby("system", sort=False):
                if group[column].notna().any():
                    _draw_measured(axis, group, column, system, looks[system])
            axis.set_title(label)
            axis.set_xlabel("micro-batch, images per IPU")
            axis.set_ylim(bottom=0)
            axis.set_xticks(sorted(set(frame["micro_batch"])))
        handles, names = axes[1].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=3)
    return figure


def _draw_measured(
    axis: Axes, group: pd.DataFrame, column: str, system: str, look: Mapping[str, str]
) -> None:
    """Draw the measurements of one system, and their own prediction if the set-up differs."""
    shape = {"linestyle": "none", "marker": look["marker"]}
    axis.plot(
        group["micro_batch"],
        group[column],
        label=f"{system}, published",
        color=OKABE_ITO["black"],
        markersize=5.0,
        **shape,
    )
    if column == "images_per_s_per_ipu" and group["latency_ms"].isna().all():
        axis.plot(
            group["micro_batch"],
            group["predicted_images_per_s_per_ipu"],
            label=f"{system}, set-up of the published rows",
            color=look["color"],
            markersize=10.0,
            fillstyle="none",
            markeredgewidth=1.4,
            **shape,
        )


def measured_layers(frame: pd.DataFrame) -> Figure:
    """Draw the measured Mk1 convolutions against their predictions.

    Parameters
    ----------
    frame : pandas.DataFrame
        From `ipusim.study.evidence.operations.mk1_layer_rows`.

    Returns
    -------
    matplotlib.figure.Figure
        Left: predicted against measured time. Right: their ratio over the batch size. Filled
        marks where the plan uses the HMAC vertex, open ones elsewhere.
    """
    with figure_style():
        figure = Figure(figsize=(9.6, 4.4))
        left, right = figure.subplots(1, 2)
        values = frame[["measured_us", "predicted_us"]].to_numpy(dtype=np.float64)
        ends = np.array([values.min() / 1.4, values.max() * 1.4])
        for percent, shade in ((NEAR_PERCENT, 0.10), (HIT_PERCENT, 0.16)):
            band = (1 - percent / 100, 1 + percent / 100)
            colour = OKABE_ITO["green"]
            left.fill_between(
                ends, band[0] * ends, band[1] * ends, color=colour, alpha=shade, linewidth=0,
                label=f"within {percent:g} %",
            )  # fmt: skip
            right.axhspan(*band, color=colour, alpha=shade, linewidth=0)
        left.plot(ends, ends, color=OKABE_ITO["black"], linewidth=0.9)
        right.axhline(1.0, color=OKABE_ITO["black"], linewidth=0.9)
        for stage, group in frame.groupby("stage"):
            look = _STAGE_LOOK[int(stage)]
            for horizontal, group_part in ((True, "HMAC"), (False, "AMP")):
                rows = group[group["plan"].str.startswith("HMAC") == horizontal]
                if rows.empty:
                    continue
                style = look | {
                    "linestyle": "none",
                    "fillstyle": "full" if horizontal else "none",
                    "markeredgewidth": 1.5,
                    "label": f"stage {stage}, {group_part}",
                }
                left.plot(rows["measured_us"], rows["predicted_us"], **style)
                ratio = rows["predicted_us"] / rows["measured_us"]
                right.plot(rows["batch"], ratio, **style)
        for axis in (left, right):
            axis.set_xscale("log")
            axis.set_yscale("log")
            for line in (axis.xaxis, axis.yaxis):
                line.set_major_formatter(ScalarFormatter())
                line.set_minor_formatter(NullFormatter())
        left.set_xlim(*ends)
        left.set_ylim(*ends)
        left.set_xlabel("measured, µs")
        left.set_ylabel("predicted, µs")
        left.set_title("Grouped convolutions on one GC2")
        batches = sorted(set(frame["batch"]))
        right.set_xticks(batches, [str(batch) for batch in batches])
        right.set_yticks([0.1, 0.25, 0.5, 1.0], ["0.1", "0.25", "0.5", "1"])
        right.minorticks_off()
        right.set_xlabel("batch")
        right.set_ylabel("predicted / measured")
        right.set_title("Their ratio")
        handles, labels = left.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return figure
