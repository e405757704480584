"""Intervals: order statistics of what other families missed by, and what becomes of them."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from study_small import SmallPredictor

import ipusim
from ipusim import files
from ipusim.errors import DataError, StudyError
from ipusim.runtime.calibration import (
    FILE,
    Interval,
    interval80,
    interval_classes,
    load_calibration,
)
from ipusim.study.verdicts import intervals
from ipusim.study.verdicts.compare import PREDICTED
from ipusim.study.verdicts.compare_gpu import conformal_bounds
from ipusim.study.verdicts.intervals import (
    LEAST_ROWS_PER_FAMILY,
    calibrate_intervals,
    coverage_table,
    fit_intervals,
    predictive_bounds,
    residuals,
    stale_kinds,
)

NEW = "new network, inference"
KNOWN = Interval(kind=NEW, low=0.8, high=1.25, rows=("x", "y"), without={"a": (1.0, 1.0)})


def made_frame(
    ratios_by_family, mode="inference", metric="throughput", predicted=100.0, system="IPU-M2000"
):
    """Rows whose published time is so many times the predicted one."""
    lines = [
        {
            "row_id": f"{family}.{mode}.{system}.{index}",
            "family": family,
            "system": system,
            "mode": mode,
            "kind": f"new network, {mode}",
            "metric": metric,
            "status": PREDICTED,
            "left_out": "",
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
    assert conformal_bounds(ratios[::-1]) == (2.0, 18.0)
    assert conformal_bounds(range(1, 10)) == (1.0, 9.0)
    assert conformal_bounds(range(1, 19)) == (1.0, 18.0)  # 1.9 down
    assert conformal_bounds(range(1, 13)) == (1.0, 12.0)  # 1.3 down, 11.7 up
    with pytest.raises(StudyError, match="at least 9 rows"):
        conformal_bounds(range(8))


def test_coverage_is_what_was_asked_for():
    generator = np.random.default_rng(3)
    inside = []
    for _ in range(400):
        low, high = conformal_bounds(np.exp(generator.normal(0.1, 0.3, 40)))
        inside.append(low <= np.exp(generator.normal(0.1, 0.3)) <= high)
    assert 0.75 <= np.mean(inside) <= 0.87


def test_residuals_are_of_time():
    for metric in ("throughput", "latency", "time_to_train"):
        known = residuals(made_frame({"a": [1.5]}, metric=metric), ("a",))
        assert list(np.exp(known["miss"])) == pytest.approx([1.5])
        assert list(known["narrow"]) == ["known family, inference, GC200"]
    assert residuals(made_frame({"a": [1.5]}, metric="efficiency"), ()).empty


def test_interval_by_hand():
    rows = pd.DataFrame({"family": ["a", "a", "b", "b"], "miss": [0.1, 0.3, -0.2, 0.0]})
    low, high = predictive_bounds(rows)
    # means 0.2 and -0.1, so middle 0.05 and variance 0.045; within each family 0.02
    half = 1.2815516 * math.sqrt(0.045 * 1.5 + 0.02)
    assert (low, high) == (round(math.exp(0.05 - half), 4), round(math.exp(0.05 + half), 4))


def test_predictive_intervals_hold_on_families_never_seen():
    generator = np.random.default_rng(5)
    rows = pd.DataFrame({"family": np.repeat([f"{number}" for number in range(20)], 6)})
    inside = []
    for _ in range(300):
        own = generator.normal(0.2, 0.2, 21)
        misses = np.repeat(own[:20], 6) + generator.normal(0.0, 0.1, 120)
        low, high = predictive_bounds(rows.assign(miss=misses))
        inside.append(low <= np.exp(own[20] + generator.normal(0.0, 0.1)) <= high)
    assert 0.74 <= np.mean(inside) <= 0.86


def test_a_family_counts_once_and_not_in_its_own_interval():
    spread = np.linspace(0.95, 1.05, 19)
    families = dict.fromkeys("abcd", spread) | {"odd": np.full(19, 3.0)}
    found = fit_intervals(made_frame(families))[NEW]
    assert found.ratios("odd") == pytest.approx((0.96, 1.04), abs=6e-3)
    assert found.ratios("a")[1] > 2
    assert found.ratios("never seen") == (found.low, found.high)
    assert set(found.without) == set(families)
    # ten times the rows of one family: the others weigh as much as before
    more = fit_intervals(made_frame(families | {"a": np.repeat(spread, 10)}))[NEW]
    assert (more.low, more.high) == pytest.approx((found.low, found.high), rel=1e-3)


def test_a_chip_has_its_own_interval_where_its_rows_allow():
    many, few = np.linspace(0.9, 1.2, LEAST_ROWS_PER_FAMILY), [1.5]
    frame = pd.concat(
        [
            made_frame(dict.fromkeys("abcd", many)),
            made_frame(dict.fromkeys("abcd", few), system="Bow-2000"),
        ]
    )
    found = fit_intervals(frame)
    assert set(found) == {NEW, f"{NEW}, GC200"}
    assert found[NEW].high > found[f"{NEW}, GC200"].high


def test_too_few_families_give_none():
    assert fit_intervals(made_frame({name: [1.0] * 9 for name in "abc"})) == {}


def test_coverage_is_counted_with_both_ends():
    frame = made_frame({"a": [1.0, 1.0, 1.0, 1.0]})
    frame["low80"] = [90.0, 100.0, 101.0, math.nan]
    frame["high80"] = [110.0, 100.0, 110.0, math.nan]
    line = coverage_table(frame).set_index("kind").loc["all"]
    assert (line["rows"], line["without_interval"]) == (3, 1)
    assert line["inside_percent"] == pytest.approx(200 / 3)
    assert line["median_high_over_low"] == pytest.approx(110 / 101)


def test_intervals_are_written_and_read_back(own_data):
    before = load_calibration()
    fitted = calibrate_intervals(SmallPredictor())
    after = load_calibration()
    assert after.intervals == fitted
    assert after.steps == before.steps
    assert after.gpu == before.gpu
    wide = {
        f"{who}, {mode}"
        for who in ("known family", "new network")
        for mode in ("inference", "training")
    }
    assert wide <= set(fitted)
    assert after.known_families == before.known_families
    assert all(0 < interval.low <= interval.high for interval in fitted.values())


def test_stale_intervals_are_named(monkeypatch):
    frame = made_frame({name: np.linspace(0.9, 1.2, 15) for name in "abcd"})
    assert {NEW, "known family, training"} <= set(stale_kinds(frame))
    kept = replace(load_calibration(), intervals=fit_intervals(frame))
    monkeypatch.setattr(intervals, "load_calibration", lambda: kept)
    assert stale_kinds(frame) == []


def test_classes_are_what_a_user_can_tell():
    known = load_calibration().known_families
    assert interval_classes("bert", "training", "Bow", known) == (
        "known family, training, Bow",
        "known family, training",
    )
    assert interval_classes("onnx", "inference", "GC200", ("bert",))[1] == NEW
    assert interval80("onnx", "inference", "Bow").kind.startswith(NEW)


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_an_interval_does_not_jump_when_a_machine_is_added(mode):
    systems = ("Bow-2000", "Bow Pod16", "Bow Pod64", "Bow Pod256")
    options = {"mode": mode, "micro_batch": 8}
    reports = [
        ipusim.simulate("braggnn", system=system, replicas=replicas, **options)
        for system, replicas in zip(systems, (4, 16, 64, 256), strict=True)
    ]
    assert len({report.interval80 for report in reports}) == 1


def test_reports_carry_the_interval_of_their_kind(monkeypatch):
    monkeypatch.setattr("ipusim.report.report.interval80", lambda *run: KNOWN)
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
    assert repr(report).count("(80 % interval") == 2
    assert f"class '{NEW}': 2 published values of 1 families" in repr(report)
    assert report.power.low80 is None  # nothing was left out of the fit of power
    frame = ipusim.sweep("braggnn", system="IPU-M2000", micro_batch=[2], progress=False)
    assert frame["latency_low80_ms"][0] == pytest.approx(1e3 * latency.low80)
    assert frame["throughput_high80_items_per_s"][0] == pytest.approx(throughput.high80)


def test_no_interval_where_nothing_is_fitted(monkeypatch):
    monkeypatch.setattr("ipusim.report.report.interval80", lambda *run: KNOWN)
    report = ipusim.simulate("braggnn", tier="specification")
    assert report.latency.low80 is None
    assert report.to_dict()["interval80"] is None
    assert "80 %" not in repr(report)
    monkeypatch.setattr("ipusim.report.report.interval80", lambda *run: None)
    assert ipusim.simulate("braggnn").throughput.high80 is None


@pytest.mark.parametrize(
    "entry",
    [
        "3",
        "{low = 1.0}",
        "{low = 'a', high = 2, rows = [], without = {}}",
        "{low = 2.0, high = 1.0, rows = [], without = {}}",
        "{low = 0, high = 1, rows = [], without = {}}",
    ],
)
def test_damaged_intervals_are_refused(entry, tmp_path, monkeypatch):
    path, whole = tmp_path / FILE, (files.data_dir() / FILE).read_text()
    others = whole[: whole.index("[interval.")]
    path.write_text(f'{others}[interval]\n"{NEW}" = {entry}\n')
    monkeypatch.setenv("IPUSIM_DATA_DIR", str(tmp_path))
    with pytest.raises(DataError, match="ipusim calibrate"):
        interval80("onnx", "inference", "Bow")
    path.write_text(others)
    assert interval80("onnx", "inference", "Bow") is None
