"""Fitting the few constants: a fixed cost per step of each software stack, and two of power.

The cost enters a step as max(floor, base + cost): base is everything that happens in turn, floor
what runs beside it (the host link, or the device where transfers overlap). Both are read off two
predictions, and the mean of |step / published - 1| is then piecewise linear in the cost, so its
minimum lies at a kink and is found exactly: robust against single rows, the same on every machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

from ipusim import files
from ipusim.files import write_text
from ipusim.runtime.calibration import FittedCosts
from ipusim.study.cached import prepare
from ipusim.study.data.published import PublishedRow, load_rows
from ipusim.study.fit.calibration_file import (
    CALIBRATION_FILE,
    Calibration,
    PowerScales,
    StepCost,
    calibration_text,
    load_calibration,
)
from ipusim.study.fit.scale_out import (
    fit_compile,
    fit_scale_out,
    scaling_rows,
    scaling_samples,
)
from ipusim.study.predict import Predictor, Request, predict, request_for

FITTING_STUDY = "results"
"""Only the results page is fitted on: its recipes are public. Qwant, TAMU and Argonne never are."""
POWER_STUDY = "qwant"
"""The only study that publishes power."""

_PROBE_S = 1.0
"""A cost beside which everything that runs in parallel is short."""
_PROBE = FittedCosts(step_s=_PROBE_S)


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
        Modelled inference throughput rows of the results page: in a training step the cost drowns
        in many micro-batches.

    Raises
    ------
    DataError
        If a data file is missing or damaged.
    """
    rows = load_rows(study=FITTING_STUDY, metric="throughput")
    return tuple(row for row in rows if not row.not_modelled and row.run.mode == "inference")


def step_requests(rows: Iterable[PublishedRow]) -> list[Request]:
    """Return what `step_samples` asks for: every row without a cost and with a large one."""
    asked = []
    for row in rows:
        asked += [
            request_for(row.run, "specification"),
            request_for(row.run, "calibrated", costs=_PROBE),
        ]
    return asked


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
    rows = tuple(rows)
    prepare(predictor, step_requests(rows))
    samples = []
    for row in rows:
        items = row.run.items_per_step
        free = predict(row.run, "specification", predictor=predictor)
        loaded = predict(row.run, "calibrated", predictor=predictor, costs=_PROBE)
        samples.append(
            StepSample(
                row_id=row.row_id,
                family=row.family,
                stack=row.stack,
                floor_s=items / float(free.throughput),
                base_s=items / float(loaded.throughput) - _PROBE_S,
                published_s=row.run.step_s_at(row.value),
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
        Fitted on the stack's own samples; 0 when it has none left: how long one stack takes to
        start a step says nothing about another.
    """
    used = [item for item in samples if item.stack == stack and item.family != without_family]
    return StepCost(
        stack=stack,
        value_s=fit_step_cost(used),
        rows=tuple(sample.row_id for sample in used),
    )


def fit_power_scales(predictor: Predictor) -> PowerScales:
    """Fit the factors on dynamic energy to the power that Qwant's tables imply.

    Static power and the energy per exchanged byte stay at their sourced values, and energy is spent
    over the published step, so that an error of time does not become one of power.

    Parameters
    ----------
    predictor : Predictor
        What predicts; the specification tier gives energies without any factor.

    Returns
    -------
    PowerScales
        Non-negative least squares over the rows.
    """
    throughput = {row.run.run_id: row for row in load_rows(study=POWER_STUDY, metric="throughput")}
    rows = load_rows(study=POWER_STUDY, metric="efficiency")
    parts_w, wanted_w = [], []
    for row in rows:
        rate = throughput[row.run.run_id].value
        report = predict(row.run, "specification", predictor=predictor)
        parts = report.power_parts_w
        faster = rate / float(report.throughput)
        dynamic_w = rate / row.value - parts["static"]
        parts_w.append((parts["amp"] * faster, parts["sram"] * faster))
        wanted_w.append(dynamic_w - parts["exchange"] * faster)
    (amp, sram), _ = nnls(np.array(parts_w), np.array(wanted_w))
    return PowerScales(
        # four digits: the last bits of a least-squares solution differ between machines
        amp=round(float(amp), 4),
        sram=round(float(sram), 4),
        rows=tuple(row.row_id for row in rows),
    )


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
        Also fit the factors on dynamic energy; otherwise they are those of the file as it is.

    Returns
    -------
    Calibration
        A cost for each stack that a modelled run names.

    Raises
    ------
    StudyError
        If the file cannot be written.
    """
    samples = step_samples(fitting_rows(), predictor)
    stacks = sorted({row.stack for row in load_rows() if not row.not_modelled})
    kept = load_calibration()
    fitted = Calibration(
        step_costs={stack: step_cost_for(stack, samples) for stack in stacks},
        power=fit_power_scales(predictor) if power else kept.power,
        scale_out=fit_scale_out(scaling_samples(scaling_rows(), predictor)),
        compile=fit_compile(),
        gpu=kept.gpu,
        intervals=kept.intervals,
    )
    write_text(path or files.data_dir() / CALIBRATION_FILE, calibration_text(fitted))
    return fitted
