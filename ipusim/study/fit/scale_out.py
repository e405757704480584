"""Fitting the two constants of scale-out, and the one of compilation.

Slowdowns are fitted, not levels: how much longer a replica takes per item than on the smallest
system of its series. Levels miss for reasons of their own, and must not leak into these constants.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
import pandas as pd

from ipusim.files import evidence_records
from ipusim.machine import load_chip
from ipusim.runtime.calibration import Fitted, FittedCosts, ScaleOut
from ipusim.study.data.published import PublishedRow, load_rows
from ipusim.study.fit.samples import Sample

STENCIL_SUPERSTEPS = 12
"""Supersteps of the stencil program whose compile times were published (its source is public:
thorbenlouw/lbm-graphcore, GaussianBlurLowLevel.cpp)."""


def scaling_rows() -> tuple[PublishedRow, ...]:
    """Return the modelled throughput rows that belong to a series."""
    rows = load_rows(metric="throughput")
    return tuple(row for row in rows if row.run.series and not row.not_modelled)


def scaling_table(samples: Sequence[Sample]) -> pd.DataFrame:
    """Compare slowdowns: how much longer a chip takes per item than in the smallest system.

    Left out is the row's own series in the fit of the collective latency.
    """
    fitted, rows = fit_scale_out(samples).beside(FittedCosts()), []
    for smallest, *others in _by_series(samples):
        apart = fit_scale_out(samples, without_series=smallest.row.run.series)
        left_out = apart.beside(FittedCosts())
        for sample in others:
            # The items of a step may differ along a series; in errors that factor cancels, while
            # the published ratio is of items per second.
            published = sample.published_s / smallest.published_s
            error, own = (
                sample.line.step_s(costs) / smallest.line.step_s(costs) / published - 1.0
                for costs in (fitted, left_out)
            )
            run, alone = sample.row.run, smallest.row.run
            work = run.items_per_step / alone.items_per_step * alone.chips / run.chips
            rows.append(
                {
                    "series": run.series,
                    "row_id": sample.row.row_id,
                    "ipus": run.chips,
                    "published_slowdown": published / work,
                    "predicted_slowdown": published / work * (1 + error),
                    "error_percent": 100 * error,
                    "left_out_error_percent": 100 * own,
                }
            )
    return pd.DataFrame(rows)


def _by_series(samples: Sequence[Sample]) -> list[list[Sample]]:
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.row.run.series, []).append(sample)
    return [sorted(group, key=lambda item: item.row.run.chips) for group in groups.values()]


def fit_scale_out(samples: Sequence[Sample], *, without_series: str | None = None) -> ScaleOut:
    """Fit both constants: each is the median of those that make one row exact, 0 where none does.

    The latency of a reduction comes from the pairs of neighbours in a series of which only the
    larger one pays it; the latency of a collective from all rows that pay more of it than the
    smallest of their series, those of `without_series` left out. That of a reduction is the same
    for all: one row alone is such a pair, it is not counted as a test, and all that pay are of its
    family, so that nothing would be left to fit it on.
    """
    groups, reductions = _by_series(samples), {}
    for one, two in (pair for group in groups for pair in pairwise(group)):
        if not one.line.reductions and two.line.reductions:
            wanted = two.published_s / one.published_s * one.line.step_s(FittedCosts())
            exact = (wanted - two.line.base_s) / two.line.reductions
            reductions[two.row.row_id] = exact
    reduction_s = _median(reductions.values(), digits=8)
    collectives = {
        sample.row.row_id: latency
        for group in groups
        if group[0].row.run.series != without_series
        for sample in group[1:]
        if sample.line.collectives > group[0].line.collectives
        if (latency := _exact_collective_s(group[0], sample, reduction_s)) is not None
    }
    return ScaleOut(
        reduction=Fitted(value=reduction_s, rows=tuple(reductions)),
        collective=Fitted(value=_median(collectives.values(), digits=7), rows=tuple(collectives)),
    )


def _median(values: Iterable[float], *, digits: int) -> float:
    """Median of latencies in seconds, none below 0; 0 for none."""
    known = [max(0.0, value) for value in values]
    return round(float(np.median(known)), digits) if known else 0.0


def _exact_collective_s(one: Sample, two: Sample, reduction_s: float) -> float | None:
    """Return the latency that makes the slowdown exact; None where the host holds the larger."""
    # A smaller system that the host holds takes as long at any latency that stays below its floor.
    ratio = two.published_s / one.published_s
    free = FittedCosts(reduction_s=reduction_s)
    small, large = one.line.busy_s(free), two.line.busy_s(free)
    latency = (ratio * one.line.beside_s - large) / two.line.collectives
    if small + one.line.collectives * latency > one.line.beside_s:
        latency = (ratio * small - large) / (two.line.collectives - ratio * one.line.collectives)
    held = large + two.line.collectives * max(0.0, latency) < two.line.beside_s
    return None if held else latency


def fit_compile() -> Fitted:
    """Fit seconds per compiled vertex and tile to compile times of a stencil: least squares."""
    tiles, records = load_chip("GC2").tiles, evidence_records("ipu_microbench.csv")
    known = [row for row in records if row["metric"] == "compile_time"]
    seconds = {int(row["size"].split()[0]): float(row["value"]) for row in known}
    vertices = {ipus: ipus * tiles * STENCIL_SUPERSTEPS for ipus in seconds}
    weighted = sum(seconds[ipus] * count for ipus, count in vertices.items())
    value = weighted / sum(count**2 for count in vertices.values())
    return Fitted(value=value, rows=tuple(f"compile time on {ipus} IPUs" for ipus in seconds))
