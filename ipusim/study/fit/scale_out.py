"""Fitting the two constants of scale-out, and the one of compilation.

Slowdowns are fitted, not levels: how much longer a replica takes per item than on the smallest
system of its series. Levels miss for reasons of their own, and must not leak into these constants.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np
import pandas as pd

from ipusim.files import evidence_records
from ipusim.machine import load_chip
from ipusim.runtime.calibration import FittedCosts
from ipusim.runtime.compile_time import fit_s_per_tile_step
from ipusim.study.cached import prepare
from ipusim.study.data.published import PublishedRow, load_rows
from ipusim.study.data.runs import RunConfiguration
from ipusim.study.fit.calibration_file import Latency, ScaleOut
from ipusim.study.predict import Predictor, Request, predict, request_for

_PROBE_S = 1.0
"""A latency beside which everything that runs in parallel is short."""

_TOLERANCE = 1e-6
"""Rounding of a busy time that was recovered from steps with and without a probe."""

STENCIL_SUPERSTEPS = 12
"""Supersteps of the stencil program whose compile times were published (its source is public:
thorbenlouw/lbm-graphcore, GaussianBlurLowLevel.cpp)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingSample:
    """One published throughput of a series beside the step that is predicted for it.

    A step takes max(floor_s, base_s + reductions x r + collectives x c) seconds.

    Attributes
    ----------
    row_id, series : str
    ipus, items : int
        Chips in use, and items of all of them per step.
    floor_s, base_s : float
        What runs beside the chips; what does not depend on the constants.
    reductions, collectives : float
        How often each latency is paid in a step, collectives times machines.
    published_s : float
        Seconds per step that the published throughput implies.
    """

    row_id: str
    series: str
    ipus: int
    items: int
    floor_s: float
    base_s: float
    reductions: float
    collectives: float
    published_s: float

    @property
    def held_by_host(self) -> bool:
        """Whether the host and not the chips sets the predicted step, without any latency."""
        return self.floor_s > self.base_s * (1 + _TOLERANCE)

    def step_s(self, reduction_s: float, collective_s: float) -> float:
        """Return the predicted step, in seconds."""
        busy = self.base_s + self.reductions * reduction_s + self.collectives * collective_s
        return max(self.floor_s, busy)


def scaling_rows() -> tuple[PublishedRow, ...]:
    """Return the modelled throughput rows that belong to a series.

    Raises
    ------
    DataError
        If a data file is missing or damaged.
    """
    rows = load_rows(metric="throughput")
    return tuple(row for row in rows if row.run.series and not row.not_modelled)


def _costs(reduced: bool, collected: bool) -> FittedCosts:
    return FittedCosts(reduction_s=_PROBE_S * reduced, collective_s=_PROBE_S * collected)


_PROBES = tuple(_costs(*both) for both in product((False, True), repeat=2))


def scaling_requests(rows: Iterable[PublishedRow]) -> list[Request]:
    """Return what `scaling_samples` asks for: every row with and without each latency."""
    return [request_for(row.run, "calibrated", costs=costs) for row in rows for costs in _PROBES]


def _step_s(run: RunConfiguration, predictor: Predictor, costs: FittedCosts) -> float:
    report = predict(run, "calibrated", predictor=predictor, costs=costs)
    return run.items_per_step / float(report.throughput)


def scaling_samples(
    rows: Iterable[PublishedRow], predictor: Predictor
) -> tuple[ScalingSample, ...]:
    """Predict how each row's step depends on the two latencies.

    Parameters
    ----------
    rows : iterable of PublishedRow
    predictor : Predictor
        What predicts.

    Returns
    -------
    tuple of ScalingSample
        One per row, in the same order.
    """
    rows = tuple(rows)
    prepare(predictor, scaling_requests(rows))
    samples = []
    for row in rows:
        run, items = row.run, row.run.items_per_step
        free, collected, reduced, both = (_step_s(run, predictor, costs) for costs in _PROBES)
        # Where a latency is not paid at all the probe changes nothing, and the step may be bounded
        # from beside: then the busy time is known to be no more than the step.
        base = reduced + collected - both
        samples.append(
            ScalingSample(
                row_id=row.row_id,
                series=run.series,
                ipus=run.chips,
                items=items,
                floor_s=free,
                base_s=base,
                reductions=(both - collected) / _PROBE_S,
                collectives=(both - reduced) / _PROBE_S,
                published_s=run.step_s_at(row.value),
            )
        )
    return tuple(samples)


def slowdown_errors(
    samples: Sequence[ScalingSample], reduction_s: float, collective_s: float
) -> dict[str, float]:
    """Return predicted over published slowdown, less 1, of every row but the smallest of a series.

    Parameters
    ----------
    samples : sequence of ScalingSample
    reduction_s, collective_s : float
        The two constants.

    Returns
    -------
    dict of str to float
        By row identifier.
    """
    errors = {}
    for group in _by_series(samples):
        smallest = group[0]
        for sample in group[1:]:
            predicted = sample.step_s(reduction_s, collective_s) / smallest.step_s(
                reduction_s, collective_s
            )
            published = sample.published_s / smallest.published_s
            # The items of a step may differ along a series; that factor is in both and cancels.
            errors[sample.row_id] = predicted / published - 1.0
    return errors


def scaling_table(samples: Sequence[ScalingSample]) -> pd.DataFrame:
    """Compare slowdowns: how much longer a chip takes per item than in the smallest system.

    Parameters
    ----------
    samples : sequence of ScalingSample

    Returns
    -------
    pandas.DataFrame
        One row per sample but the smallest of its series: series, row_id, ipus, published and
        predicted slowdown, its error in percent with the constants of all rows, and with the
        collective latency fitted without the row's own series.
    """
    fitted = fit_scale_out(samples)
    constants = fitted.reduction.value_s, fitted.collective.value_s
    errors = slowdown_errors(samples, *constants)
    rows = []
    for group in _by_series(samples):
        left_out = fit_scale_out(samples, without_series=group[0].series)
        own = slowdown_errors(group, left_out.reduction.value_s, left_out.collective.value_s)
        smallest = group[0]
        for sample in group[1:]:
            # Items per step cancel against the published ratio, which is of items per second.
            published = sample.published_s / smallest.published_s
            work = sample.items / smallest.items * smallest.ipus / sample.ipus
            rows.append(
                {
                    "series": sample.series,
                    "row_id": sample.row_id,
                    "ipus": sample.ipus,
                    "published_slowdown": published / work,
                    "predicted_slowdown": published / work * (1 + errors[sample.row_id]),
                    "error_percent": 100 * errors[sample.row_id],
                    "left_out_error_percent": 100 * own[sample.row_id],
                }
            )
    return pd.DataFrame(rows)


def _by_series(samples: Sequence[ScalingSample]) -> list[list[ScalingSample]]:
    groups: dict[str, list[ScalingSample]] = {}
    for sample in samples:
        groups.setdefault(sample.series, []).append(sample)
    return [sorted(group, key=lambda item: item.ipus) for group in groups.values()]


def fit_scale_out(
    samples: Sequence[ScalingSample], *, without_series: str | None = None
) -> ScaleOut:
    """Fit both constants: each is the median of those that make one row exact.

    Parameters
    ----------
    samples : sequence of ScalingSample
    without_series : str, optional
        Series to leave out of the fit of the collective latency.

    Returns
    -------
    ScaleOut
        The latency of a reduction from the pairs of neighbours in a series of which only the
        larger one pays it; the latency of a collective from all rows that pay more of it than the
        smallest of their series, unless the host holds them. Each 0 where no row tells.
    """
    reductions = {
        two.row_id: _exact_reduction_s(one, two)
        for group in _by_series(samples)
        for one, two in pairwise(group)
        if not one.reductions and two.reductions
    }
    reduction_s = _median(reductions.values(), digits=8)
    collectives = {
        sample.row_id: _exact_collective_s(group[0], sample, reduction_s)
        for group in _by_series(samples)
        for sample in group[1:]
        if sample.series != without_series
        and sample.collectives > group[0].collectives
        and not sample.held_by_host
    }
    return ScaleOut(
        reduction=Latency(value_s=reduction_s, rows=tuple(reductions)),
        collective=Latency(
            value_s=_median(collectives.values(), digits=7), rows=tuple(collectives)
        ),
    )


def _median(values: Iterable[float], *, digits: int) -> float:
    """Median of latencies in seconds, none below 0; 0 for none."""
    known = [max(0.0, value) for value in values]
    return round(float(np.median(known)), digits) if known else 0.0


def _exact_reduction_s(one: ScalingSample, two: ScalingSample) -> float:
    ratio = two.published_s / one.published_s
    return (ratio * one.step_s(0.0, 0.0) - two.base_s) / two.reductions


def _exact_collective_s(one: ScalingSample, two: ScalingSample, reduction_s: float) -> float:
    ratio = two.published_s / one.published_s
    known_one = one.base_s + one.reductions * reduction_s
    known_two = two.base_s + two.reductions * reduction_s
    return (ratio * known_one - known_two) / (two.collectives - ratio * one.collectives)


def fit_compile() -> Latency:
    """Fit the seconds per compiled vertex and tile on the published compile times of a stencil.

    Raises
    ------
    DataError
        If the evidence file is missing.
    """
    rows_read = evidence_records("ipu_microbench.csv", ("metric", "size", "value"))
    records = [row for row in rows_read if row["metric"] == "compile_time"]
    tiles = load_chip("GC2").tiles
    ipus = [int(record["size"].split()[0]) for record in records]
    value = fit_s_per_tile_step(
        [float(record["value"]) for record in records],
        [count * tiles * STENCIL_SUPERSTEPS for count in ipus],
    )
    rows = tuple(f"compile time on {count} IPUs" for count in ipus)
    return Latency(value_s=value, rows=rows)
