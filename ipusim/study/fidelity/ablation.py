"""What each mechanism is worth: switched off in turn, what becomes of the error.

Nothing in the compiler knows of this. A mechanism is switched off by rewriting the lowered program
(the cycles of a phase become zero) or by leaving something out of the run configuration. Nothing is
fitted here, so that no constant can make up for what is missing: errors are of the specification
tier.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pandas as pd

from ipusim.compiler.program import LoweredOp, Program
from ipusim.compiler.tiles import ceil_div
from ipusim.files import read
from ipusim.machine import Chip
from ipusim.study.cached import GRAPH_OPTIONS, PooledPredictor
from ipusim.study.data.published import PublishedRow, load_rows
from ipusim.study.predict import Request, metric_of, request_for
from ipusim.study.verdicts.compare import time_ratio

FILE = "studies/fidelity.toml"
_TIER = "specification"


@dataclass(frozen=True, slots=True)
class Off:
    """Rewrites a program: a phase of its supersteps takes no time.

    Of "products" it is what they take beyond the peak of the chip with half partials.
    """

    what: str

    def __call__(self, program: Program, chip: Chip) -> Program:
        """Return the program as it would be."""
        if self.what == "products":
            peak = int(chip.tiles * chip.macs_per_cycle("float16", "float16"))
            return Program(tuple(_at_peak(op, peak) if op.macs else op for op in program.ops))
        free = {f"{self.what}_cycles": 0}
        shared = {id(op.steps): op.steps for op in program.ops}
        made = {
            key: tuple(step._replace(**free) for step in steps) for key, steps in shared.items()
        }
        return Program(tuple(op._replace(steps=made[id(op.steps)]) for op in program.ops))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ablation:
    """One mechanism that can be switched off (``ablations`` of data/studies/fidelity.toml)."""

    name: str  # in tables
    title: str  # what switching it off means
    off: Literal["exchange", "copy", "sync", "products"] | None = None  # of the lowered program
    options: dict[str, Any] = field(default_factory=dict)  # what they become,
    left_out: tuple[str, ...] = ()  # and those that are not known,
    where: str = ""  # of runs that set this one, or of all

    def applied(self, request: Request) -> Request:
        """Return a request without the mechanism."""
        options = request.options
        if not self.where or options.get(self.where):
            given = options | self.options
            options = {name: it for name, it in given.items() if name not in self.left_out}
        return replace(request, options=options, rewrite=Off(self.off) if self.off else None)


def ablations() -> tuple[Ablation, ...]:
    """Return the mechanisms in the order of the table."""
    return read(Ablation, FILE, table="ablations")


def _at_peak(op: LoweredOp, peak: int) -> LoweredOp:
    left = ceil_div(op.macs, peak)
    steps = []
    for step in op.steps:
        # The first superstep that computes takes it all; repeats would take it several times.
        cycles = left if step.compute_cycles else 0
        left -= cycles
        shared = ceil_div(cycles, step.repeats)
        steps.append(step._replace(compute_cycles=shared))
    return op._replace(steps=tuple(steps))


PROGRAM_OPTIONS = (*GRAPH_OPTIONS, "stack", "partials")
"""Options that tell programs apart."""


def ablation_rows() -> tuple[PublishedRow, ...]:
    """Return one throughput row of each program: on the smallest system it was published on."""
    smallest: dict[tuple[Any, ...], PublishedRow] = {}
    for row in sorted(load_rows(metric="throughput"), key=lambda row: row.run.chips):
        if not row.not_modelled:
            program = tuple(getattr(row.run, name) for name in ("model", *PROGRAM_OPTIONS))
            smallest.setdefault(program, row)
    return tuple(smallest.values())


def ablation_frame(
    rows: Iterable[PublishedRow] | None = None, *, predictor: PooledPredictor | None = None
) -> pd.DataFrame:
    """Predict rows as they are and without each mechanism: predicted over published time."""
    engine, asked = predictor or PooledPredictor(), []
    for row in ablation_rows() if rows is None else rows:
        whole = request_for(row.run, _TIER)
        without = ((one.name, one.applied(whole)) for one in ablations())
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
    titles = {one.name: one.title for one in ablations()}
    rows = frame[frame["without"] != ""]
    on, off = rows["row_id"].map(whole), rows["time_ratio"]
    percent = {
        "with_mean_abs_percent": 100.0 * (on - 1.0).abs(),
        "without_mean_abs_percent": 100.0 * (off - 1.0).abs(),
        "without_bias_percent": 100.0 * (off - 1.0),
        "time_change_percent": 100.0 * (off / on - 1.0),
    }
    rows = rows.assign(mechanism=pd.Categorical(rows["without"], titles), **percent)
    groups = rows.groupby(["mode", "mechanism"], observed=True)
    taken = {"row_id": "size"} | dict.fromkeys(percent, "mean") | {"time_change_percent": "median"}
    table = groups.agg(taken).rename(columns={"row_id": "rows"}).reset_index()
    table.insert(2, "switched_off", table["mechanism"].map(titles))
    return table.astype({"mechanism": str, "switched_off": str})
