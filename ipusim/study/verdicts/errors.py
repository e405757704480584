"""How far off predictions are: one error, one rule of verdicts, the same figures in every table."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from ipusim.view import HIT_PERCENT, NEAR_PERCENT

VERDICTS = ("hit", "near", "miss")
RATE_METRICS = ("throughput", "throughput_epoch1")
"""Metrics that are judged as printed and by their time."""
_FIGURES: dict[str, tuple[str, Callable[[np.ndarray], float]]] = {
    "median": ("median_abs_error_percent", lambda errors: np.median(np.abs(errors))),
    "mean": ("mean_abs_error_percent", lambda errors: np.mean(np.abs(errors))),
    "p90": ("p90_abs_error_percent", lambda errors: np.percentile(np.abs(errors), 90)),
    "max": ("max_abs_error_percent", lambda errors: np.max(np.abs(errors))),
    "bias": ("bias_percent", np.mean),
}


def error_percent(predicted: float, published: float) -> float:
    """Return 100 x (predicted / published - 1); NaN where either is NaN or published is 0."""
    if not published or math.isnan(published):
        return math.nan
    return 100.0 * (predicted / published - 1.0)


def size_percent(predicted: float, published: float, metric: str = "") -> float:
    """Return how far off a prediction is in percent; NaN as `error_percent`.

    Of a rate it is the larger of the errors as printed and of its time: twice the rate is 100 % as
    printed and 50 % of the time, half the rate 50 % and 100 %.
    """
    size = abs(error_percent(predicted, published))
    if metric in RATE_METRICS and not math.isnan(size):
        size = max(size, abs(error_percent(published, predicted)))
    # rounded so that a printed 10 % counts as 10 % whatever the last bit of the division
    return round(size, 9)


def verdict_of(predicted: float, published: float, metric: str = "") -> str:
    """Judge `size_percent`: "hit" up to 10 %, "near" up to 25 %, else "miss"; "" for NaN."""
    size = size_percent(predicted, published, metric)
    if math.isnan(size):
        return ""
    if size <= HIT_PERCENT:
        return "hit"
    return "near" if size <= NEAR_PERCENT else "miss"


def errors_of(
    frame: pd.DataFrame, column: str = "predicted", against: str = "published"
) -> list[float]:
    """Return the `error_percent` of a column against another, row by row."""
    return [error_percent(*pair) for pair in zip(frame[column], frame[against], strict=True)]


def sizes_of(frame: pd.DataFrame, column: str = "predicted") -> list[float]:
    """Return the `size_percent` of a column against ``published`` by ``metric``, row by row."""
    return [size_percent(*row) for row in _judged(frame, column)]


def verdicts_of(frame: pd.DataFrame, column: str = "predicted") -> list[str]:
    """Return the `verdict_of` of a column against ``published`` by ``metric``, row by row."""
    return [verdict_of(*row) for row in _judged(frame, column)]


def _judged(frame: pd.DataFrame, column: str) -> Iterator[tuple[float, float, str]]:
    return zip(frame[column], frame["published"], frame["metric"], strict=True)


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


def grouped(
    frame: pd.DataFrame, by: Sequence[str], *, sort: bool = False
) -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:
    """Yield the cells that name each group, and its rows; without columns all are one group."""
    for key, group in frame.groupby(list(by), sort=sort) if by else [((), frame)]:
        yield dict(zip(by, key, strict=True)), group


def errors_by_group(
    frame: pd.DataFrame, by: Sequence[str], *names: str, sort: bool = False
) -> pd.DataFrame:
    """Return rows and `error_figures` of the column ``error_percent`` per group."""
    return pd.DataFrame(
        head | {"rows": len(group)} | error_figures(group["error_percent"], *names)
        for head, group in grouped(frame, by, sort=sort)
    )
