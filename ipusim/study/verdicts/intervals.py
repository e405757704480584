"""The 80 % interval of each kind of run, from the errors of families that were left out.

What is kept is published over predicted *time*. The interval of a row comes from rows of other
families only, and each of those was predicted with constants that its own family had no part in; so
the coverage of the rows is that of families never seen.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pandas as pd

from ipusim import files
from ipusim.files import write_text
from ipusim.runtime.calibration import INTERVAL_KINDS
from ipusim.study.fit.calibration_file import (
    CALIBRATION_FILE,
    Interval,
    calibration_text,
    load_calibration,
)
from ipusim.study.predict import Predictor
from ipusim.study.verdicts.compare import PREDICTED, time_ratio, verdicts
from ipusim.study.verdicts.conformal import conformal_bounds

COVERAGE = 0.8
FIT_METRICS = ("throughput", "latency", "time_to_train")
"""What intervals are given for. A latency is not its throughput over again where batches queue."""
LEAST_ROWS = 10
"""A kind with fewer rows left, or with one family, takes the rows of all kinds: 9 are the fewest
that have order statistics at 10 and 90 %."""
LEAST_FAMILIES = 2
_DIGITS = 4


def residuals(frame: pd.DataFrame) -> pd.DataFrame:
    """Return how each row's left-out prediction missed.

    Returns
    -------
    pandas.DataFrame
        Per row of one of `FIT_METRICS`: row_id, family, kind, and ratio, published over
        predicted time of the calibrated tier.
    """
    used = frame[(frame["status"] == PREDICTED) & frame["metric"].isin(FIT_METRICS)]
    ratios = [
        time_ratio(metric, published, predicted)
        for metric, published, predicted in zip(
            used["metric"], used["published"], used["calibrated"], strict=True
        )
    ]
    known = used[["row_id", "family", "kind"]].assign(ratio=ratios)
    return known[known["ratio"].map(lambda ratio: math.isfinite(ratio) and ratio > 0)]


def _chosen(known: pd.DataFrame, kind: str, without_family: str | None) -> pd.DataFrame:
    """Return the rows that the interval of a kind is taken from."""
    others = known[known["family"] != without_family]
    own = others[others["kind"] == kind]
    enough = len(own) >= LEAST_ROWS and own["family"].nunique() >= LEAST_FAMILIES
    return own if enough else others


def _bounds(rows: pd.DataFrame) -> tuple[float, float]:
    low, high = conformal_bounds(rows["ratio"], COVERAGE)
    return round(low, _DIGITS), round(high, _DIGITS)


def fit_intervals(frame: pd.DataFrame) -> dict[str, Interval]:
    """Take the interval of every kind of run from the errors of a comparison.

    Parameters
    ----------
    frame : pandas.DataFrame
        From `ipusim.study.verdicts.compare.verdicts` on all rows.

    Returns
    -------
    dict of str to Interval
        By kind; with the interval that each family gets, which its own rows have no part in.
        Empty where there are too few rows altogether.
    """
    known = residuals(frame)
    families = sorted(set(known["family"]))
    if len(known) < LEAST_ROWS or len(families) <= LEAST_FAMILIES:
        return {}
    found = {}
    for kind in INTERVAL_KINDS:
        rows = _chosen(known, kind, None)
        low, high = _bounds(rows)
        found[kind] = Interval(
            kind=kind,
            low=low,
            high=high,
            rows=tuple(rows["row_id"]),
            without={
                family: _bounds(others)
                for family in families
                if len(others := _chosen(known, kind, family)) >= LEAST_ROWS
            },
        )
    return found


def calibrate_intervals(predictor: Predictor, path: Path | None = None) -> dict[str, Interval]:
    """Fit the intervals to all rows and write them down; the rest of the file is kept.

    Parameters
    ----------
    predictor : Predictor
        What predicts.
    path : pathlib.Path, optional
        File to write; by default ``data/calibration.toml``.
    """
    target = path or files.data_dir() / CALIBRATION_FILE
    fitted = fit_intervals(verdicts(predictor=predictor))
    write_text(target, calibration_text(replace(load_calibration(path), intervals=fitted)))
    return fitted


def coverage_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Count how many published values lie in the interval that their row got.

    Parameters
    ----------
    frame : pandas.DataFrame
        From `ipusim.study.verdicts.compare.verdicts`.

    Returns
    -------
    pandas.DataFrame
        Per kind and metric, and for all rows: rows with an interval, share inside in percent,
        median width (high over low), and rows that are predicted without an interval.
    """
    predicted = frame[frame["status"] == PREDICTED]
    groups = [*predicted.groupby(["kind", "metric"], sort=True), (("all", "all"), predicted)]
    lines = []
    for (kind, metric), group in groups:
        given = group[group["low80"].notna() & group["high80"].notna()]
        inside = (given["low80"] <= given["published"]) & (given["published"] <= given["high80"])
        lines.append(
            {
                "kind": kind,
                "metric": metric,
                "rows": len(given),
                "inside_percent": 100.0 * inside.mean() if len(given) else math.nan,
                "median_high_over_low": float((given["high80"] / given["low80"]).median()),
                "without_interval": len(group) - len(given),
            }
        )
    return pd.DataFrame(lines)


def stale_kinds(frame: pd.DataFrame) -> list[str]:
    """Return the kinds whose interval in ``data/calibration.toml`` is not what the rows give.

    Parameters
    ----------
    frame : pandas.DataFrame
        From `ipusim.study.verdicts.compare.verdicts` on all rows.
    """
    kept, fitted = load_calibration().intervals, fit_intervals(frame)
    return sorted(kind for kind in kept | fitted if kept.get(kind) != fitted.get(kind))
