"""Fitting the constants of scale-out: they come back from rows made with them."""

from dataclasses import replace

import pytest
from study_small import SmallPredictor

from ipusim.runtime.calibration import FittedCosts, calibration
from ipusim.study.fit.samples import samples_of
from ipusim.study.fit.scale_out import (
    fit_compile,
    fit_scale_out,
    scaling_rows,
    scaling_table,
)
from ipusim.study.predict import request_for

REDUCTION_S, COLLECTIVE_S = 4e-6, 1.2e-4


@pytest.fixture(scope="module")
def samples():
    """Rows whose published values a predictor with known constants made."""
    costs = FittedCosts(reduction_s=REDUCTION_S, collective_s=COLLECTIVE_S)
    rows = []
    for row in scaling_rows():
        report = SmallPredictor().answer(request_for(row.run, "calibrated", costs=costs))
        rows.append(replace(row, value=0.8 * float(report.throughput)))
    return samples_of(rows, SmallPredictor())


def test_known_constants_are_found_whatever_the_level(samples):
    fitted = fit_scale_out(samples)
    assert fitted.reduction.value == pytest.approx(REDUCTION_S, rel=0.01)
    assert fitted.collective.value == pytest.approx(COLLECTIVE_S, abs=1e-6)
    errors = scaling_table(samples)["error_percent"]
    assert errors.abs().max() < 0.1
    assert len(errors) == len(samples) - len({sample.row.run.series for sample in samples})


def test_a_series_that_is_left_out_is_not_used(samples):
    left = samples[0].row.run.series
    fitted = fit_scale_out(samples, without_series=left)
    own = {sample.row.row_id for sample in samples if sample.row.run.series == left}
    assert own and own.isdisjoint(fitted.collective.rows)
    assert fitted.collective.value == pytest.approx(COLLECTIVE_S, abs=1e-6)


def test_the_reduction_comes_from_the_pair_in_which_only_one_pays():
    (row_id,) = fit_scale_out(samples_of(scaling_rows(), SmallPredictor())).reduction.rows
    assert row_id == "tamu.table3.08"


@pytest.mark.parametrize("host", ["floor_s", "loader_s"])
def test_a_row_that_the_host_holds_says_nothing_of_the_links(samples, host):
    def held(sample, seconds):
        return replace(sample, line=replace(sample.line, **{host: seconds}))

    def published(sample, step_s):
        row = sample.row
        return replace(sample, row=replace(row, value=row.value * sample.published_s / step_s))

    fitted = fit_scale_out(samples)
    costs = fitted.beside(FittedCosts())
    series = next(s.row.run.series for s in samples if s.row.row_id == fitted.collective.rows[0])
    own = (sample for sample in samples if sample.row.run.series == series)
    one, two = sorted(own, key=lambda sample: sample.row.run.chips)[:2]
    assert fit_scale_out([one, two]).collective.rows == (two.row.row_id,)
    longer = 2 * two.line.step_s(costs)
    assert fit_scale_out([one, held(two, longer)]).collective.rows == ()
    # where the host holds the smaller system, its step is the host's, whatever the latency
    floor_s = 1.5 * one.line.step_s(costs)
    small = published(held(one, floor_s), floor_s)
    wanted = two.line.step_s(FittedCosts(collective_s=3e-4))
    exact = fit_scale_out([small, published(two, wanted)])
    assert exact.collective.value == pytest.approx(3e-4, abs=1e-6)


def test_nothing_to_fit_on_gives_nothing():
    fitted = fit_scale_out(())
    assert fitted.reduction.value == fitted.collective.value == 0
    assert not fitted.collective.rows


def test_a_series_differs_in_the_number_of_chips_only():
    runs = {}
    for row in scaling_rows():
        runs.setdefault(row.run.series, []).append(row.run)
    for series, members in runs.items():
        alike = {(r.model, r.micro_batch, r.precision, r.recompute, r.stack) for r in members}
        assert len(alike) == 1, series
        assert len({r.replicas for r in members}) > 1, series


def test_compile_time_is_fitted_on_the_stencil():
    fitted = fit_compile()
    assert len(fitted.rows) == 5
    assert fitted.value == pytest.approx(calibration().compile.value, rel=1e-6)
