"""Fitting the one constant of each GPU software stack: what it adds to every kernel.

A step is predicted as roofline + kernels x constant + what nothing hides of the gradient
reduction. The sum of |log(step / published)| is concave between the constants that meet a row
exactly, so its minimum is one of those and is found exactly: robust against single rows, a factor
two too fast as bad as a factor two too slow, the same on every machine.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from ipusim.machine import names
from ipusim.runtime.calibration import Fitted
from ipusim.runtime.gpu.kernels import GpuStack
from ipusim.runtime.gpu.step import simulate_gpu
from ipusim.study.data.gpu_rows import GpuRow, build_network, modelled_gpu_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """One published row beside its prediction, roofline_s + kernels x constant seconds."""

    row: GpuRow
    roofline_s: float
    kernels: int  # that the host starts

    def step_s(self, cost_s: float) -> float:
        """Return the predicted step at a constant, in seconds."""
        return self.roofline_s + self.kernels * cost_s


def gpu_samples(rows: Iterable[GpuRow] | None = None) -> tuple[GpuSample, ...]:
    """Predict the rooflines of rows, by default every modelled one; nothing fitted is read."""
    samples = []
    for row in modelled_gpu_rows() if rows is None else rows:
        report = simulate_gpu(build_network(row.model, row.task), op_s=0.0, **row.options)
        samples.append(GpuSample(row=row, roofline_s=report.step_s, kernels=report.host_ops))
    return tuple(samples)


def fit_kernel_cost(
    stack: str, samples: Iterable[GpuSample], *, without_network: str | None = None
) -> Fitted:
    """Return the constant of a stack, fitted on its samples but those of one model.

    At least 0; the smallest of equally good values; 0 where no row is left.
    """
    of_stack = [item for item in samples if item.row.stack == stack]
    used = [item for item in of_stack if item.row.network != without_network]
    exact = {(item.row.step_s - item.roofline_s) / item.kernels for item in used}
    candidates = sorted({0.0, *(value for value in exact if value > 0)})

    def error(value: float) -> float:
        return sum(abs(math.log(item.step_s(value) / item.row.step_s)) for item in used)

    rows = tuple(item.row.row_id for item in used)
    return Fitted(value=min(candidates, key=error), rows=rows)


def fit_gpu(samples: Iterable[GpuSample] | None = None) -> dict[str, Fitted]:
    """Return the constant of every stack, fitted on all its rows."""
    known = gpu_samples() if samples is None else tuple(samples)
    return {stack: fit_kernel_cost(stack, known) for stack in names(GpuStack)}
