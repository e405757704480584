"""What a study needs from the predicting stages, so that a test can put its own in their place."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, SupportsFloat

from ipusim.errors import StudyError
from ipusim.runtime.calibration import FittedCosts
from ipusim.runtime.compile_time import first_epoch_items_per_s
from ipusim.runtime.terms import Line
from ipusim.study.data.convergence import load_convergence
from ipusim.study.data.published import PublishedRow
from ipusim.study.data.runs import RunConfiguration

TIERS = ("roofline", "specification", "calibrated")
"""The three kinds of prediction that every comparison shows side by side."""

_SECONDS = {"s": 1.0, "min": 60.0}
_SCALE = {"ms": 1e3, "ms/batch": 1e3, "s": 1.0}


class ReportLike(Protocol):
    """The part of a simulation report that a comparison reads."""

    latency: SupportsFloat
    throughput: SupportsFloat
    power_parts_w: dict[str, float]
    line: Line | None


class Predictor(Protocol):
    """The two entry points of `ipusim.api` that make predictions."""

    def simulate(self, model: str, **options: Any) -> ReportLike:
        """Predict a run; `tier` and `costs` are among the options."""

    def roofline(self, model: str, **options: Any) -> ReportLike:
        """Bound a run by peak arithmetic and memory rates alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a predictor is asked; ``key`` is the same for the same question.

    ``rewrite`` changes the lowered program, to see what a mechanism is worth
    (`ipusim.study.fidelity.ablation`).
    """

    entry: str  # "simulate" or "roofline"
    model: str
    options: dict[str, Any]
    rewrite: Callable[..., Any] | None = None
    key: tuple[Any, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        options = sorted(self.options.items(), key=lambda item: item[0])
        object.__setattr__(self, "key", (self.entry, self.model, self.rewrite, *options))


def request_for(run: RunConfiguration, tier: str, *, costs: FittedCosts | None = None) -> Request:
    """Return what to ask for one run at one tier; nothing of it depends on what was published.

    `costs` are those of the calibrated tier; None leaves them to ``data/calibration.toml``. A run
    that is not modelled and an unknown tier are StudyErrors.
    """
    if run.not_modelled or run.model is None:
        raise StudyError(
            f"Run {run.run_id!r} is not modelled ({run.not_modelled}): choose another row."
        )
    if tier not in TIERS:
        raise StudyError(f"Unknown tier {tier!r}: use one of {', '.join(TIERS)}.")
    options = run.options()
    if tier == "roofline":
        return Request(entry=tier, model=run.model, options=options)
    # Published runs did run, whatever the model of memory says; that verdict stands beside them.
    options |= {"tier": tier, "as_if_it_fits": True}
    if tier == "calibrated":
        options["costs"] = costs
    return Request(entry="simulate", model=run.model, options=options)


def predict(
    run: RunConfiguration,
    tier: str,
    *,
    predictor: Predictor,
    costs: FittedCosts | None = None,
) -> ReportLike:
    """Predict one run at one tier, as `request_for` takes it."""
    asked = request_for(run, tier, costs=costs)
    entry = predictor.roofline if asked.entry == "roofline" else predictor.simulate
    return entry(asked.model, **asked.options)


def metric_of(report: ReportLike, row: PublishedRow) -> float:
    """Read the metric of a published row from a report, in the row's unit.

    NaN where the report does not hold what the metric needs; a StudyError for a metric that no
    report holds.
    """
    rate = float(report.throughput)
    if row.metric == "throughput":
        return rate * row.run.reported_per_item
    if row.metric == "latency":
        if row.run.latency_per_item:
            return row.run.replicas / rate * _SCALE[row.unit]
        return float(report.latency) * _SCALE[row.unit]
    if row.metric == "efficiency":
        power = getattr(report, "power", None)
        return rate / (math.nan if power is None else float(power))
    convergence = load_convergence().get(row.run.run_id)
    if row.metric == "time_to_train" and convergence is not None:
        return convergence.seconds_at(rate, row.run) / _SECONDS[row.unit]
    if row.metric in ("epoch_time", "time_to_train"):
        return row.run.epoch_items / rate / _SECONDS[row.unit]
    if row.metric == "throughput_epoch1":
        # Only a simulated report knows its program; the roofline has nothing to compile.
        compiling = getattr(report, "compile_s", math.nan)
        return first_epoch_items_per_s(row.run.epoch_items, rate, compiling)
    raise StudyError(
        f"No prediction has the metric {row.metric!r} of row {row.row_id!r}: "
        "give a reason in the not_modelled column of data/runs/configurations.csv."
    )
