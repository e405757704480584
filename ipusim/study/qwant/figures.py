"""Figures of the Qwant study, and what those draw that data/studies describes."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ipusim.study.book.charts import looks, name_places, sheet, stacked_bars
from ipusim.study.qwant.breakdown import PARTS, PHASES


def latency_anatomy(frame: pd.DataFrame) -> Figure:
    """Draw what the predicted latency is made of (`latency_parts`), beside the published one."""
    places = np.arange(len(frame))
    heights = {part: frame[column].to_numpy(np.float64) for column, part in PARTS.items()}
    published = frame["published_ms"].to_numpy(dtype=np.float64)
    with sheet(9.0, 4.6, legend=0) as (figure, (axis,)):
        tops = stacked_bars(axis, heights, looks("parts"), width=0.62)
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
    stacked_bars(axis, heights, looks("parts"), width=0.8, edge_width=0.3)
    # many blocks: the first of each stage has its whole name, the others their number
    first = profile["stage"].ne(profile["stage"].shift())
    for place in np.flatnonzero(first)[1:]:
        axis.axvline(place - 0.5, color="#B8BEC6", linewidth=0.8)
    names = profile["group"].where(first, profile["group"].str.split(".").str[-1])
    name_places(axis, list(names))
    for label, whole in zip(axis.get_xticklabels(), first, strict=True):
        label.set(fontsize=7.5, weight="bold" if whole else "normal", rotation=40 * whole)
    axis.set_xlim(-0.6, len(profile) - 0.4)


def measured_layers(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the measured Mk1 convolutions (`mk1_layer_rows`) with their stage and vertex."""
    vertex = frame["plan"].str.startswith("HMAC").map({True: "HMAC", False: "AMP"})
    return frame.assign(kind="stage " + frame["stage"].astype(str) + ", " + vertex)
