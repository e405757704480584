"""What each mechanism is worth: switched off in turn, what becomes of the error.

Nothing in the compiler knows of this. A mechanism is switched off by rewriting the lowered program
(the cycles of a phase become zero) or by leaving something out of the run configuration. Nothing is
fitted here, so that no constant can make up for what is missing: errors are of the specification
tier.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

import numpy as np
import pandas as pd

from ipusim.compiler.program import LoweredOp, Program
from ipusim.compiler.tiles import ceil_div
from ipusim.machine import Chip
from ipusim.study.cached import GRAPH_OPTIONS, PooledPredictor
from ipusim.study.data.published import PublishedRow, load_rows
from ipusim.study.predict import Request, metric_of, request_for
from ipusim.study.verdicts.compare import time_ratio
from ipusim.workload.operators.base import changed

Options = dict[str, Any]
Rewrite = Callable[[Program, Chip], Program]

_TIER = "specification"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ablation:
    """One mechanism that can be switched off, in the lowered program or in a run's options."""

    name: str  # in tables
    title: str  # what switching it off means
    rewrite: Rewrite | None = None
    options: Options = field(default_factory=dict)  # what they become, None for left out,
    where: str = ""  # of runs that set this one, or of all

    def applied(self, request: Request) -> Request:
        """Return a request without the mechanism."""
        options = request.options
        if not self.where or options.get(self.where):
            options = {key: it for key, it in (options | self.options).items() if it is not None}
        return replace(request, options=options, rewrite=self.rewrite)


def no_exchange(program: Program, chip: Chip) -> Program:
    """Return a program whose exchange takes no time."""
    return _without(program, "exchange_cycles")


def no_copies(program: Program, chip: Chip) -> Program:
    """Return a program whose on-tile copies take no time."""
    return _without(program, "copy_cycles")


def no_sync(program: Program, chip: Chip) -> Program:
    """Return a program whose synchronisation and control code take no time."""
    return _without(program, "sync_cycles")


def _without(program: Program, phase: str) -> Program:
    takes, free = attrgetter(phase), {phase: 0}
    made = {
        key: tuple(changed(step, **free) if takes(step) else step for step in steps)
        for key, steps in {id(op.steps): op.steps for op in program.ops}.items()
        if any(map(takes, steps))
    }
    return Program(
        tuple(
            changed(op, steps=made[id(op.steps)]) if id(op.steps) in made else op
            for op in program.ops
        )
    )


def at_peak(program: Program, chip: Chip) -> Program:
    """Return a program whose products run at the peak of the chip with half partials."""
    peak = chip.tiles * chip.macs_per_cycle("float16", "float16")
    return Program(tuple(_at_peak(op, peak) if op.macs else op for op in program.ops))


def _at_peak(op: LoweredOp, peak: float) -> LoweredOp:
    left = ceil_div(op.macs, int(peak))
    steps = []
    for step in op.steps:
        # The first superstep that computes takes it all; repeats would take it several times.
        cycles = left if step.compute_cycles else 0
        left -= cycles
        shared = ceil_div(cycles, step.repeats)
        steps.append(changed(step, compute_cycles=shared))
    return changed(op, steps=tuple(steps))


ABLATIONS = (
    Ablation(
        name="AMP rate",
        title="type of partials not known: float, the default of poplibs",
        options={"partials": "float"},  # at half the AMP rate on Mk2
    ),
    Ablation(name="exchange", title="exchange takes no time", rewrite=no_exchange),
    Ablation(name="layout copies", title="on-tile copies take no time", rewrite=no_copies),
    Ablation(
        name="supersteps", title="synchronisation and control code take no time", rewrite=no_sync
    ),
    Ablation(name="vertices", title="products at the peak rate of the chip", rewrite=at_peak),
    Ablation(
        name="I/O overlap",
        title="transfers not known to overlap",
        options={"overlap_io": None, "io_tiles": None},  # with the same queue
        where="overlap_io",
    ),
    Ablation(
        name="recompute",
        title="nothing is computed twice",
        options={"recompute": "none"},
        where="recompute",
    ),
)
"""Mechanisms in the order of the table."""


PROGRAM_OPTIONS = (*GRAPH_OPTIONS, "stack", "partials")
"""Options that tell programs apart."""


def ablation_rows() -> tuple[PublishedRow, ...]:
    """Return one throughput row of each program: on the smallest system it was published on."""
    smallest: dict[tuple[Any, ...], PublishedRow] = {}
    for row in load_rows(metric="throughput"):
        if row.not_modelled:
            continue
        run = row.run
        key = tuple(getattr(run, name) for name in ("model", *PROGRAM_OPTIONS))
        known = smallest.get(key)
        if known is None or run.chips < known.run.chips:
            smallest[key] = row
    return tuple(smallest.values())


def ablation_frame(
    rows: Iterable[PublishedRow] | None = None, *, predictor: PooledPredictor | None = None
) -> pd.DataFrame:
    """Predict rows as they are and without each mechanism: predicted over published time."""
    engine, asked = predictor or PooledPredictor(), []
    for row in ablation_rows() if rows is None else rows:
        whole = request_for(row.run, _TIER)
        without = ((one.name, one.applied(whole)) for one in ABLATIONS)
        asked += [(row, "", whole), *((row, *one) for one in without if one[1] != whole)]
    engine.prepare(request for *_, request in asked)
    lines = []
    for row, name, request in asked:
        head = {"row_id": row.row_id, "family": row.family, "mode": row.run.mode, "without": name}
        predicted = metric_of(engine.answer(request), row)
        lines.append(head | {"time_ratio": 1.0 / time_ratio(row.metric, row.value, predicted)})
    return pd.DataFrame(lines)


def ablation_summary(frame: pd.DataFrame) -> pd.DataFrame:
    """Summarise `ablation_frame`: what each mechanism is worth, for inference and training.

    Errors are in percent of the published time, with the mechanism and without it, on the rows that
    have it; the change is the median of their predicted times.
    """
    whole = frame[frame["without"] == ""].set_index("row_id")["time_ratio"]
    titles = {one.name: one.title for one in ABLATIONS}
    mechanisms = pd.Categorical(frame["without"], titles)  # not known, so no group: the whole
    frame = frame.assign(without=mechanisms, on=frame["row_id"].map(whole))
    lines = []
    for (mode, name), part in frame.groupby(["mode", "without"], observed=True):
        on, off = part["on"].to_numpy(), part["time_ratio"].to_numpy()
        lines.append(
            {
                "mode": mode,
                "mechanism": name,
                "switched_off": titles[name],
                "rows": len(part),
                "with_mean_abs_percent": 100.0 * np.mean(np.abs(on - 1.0)),
                "without_mean_abs_percent": 100.0 * np.mean(np.abs(off - 1.0)),
                "without_bias_percent": 100.0 * np.mean(off - 1.0),
                "time_change_percent": 100.0 * np.median(off / on - 1.0),
            }
        )
    return pd.DataFrame(lines)
