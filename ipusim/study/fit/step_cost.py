"""Fitting the few constants: two costs of each software stack, and two of power.

A call from the host, in seconds per step, and control code, in cycles per superstep with an
exchange, enter a step as max(floor, base + costs) (`ipusim.runtime.terms.Line`): base is everything
that happens in turn, floor what runs beside it (the host link, or the device where transfers
overlap). The mean of |step / published - 1| is then piecewise linear in the call, so that for each
number of cycles its minimum lies at a kink and is found exactly: robust against single rows, the
same on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

from ipusim import files
from ipusim.files import write_text
from ipusim.runtime.calibration import FittedCosts
from ipusim.study.data.published import PublishedRow, load_rows
from ipusim.study.fit.calibration_file import (
    CALIBRATION_FILE,
    Calibration,
    PowerScales,
    StepCost,
    calibration_text,
    load_calibration,
)
from ipusim.study.fit.samples import Sample, samples_of
from ipusim.study.fit.scale_out import fit_compile, fit_scale_out, scaling_rows
from ipusim.study.predict import Predictor, predict

FITTING_STUDY = "results"
"""Only the results page is fitted on: its recipes are public. Qwant, TAMU and Argonne never are."""
POWER_STUDY = "qwant"
"""The only study that publishes power."""

_ALIKE = 1e-9
"""Errors this near are taken for equal, so that the last bit of a sum decides nothing."""

MOST_CYCLES, CYCLES_STEP = 2000, 10
"""The cost of a superstep is looked for up to here, in steps of so many cycles."""


def fitting_rows() -> tuple[PublishedRow, ...]:
    """Return the published rows that the costs per step and superstep may be fitted on.

    Modelled inference throughput rows of the results page with one chip per replica: what several
    chips or a training step add are not to leak into the costs.
    """
    rows = load_rows(study=FITTING_STUDY, metric="throughput")
    return tuple(
        row
        for row in rows
        if not row.not_modelled
        and row.run.mode == "inference"
        and (row.run.ipus_per_replica or 1) == 1
    )


def _sides_s(samples: Sequence[Sample], cycles: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the floors and bases of samples of one chip, calls apart, in seconds."""
    costs = FittedCosts(exchange_cycles=cycles)
    lines = [item.line for item in samples]
    return (
        np.array([line.floor_at(costs) for line in lines]),
        np.array([line.busy_s(costs) for line in lines]),
    )


def steps_s(samples: Sequence[Sample], calls_s: np.ndarray | float, cycles: float) -> np.ndarray:
    """Return the predicted steps, in seconds: one line per call, one column per sample."""
    floor, base = _sides_s(samples, cycles)
    return np.maximum(floor, base + np.atleast_1d(np.asarray(calls_s, dtype=np.float64))[:, None])


@lru_cache(maxsize=256)
def fit_step_cost(samples: tuple[Sample, ...]) -> tuple[float, float]:
    """Return the seconds per step and cycles per superstep that fit the samples best.

    At least 0 both: those with the least mean absolute relative error of time, the fewest cycles
    of equally good ones; exactly 0 for no samples.
    """
    if not samples:
        return 0.0, 0.0
    published = np.array([item.published_s for item in samples])
    best = (math.inf, 0.0, 0.0)
    for cycles in range(0, MOST_CYCLES + 1, CYCLES_STEP):
        floor, base = _sides_s(samples, cycles)
        calls = np.unique(np.concatenate([[0.0], published - base, floor - base]))
        calls = calls[calls >= 0]
        errors = np.abs(steps_s(samples, calls, cycles) / published - 1.0).mean(axis=1)
        at = int(errors.argmin())
        if errors[at] < best[0] - _ALIKE:
            best = (float(errors[at]), float(calls[at]), float(cycles))
    return best[1], best[2]


def step_cost_for(
    stack: str, samples: Iterable[Sample], *, without_family: str | None = None
) -> StepCost:
    """Return the costs of a stack, fitted on its own samples but those of one family.

    0 when it has none left: how long one stack takes to start a step says nothing about another.
    """
    used = tuple(i for i in samples if i.stack == stack and i.family != without_family)
    call_s, cycles = fit_step_cost(used)
    return StepCost(
        value_s=call_s,
        superstep_cycles=cycles,
        rows=tuple(sample.row_id for sample in used),
    )


def fit_power_scales(predictor: Predictor) -> PowerScales:
    """Fit the factors on dynamic energy to the power that Qwant's tables imply.

    Non-negative least squares on the energies of the specification tier. Static power and the
    energy per exchanged byte stay at their sourced values, and energy is spent over the published
    step, so that an error of time does not become one of power.
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

    Nothing of an earlier calibration enters but what is kept: GPUs, intervals and, unless `power`,
    the factors on dynamic energy.
    """
    samples = samples_of(fitting_rows(), predictor)
    stacks = sorted({row.stack for row in load_rows() if not row.not_modelled})
    kept = load_calibration()
    fitted = Calibration(
        step_costs={stack: step_cost_for(stack, samples) for stack in stacks},
        power=fit_power_scales(predictor) if power else kept.power,
        scale_out=fit_scale_out(samples_of(scaling_rows(), predictor)),
        compile=fit_compile(),
        gpu=kept.gpu,
        intervals=kept.intervals,
        known_families=kept.known_families,
    )
    write_text(path or files.data_dir() / CALIBRATION_FILE, calibration_text(fitted))
    return fitted
