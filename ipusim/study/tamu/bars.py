"""Bar figures of the TAMU study: IPUs beside GPUs, images per second and watt, the audit."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from ipusim.study.book.charts import OKABE_ITO, figure_style
from ipusim.study.tamu.comparison import PLATFORMS
from ipusim.study.tamu.figures import PUBLISHED_LOOK

PLATFORM_LOOK = dict(
    zip(
        PLATFORMS.values(),
        (
            {"color": OKABE_ITO["vermilion"]},
            {"color": "#C9CED6"},
            {"color": OKABE_ITO["grey"], "hatch": ".."},
            {"color": OKABE_ITO["green"]},
            {"color": OKABE_ITO["sky"], "hatch": "//"},
            {"color": "#BFE3F7", "hatch": "\\\\"},
            {"color": OKABE_ITO["blue"]},
        ),
        strict=True,
    )
)


def accelerator_bars(frame: pd.DataFrame, title: str) -> Figure:
    """Draw Figure 1 or 2 of the paper: grouped bars by number of devices.

    Parameters
    ----------
    frame : pandas.DataFrame
        From `ipusim.study.tamu.comparison.bars`.
    title : str
        Title of the upper panel.

    Returns
    -------
    matplotlib.figure.Figure
        Above images per second of all devices, below per device; bars are predicted with their
        80 % intervals, black marks published.
    """
    counts = sorted(set(frame["devices"]))
    with figure_style():
        figure = Figure(figsize=(9.6, 7.0))
        axes = figure.subplots(2, 1, sharex=True)
        for axis, per_device in zip(axes, (False, True), strict=True):
            start = 0.0
            centres = []
            for count in counts:
                group = frame[frame["devices"] == count]
                ordered = [name for name in PLATFORM_LOOK if name in set(group["platform"])]
                for offset, platform in enumerate(ordered):
                    bar = group[group["platform"] == platform].iloc[0]
                    _draw_bar(axis, start + offset, bar, count if per_device else 1)
                centres.append(start + (len(ordered) - 1) / 2)
                start += len(ordered) + 1.2
            axis.set_xticks(centres, [f"{count:g}" for count in counts])
            axis.grid(axis="x", visible=False)
        axes[0].set_yscale("log")
        axes[0].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes[0].set_title(title)
        axes[0].set_ylabel("images/s, all devices (log scale)")
        axes[1].set_title("The same per device")
        axes[1].set_ylabel("images/s per device")
        axes[1].set_xlabel("devices (IPUs or GPUs)")
        handles, labels = axes[1].get_legend_handles_labels()
        unique = dict(zip(labels, handles, strict=True))
        order = [name for name in (*PLATFORM_LOOK, "published", "80 % interval") if name in unique]
        figure.legend([unique[name] for name in order], order, loc="outside lower center", ncols=5)
    return figure


def _draw_bar(axis: Axes, position: float, bar: pd.Series, share: int) -> None:
    """Draw one prediction with its interval and what was published beside it."""
    look = PLATFORM_LOOK[bar["platform"]]
    value = bar["predicted"] / share
    axis.bar(position, value, width=0.9, label=bar["platform"], edgecolor="white", **look)
    ends = bar["low80"] / share, bar["high80"] / share
    if np.isfinite(ends).all():
        axis.vlines(
            position, *ends, color="#4A5058", linewidth=1.6, label="80 % interval", zorder=4
        )
    if np.isfinite(bar["published"]):
        axis.plot(
            position, bar["published"] / share, marker="o", label="published", **PUBLISHED_LOOK
        )


def watts(frame: pd.DataFrame) -> Figure:
    """Draw images per second and watt.

    Parameters
    ----------
    frame : pandas.DataFrame
        From `ipusim.study.tamu.comparison.per_watt`.

    Returns
    -------
    matplotlib.figure.Figure
        One group per framework; bars are predicted, black marks published.
    """
    looks = {
        "one GC200": {"color": "#F0B79A", "hatch": "//"},
        "IPU-POD16": PLATFORM_LOOK["GC200 IPU"],
        "DGX A100": PLATFORM_LOOK["DGX A100"],
    }
    frameworks = list(dict.fromkeys(frame["framework"]))
    with figure_style():
        figure = Figure(figsize=(7.4, 4.2))
        axis = figure.subplots()
        for place, framework in enumerate(frameworks):
            group = frame[frame["framework"] == framework].set_index("machine")
            for offset, (machine, look) in enumerate(looks.items()):
                line = group.loc[machine]
                position = 4 * place + offset
                label = f"{machine}, {line['quoted_w']:,.0f} W"
                label += "" if line["host_in_it"] == "yes" else " without host"
                axis.bar(
                    position, line["predicted"], width=0.88, edgecolor="white",
                    label=label if place == 0 else None, **look,
                )  # fmt: skip
                ends = line["low80"], line["high80"]
                if np.isfinite(ends).all():
                    axis.vlines(position, *ends, color="#4A5058", linewidth=1.6, zorder=4)
                if np.isfinite(line["published"]):
                    axis.plot(
                        position, line["published"], marker="o",
                        label="published" if place == 0 and offset == 0 else None, **PUBLISHED_LOOK,
                    )  # fmt: skip
        axis.set_xticks([4 * place + 1 for place in range(len(frameworks))], frameworks)
        axis.grid(axis="x", visible=False)
        axis.set_title("ResNet-50 training by the quoted design powers")
        axis.set_ylabel("images/s/W")
        figure.legend(loc="outside lower center", ncols=2)
    return figure


def work_audit(frames: dict[str, pd.DataFrame]) -> Figure:
    """Draw throughput x time of every row, against the usual value of its table.

    Parameters
    ----------
    frames : dict of str to pandas.DataFrame
        Name of the table to `ipusim.study.audit.tamu_work`.

    Returns
    -------
    matplotlib.figure.Figure
        One panel per table; rows that do not fit are marked.
    """
    with figure_style():
        figure = Figure(figsize=(9.6, 4.6))
        axes = figure.subplots(1, len(frames), squeeze=False)[0]
        for axis, (name, frame) in zip(axes, frames.items(), strict=True):
            positions = np.arange(len(frame))
            usual = frame["usual_images"].iloc[0]
            ratio = (frame["images"] / usual).to_numpy(dtype=np.float64)
            good = frame["consistent"].to_numpy(dtype=bool)
            looks = {
                "within 5 % of the median": (good, {"color": OKABE_ITO["sky"]}),
                "throughput and time do not belong together": (
                    ~good,
                    {"color": OKABE_ITO["vermilion"], "hatch": "//"},
                ),
            }
            for label, (chosen, look) in looks.items():
                axis.barh(
                    positions[chosen],
                    ratio[chosen],
                    height=0.72,
                    edgecolor="white",
                    label=label,
                    **look,
                )
            axis.axvline(1.0, color=OKABE_ITO["black"], linewidth=0.9)
            for position in positions[~good]:
                text = f" {100 * (ratio[position] - 1):+.1f} %"
                axis.text(ratio[position], position, text, ha="left", va="center", fontsize=9)
            axis.set_yticks(positions, [_short(label) for label in frame["label"]], fontsize=8)
            axis.invert_yaxis()
            axis.set_xlim(0, 1.28 * ratio.max())
            axis.set_title(f"{name}: median {usual:,.0f} images")
            axis.set_xlabel("throughput x time / median")
            axis.grid(axis="y", visible=False)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2)
    return figure


def _short(label: str) -> str:
    """Shorten the label of a row to what tells it from its neighbours."""
    parts = [part for part in label.split(", ") if not part.startswith(("batch-norm", "instances"))]
    return ", ".join(parts)
