"""Timelines of BraggNN's dataflows: loader processes, link and chip, batch by batch.

A loader process prepares every eighth batch, as PyTorch's loader hands them out, and runs at most
`PREFETCHED` batches ahead; the chip takes the batches in order, reads each and computes.  Times per
batch are those of `ipusim.simulate`; what follows from them is only the order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ipusim.report import Report
from ipusim.study.argonne.dataflow import (
    Dataflow,
    GpuRun,
    item_seconds,
    load_training,
    simulate_flow,
)
from ipusim.study.book.charts import OKABE_ITO, figure_style

SLIDES_CHIP = "GC200"
"""The chip of the slides, which say Mk2."""
PREFETCHED = 2
"""Batches that a process prepares ahead (PyTorch's default prefetch_factor)."""
_FIRST_DRAWN = 64
"""Batches before the window, so that the start is over."""
_LANES = {"host": "sky", "link": "orange", "chip": "green"}


def lane_times(report: Report) -> tuple[float, float]:
    """Return the seconds per batch on the link and on the chip, nothing waited for."""
    parts = report.result.parts_s
    link = parts.get("transfers", 0.0)
    waiting = parts.get("waiting for the host", 0.0)
    return link, report.result.step_s - waiting - link


def run_lanes(
    *, prepare_s: float, link_s: float, chip_s: float, workers: int, batches: int
) -> pd.DataFrame:
    """Follow batches from loader processes over the link to the chip.

    Parameters
    ----------
    prepare_s, link_s, chip_s : float
        Seconds per batch of one process, of the link and of the chip.
    workers : int
        Loader processes; batch k belongs to process k modulo `workers`. They start evenly spread.
    batches : int

    Returns
    -------
    pandas.DataFrame
        Per batch and lane ("host", "link", "chip"): lane, worker (-1 but for the host), batch,
        start_s, end_s.
    """
    free = [worker * prepare_s / workers for worker in range(workers)]
    taken: list[float] = []
    lines = []
    chip_free = 0.0
    for batch in range(batches):
        worker = batch % workers
        ahead = batch - PREFETCHED * workers
        start = max(free[worker], taken[ahead] if ahead >= 0 else 0.0)
        free[worker] = ready = start + prepare_s
        sent = max(ready, chip_free)
        taken.append(sent)
        begun = sent + link_s
        chip_free = begun + chip_s
        lines += [
            ("host", worker, batch, start, ready),
            ("link", -1, batch, sent, begun),
            ("chip", -1, batch, begun, chip_free),
        ]
    return pd.DataFrame(lines, columns=["lane", "worker", "batch", "start_s", "end_s"])


def dataflow_timeline(
    flow: Dataflow, *, chip: str = "GC200", precision: str = "32.32", batches: int = 160
) -> pd.DataFrame:
    """Simulate a dataflow on one chip and follow its batches.

    Returns
    -------
    pandas.DataFrame
        From `run_lanes`.
    """
    run = load_training()
    link, busy = lane_times(simulate_flow(flow, chip=chip, precision=precision))
    return run_lanes(
        prepare_s=run.batch * item_seconds(flow),
        link_s=link,
        chip_s=busy,
        workers=run.workers,
        batches=batches,
    )


def lane_shares(timeline: pd.DataFrame) -> dict[str, float]:
    """Return milliseconds per batch in the steady state, and the share of it that each lane works.

    Parameters
    ----------
    timeline : pandas.DataFrame
        From `run_lanes`, with more than `_FIRST_DRAWN` batches.

    Returns
    -------
    dict of str to float
        "step_ms", then "host_percent" (of all processes), "link_percent" and "chip_percent".
    """
    chip = timeline[timeline["lane"] == "chip"]
    ends = chip["end_s"].to_numpy()
    begin, end = ends[_FIRST_DRAWN - 1], ends[-1]
    shares = {"step_ms": 1e3 * (end - begin) / (len(ends) - _FIRST_DRAWN)}
    for lane, part in timeline.groupby("lane", sort=False):
        start = part["start_s"].clip(begin, end)
        worked = float((part["end_s"].clip(begin, end) - start).sum())
        rows = part["worker"].nunique()
        shares[f"{lane}_percent"] = 100.0 * worked / ((end - begin) * rows)
    return shares


def timelines_figure(timelines: Mapping[str, pd.DataFrame], *, window_ms: float = 20.0) -> Figure:
    """Draw timelines under each other, with host, link and chip lanes.

    Parameters
    ----------
    timelines : mapping of str to pandas.DataFrame
        Title to what `run_lanes` returned.
    window_ms : float
        Milliseconds shown, from the steady state.
    """
    with figure_style():
        figure = Figure(figsize=(9.6, 2.15 * len(timelines) + 0.4))
        axes = figure.subplots(len(timelines), 1, sharex=True, squeeze=False)[:, 0]
        for axis, (title, timeline) in zip(axes, timelines.items(), strict=True):
            chip = timeline[timeline["lane"] == "chip"]
            origin = float(chip["end_s"].iloc[_FIRST_DRAWN - 1])
            workers = timeline["worker"].max() + 1
            # loader processes share the upper part, each with a row of its own
            places = {"link": 1.0, "chip": 0.0}
            for lane, worker, batch, start, end in timeline.itertuples(index=False):
                begin, stop = 1e3 * (start - origin), 1e3 * (end - origin)
                if stop < 0 or begin > window_ms:
                    continue
                height = 0.8 if lane != "host" else 1.6 / workers
                bottom = places[lane] if lane != "host" else 2.0 + 1.8 * worker / workers
                axis.barh(
                    bottom,
                    stop - begin,
                    left=begin,
                    height=height,
                    align="edge",
                    color=OKABE_ITO[_LANES[lane]],
                    alpha=1.0 if batch % 2 else 0.55,
                    edgecolor="white",
                    linewidth=0.5,
                )
            shares = lane_shares(timeline)
            axis.set_xlim(0, window_ms)
            axis.set_ylim(-0.1, 4.0)
            axis.set_yticks([0.4, 1.4, 2.9], ["chip", "link", f"host, {workers} processes"])
            axis.grid(axis="y", visible=False)
            axis.set_title(
                f"{title}: {shares['step_ms']:.2f} ms per step, "
                f"the chip works {shares['chip_percent']:.0f} % of the time"
            )
        axes[-1].set_xlabel("milliseconds (alternating shades: alternating batches)")
    return figure


def training_bars(
    frame: pd.DataFrame,
    boards: Sequence[GpuRun],
    *,
    published_s: Mapping[str, tuple[float, float]],
    goal_s: float,
) -> Figure:
    """Draw the time of 500 epochs, predicted for GPUs and dataflows, with what the slides say.

    Parameters
    ----------
    frame : pandas.DataFrame
        From `ipusim.study.argonne.dataflow.dataflow_frame`.
    boards : sequence of GpuRun
    published_s : mapping of str to (low, high)
        Seconds that follow from the slides, for a board or the name of a dataflow; equal ends are
        one value.
    goal_s : float
        The goal of the slides.
    """
    rows: list[tuple[str, float, str, str]] = [
        (f"{run.board}, stock loader", run.training_s, "purple", run.board) for run in boards
    ]
    colours = {"GC200": "green", "Bow": "blue"}
    rows += [
        (
            f"{line.chip}, {line.title}",
            line.training_s,
            colours[line.chip],
            line.flow if line.chip == SLIDES_CHIP else "",
        )
        for line in frame.itertuples()
    ]
    with figure_style():
        figure = Figure(figsize=(9.6, 0.42 * len(rows) + 1.3))
        axis = figure.subplots()
        drawn = set()
        for place, (_, seconds, colour, key) in enumerate(rows):
            axis.barh(place, seconds, height=0.6, color=OKABE_ITO[colour], alpha=0.85)
            axis.text(21, place, f"{seconds:.0f} s", va="center", fontsize=9, color="white")
            if key in published_s:
                low, high = published_s[key]
                axis.plot(
                    [low, high],
                    [place, place],
                    color=OKABE_ITO["black"],
                    marker="|",
                    markersize=15,
                    label=None if drawn else "from the slides, 800 s being a V100's",
                )
                drawn.add(key)
        axis.axvline(goal_s, color=OKABE_ITO["vermilion"], linestyle="--", label="goal: 2 minutes")
        axis.set_yticks(range(len(rows)), [row[0] for row in rows])
        axis.invert_yaxis()
        axis.set_xscale("log")
        ticks = np.array([20, 50, 100, 200, 500, 1000])
        axis.set_xticks(ticks, [str(tick) for tick in ticks])
        axis.set_xlim(20, 1500)
        axis.set_xlabel("seconds to train 500 epochs at batch 512 (logarithmic)")
        axis.grid(axis="y", visible=False)
        figure.legend(loc="outside lower center", ncols=2)
    return figure


def scaling_figure(frame: pd.DataFrame) -> Figure:
    """Draw the speedup over the fewest IPUs, one panel per chip.

    Parameters
    ----------
    frame : pandas.DataFrame
        From `ipusim.study.argonne.dataflow.scaling_frame`.
    """
    looks = (
        {"color": OKABE_ITO["purple"], "marker": "v", "linestyle": ":"},
        {"color": OKABE_ITO["blue"], "marker": "s", "linestyle": "--"},
        {"color": OKABE_ITO["green"], "marker": "o", "linestyle": "-"},
        {"color": OKABE_ITO["vermilion"], "marker": "^", "linestyle": "-."},
    )
    chips = list(dict.fromkeys(frame["chip"]))
    with figure_style():
        figure = Figure(figsize=(4.8 * len(chips), 4.4))
        axes = figure.subplots(1, len(chips), sharey=True, squeeze=False)[0]
        for axis, chip in zip(axes, chips, strict=True):
            shown = frame[frame["chip"] == chip]
            counts = sorted(shown["ipus"].unique())
            axis.plot(
                counts,
                [count / counts[0] for count in counts],
                color=OKABE_ITO["grey"],
                linewidth=1,
                label="ideal",
            )
            for look, (line, part) in zip(looks, shown.groupby("line", sort=False), strict=False):
                axis.plot(part["ipus"], part["speedup"], label=line, **look)
            axis.set_xscale("log", base=2)
            axis.set_yscale("log", base=2)
            axis.set_xticks(counts, [str(count) for count in counts])
            ticks = [2.0**power for power in range(-3, 5)]
            axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
            axis.set_title(chip)
            axis.set_xlabel("IPUs")
        axes[0].set_ylabel("speedup of the training")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=1)
    return figure
