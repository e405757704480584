"""Published against predicted, at three tiers, and the one rule that gives a verdict."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pandas as pd

from ipusim.machine import load_system
from ipusim.runtime.calibration import (
    Calibration,
    FittedCosts,
    ScaleOut,
    load_calibration,
)
from ipusim.runtime.options.frameworks import DEFAULT_FRAMEWORK
from ipusim.study.cached import PooledPredictor, Prediction
from ipusim.study.data.published import PublishedRow, load_rows
from ipusim.study.data.runs import RunConfiguration
from ipusim.study.fit.samples import Sample, samples_of
from ipusim.study.fit.scale_out import fit_scale_out, scaling_rows
from ipusim.study.fit.step_cost import costs_without, fitting_rows
from ipusim.study.predict import ALL_TIERS, SOURCED, TIERS, metric_of, request_for
from ipusim.study.verdicts.errors import (
    VERDICTS,
    error_figures,
    errors_of,
    grouped,
    sizes_of,
    verdict_of,
    verdicts_of,
)

RUN_COUNTS = (
    "chips",
    "replicas",
    "ipus_per_replica",
    "micro_batch",
    "gradient_accumulation",
    "instances",
    "batch_norm_span",
)
"""Columns of `verdicts` that count something of the run; NA where its recipe says nothing."""
RUN_COLUMNS = (
    "run_id",
    "label",
    "model",
    "framework",
    "precision",
    *RUN_COUNTS,
    "batches_in_flight",
    "series",
    "confidence",
    "assumed",
    "transferable",
    "left_out",
)
"""Columns of `verdicts` that say how a row was printed and run, under the names of its recipe."""
_ROW_COLUMNS = ("row_id", "study", "table", "family", "system", "stack", "mode", "kind", "metric",
                "unit")  # fmt: skip
RATE_METRIC = "throughput"
TIME_METRICS = ("latency", "epoch_time", "time_to_train", "time_to_result")
"""Metrics whose error is one of time alone, so that they have an interval."""
PREDICTED = "predicted"
NOT_MODELLED = "not_modelled"


def time_ratio(metric: str, published: float, predicted: float) -> float:
    """Return published over predicted time; NaN for a metric that is no matter of time alone."""
    if metric in TIME_METRICS:
        return published / predicted
    return predicted / published if metric == RATE_METRIC else math.nan


def kind_of(row: PublishedRow, fitted: Calibration) -> str:
    """Return the class of runs whose interval a row has; empty for a run that is not modelled."""
    run = row.run
    if row.not_modelled or run.mode is None or run.system is None:
        return ""
    return fitted.kind(row.family, run.mode, load_system(run.system).chip.name)


def interval_of(row: PublishedRow, predicted: float, fitted: Calibration) -> tuple[float, float]:
    """Return the 80 % interval of a prediction in its unit, from the errors of other families.

    NaN for a metric without an interval: nothing was left out of the fit of power, and no compile
    time but the fitted ones is published.
    """
    interval = fitted.intervals.get(kind_of(row, fitted))
    if interval is None:
        return math.nan, math.nan
    low, high = interval.ratios(row.family)
    if row.metric in TIME_METRICS:
        return low * predicted, high * predicted
    return (predicted / high, predicted / low) if row.metric == RATE_METRIC else (math.nan,) * 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """What the costs of a step and the latencies of scale-out are fitted on."""

    steps: tuple[Sample, ...] = ()
    scaling: tuple[Sample, ...] = ()


def fitting_samples(rows: Iterable[PublishedRow], predictor: PooledPredictor) -> Samples:
    """Prepare what the rows need: steps of their stacks, scaling only where a row is training."""
    modelled = [row for row in rows if not row.not_modelled]
    stacks = {row.stack for row in modelled}
    trained = any(row.run.mode == "training" for row in modelled)
    stepping = fitting_rows()
    if stacks.isdisjoint(row.stack for row in stepping):
        stepping = ()
    scaling = scaling_rows() if trained else ()
    known = samples_of([*stepping, *scaling], predictor)
    return Samples(steps=known[: len(stepping)], scaling=known[len(stepping) :])


def left_out_costs(run: RunConfiguration, samples: Samples) -> FittedCosts:
    """Fit the constants of a run without its family, that of collectives without its series."""
    steps = costs_without(samples.steps, run.family)
    step = steps.at(run.stack or "", run.framework or DEFAULT_FRAMEWORK)
    scale = ScaleOut()
    if run.mode == "training":
        scale = fit_scale_out(samples.scaling, without_series=run.series)
    return scale.beside(step)


def _fitted_on(row: PublishedRow, fitted: Calibration) -> str:
    """Say which constant in use was fitted on a row; empty where none was."""
    if row.row_id in fitted.scale_out.reduction.rows:
        return "the latency of a reduction was fitted on this row"
    if row.row_id in fitted.power.rows:
        return "the factors on energy were fitted on this row"
    return ""


_HOST_NOTE = "the host's work was timed for this program alone: not transferable"


def _note(row: PublishedRow, fitted: Calibration) -> str:
    alone = _HOST_NOTE * (not row.run.transferable)
    notes = (row.not_modelled, row.run.note, alone, _fitted_on(row, fitted))
    return "; ".join(filter(None, notes))


def _run_cells(row: PublishedRow, fitted: Calibration) -> dict[str, object]:
    """Return the `RUN_COLUMNS` of a row, among them why it is no test of the model."""
    run, left_out = row.run, row.restates and f"restate another ({row.restates})"
    return {name: getattr(run, name, "") for name in RUN_COLUMNS} | {
        "label": row.label,
        "model": run.model or "",
        "assumed": ", ".join(name.replace("_", " ") for name in run.assumed),
        "left_out": "fixed a constant" if _fitted_on(row, fitted) else left_out,
    }


def _predicted_line(
    row: PublishedRow, reports: dict[str, Prediction], fitted: Calibration
) -> dict[str, float | str]:
    """Read the row's metric from the reports of its run and judge it."""
    values = {tier: metric_of(report, row) for tier, report in reports.items()}
    calibrated = values["calibrated"]
    low, high = interval_of(row, calibrated, fitted)
    longest = sorted(reports["calibrated"].parts_s.items(), key=lambda item: -item[1])
    return {
        **values,
        "low80": low,
        "high80": high,
        "verdict": verdict_of(calibrated, row.value, row.metric),
        "status": PREDICTED,
        "parts": "; ".join(f"{name} {1e3 * seconds:.4g}" for name, seconds in longest),
    }


def verdicts(
    rows: Iterable[PublishedRow] | None = None,
    *,
    predictor: PooledPredictor | None = None,
    samples: Samples | None = None,
    jobs: int = 1,
    sourced: bool = False,
) -> pd.DataFrame:
    """Compare published rows, by default all, with what is predicted for them, each in its unit.

    The verdict judges the calibrated tier, whose constants are fitted (on `samples`, by default
    `fitting_samples`) without the row's own model family; so is its 80 % interval, which
    ``data/calibration.toml`` holds (`study.verdicts.intervals`). ``parts`` says where the time of
    its step goes, in ms, `RUN_COLUMNS` how a row was printed and run. If `sourced` a last column of
    that name has the tier `ipusim.study.predict.SOURCED`. `jobs` are worker processes where no
    predictor is given.
    """
    chosen = load_rows() if rows is None else tuple(rows)
    engine = predictor or PooledPredictor(jobs)
    if samples is None:
        samples = fitting_samples(chosen, engine)
    fitted = load_calibration()
    more = (SOURCED,) if sourced else ()
    numbers = (*TIERS, "low80", "high80")
    asked = {}
    for run in dict.fromkeys(row.run for row in chosen if not row.not_modelled):
        costs = left_out_costs(run, samples)
        asked[run] = {tier: request_for(run, tier, costs=costs) for tier in (*TIERS, *more)}
    engine.prepare(request for own in asked.values() for request in own.values())
    reports = {
        run: {tier: engine.answer(request) for tier, request in own.items()}
        for run, own in asked.items()
    }
    lines = []
    for row in chosen:
        line = {name: getattr(row, name, "") for name in _ROW_COLUMNS}
        line |= {"mode": row.run.mode or "", "kind": kind_of(row, fitted), "published": row.value}
        line |= dict.fromkeys(numbers, math.nan)
        line |= {"verdict": "", "status": NOT_MODELLED, "note": _note(row, fitted), "parts": ""}
        line |= _run_cells(row, fitted) | dict.fromkeys(more, math.nan)
        if not row.not_modelled:
            line |= _predicted_line(row, reports[row.run], fitted)
        lines.append(line)
    kinds = dict.fromkeys((*numbers, *more), float) | dict.fromkeys(RUN_COUNTS, "Int64")
    return pd.DataFrame(lines).astype(kinds)


def tests_in(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of `verdicts` that are a test: predicted, not left out."""
    return frame[(frame["status"] == PREDICTED) & (frame["left_out"] == "")]


def tier_summary(frame: pd.DataFrame, by: Sequence[str] = ()) -> pd.DataFrame:
    """Summarise the errors of each tier, by group if asked; 0 rows where a tier has no value."""
    predicted = frame[frame["status"] == PREDICTED]
    lines = []
    for head, group in grouped(predicted, by):
        for tier in (one for one in ALL_TIERS if one in group):
            sizes, marks = pd.Series(sizes_of(group, tier)), verdicts_of(group, tier)
            line = head | {"tier": tier, "rows": sizes.count()}
            line |= error_figures(sizes, "median", "mean", "p90", "max")
            line |= error_figures(errors_of(group, tier), "bias")
            lines.append(line | {verdict: marks.count(verdict) for verdict in VERDICTS})
    return pd.DataFrame(lines)


def with_errors(frame: pd.DataFrame) -> pd.DataFrame:
    """Add ``<tier>_error_percent``, the signed error of each tier, to `verdicts`."""
    return frame.assign(**{f"{tier}_error_percent": errors_of(frame, tier) for tier in TIERS})
