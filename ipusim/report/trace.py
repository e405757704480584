"""A run as Chrome trace JSON, which Perfetto opens: `Report.to_perfetto`.

References
----------
Trace Event Format, https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ipusim.runtime.replica.pipelined import Pipeline, Staged
from ipusim.runtime.terms import HOST_PARTS, UPDATE

if TYPE_CHECKING:
    from ipusim.report import Report

PHASES = ("sync", "exchange", "copy", "compute")
"""Phases of a superstep, in the order in which they follow."""
DRAWN = 128
"""Micro-batches, or steps at each end of a pipeline, that are drawn one by one."""

_STEP, _CHIP = 1, 2
_HOST, _BESIDE, _LINKS = "host", "host, beside the chips", "links"

Span = tuple[str, str, float, float]
"""Lane, what happens there, start and seconds."""
Event = dict[str, Any]


def events(report: Report) -> Iterator[Event]:
    """Yield a step of one replica, where the run is possible, and one micro-batch on one chip."""
    if report.runs:
        lanes = [_HOST, _BESIDE, _LINKS, *_stage_lanes(report), UPDATE]
        yield from _named(_STEP, f"{report.model}: a step of one replica", lanes)
        for lane, name, start, seconds in _step(report):
            if seconds > 0:
                yield _span(_STEP, lanes.index(lane), name, 1e6 * start, 1e6 * seconds)
    yield from _named(_CHIP, f"a micro-batch on one {report.chip}, superstep by superstep", PHASES)
    starts: dict[str, float] = {}
    for row in report.trace.itertuples():
        starts.setdefault(row.op, row.start_us)
        args = {"cycles": int(row.cycles), "vertex": row.vertex}
        name, lane = f"{row.op}: {row.step}", PHASES.index(row.phase)
        yield _span(_CHIP, lane, name, row.start_us, row.duration_us, row.phase, **args)
    for row in report.memory.itertuples():
        if row.op in starts:
            held = {
                "parameters": row.parameter_bytes,
                "code": row.code_bytes,
                "activations": row.activation_bytes,
                "temporaries": row.temp_bytes,
            }
            place = {"ph": "C", "pid": _CHIP, "ts": starts[row.op]}
            yield {"name": "bytes on the fullest tile", **place, "args": held}


def _stage_lanes(report: Report) -> list[str]:
    ipus = [stage.ipu for stage in report.result.stages] or [0]
    return [f"stage {stage} on IPU {ipu}" for stage, ipu in enumerate(ipus)]


def _named(pid: int, process: str, lanes: list[str] | tuple[str, ...]) -> Iterator[Event]:
    yield {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": process}}
    for tid, lane in enumerate(lanes):
        place = {"ph": "M", "pid": pid, "tid": tid}
        yield {"name": "thread_name", **place, "args": {"name": lane}}
        yield {"name": "thread_sort_index", **place, "args": {"sort_index": tid}}


def _span(
    pid: int, tid: int, name: str, start_us: float, us: float, kind: str = "step", **args: Any
) -> Event:
    place = {"pid": pid, "tid": tid, "ts": start_us, "dur": us}
    return {"name": name, "cat": kind, "ph": "X", **place, "args": args}


def _step(report: Report) -> Iterator[Span]:
    """Yield what happens in a step: micro-batches, then what comes once, as in `parts_s`."""
    result = report.result
    parts = dict(result.parts_s)
    yield _BESIDE, "transfers beside the chips", 0.0, min(result.terms.host_s, result.step_s)
    if isinstance(result.terms.schedule, Pipeline):
        # `Pipeline.parts_s` makes parts of these: how much longer each makes the whole.
        names = ("device", "pipeline bubbles", "stage transfers", "batch-norm reductions")
        now = sum(parts.pop(name, 0.0) for name in (*names, "transfers", "host work"))
        yield from _pipeline(report, result.terms.schedule)
    else:
        names = ("transfers", "host work", "batch-norm reductions", "device", "stage transfers")
        each = {name: parts.pop(name) for name in names if name in parts}
        now = sum(each.values())
        yield from _in_turn(report, each)
    for name, seconds in parts.items():
        yield UPDATE if name == UPDATE else _lane(name), name, now, seconds
        now += seconds


def _lane(part: str) -> str:
    return _HOST if part in HOST_PARTS else _LINKS


def _in_turn(report: Report, parts: dict[str, float]) -> Iterator[Span]:
    """Yield micro-batches one after the other, and passes as long as their share of the cycles."""
    passes, staged = _passes(report), isinstance(report.result.terms.schedule, Staged)
    at_once = staged and report.config.schedule == "grouped"
    whole = max(one[2] for one in passes) if at_once else sum(one[2] for one in passes)
    batches = 1 if report.config.phased else report.config.micro_batches
    shown, now = min(batches, DRAWN), 0.0
    for batch in range(shown + (batches > shown)):
        share = 1 / batches if batch < shown else 1 - shown / batches
        name = f"micro-batch {batch}" if batch < shown else f"{batches - shown} micro-batches more"
        for part, seconds in parts.items():
            if part != "device":
                yield _lane(part), part, now, share * seconds
                now += share * seconds
                continue
            begin = now
            for lane, which, weight in passes:
                spent = share * seconds * weight / max(whole, 1e-30)
                yield lane, f"{which} of {name}", now, spent
                now += 0.0 if at_once else spent
            now = begin + share * seconds


def _passes(report: Report) -> list[tuple[str, str, float]]:
    """Return lane, pass and device seconds of what a micro-batch runs through."""
    result, lanes = report.result, _stage_lanes(report)
    if result.stages:
        each = list(zip(lanes, result.stages, strict=True))
        forward = [(lane, "forward", stage.forward_s) for lane, stage in each]
        return forward + [(lane, "backward", stage.backward_s) for lane, stage in each[::-1]]
    backward = {op.name for op in result.graph.ops if op.phase != "forward"}
    cycles = {"forward": 0, "backward": 0}
    for op in result.program.ops:
        cycles["backward" if op.name in backward else "forward"] += op.cycles
    return [(*lanes, which, spent) for which, spent in cycles.items()]


def _pipeline(report: Report, schedule: Pipeline) -> Iterator[Span]:
    """Yield the slots of a pipeline, the middle of a long one as one span per stage."""
    costs, micro_batches = report.result.costs, report.config.micro_batches
    ending, host_s = schedule.waited_s(costs, report.result.terms.beside)
    copies_s, order = sum(ending.values()), schedule.order(costs)
    whole_s = order.time_s(micro_batches, copies_s, host_s)
    periods = order.periods(micro_batches)
    steps = order.steps(periods)
    lanes = _stage_lanes(report)
    tail = range(max(DRAWN, steps - DRAWN), steps)
    left = sum(order.step(step, periods).seconds(copies_s, host_s) for step in tail)
    now = 0.0
    for step in (*range(min(DRAWN, steps)), *tail):
        if step == tail.start and step > DRAWN:
            for lane in lanes:
                middle = f"{tail.start - DRAWN} pipeline steps more"
                yield lane, middle, now, whole_s - left - now
            now = whole_s - left
        this = order.step(step, periods)
        arriving = this.sent * host_s
        yield _HOST, "transfers", now, arriving
        free = dict.fromkeys(report.config.stage_ipus, now + arriving)
        for slot, batch in order.running(step, periods):
            for index in order.passes[slot]:
                backward, stage = divmod(index, len(lanes))
                work = (schedule.backward if backward else schedule.forward)[stage].at(costs)
                ipu = order.ipus[slot]
                name = f"{'backward' if backward else 'forward'} of micro-batch {batch}"
                yield lanes[stage], name, free[ipu], work
                free[ipu] += work
        now += this.seconds(0.0, host_s)
        yield _LINKS, "stage transfers", now, this.copies * copies_s
        now += this.copies * copies_s
