"""The 80 % interval of each class of runs, from the errors of families that were left out.

A class is what a user can tell of a run: a network of a family that the simulator was developed on
or a new one, inference or training, and the chip where enough families have rows on it. Each family
counts once, however many rows it has, and was predicted with constants that it had no part in. The
interval of a row comes from other families only, so the coverage is that of families never seen;
it does not depend on the number of machines.
"""

import math
from collections.abc import Collection
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pandas as pd

from ipusim.machine import load_system
from ipusim.runtime.calibration import (
    Interval,
    interval_classes,
    load_calibration,
    save_calibration,
)
from ipusim.study.cached import PooledPredictor
from ipusim.study.verdicts.compare import PREDICTED, tests_in, time_ratio, verdicts

COVERAGE = 0.8
FIT_METRICS = ("throughput", "latency", "time_to_train", "time_to_result")
"""What intervals are given for. A latency is not its throughput over again where batches queue."""
LEAST_FAMILIES = 4
"""A class with fewer has no interval: with one left out, three show a spread."""
LEAST_ROWS_PER_FAMILY = 8
"""A chip with fewer in a class takes that of all chips: so few say more of networks than of it."""
_DIGITS = 4


def residuals(frame: pd.DataFrame, known: Collection[str]) -> pd.DataFrame:
    """Return per row of `FIT_METRICS` its classes and ``miss``, ln(published / predicted time)."""
    used = frame[(frame["status"] == PREDICTED) & frame["metric"].isin(FIT_METRICS)]
    lines = []
    for row in used.to_dict("records"):
        ratio = time_ratio(row["metric"], row["published"], row["calibrated"])
        if math.isfinite(ratio) and ratio > 0:
            chip = load_system(row["system"]).chip.name
            narrow, wide = interval_classes(row["family"], row["mode"], chip, known)
            lines.append((row["row_id"], row["family"], narrow, wide, math.log(ratio)))
    return pd.DataFrame(lines, columns=["row_id", "family", "narrow", "wide", "miss"])


def predictive_bounds(rows: pd.DataFrame) -> tuple[float, float]:
    """Return the factors between which the measurement of a family without `residuals` is expected.

    exp(m -+ z sqrt(T (1 + 1/F) + W)): m mean and T variance of the means of F families, W mean of
    the variances within those of two rows or more, z the normal quantile of `COVERAGE`. It is the
    prediction interval of a random-effects model (Higgins, Thompson and Spiegelhalter 2009,
    J. R. Stat. Soc. A 172:137), there with Student's quantile.

    Notes
    -----
    Chosen after seeing what it holds on families left out [A]: of the rows of known families
    and new networks, in inference and training, Student's quantile holds 86 to 100 %, order
    statistics 51 to 83 %, this one 75 to 86 %.
    """
    groups = rows.groupby("family")["miss"]
    means = groups.mean()
    between = float(means.var(ddof=1)) * (1.0 + 1.0 / len(means))
    half = NormalDist().inv_cdf(0.5 + COVERAGE / 2) * math.sqrt(
        between + float(groups.var(ddof=1).mean())
    )
    middle = float(means.mean())
    low, high = np.round(np.exp([middle - half, middle + half]), _DIGITS)
    return float(low), float(high)


def fit_intervals(frame: pd.DataFrame) -> dict[str, Interval]:
    """Take the interval of every class of runs from the errors of verdicts on all rows."""
    known = residuals(frame, load_calibration().known_families)
    found = {}
    for column in ("wide", "narrow"):
        for kind, rows in known.groupby(column):
            families = sorted(set(rows["family"]))
            least = LEAST_ROWS_PER_FAMILY * len(families) if column == "narrow" else 0
            if len(families) < LEAST_FAMILIES or len(rows) < least:
                continue
            low, high = predictive_bounds(rows)
            found[kind] = Interval(
                kind=kind,
                low=low,
                high=high,
                rows=tuple(rows["row_id"]),
                without={one: predictive_bounds(rows[rows["family"] != one]) for one in families},
            )
    return dict(sorted(found.items()))


def calibrate_intervals(predictor: PooledPredictor) -> dict[str, Interval]:
    """Fit the intervals to all rows and write them down; the rest of the file is kept."""
    fitted = fit_intervals(verdicts(predictor=predictor))
    save_calibration(replace(load_calibration(), intervals=fitted))
    return fitted


def coverage_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Count how many published values of `verdicts` lie in the interval that their row got.

    Per class of runs, per metric and for all, of the rows that are a test; inside are rows, and the
    same with each family counted once.
    """
    tests = tests_in(frame)
    groups = [tests.groupby(name, sort=True) for name in ("kind", "metric")]
    lines = []
    for kind, group in [*groups[0], *groups[1], ("all", tests)]:
        given = group[group["low80"].notna() & group["high80"].notna()]
        inside = (given["low80"] <= given["published"]) & (given["published"] <= given["high80"])
        families = inside.groupby(given["family"]).mean()
        lines.append(
            {
                "kind": kind,
                "rows": len(given),
                "families": len(families),
                "inside_percent": 100.0 * float(inside.mean()),
                "inside_by_family_percent": 100.0 * float(families.mean()),
                "median_high_over_low": float((given["high80"] / given["low80"]).median()),
                "without_interval": len(group) - len(given),
            }
        )
    return pd.DataFrame(lines)


def stale_kinds(frame: pd.DataFrame) -> list[str]:
    """Return the classes whose interval in ``data/calibration.toml`` is not what the rows give."""
    kept, fitted = load_calibration().intervals, fit_intervals(frame)
    return sorted(kind for kind in kept | fitted if kept.get(kind) != fitted.get(kind))
