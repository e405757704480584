"""Fitting the few constants: a run and a call by framework, a superstep by stack, two of power.

A call from the host, in seconds per step, and control code, in cycles per superstep with an
exchange, enter a step as max(floor, base + supersteps) + call (`ipusim.runtime.terms.Line`). What a
run of the device costs is read off beforehand, from rows that differ in nothing else. The mean of
|step / published - 1| is then piecewise linear in the call, so that for each number of cycles its
minimum lies at a kink and is found exactly: robust against single rows, the same on every machine.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache, reduce
from itertools import combinations, product

import numpy as np
import pandas as pd

from ipusim.runtime.calibration import (
    Calibration,
    Fitted,
    FittedCosts,
    PowerScales,
    StepCosts,
    load_calibration,
    save_calibration,
)
from ipusim.runtime.terms import Line
from ipusim.study.cached import PooledPredictor
from ipusim.study.data.published import PublishedRow, load_rows
from ipusim.study.fit.gpu import fit_gpu
from ipusim.study.fit.ran import ran
from ipusim.study.fit.samples import Sample, samples_of
from ipusim.study.fit.scale_out import fit_compile, fit_scale_out, scaling_rows
from ipusim.study.predict import request_for

FITTING_STUDY = "results"
"""Only the results page is fitted on: its recipes are public. Qwant, TAMU and Argonne never are."""
POWER_STUDY = "qwant"
"""The only study that publishes power."""

_ALIKE = 1e-9
"""Errors this near are taken for equal, so that the last bit of a sum decides nothing."""

CYCLES = range(0, 2001, 10)
"""The cost of a superstep is looked for among these."""


def fitting_rows() -> tuple[PublishedRow, ...]:
    """Return the published rows that the costs per step and superstep may be fitted on.

    Modelled inference throughput rows of the results page with one chip per replica: what several
    chips or a training step add are not to leak into the costs.
    """
    return tuple(
        row
        for row in load_rows(study=FITTING_STUDY, metric="throughput")
        if not row.not_modelled
        and row.run.mode == "inference"
        and (row.run.ipus_per_replica or 1) == 1
    )


def fit_run_costs(samples: Iterable[Sample]) -> dict[str, Fitted]:
    """Return what a run of the device costs, by framework, where two rows tell it.

    Such rows are predicted alike but for their device iterations: what one publishes more per step
    is the difference of their parts of a run. The constant is the median of the pairs.
    """
    alike: dict[tuple[str, str, Line], list[Sample]] = {}
    for item in samples:
        key = (item.framework, item.row.stack, replace(item.line, iterations=1))
        alike.setdefault(key, []).append(item)
    pairs = [
        (one.framework, (one.published_s - two.published_s) / parts, one.row.row_id, two.row.row_id)
        for group in alike.values()
        for one, two in combinations(group, 2)
        if (parts := 1 / one.line.iterations - 1 / two.line.iterations)
    ]
    frame = pd.DataFrame(pairs, columns=["framework", "run_s", "one", "two"])
    return {
        framework: Fitted(
            value=round(max(0.0, float(told["run_s"].median())), 6),
            rows=tuple(told[["one", "two"]].to_numpy().ravel()),
        )
        for framework, told in frame.groupby("framework", sort=False)
    }


@lru_cache(maxsize=256)
def fit_step_costs(samples: tuple[Sample, ...]) -> StepCosts:
    """Return the runs and calls by framework and the cycles by stack that fit the samples best.

    Those with the least mean absolute relative error of time, all 0 or more. The calls of given
    cycles are exact; the cycles are first one number for all stacks, then each stack is moved alone
    as long as that helps, the fewest cycles of equally good ones.
    """
    if not samples:
        return StepCosts()
    runs = fit_run_costs(samples)
    run_s = [runs.get(item.framework, Fitted()).value for item in samples]
    # Seconds of steps without a call, a row per number of cycles, a column per sample.
    steps = np.empty((len(CYCLES), len(samples)))
    for (row, cycles), (at, item) in product(enumerate(CYCLES), enumerate(samples)):
        costs = FittedCosts(run_s=run_s[at], exchange_cycles=float(cycles))
        steps[row, at] = item.line.step_s(costs)
    published = np.array([item.published_s for item in samples])
    labels = [(item.framework, item.row.stack, item.row.row_id) for item in samples]
    known = pd.DataFrame(labels, columns=["framework", "stack", "row_id"])
    frameworks, stacks = (known.groupby(name).indices for name in ("framework", "stack"))

    def best_call(at: np.ndarray, chosen: np.ndarray) -> tuple[float, float]:
        """Return the least sum of errors of some steps, and the call, 0 or more, that gives it."""
        bare, wanted = steps[at[chosen], chosen], published[chosen]
        calls = np.unique(np.concatenate([[0.0], wanted - bare]))
        calls = calls[calls >= 0]
        errors = np.abs((bare + calls[:, None]) / wanted - 1.0).sum(axis=1)
        best = int(errors.argmin())
        return float(errors[best]), float(calls[best])

    def error(at: np.ndarray) -> float:
        return sum(best_call(at, chosen)[0] for chosen in frameworks.values())

    def moved(at: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Return the rows with those of some samples where the error is least."""
        best, least = at, error(at)
        for row in range(len(CYCLES)):
            tried = at.copy()
            tried[columns] = row
            found = error(tried)
            if found < least - _ALIKE:
                best, least = tried, found
        return best

    rows = moved(np.zeros(len(samples), dtype=np.intp), np.arange(len(samples)))
    before = np.full_like(rows, -1)
    while (before != rows).any():
        before, rows = rows, reduce(moved, stacks.values(), rows)

    def fitted(value: float, chosen: np.ndarray) -> Fitted:
        return Fitted(value=value, rows=tuple(known["row_id"][chosen]))

    calls = {name: fitted(best_call(rows, own)[1], own) for name, own in frameworks.items()}
    cycles = {name: fitted(float(CYCLES[rows[own[0]]]), own) for name, own in stacks.items()}
    return StepCosts(runs=runs, calls=calls, supersteps=cycles)


def costs_without(samples: Iterable[Sample], family: str | None = None) -> StepCosts:
    """Return the costs fitted on all samples but those of one family."""
    return fit_step_costs(tuple(item for item in samples if item.row.family != family))


def fit_power_scales(predictor: PooledPredictor) -> PowerScales:
    """Fit the factors on dynamic energy to the power that Qwant's tables imply.

    Non-negative least squares on the energies of the specification tier. Static power and the
    energy per exchanged byte stay at their sourced values, and energy is spent over the published
    step, so that an error of time does not become one of power.
    """
    from scipy.optimize import nnls  # a second to import, for `ipusim calibrate --power` alone

    throughput = {row.run.run_id: row for row in load_rows(study=POWER_STUDY, metric="throughput")}
    rows = load_rows(study=POWER_STUDY, metric="efficiency")
    parts_w, wanted_w = [], []
    for row in rows:
        rate = throughput[row.run.run_id].value
        report = predictor.answer(request_for(row.run, "specification"))
        parts = report.power_parts_w
        faster = rate / report.throughput
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


def calibrate(predictor: PooledPredictor, *, power: bool = False, gpu: bool = False) -> Calibration:
    """Fit the constants on all rows that may be used and write them down.

    Nothing of an earlier calibration enters but what is kept: intervals and, unless `power` and
    `gpu`, the factors on dynamic energy and the constants of GPU stacks.
    """
    samples = samples_of(fitting_rows(), predictor)
    kept = load_calibration()
    fitted = Calibration(
        steps=costs_without(samples),
        power=fit_power_scales(predictor) if power else kept.power,
        scale_out=fit_scale_out(samples_of(scaling_rows(), predictor)),
        compile=fit_compile(),
        gpu=fit_gpu() if gpu else kept.gpu,
        intervals=kept.intervals,
        known_families=kept.known_families,
        ran=ran(predictor),
    )
    save_calibration(fitted)
    return fitted
