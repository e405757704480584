"""Figures of the TAMU study: micro-batch, parts of a step, scaling, memory, GPUs, the audit."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ipusim.study.book.charts import (
    OKABE_ITO,
    PARTS as PART_LOOKS,
    PUBLISHED_MARK,
    Panel,
    comparison_panels,
    grouped_bars,
    log_axis,
    name_places,
    sheet,
    stacked_bars,
)
from ipusim.study.tamu.breakdown import PARTS
from ipusim.study.tamu.gpus import IPU, NUMBERS, PLATFORMS
from ipusim.study.tamu.memory import STATED_LARGEST
from ipusim.study.tamu.scaling import SERIES_NAMES
from ipusim.study.tamu.study import PYTORCH_SERIES, RESULTS_SERIES, TENSORFLOW_SERIES

SERIES_LOOK = {
    SERIES_NAMES[TENSORFLOW_SERIES]: {"color": OKABE_ITO["vermilion"], "marker": "s"},
    SERIES_NAMES[RESULTS_SERIES]: {"color": OKABE_ITO["blue"], "marker": "^"},
    SERIES_NAMES[PYTORCH_SERIES]: {"color": OKABE_ITO["green"], "marker": "D"},
}
PLATFORM_LOOK = dict(
    zip(
        (IPU, *PLATFORMS.values()),
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


def micro_batch_panels(frame: pd.DataFrame) -> Figure:
    """Draw Table 3 on one IPU (`one_ipu_rows`): throughput and time per micro-batch."""
    shown = ["published", "specification", "calibrated", "low80", "high80"]
    rates = frame[["micro_batch", *shown]].astype(float)
    times = rates.assign(**{name: 1e3 * rates["micro_batch"] / rates[name] for name in shown})
    panels = [
        Panel(rates, "micro_batch", "Throughput of one IPU", "images/s"),
        Panel(times, "micro_batch", "Time per micro-batch", "ms"),
    ]
    return comparison_panels(panels, x_label="micro-batch, images")


def step_parts(parts: pd.DataFrame) -> Figure:
    """Draw the time per micro-batch on several numbers of IPUs (`parts_by_ipus`), by part.

    Left all parts, right all but the device, which is the same on every system.
    """
    table = parts.pivot(index="ipus", columns="part", values="time_ms").fillna(0.0)
    heights = {name: table[name].to_numpy() for name in PARTS if name in table.columns}
    rest = {name: height for name, height in heights.items() if name != "device"}
    titles = ("A micro-batch on every IPU", "The same without the device")
    with sheet(9.6, 4.4, across=2, legend=4) as (figure, axes):
        for axis, title, shown in zip(axes, titles, (heights, rest), strict=True):
            for place, total in enumerate(stacked_bars(axis, shown, PART_LOOKS)):
                axis.text(place, total, f"{total:.2f}", ha="center", va="bottom", fontsize=8.5)
            name_places(axis, list(table.index))
            axis.set(title=title, xlabel="IPUs", ylabel="ms per micro-batch")
            axis.margins(y=0.1)
    return figure


def scaling_efficiency(line: pd.DataFrame, rows: pd.DataFrame) -> Figure:
    """Draw efficiency and throughput over the number of IPUs (`scaling_line`, `scaling_frame`).

    Black marks are published; coloured ones are predictions of the same runs.
    """
    counts = sorted({*line["ipus"], *rows["ipus"]})
    options = {"across": 2, "legend": 2, "last": ("published",), "width_ratios": (1.6, 1.0)}
    with sheet(9.6, 5.2, **options) as (figure, (left, right)):
        panels = (
            (left, "efficiency_percent", "_efficiency_percent"),
            (right, "throughput_images_per_s", ""),
        )
        for axis, column, kind in panels:
            name, look = "simulated, Table 3 carried on", {"linewidth": 1.4, "alpha": 0.7}
            axis.plot(line["ipus"], line[column], label=name, color=OKABE_ITO["vermilion"], **look)
            for series, look in SERIES_LOOK.items():
                group = rows[rows["series"] == series].sort_values(["ipus", "instances"])
                # of several runs on as many IPUs the one with fewer instances is on the line
                other = group.duplicated("ipus")
                marks = look | {"linewidth": 0.9, "fillstyle": "none", "markersize": 9.0}
                name = f"predicted: {series}"
                for chosen, style in ((~other, {"linestyle": "--", "label": name}), (other, {})):
                    shown = group[chosen]
                    own = {"linestyle": "none"} | marks | style
                    axis.plot(shown["ipus"], shown[f"predicted{kind}"], **own)
                mark = PUBLISHED_MARK | {"marker": look["marker"]}
                name = f"published: {series}"
                axis.plot(group["ipus"], group[f"published{kind}"], label=name, **mark)
                if axis is left:
                    _name_processes(axis, group[other])
            log_axis(axis, "x", counts)
            axis.set_xlabel("IPUs")
        log_axis(right, "y")
        left.set(title="Efficiency against one IPU", ylabel="% of perfect scaling (axis cut)")
        right.set(title="Throughput", ylabel="images/s")
    return figure


def _name_processes(axis: object, rows: pd.DataFrame) -> None:
    """Write the number of processes beside the runs that are not on the line."""
    look = {"xytext": (9, 0), "textcoords": "offset points", "va": "center", "fontsize": 8}
    for row in rows.to_dict("records"):
        for kind in ("predicted", "published"):
            place = (row["ipus"], row[f"{kind}_efficiency_percent"])
            axis.annotate(f"{row['instances']} processes", place, **look)


def memory_over_micro_batch(frame: pd.DataFrame) -> Figure:
    """Draw how full the fullest tile is over the micro-batch (`memory_by_micro_batch`).

    Peak and always-live bytes as areas, the memory of a tile as a line, the micro-batch that the
    study calls the largest as a mark.
    """
    frame = frame.astype({"micro_batch": float})
    size, fits = frame["micro_batch"], frame["fits"].astype(bool)
    peak, live = frame["peak_tile_bytes"] / 1e3, frame["always_live_bytes"] / 1e3
    limit = frame["tile_bytes"].iloc[0] / 1e3
    stated = STATED_LARGEST[frame["run_id"].iloc[0]]
    red, black = OKABE_ITO["vermilion"], OKABE_ITO["black"]
    with sheet(8.0, 4.4, legend=2) as (figure, (axis,)):
        areas = (
            (0, live, "blue", 0.75, "always live: weights, gradients, momentum, code"),
            (live, peak, "sky", 0.55, "at the peak: activations, temporaries"),
        )
        for low, high, colour, alpha, label in areas:
            axis.fill_between(size, low, high, color=OKABE_ITO[colour], alpha=alpha, label=label)
        for chosen, label, mark, colour in (
            (fits, "fits", "o", black), (~fits, "does not fit", "X", red)
        ):  # fmt: skip
            if chosen.any():
                look = {"linestyle": "none", "markersize": 8, "color": colour, "label": label}
                axis.plot(size[chosen], peak[chosen], marker=mark, **look)
        axis.axhline(limit, color=red, label=f"memory of a tile, {limit:,.0f} kB")
        dashed = {"color": black, "linestyle": "--", "linewidth": 1.2}
        axis.axvline(stated, label=f"largest by the study: {stated}", **dashed)
        axis.set(
            xticks=list(size),
            xlim=(size.min() - 1, size.max() + 1),
            ylim=(0, 1.15 * max(limit, peak.max())),
            title="The fullest tile of one GC200, ResNet-50 training",
            xlabel="micro-batch, images",
            ylabel="kB",
        )
    return figure


def accelerator_bars(frame: pd.DataFrame, title: str) -> Figure:
    """Draw Figure 1 or 2 of the paper (`gpus.bars`): grouped bars by number of devices.

    Above, under the title, images per second of all devices, below per device; bars are predicted
    with their 80 % intervals, black marks published.
    """
    frame = frame.sort_values("devices", kind="stable")
    alone = frame.assign(**{name: frame[name] / frame["devices"] for name in NUMBERS})
    ends = ("published", "80 %")
    options = {"down": 2, "legend": 5, "last": ends, "sharex": True}
    with sheet(9.6, 7.0, **options) as (figure, (whole, single)):
        for axis, shown in ((whole, frame), (single, alone)):
            grouped_bars(axis, shown, group="devices", bar="platform", looks=PLATFORM_LOOK)
        log_axis(whole, "y")
        whole.set(title=title, ylabel="images/s, all devices (log scale)")
        words = {"ylabel": "images/s per device", "xlabel": "devices (IPUs or GPUs)"}
        single.set(title="The same per device", **words)
    return figure


def watts(frame: pd.DataFrame) -> Figure:
    """Draw images per second and watt (`per_watt`): bars predicted, black marks published."""
    own = {"one GC200": {"color": "#F0B79A", "hatch": "//"}, "IPU-POD16": PLATFORM_LOOK[IPU]}
    machines = own | {"DGX A100": PLATFORM_LOOK["DGX A100"]}
    named = frame.assign(
        bar=frame["machine"]
        + frame["quoted_w"].map(", {:,.0f} W".format)
        + frame["host_in_it"].map({"yes": "", "no": " without host"})
    )
    first = named.drop_duplicates("machine").set_index("machine")["bar"]
    looks = {first[machine]: look for machine, look in machines.items()}
    with sheet(7.4, 4.2, legend=2, last=("published", "80 %")) as (figure, (axis,)):
        grouped_bars(axis, named, group="framework", bar="bar", looks=looks)
        title = "ResNet-50 training by the quoted design powers"
        axis.set(title=title, ylabel="images/s/W")
    return figure


def work_audit(frames: dict[str, pd.DataFrame]) -> Figure:
    """Draw how far throughput x time of every row is from the median of its table (`tamu_work`).

    One panel per table; rows that do not fit are marked.
    """
    with sheet(9.6, 4.6, across=len(frames)) as (figure, axes):
        for axis, (name, frame) in zip(axes, frames.items(), strict=True):
            places, off = np.arange(len(frame)), frame["work_error_percent"].to_numpy()
            good = frame["consistent"].to_numpy(dtype=bool)
            axis.axvspan(-5, 5, color=OKABE_ITO["green"], alpha=0.14, linewidth=0)
            axis.axvline(0.0, color=OKABE_ITO["black"], linewidth=0.9)
            axis.hlines(places, 0, off, color=OKABE_ITO["grey"], linewidth=1.2)
            for chosen, label, mark, colour in (
                (good, "within 5 % of the median", "o", "blue"),
                (~good, "throughput and time do not belong together", "X", "vermilion"),
            ):
                look = {"linestyle": "none", "markersize": 8, "color": OKABE_ITO[colour]}
                axis.plot(off[chosen], places[chosen], marker=mark, label=label, **look)
            for place in places[~good]:
                axis.annotate(f"{off[place]:+.1f} %", (off[place], place), (0, 8),
                              textcoords="offset points", ha="center", fontsize=9)  # fmt: skip
            name_places(axis, [_short(label) for label in frame["label"]], vertical=True)
            reach = 1.3 * max(10.0, float(np.abs(off).max()))
            title = f"{name}: median {frame['usual_images'].iloc[0]:,.0f} images"
            axis.set(
                xlim=(-reach, reach), title=title, xlabel="throughput x time off the median, %"
            )
            axis.tick_params(axis="y", labelsize=8)
    return figure


def _short(label: str) -> str:
    """Shorten the label of a row to what tells it from its neighbours."""
    parts = [part for part in label.split(", ") if not part.startswith(("batch-norm", "instances"))]
    return ", ".join(parts)
