"""Fitting the few constants: a fixed cost per step of each software stack, and power's one factor.

The cost enters a step as max(floor, base + cost): base is everything that happens in turn, floor
what runs beside it (the host link, or the device where transfers overlap). Both are read off two
predictions, and the mean of |step / published - 1| is then piecewise linear in the cost, so its
minimum lies at a kink and is found exactly: robust against single rows, the same on every machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ipusim import paths
from ipusim.machine.system import load_system
from ipusim.study.calibration_file import (
    CALIBRATION_FILE,
    POOLED,
    Calibration,
    PowerScale,
    StepCost,
    calibration_text,
)
from ipusim.study.outputs import write_text
from ipusim.study.predictor import Predictor, predict
from ipusim.study.published import PublishedRow, load_rows
from ipusim.study.runs import RunConfiguration

FITTING_STUDY = "results"
"""Only the results page is fitted on: its recipes are public. Qwant, TAMU and Argonne never are."""
POWER_STUDY = "qwant"
"""The only study that publishes power."""

_PROBE_S = 1.0
"""A cost beside which everything that runs in parallel is short."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSample:
    """One published throughput beside the step that is predicted for it.

    Attributes
    ----------
    row_id, family, stack : str
        Which row.
    floor_s, base_s : float
        The step takes max(floor_s, base_s + cost) seconds.
    published_s : float
        Time per step that the published throughput implies.
    """

    row_id: str
    family: str
    stack: str
    floor_s: float
    base_s: float
    published_s: float

    def relative_error(self, cost_s: float) -> float:
        """Return the absolute relative error of the step at a cost in seconds."""
        return abs(max(self.floor_s, self.base_s + cost_s) / self.published_s - 1.0)


def fitting_rows() -> tuple[PublishedRow, ...]:
    """Return the published rows that the cost per step may be fitted on.

    Returns
    -------
    tuple of PublishedRow
        Modelled throughput rows of the results page.

    Raises
    ------
    DataError
        If a data file is missing or damaged.
    """
    rows = load_rows(study=FITTING_STUDY, metric="throughput")
    return tuple(row for row in rows if not row.run.not_modelled)


def step_samples(rows: Iterable[PublishedRow], predictor: Predictor) -> tuple[StepSample, ...]:
    """Predict how each row's step depends on the cost.

    Parameters
    ----------
    rows : iterable of PublishedRow
        Throughput rows of modelled runs.
    predictor : Predictor
        What predicts.

    Returns
    -------
    tuple of StepSample
        One per row, in the same order.
    """
    samples = []
    for row in rows:
        items = row.run.items_per_step
        free = predict(row.run, "specification", predictor=predictor)
        loaded = predict(row.run, "calibrated", predictor=predictor, step_cost_s=_PROBE_S)
        samples.append(
            StepSample(
                row_id=row.row_id,
                family=row.family,
                stack=row.stack,
                floor_s=items / float(free.throughput),
                base_s=items / float(loaded.throughput) - _PROBE_S,
                published_s=items / row.value,
            )
        )
    return tuple(samples)


def fit_step_cost(samples: Sequence[StepSample]) -> float:
    """Return the cost per step that fits the samples best.

    Parameters
    ----------
    samples : sequence of StepSample
        May be empty.

    Returns
    -------
    float
        Seconds, at least 0; the smallest of equally good ones; exactly 0 for no samples.
    """
    kinks = {0.0}
    for sample in samples:
        kinks |= {sample.published_s - sample.base_s, sample.floor_s - sample.base_s}
    candidates = sorted(cost for cost in kinks if cost >= 0)
    return min(candidates, key=lambda cost: sum(item.relative_error(cost) for item in samples))


def step_cost_for(
    stack: str, samples: Iterable[StepSample], *, without_family: str | None = None
) -> StepCost:
    """Return the cost per step of a stack, as fitted on the samples that may be used for it.

    Parameters
    ----------
    stack : str
        Software stack.
    samples : iterable of StepSample
        All samples there are.
    without_family : str, optional
        Model family to leave out of the fit.

    Returns
    -------
    StepCost
        Fitted on the stack's own samples, or on those of all other stacks when it has none left.
    """
    allowed = [sample for sample in samples if sample.family != without_family]
    own = [sample for sample in allowed if sample.stack == stack]
    used = own or allowed
    return StepCost(
        stack=stack,
        value_s=fit_step_cost(used),
        rows=tuple(sample.row_id for sample in used),
        pooled=not own,
    )


def static_power_w(run: RunConfiguration) -> float:
    """Return the power of a run's cards or machines that does not depend on activity.

    Parameters
    ----------
    run : RunConfiguration
        A run with system and replicas.

    Returns
    -------
    float
        Watts, by the constants of data/hardware/power.toml.
    """
    system = load_system(run.system)
    active = (run.replicas or system.ipus) * (run.ipus_per_replica or 1)
    machines = -(-active // system.ipus_per_machine)
    chips = machines * system.ipus_per_machine
    return chips * system.power.static_w_per_ipu + machines * system.power.card_w


def fit_power_scale(samples: Iterable[StepSample], predictor: Predictor) -> PowerScale:
    """Fit the factor on dynamic power to the power that Qwant's tables imply.

    Parameters
    ----------
    samples : iterable of StepSample
        What the cost per step is fitted on, for the time over which energy is spent.
    predictor : Predictor
        What predicts; the specification tier gives power without any factor.

    Returns
    -------
    PowerScale
        Minimises the mean absolute relative error of power: the median of the exact factors,
        weighted with dynamic / published power.
    """
    throughput = {row.run.run_id: row for row in load_rows(study=POWER_STUDY, metric="throughput")}
    known = list(samples)
    points = []
    rows = load_rows(study=POWER_STUDY, metric="efficiency")
    for row in rows:
        published_w = throughput[row.run.run_id].value / row.value
        cost = step_cost_for(row.stack, known, without_family=row.family)
        plain = predict(row.run, "specification", predictor=predictor)
        timed = predict(row.run, "calibrated", predictor=predictor, step_cost_s=cost.value_s)
        static_w = static_power_w(row.run)
        slower = float(timed.throughput) / float(plain.throughput)
        dynamic_w = (float(plain.power) - static_w) * slower
        points.append(((published_w - static_w) / dynamic_w, dynamic_w / published_w))
    half = sum(weight for _, weight in points) / 2
    reached = 0.0
    for factor, weight in sorted(points):
        reached += weight
        if reached >= half:
            return PowerScale(value=max(0.0, factor), rows=tuple(row.row_id for row in rows))
    return PowerScale()


def calibrate(
    *, predictor: Predictor, path: Path | None = None, power: bool = False
) -> Calibration:
    """Fit the constants on all rows that may be used and write them down.

    Parameters
    ----------
    predictor : Predictor
        What predicts; every cost is given to it, so the result does not depend on an earlier
        calibration.
    path : pathlib.Path, optional
        File to write; by default ``data/calibration.toml``.
    power : bool
        Also fit the factor on dynamic power; otherwise it is 1.

    Returns
    -------
    Calibration
        A cost for each stack that a modelled run names and a pooled one for any other.

    Raises
    ------
    StudyError
        If the file cannot be written.
    """
    samples = step_samples(fitting_rows(), predictor)
    stacks = sorted({row.stack for row in load_rows() if not row.run.not_modelled})
    costs = {stack: step_cost_for(stack, samples) for stack in (*stacks, POOLED)}
    scale = fit_power_scale(samples, predictor) if power else PowerScale()
    write_text(path or paths.data_dir() / CALIBRATION_FILE, calibration_text(costs.values(), scale))
    return Calibration(step_costs=costs, power=scale)
