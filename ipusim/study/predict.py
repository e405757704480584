"""What a study asks of the predicting stages, and what it reads from their answers."""

import math

from ipusim.api import simulate
from ipusim.errors import StudyError
from ipusim.report import Report
from ipusim.runtime.calibration import FittedCosts
from ipusim.study.cached import Prediction, Request
from ipusim.study.data.convergence import load_convergence
from ipusim.study.data.published import PublishedRow
from ipusim.study.data.runs import RunConfiguration

TIERS = ("roofline", "specification", "calibrated")
"""The three kinds of prediction that every comparison makes."""
SOURCED = "without adopted"
"""The specification tier without what was adopted after seeing residuals (data/adopted.csv)."""
ALL_TIERS = (TIERS[0], SOURCED, *TIERS[1:])
"""The order in which tables show them, each where it was asked for."""

_SECONDS = {"s": 1.0, "min": 60.0}
_SCALE = {"ms": 1e3, "ms/batch": 1e3, "s": 1.0}


def first_epoch_items_per_s(items: float, items_per_s: float, compile_seconds: float) -> float:
    """Return the items per second over an epoch that begins with compilation."""
    return items / (items / items_per_s + compile_seconds)


def request_for(run: RunConfiguration, tier: str, *, costs: FittedCosts | None = None) -> Request:
    """Return what to ask for one run at one tier; nothing of it depends on what was published.

    `costs` are those of the calibrated tier, by default of ``data/calibration.toml``. A StudyError
    refuses a run that is not modelled and an unknown tier.
    """
    if run.not_modelled or run.model is None:
        raise StudyError(
            f"Run {run.run_id!r} is not modelled ({run.not_modelled}): choose another row."
        )
    if tier not in ALL_TIERS:
        raise StudyError(f"Unknown tier {tier!r}: use one of {', '.join(ALL_TIERS)}.")
    options = run.options(adopted=tier != SOURCED)
    model = options.pop("model", run.model)
    if tier == "roofline":
        return Request(entry=tier, model=model, options=options)
    # Published runs did run, whatever the model of memory says; that verdict stands beside them.
    options |= {"tier": "specification" if tier == SOURCED else tier, "as_if_it_fits": True}
    if tier == "calibrated":
        options["costs"] = costs
    return Request(entry="simulate", model=model, options=options)


def report_of(run: RunConfiguration, *, tier: str = "calibrated") -> Report:
    """Simulate a published run with the constants in use, and return the whole report."""
    return simulate(run.model, **run.options(), tier=tier, as_if_it_fits=True)


def metric_of(predicted: Prediction, row: PublishedRow) -> float:
    """Read the metric of a published row from a prediction, in the row's unit.

    NaN where the tier does not hold what the metric needs; a StudyError for a metric that none has.
    """
    rate = predicted.throughput
    if row.metric == "throughput":
        return rate * row.run.reported_per_item
    if row.metric == "latency":
        if row.run.latency_per_item:
            return row.run.replicas / rate * _SCALE[row.unit]
        return predicted.latency * _SCALE[row.unit]
    if row.metric == "efficiency":
        return rate / predicted.power
    convergence = load_convergence().get(row.run.run_id)
    if row.metric == "time_to_train" and convergence is not None:
        return convergence.seconds_at(rate, row.run) / _SECONDS[row.unit]
    if row.metric == "time_to_result":
        # The loop stays on the chips: of a step only the program counts; the roofline has no other.
        known = not math.isnan(predicted.program_s)
        step_s = predicted.program_s if known else predicted.latency
        return step_s * row.run.epoch_items / row.run.items_per_step
    if row.metric in ("epoch_time", "time_to_train"):
        return row.run.epoch_items / rate / _SECONDS[row.unit]
    if row.metric == "throughput_epoch1":
        return first_epoch_items_per_s(row.run.epoch_items, rate, predicted.compile_s)
    raise StudyError(
        f"No prediction has the metric {row.metric!r} of row {row.row_id!r}: "
        "give a reason in the not_modelled column of data/runs/configurations.csv."
    )
