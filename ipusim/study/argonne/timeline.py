"""Timelines of BraggNN's dataflows: loader processes, link and chip, batch by batch.

A loader process prepares every eighth batch, as PyTorch's loader hands them out, and runs at most
`PREFETCHED` batches ahead; the chip takes the batches in order, reads each and computes.  Times per
batch are those of `ipusim.simulate`; what follows from them is only the order.
"""

from collections.abc import Mapping

import pandas as pd

from ipusim.study.argonne import dataflow

PREFETCHED = 2
"""Batches that a process prepares ahead (PyTorch's default prefetch_factor)."""
FIRST_DRAWN = 64
"""Batches before the window, so that the start is over."""
_BATCHES = 160
"""Batches that are followed: the window, and some after it."""


def run_lanes(
    *, prepare_s: float, link_s: float, chip_s: float, workers: int, batches: int
) -> pd.DataFrame:
    """Follow batches from loader processes, in turn, over the link to the chip, in seconds."""
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


def dataflow_timeline(flow: dataflow.Dataflow) -> pd.DataFrame:
    """Simulate a dataflow on one GC200 and follow its batches (`run_lanes`)."""
    run, report = dataflow.load_training(), dataflow.simulate_flow(flow)
    link_s = report.result.parts_s.get("transfers", 0.0)
    return run_lanes(
        prepare_s=run.batch * dataflow.item_seconds(flow),
        link_s=link_s,
        chip_s=dataflow.busy_s(report) - link_s,
        workers=run.workers,
        batches=_BATCHES,
    )


def lane_shares(timeline: pd.DataFrame) -> dict[str, float]:
    """Return "step_ms" in the steady state, and of it "<lane>_percent" in which each lane works."""
    chip = timeline[timeline["lane"] == "chip"]
    ends = chip["end_s"].to_numpy()
    begin, end = ends[FIRST_DRAWN - 1], ends[-1]
    start_s, end_s = (timeline[name].clip(begin, end) for name in ("start_s", "end_s"))
    lanes = timeline.assign(worked=end_s - start_s).groupby("lane", sort=False)
    percent = 100.0 * lanes["worked"].sum() / ((end - begin) * lanes["worker"].nunique())
    step_ms = 1e3 * (end - begin) / (len(ends) - FIRST_DRAWN)
    return {"step_ms": step_ms} | percent.add_suffix("_percent").to_dict()


def drawn_timelines(
    timelines: Mapping[str, pd.DataFrame], *, window_ms: float = 20.0
) -> pd.DataFrame:
    """Return timelines by title, milliseconds from the steady state, with what each comes to."""
    shown = []
    for title, timeline in timelines.items():
        origin = timeline.loc[timeline["lane"] == "chip", "end_s"].iloc[FIRST_DRAWN - 1]
        begin, end = (1e3 * (timeline[name] - origin) for name in ("start_s", "end_s"))
        about = {"title": title, "workers": timeline["worker"].max() + 1, "window_ms": window_ms}
        lanes = timeline.assign(
            begin_ms=begin, time_ms=end - begin, **about, **lane_shares(timeline)
        )
        shown.append(lanes[(end >= 0) & (begin <= window_ms)])
    return pd.concat(shown)
