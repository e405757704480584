"""Published GPU rows against their predictions, each with a constant that never saw its model.

Intervals are conformal: order statistics of errors that were made on what was left out.
"""

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np
import pandas as pd

from ipusim.errors import StudyError
from ipusim.study.data.gpu_rows import load_gpu_rows, modelled_gpu_rows
from ipusim.study.fit.gpu import GpuSample, fit_kernel_cost, gpu_samples
from ipusim.study.verdicts.errors import error_percent, errors_by_group, errors_of

_PRINTED = ("row_id", "network", "model", "task", "gpu", "gpus", "framework", "stack", "mode",
            "precision", "batch", "unit", "published", "left_out", "flag")  # fmt: skip
_MODELLED = ("gpu", "mode", "precision")
"""What a row says by another name than `simulate_gpu`."""
TAIL = 0.1
"""Share of new measurements beyond either end of an interval, between which 80 % lie."""


@lru_cache(maxsize=1)
def _samples() -> tuple[GpuSample, ...]:
    """Return the samples of every modelled row; they take seconds to predict."""
    return gpu_samples(modelled_gpu_rows())


def gpu_compare(samples: Sequence[GpuSample] | None = None) -> pd.DataFrame:
    """Compare every published GPU row with what is predicted for it, per second of all boards.

    ``specification`` has nothing fitted, ``predicted`` the constant of the row's stack, fitted
    without the row's own model on ``fitted_rows`` rows; ``left_out`` says why nothing is predicted.
    """
    known = _samples() if samples is None else tuple(samples)
    by_id = {item.row.row_id: item for item in known}
    costs = {
        key: fit_kernel_cost(key[0], known, without_network=key[1])
        for key in {(item.row.stack, item.row.network) for item in known}
    }
    lines = []
    for row in load_gpu_rows():
        line = {name: getattr(row, name) for name in _PRINTED}
        line |= {name: row.options[name] for name in _MODELLED if row.options}
        if sample := by_id.get(row.row_id):
            items = row.gpus * row.batch
            cost = costs[row.stack, row.network]
            predicted = items / sample.step_s(cost.value)
            line |= {
                "specification": items / sample.step_s(0.0),
                "predicted": predicted,
                "error_percent": error_percent(predicted, row.published),
                "fitted_rows": len(cost.rows),
            }
        lines.append(line)
    return pd.DataFrame(lines).astype({"fitted_rows": "Int64"})


def gpu_summary(frame: pd.DataFrame, by: Sequence[str] = ()) -> pd.DataFrame:
    """Summarise `gpu_compare` by group, leave one model out; the median without constant too."""
    used = frame[frame["left_out"] == ""]
    table = errors_by_group(used, by, "median", "mean", "max", "bias", sort=True)
    free = used.assign(error_percent=errors_of(used, "specification"))
    free = errors_by_group(free, by, "median", sort=True)["median_abs_error_percent"]
    return table.assign(specification_median_abs_error_percent=free)


def conformal_bounds(ratios: Iterable[float]) -> tuple[float, float]:
    """Return the factors on a prediction between which a new measurement is expected.

    Split-conformal quantiles of published over predicted, each from a fit without what the row
    belongs to: with n rows the ends are the order statistics floor((n + 1) a) and ceil((n + 1) (1 -
    a)), a = `TAIL` (Lei et al. 2018, arXiv:1604.04173, one-sided on either side). A ratio keeps its
    order under the logarithm, so these are the quantiles of the logarithmic error too. A StudyError
    if there are too few rows.
    """
    ordered = np.sort(np.fromiter(ratios, dtype=np.float64))
    low = math.floor((ordered.size + 1) * TAIL)
    high = math.ceil((ordered.size + 1) * (1.0 - TAIL))
    if low < 1 or high > ordered.size:
        raise StudyError(
            f"{ordered.size} rows are too few for an interval of {1 - 2 * TAIL:.0%}: "
            f"use at least {math.ceil(1 / TAIL) - 1} rows."
        )
    return float(ordered[low - 1]), float(ordered[high - 1])


def conformal_ratios(frame: pd.DataFrame, **alike: str) -> tuple[float, float]:
    """Return the `conformal_bounds` of rows of `gpu_compare`: not left out, with such cells."""
    used = frame[(frame[["left_out", *alike]] == ["", *alike.values()]).all(axis=1)]
    return conformal_bounds(used["published"] / used["predicted"])
