"""The audit of the results page and the slides, against arithmetic done by hand on the prints."""

import math

import pytest

from ipusim.study import audit


def by_id(frame, column="row_id"):
    return frame.set_index(column)


def test_one_column_holds_latencies_of_several_meanings():
    groups = audit.little_groups().set_index(["framework", "system"])
    popart = groups.loc[("PopART", "IPU-M2000")]
    assert 0.97 <= popart["least"] <= popart["largest"] <= 1.01  # one serial batch
    queued = groups.loc[("TensorFlow1", "IPU-M2000")]
    assert (round(queued["least"]), round(queued["largest"]), queued["rows"]) == (3, 3, 25)
    assert groups["rows"].sum() == 104  # 108 inference rows, 4 of them without a latency


def test_wrong_batch_labels_are_found_and_confirmed_by_latency():
    labels = by_id(audit.batch_labels())
    yolo = labels.loc["results.inference.106"]
    assert (yolo["printed_batch"], yolo["run_batch"]) == (4, 16)
    assert yolo["batches_by_printed_label"] == pytest.approx(4 * yolo["batches_as_run"])
    assert labels.loc["results.training.054", "run_over_printed"] == pytest.approx(256 / 3200)
    assert math.isnan(labels.loc["results.training.054", "batches_as_run"])
    assert "results.training.100" not in labels.index


def test_scaling_above_one_hundred_percent_is_found():
    scaling = by_id(audit.scaling_efficiency())
    dino = scaling.loc["results.training.055"]
    assert dino["efficiency_percent"] == pytest.approx(100 * 3437 / 696 / 4)
    assert dino["above_100"]
    assert dino["same_batch"]
    resnet = scaling.loc["results.training.045"]
    assert resnet["efficiency_percent"] == pytest.approx(100 * 153205 / 44059 / 4)
    assert not resnet["above_100"]
    assert set(scaling.index[scaling["above_100"]]) == {
        "results.training.005",
        "results.training.055",
    }


def test_ratios_of_the_chips_are_set_beside_that_of_the_clocks():
    pairs = by_id(audit.bow_over_classic(), "bow_row")
    slower = pairs.loc["results.inference.012"]
    assert slower["ratio"] == pytest.approx(46174 / 49816)
    assert slower["reading"] == "below"
    assert pairs.loc["results.training.023", "reading"] == "above"
    assert pairs["clock_ratio"].unique() == pytest.approx([1.85 / 1.33])
    assert pairs["ratio"].median() == pytest.approx(1.39, abs=0.02)


def test_mlperf_costs_more_chips_as_systems_grow():
    rows = by_id(audit.table("mlperf_scaling"))
    assert rows.loc["results.mlperf.04", "ipu_minutes"] == pytest.approx(2.67 * 256)
    assert rows.loc["results.mlperf.04", "efficiency_percent"] == pytest.approx(46.0, abs=0.05)
    assert rows.loc["results.mlperf.10", "efficiency_percent"] == pytest.approx(40.5, abs=0.05)


def test_throughput_times_time_gives_the_items():
    rows = by_id(audit.table("ogb_work"))
    assert rows.loc["results.ogb.01", "items"] == pytest.approx(1.5198e9, rel=1e-4)
    assert rows.loc["results.ogb.02", "items"] == pytest.approx(5.3676e10, rel=1e-4)


def test_documents_that_disagree_are_named():
    conflicts = by_id(audit.document_conflicts(), "slides_row")
    assert len(conflicts) == 10
    assert conflicts.loc["argonne.results.07", "difference_percent"] == pytest.approx(
        34.56, abs=0.01
    )
    assert set(conflicts.index[conflicts["disagree"]]) == {
        "argonne.results.07",
        "argonne.results.12",
    }


def test_repeated_numbers_and_placeholders_are_listed():
    repeated = audit.repeated_values().set_index("printed")
    assert set(repeated.loc["337", ["row_id", "other_row"]]) == {
        "results.inference.002",
        "results.training.027",
    }
    assert list(audit.placeholders()["row_id"]) == ["argonne.results.04"]
