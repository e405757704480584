"""Intervals: order statistics of what other families missed by, and what becomes of them."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from study_fakes import FakePredictor

import ipusim
from ipusim import files
from ipusim.errors import DataError, StudyError
from ipusim.runtime import calibration
from ipusim.runtime.calibration import INTERVAL_KINDS, interval80, run_kind
from ipusim.study.fit.calibration_file import load_calibration
from ipusim.study.verdicts import intervals
from ipusim.study.verdicts.compare import PREDICTED
from ipusim.study.verdicts.conformal import conformal_bounds, least_rows
from ipusim.study.verdicts.intervals import (
    calibrate_intervals,
    coverage_table,
    fit_intervals,
    residuals,
    stale_kinds,
)

INFERENCE, SINGLE, SCALE_OUT, TO_TRAIN = INTERVAL_KINDS


def made_frame(ratios_by_family, kind=INFERENCE, metric="throughput", predicted=100.0):
    """Rows whose published time is so many times the predicted one."""
    lines = [
        {
            "row_id": f"{family}.{kind}.{index}",
            "family": family,
            "kind": kind,
            "metric": metric,
            "status": PREDICTED,
            "calibrated": predicted,
            "published": predicted / ratio if metric == "throughput" else predicted * ratio,
            "low80": math.nan,
            "high80": math.nan,
        }
        for family, ratios in ratios_by_family.items()
        for index, ratio in enumerate(ratios)
    ]
    return pd.DataFrame(lines)


def test_order_statistics_by_hand():
    ratios = [float(value) for value in range(1, 20)]  # 20 x 0.1 = 2nd, 20 x 0.9 = 18th
    assert conformal_bounds(ratios[::-1], 0.8) == (2.0, 18.0)
    assert conformal_bounds(range(1, 10), 0.8) == (1.0, 9.0)
    assert conformal_bounds(range(1, 13), 0.8) == (1.0, 12.0)  # 1.3 down, 11.7 up
    assert least_rows(0.8) == 9
    with pytest.raises(StudyError, match="at least 9 rows"):
        conformal_bounds(range(8), 0.8)


def test_coverage_is_what_was_asked_for():
    generator = np.random.default_rng(3)
    inside = []
    for _ in range(400):
        low, high = conformal_bounds(np.exp(generator.normal(0.1, 0.3, 40)), 0.8)
        inside.append(low <= np.exp(generator.normal(0.1, 0.3)) <= high)
    assert 0.75 <= np.mean(inside) <= 0.87


def test_residuals_are_of_time():
    for metric in ("throughput", "latency", "time_to_train"):
        known = residuals(made_frame({"a": [1.5]}, metric=metric))
        assert list(known["ratio"]) == pytest.approx([1.5])
    assert residuals(made_frame({"a": [1.5]}, metric="efficiency")).empty


def test_a_family_has_no_part_in_its_own_interval():
    near, far = np.linspace(0.95, 1.05, 19), np.full(19, 3.0)
    frame = made_frame({"a": near, "b": near, "odd": far})
    found = fit_intervals(frame)[INFERENCE]
    assert found.ratios("odd") == pytest.approx((0.955, 1.045), abs=6e-3)
    assert found.ratios("a")[1] == 3.0
    assert found.ratios("never seen") == (found.low, found.high)
    assert len(found.rows) == 57


def test_a_kind_with_few_rows_takes_all_kinds():
    spread = np.linspace(0.9, 1.2, 15)
    frame = pd.concat(
        [
            made_frame({"a": spread, "b": spread, "c": spread}),
            made_frame({"a": spread * 2, "b": spread * 2}, kind=SCALE_OUT),
            made_frame({"a": [9.0] * 3, "c": [9.0]}, kind=SINGLE),
        ]
    )
    found = fit_intervals(frame)
    assert set(found) == set(INTERVAL_KINDS)
    assert {row.split(".")[1] for row in found[SCALE_OUT].rows} == {SCALE_OUT}
    # without one of its two families a kind is not told by the other alone
    assert found[SCALE_OUT].ratios("a")[0] < 1.8 < found[SCALE_OUT].low + 0.1
    for kind in (SINGLE, TO_TRAIN):
        assert len(found[kind].rows) == len(frame)


def test_too_few_rows_altogether_give_none():
    assert fit_intervals(made_frame({"a": [1.0] * 3, "b": [1.1] * 3, "c": [1.0]})) == {}


def test_coverage_is_counted_with_both_ends():
    frame = made_frame({"a": [1.0, 1.0, 1.0, 1.0]})
    frame["low80"] = [90.0, 100.0, 101.0, math.nan]
    frame["high80"] = [110.0, 100.0, 110.0, math.nan]
    line = coverage_table(frame).set_index("kind").loc["all"]
    assert (line["rows"], line["without_interval"]) == (3, 1)
    assert line["inside_percent"] == pytest.approx(200 / 3)
    assert line["median_high_over_low"] == pytest.approx(110 / 101)


def test_intervals_are_written_and_read_back(tmp_path):
    path = tmp_path / "calibration.toml"
    path.write_text((ipusim.files.data_dir() / "calibration.toml").read_text())
    before = load_calibration(path)
    fitted = calibrate_intervals(FakePredictor(), path)
    after = load_calibration(path)
    assert after.intervals == fitted
    assert after.step_costs == before.step_costs
    assert after.gpu == before.gpu
    assert set(fitted) == set(INTERVAL_KINDS)
    assert all(0 < interval.low <= interval.high for interval in fitted.values())


def test_stale_intervals_are_named(monkeypatch):
    spread = np.linspace(0.9, 1.2, 15)
    frame = made_frame({"a": spread, "b": spread, "c": spread})
    assert stale_kinds(frame) == sorted(INTERVAL_KINDS)

    class Kept:
        intervals = fit_intervals(frame)

    monkeypatch.setattr(intervals, "load_calibration", lambda: Kept)
    assert stale_kinds(frame) == []


def test_kinds_follow_from_the_run():
    assert run_kind("inference", 4, 4) == run_kind("inference", 64, 4) == INFERENCE
    assert run_kind("training", 4, 4) == SINGLE
    assert run_kind("training", 8, 4) == SCALE_OUT


def test_reports_carry_the_interval_of_their_kind(monkeypatch):
    known = {INFERENCE: (0.8, 1.25), SINGLE: (0.5, 1.6)}
    monkeypatch.setattr("ipusim.report.interval80", known.get)
    report = ipusim.simulate("braggnn", micro_batch=2)
    latency, throughput = report.latency, report.throughput
    assert latency.low80 == pytest.approx(0.8 * latency.value)
    assert latency.high80 == pytest.approx(1.25 * latency.value)
    assert throughput.low80 == pytest.approx(throughput.value / 1.25)
    assert throughput.high80 == pytest.approx(throughput.value / 0.8)
    shown = report.to_dict()["interval80"]
    assert shown == {
        "latency_s": [latency.low80, latency.high80],
        "throughput_items_per_s": [throughput.low80, throughput.high80],
    }
    assert repr(report).count("80 % interval") == 2
    assert report.power.low80 is None  # nothing was left out of the fit of power
    frame = ipusim.sweep("braggnn", system="IPU-M2000", micro_batch=[2], progress=False)
    assert frame["latency_low80_ms"][0] == pytest.approx(1e3 * latency.low80)
    assert frame["throughput_high80_items_per_s"][0] == pytest.approx(throughput.high80)


def test_no_interval_where_nothing_is_fitted(monkeypatch):
    monkeypatch.setattr("ipusim.report.interval80", lambda kind: (0.8, 1.25))
    report = ipusim.simulate("braggnn", tier="specification")
    assert report.latency.low80 is None
    assert report.to_dict()["interval80"] is None
    assert "80 %" not in repr(report)
    monkeypatch.setattr("ipusim.report.interval80", lambda kind: None)
    assert ipusim.simulate("braggnn").throughput.high80 is None


@pytest.mark.parametrize(
    "entry",
    ["3", "{low = 1.0}", "{low = 'a', high = 2}", "{low = 2.0, high = 1.0}", "{low = 0, high = 1}"],
)
def test_damaged_intervals_are_refused(entry, tmp_path, monkeypatch):
    (tmp_path / "calibration.toml").write_text(f"[interval]\ninference = {entry}\n")
    monkeypatch.setenv("IPUSIM_DATA_DIR", str(tmp_path))
    files._parse.cache_clear()
    with pytest.raises(DataError, match="ipusim calibrate"):
        interval80(INFERENCE)
    assert calibration.interval80(SINGLE) is None
