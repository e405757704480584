"""Published GPU rows against their predictions, each with a constant that never saw its model.

Intervals are conformal: order statistics of errors that were made on what was left out.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from ipusim.errors import StudyError
from ipusim.study.data.gpu_rows import load_gpu_rows
from ipusim.study.fit.gpu import fit_kernel_cost, gpu_samples, step_s
from ipusim.study.verdicts.errors import errors_by_group, errors_of

_PRINTED = ("row_id", "network", "model", "task", "gpu", "gpus", "framework", "stack", "mode",
            "precision", "batch", "unit", "published", "left_out", "flag")  # fmt: skip
_MODELLED = {"gpu": "gpu", "mode": "mode", "precision": "precision", "stack": "framework"}
"""What a row says by another name than the option of `simulate_gpu`, or not at all."""
TAIL = 0.1
"""Share of new measurements beyond either end of an interval, between which 80 % lie."""


def gpu_compare(samples: pd.DataFrame | None = None) -> pd.DataFrame:
    """Compare every published GPU row with what is predicted for it, per second of all boards.

    ``specification`` has nothing fitted, ``predicted`` the constant of the row's stack, fitted
    without the row's own model on ``fitted_rows`` rows; ``left_out`` says why nothing is predicted.
    """
    known = gpu_samples() if samples is None else samples
    compared = []
    for (stack, network), own in known.groupby(["stack", "network"]):
        cost = fit_kernel_cost(known[(known["stack"] == stack) & (known["network"] != network)])
        rates = {"specification": own["items"] / step_s(own, 0.0)}
        rates |= {"predicted": own["items"] / step_s(own, cost.value)}
        compared.append(own[["row_id"]].assign(**rates, fitted_rows=len(cost.rows)))
    printed = pd.DataFrame(
        {name: getattr(row, name, "") for name in _PRINTED}
        | {name: row.options[option] for name, option in _MODELLED.items() if row.options}
        for row in load_gpu_rows()
    )
    frame = printed.merge(pd.concat(compared), how="left", on="row_id")
    return frame.assign(error_percent=errors_of(frame)).astype({"fitted_rows": "Int64"})


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
