"""Conformal intervals: order statistics of errors that were made on what was left out."""

import math
from collections.abc import Iterable

import numpy as np

from ipusim.errors import StudyError


def least_rows(coverage: float) -> int:
    """Return the fewest rows that give an interval of this coverage."""
    return math.ceil(1.0 / _tail(coverage)) - 1


def conformal_bounds(ratios: Iterable[float], coverage: float = 0.8) -> tuple[float, float]:
    """Return the factors on a prediction between which a new measurement is expected.

    Split-conformal quantiles of published over predicted, each from a fit without what the row
    belongs to: with n rows the ends are the order statistics floor((n + 1) a) and
    ceil((n + 1) (1 - a)), a = (1 - coverage) / 2 (Lei et al. 2018, arXiv:1604.04173, one-sided on
    either side). A ratio keeps its order under the logarithm, so these are the quantiles of the
    logarithmic error too. A StudyError if there are too few rows.
    """
    tail = _tail(coverage)
    ordered = np.sort(np.fromiter(ratios, dtype=np.float64))
    low = math.floor((ordered.size + 1) * tail)
    high = math.ceil((ordered.size + 1) * (1.0 - tail))
    if low < 1 or high > ordered.size:
        raise StudyError(
            f"{ordered.size} rows are too few for an interval of {coverage:.0%}: "
            f"use at least {least_rows(coverage)} rows."
        )
    return float(ordered[low - 1]), float(ordered[high - 1])


def _tail(coverage: float) -> float:
    if not 0 < coverage < 1:
        raise StudyError(f"Coverage {coverage!r} must lie between 0 and 1.")
    return round((1.0 - coverage) / 2.0, 12)  # so that 0.8 leaves 0.1 and not a bit less
