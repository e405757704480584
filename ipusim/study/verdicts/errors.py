"""How far off predictions are: the same few figures in every table."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

_FIGURES: dict[str, tuple[str, Callable[[np.ndarray], float]]] = {
    "median": ("median_abs_error_percent", lambda errors: np.median(np.abs(errors))),
    "mean": ("mean_abs_error_percent", lambda errors: np.mean(np.abs(errors))),
    "p90": ("p90_abs_error_percent", lambda errors: np.percentile(np.abs(errors), 90)),
    "max": ("max_abs_error_percent", lambda errors: np.max(np.abs(errors))),
    "bias": ("bias_percent", np.mean),
}


def error_figures(errors: ArrayLike, *names: str) -> dict[str, float]:
    """Summarise signed errors in percent by column name, in the order asked for.

    Names are "median", "mean", "p90" (90th percentile) and "max", all of absolute errors, and
    "bias", the mean of signed ones. Errors that are no number do not count; NaN where none is left.
    """
    known = np.asarray(errors, dtype=np.float64)
    known = known[~np.isnan(known)]
    found = {}
    for name in names:
        column, figure = _FIGURES[name]
        found[column] = float(figure(known)) if known.size else math.nan
    return found
