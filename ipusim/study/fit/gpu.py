"""Fitting the one constant of each GPU software stack: what it adds to every kernel.

A step is predicted as roofline + kernels x constant + what nothing hides of the gradient
reduction. The sum of |log(step / published)| is concave between the constants that meet a row
exactly, so its minimum is one of those and is found exactly: robust against single rows, a factor
two too fast as bad as a factor two too slow, the same on every machine.
"""

import numpy as np
import pandas as pd

from ipusim.files import once_per_data_dir
from ipusim.machine import names
from ipusim.runtime.calibration import Fitted
from ipusim.runtime.gpu.kernels import GpuStack
from ipusim.runtime.gpu.step import simulate_gpu
from ipusim.study.data.gpu_rows import build_network, load_gpu_rows


@once_per_data_dir
def gpu_samples() -> pd.DataFrame:
    """Return what every modelled row publishes and what its step consists of; it takes seconds.

    A step is predicted as ``roofline_s`` and so many ``kernels``, which the host starts, times the
    constant; nothing fitted is read.
    """
    lines = []
    for row in load_gpu_rows():
        if not row.left_out:
            report = simulate_gpu(build_network(row.model, row.task), op_s=0.0, **row.options)
            head = (row.row_id, report.stack, row.network, row.gpus * row.batch, row.published)
            lines.append((*head, report.step_s, report.host_ops))
    columns = ["row_id", "stack", "network", "items", "published", "roofline_s", "kernels"]
    return pd.DataFrame(lines, columns=columns)


def step_s(samples: pd.DataFrame, cost_s: float) -> pd.Series:
    """Return the predicted steps at a constant, in seconds."""
    return samples["roofline_s"] + samples["kernels"] * cost_s


def fit_kernel_cost(samples: pd.DataFrame) -> Fitted:
    """Return the constant of a stack, fitted on samples of it.

    At least 0; the smallest of equally good values; 0 where there is no row.
    """
    published_s = samples["items"] / samples["published"]
    exact = (published_s - samples["roofline_s"]) / samples["kernels"]

    def error(value: float) -> float:
        return float(np.abs(np.log(step_s(samples, value) / published_s)).sum())

    best = min(sorted({0.0, *exact[exact > 0]}), key=error)
    return Fitted(value=best, rows=tuple(samples["row_id"]))


def fit_gpu() -> dict[str, Fitted]:
    """Return the constant of every stack, fitted on all its rows."""
    known = gpu_samples()
    return {stack: fit_kernel_cost(known[known["stack"] == stack]) for stack in names(GpuStack)}
