"""Figures of the Qwant study: inside a prediction, measured layers, power, other machines."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ipusim.study.book.charts import (
    OKABE_ITO,
    PARTS as PART_LOOKS,
    PUBLISHED_MARK,
    SERIES,
    agreement,
    lines,
    log_axis,
    name_places,
    sheet,
    stacked_bars,
    system_looks,
)
from ipusim.study.qwant.breakdown import PARTS, PHASES
from ipusim.study.verdicts.errors import HIT_PERCENT, NEAR_PERCENT

_STAGE_LOOK = {
    2: {"color": OKABE_ITO["vermilion"], "marker": "o"},
    3: {"color": OKABE_ITO["blue"], "marker": "^"},
    5: {"color": OKABE_ITO["green"], "marker": "s"},
}


def latency_anatomy(frame: pd.DataFrame) -> Figure:
    """Draw what the predicted latency is made of (`latency_parts`), beside the published one."""
    places = np.arange(len(frame))
    heights = {part: frame[column].to_numpy(np.float64) for column, part in PARTS.items()}
    published = frame["published_ms"].to_numpy(dtype=np.float64)
    with sheet(9.0, 4.6, legend=0) as (figure, (axis,)):
        tops = stacked_bars(axis, heights, PART_LOOKS, width=0.62)
        look = {"linestyle": "none", "markersize": 44, "markeredgewidth": 2.4, "color": "black"}
        axis.plot(places, published, label="published", marker="_", **look)
        text = {"va": "center", "fontsize": 8.5}
        for place, total, value in zip(places, tops, published, strict=True):
            axis.text(place - 0.33, total, f"{total:.2f}", ha="right", **text)
            if np.isfinite(value):
                axis.text(place + 0.36, value, f"{value:.2f}", ha="left", weight="bold", **text)
        name_places(axis, list(frame["batch_size"]))
        axis.set(
            xlim=(-0.75, len(frame) - 0.25),
            ylim=(0, None),
            xlabel="batch size of the card (two IPUs)",
            ylabel="latency, ms/batch",
            title="What the predicted latency is made of, specification tier",
        )
        # the bars from the top, as they stand
        handles, labels = axis.get_legend_handles_labels()
        order = [0, *range(len(labels) - 1, 0, -1)]
        legend = axis.legend(
            [handles[i] for i in order], [labels[i] for i in order], loc="upper left"
        )
        legend.legend_handles[0].set_markersize(14)
    return figure


def block_times(profiles: Mapping[int, pd.DataFrame]) -> Figure:
    """Draw the device time of every block (`block_profiles`), one panel per micro-batch."""
    with sheet(9.6, 0.8 + 2.3 * len(profiles), down=len(profiles)) as (figure, axes):
        for axis, (micro_batch, profile) in zip(axes, profiles.items(), strict=True):
            _draw_blocks(axis, profile)
            total = profile["time_us"].sum()
            axis.set(title=f"Micro-batch {micro_batch}: {total:,.0f} µs on the chip", ylabel="µs")
        axes[-1].set_xlabel("block, numbered as in the ResNeXt paper")
    return figure


def _draw_blocks(axis: Axes, profile: pd.DataFrame) -> None:
    heights = {phase: profile[column].to_numpy(np.float64) for column, phase in PHASES.items()}
    stacked_bars(axis, heights, PART_LOOKS, width=0.8, edge_width=0.3)
    # many blocks: the first of each stage has its whole name, the others their number
    first = profile["stage"].ne(profile["stage"].shift())
    for place in np.flatnonzero(first)[1:]:
        axis.axvline(place - 0.5, color="#B8BEC6", linewidth=0.8)
    names = profile["group"].where(first, profile["group"].str.split(".").str[-1])
    name_places(axis, list(names))
    for label, whole in zip(axis.get_xticklabels(), first, strict=True):
        label.set(fontsize=7.5, weight="bold" if whole else "normal", rotation=40 * whole)
    axis.set_xlim(-0.6, len(profile) - 0.4)


def what_if_panels(frame: pd.DataFrame, published: pd.DataFrame) -> Figure:
    """Draw latency and throughput per IPU of several systems over the micro-batch.

    Predictions in the report's set-up (`what_if`) are lines, measurements (`published_points`) in
    that set-up black marks. What was measured in another set-up (several batches in flight) has a
    panel of its own, with the prediction of that set-up as open marks.
    """
    looks, rate = system_looks(frame["system"]), "images_per_s_per_ipu"
    known = published[published["system"].isin(looks)]
    serial = known["latency_ms"].notna()
    panels = (
        ("Latency", "ms/batch", "latency_ms", known[serial]),
        ("Throughput", "images/s per IPU", rate, known[serial]),
        ("Throughput, several batches in flight", "images/s per IPU", rate, known[~serial]),
    )
    with sheet(12.3, 4.2, across=3, legend=4, last=("C2, p", "IPU-M2000, p")) as (figure, axes):
        for axis, (title, unit, column, measured) in zip(axes, panels, strict=True):
            for system, group in measured.groupby("system", sort=False):
                look = looks[system] | {"linestyle": "none"}
                mark = PUBLISHED_MARK | {"marker": look["marker"]}
                axis.plot(group["micro_batch"], group[column], label=f"{system}, published", **mark)
                if axis is axes[2]:
                    look |= {"markersize": 10.0, "fillstyle": "none", "markeredgewidth": 1.4}
                    label = f"{system}, predicted in that set-up"
                    axis.plot(group["micro_batch"], group[f"predicted_{rate}"], label=label, **look)
            axis.set(title=title, ylabel=unit, xlabel="micro-batch, images per IPU")
        lines(axes[0], frame, "micro_batch", "latency_ms", by="system", looks=looks)
        lines(axes[1], frame, "micro_batch", rate, by="system", looks=looks)
        axes[2].set(ylim=(0, None), xticks=axes[1].get_xticks(), xlim=axes[1].get_xlim())
    return figure


def measured_layers(frame: pd.DataFrame) -> Figure:
    """Draw the measured Mk1 convolutions (`mk1_layer_rows`) against their predictions.

    Left: predicted against measured time. Right: their ratio over the batch size. Filled marks
    where the plan uses the HMAC vertex, open ones elsewhere.
    """
    values = frame[["measured_us", "predicted_us"]].to_numpy(dtype=np.float64)
    with sheet(9.6, 4.4, across=2) as (figure, (left, right)):
        agreement(left, (values.min() / 1.4, values.max() * 1.4), (NEAR_PERCENT, HIT_PERCENT))
        for percent, shade in ((NEAR_PERCENT, 0.10), (HIT_PERCENT, 0.16)):
            band = (1 - percent / 100, 1 + percent / 100)
            right.axhspan(*band, color=OKABE_ITO["green"], alpha=shade, linewidth=0)
        right.axhline(1.0, color=OKABE_ITO["black"], linewidth=0.9)
        horizontal = frame["plan"].str.startswith("HMAC")
        for (stage, hmac), rows in frame.groupby(["stage", horizontal], sort=True):
            look = _STAGE_LOOK[int(stage)] | {
                "linestyle": "none",
                "fillstyle": "full" if hmac else "none",
                "markeredgewidth": 1.5,
                "label": f"stage {stage}, {'HMAC' if hmac else 'AMP'}",
            }
            left.plot(rows["measured_us"], rows["predicted_us"], **look)
            right.plot(rows["batch"], rows["predicted_us"] / rows["measured_us"], **look)
        log_axis(left, "x")
        log_axis(left, "y")
        log_axis(right, "x", sorted(set(frame["batch"])))
        log_axis(right, "y", (0.1, 0.25, 0.5, 1.0))
        left.set(
            xlabel="measured, µs", ylabel="predicted, µs", title="Grouped convolutions on one GC2"
        )
        right.set(xlabel="batch", ylabel="predicted / measured", title="Their ratio")
    return figure


def power_audit(frame: pd.DataFrame) -> Figure:
    """Draw the card power that Qwant's Tables 2 and 3 imply, with its rounding range.

    `frame` is `audited_power`, or `qwant_power` alone. Rows that fall although the batch grows are
    marked.
    """
    size, implied = frame["batch_size"], frame["implied_power_w"]
    fallen = frame["falls_beyond_rounding"]
    with sheet(6.4, 4.0) as (figure, (axis,)):
        spread = [implied - frame["low_w"], frame["high_w"] - implied]
        label = "implied by Tables 2 and 3"
        axis.errorbar(size, implied, yerr=spread, capsize=4, label=label, **SERIES["published"])
        if "predicted_power_w" in frame:
            axis.plot(size, frame["predicted_power_w"], label="calibrated", **SERIES["calibrated"])
        ring = {"markersize": 13, "fillstyle": "none", "color": OKABE_ITO["vermilion"]}
        axis.plot(size[fallen], implied[fallen], "o", label="falls, beyond rounding", **ring)
        axis.set(
            xticks=list(size),
            title="Power that the published tables imply",
            xlabel="batch size of the card",
            ylabel="card power, W (axis cut)",
        )
    return figure
