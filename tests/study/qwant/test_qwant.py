"""Views of the Qwant study on real predictions: parts add up, assumptions bite, pictures show."""

import math

import pandas as pd
import pytest

from ipusim.errors import ConfigError, UnknownNameError
from ipusim.study import book
from ipusim.study.evidence import operations as evidence
from ipusim.study.qwant import (
    breakdown as qwant_inside,
    study as qwant,
)
from ipusim.study.verdicts.compare import Samples, tier_summary, verdicts, with_errors

BATCHES = [2, 12]
VIEWS = {
    "batch_sizes": BATCHES,
    "breakdown_micro_batches": [1, 6],
    "what_if_systems": ["C2"],
    "what_if_micro_batches": [1],
}


@pytest.fixture(scope="module")
def parts():
    return qwant_inside.latency_parts(BATCHES)


@pytest.fixture(scope="module")
def profiles():
    return qwant_inside.block_profiles([1, 6])


@pytest.fixture(scope="module")
def frame():
    rows = [*qwant.rows_for([2, 14]), *qwant.machine_rows()[:2]]
    return verdicts(rows, samples=Samples())


# --- inside a prediction


def test_parts_add_up_to_the_simulated_latency(parts):
    for line in parts.to_dict("records"):
        total = sum(line[name] for name in parts.columns[1:-2])  # waiting among them
        assert total == pytest.approx(line["latency_ms"])
        report = qwant.report_for(line["batch_size"] // 2)
        assert line["latency_ms"] == pytest.approx(1e3 * float(report.latency))
    assert list(parts["published_ms"]) == [1.36, 4.75]


def test_host_work_grows_with_the_batch_and_sync_does_not(parts):
    small, large = parts.to_dict("records")
    assert large["host_work_ms"] == pytest.approx(6 * small["host_work_ms"])
    assert large["sync_ms"] == pytest.approx(small["sync_ms"], rel=0.25)


def test_a_link_that_limits_the_rate_shows_as_waiting():
    line = qwant_inside.latency_parts([64], system="IPU-M2000").iloc[0]
    assert line["host_work_ms"] == 0  # its stack prepares data beside the step
    assert line["waiting_ms"] >= 0


def test_blocks_cover_the_whole_program(profiles):
    profile = profiles.query("micro_batch == 1")
    report = qwant.report_for(1)
    assert profile["time_us"].sum() == pytest.approx(report.layers["time_us"].sum())
    assert profile["macs"].sum() == report.layers["macs"].sum()
    phases = profile[["compute_us", "copy_us", "exchange_us", "sync_us"]].sum(axis=1)
    assert list(phases) == pytest.approx(list(profile["time_us"]))


def test_blocks_are_those_of_resnext_101(profiles):
    blocks = profiles.query("micro_batch == 1").groupby("stage", sort=False)["group"].count()
    assert blocks.to_dict() == {"stem": 1, "2": 3, "3": 4, "4": 23, "5": 3, "head": 1}


def test_stage_table_gives_shares_of_a_hundred(profiles):
    data = qwant_inside.stage_frame(profiles)
    for column in ("macs_percent", "time_1_percent", "time_6_percent"):
        assert data[column].sum() == pytest.approx(100)
    assert (data["utilisation_6_percent"] > data["utilisation_1_percent"]).all()
    assert data["utilisation_6_percent"].max() < 100


def test_heaviest_layers_come_first():
    report = qwant.report_for(1)
    longest = report.heaviest(3)
    assert list(longest["time_us"]) == sorted(report.layers["time_us"], reverse=True)[:3]
    assert report.heaviest(10**6)["time_percent"].sum() == pytest.approx(100)


# --- views of verdicts


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"breakdown_micro_batches": []}, "breakdown_micro_batches is"),
        ({"breakdown_micro_batches": [1, 1]}, "none twice, each a whole number"),
        ({"breakdown_micro_batches": [0]}, "from 1 to 64"),
        ({"breakdown_micro_batches": [True]}, "from 1 to 64"),
        ({"breakdown_micro_batches": 1}, "give a list"),
        ({"what_if_micro_batches": ["x"]}, "what_if_micro_batches is"),
        ({"what_if_systems": []}, "what_if_systems is"),
        ({"what_if_systems": ["C2", "c2", "C2"]}, "none twice, each the name of a system"),
        ({"batch_sizes": [3]}, "two IPUs share a batch"),
    ],
)
def test_bad_parameters_give_one_sentence(changed, says):
    book.open("qwant", **VIEWS)
    with pytest.raises(ConfigError, match=says) as caught:
        book.open("qwant", **(VIEWS | changed))
    assert "\n" not in str(caught.value)


def test_unknown_system_of_the_what_if():
    with pytest.raises(UnknownNameError, match="IPU-M2000"):
        book.open("qwant", **(VIEWS | {"what_if_systems": ["C2", "IPU-M200"]}))


def test_published_points_are_per_ipu(frame):
    points = qwant.published_points(frame)
    card = points[points["system"] == "C2"]
    assert list(card["latency_ms"]) == [1.36, 1.94, 2.82, 3.32, 4.13, 4.75]
    assert card["images_per_s_per_ipu"].iloc[0] == pytest.approx(1474.16 / 2)
    machine = points[points["system"] == "IPU-M2000"]
    assert list(machine["micro_batch"]) == [1, 2, 4, 8, 16]
    assert machine["images_per_s_per_ipu"].iloc[0] == pytest.approx(4483 / 4)
    assert machine["latency_ms"].isna().all()  # three batches in flight
    assert machine["predicted_images_per_s_per_ipu"].notna().sum() == 1  # only one was asked for


def test_power_audit_keeps_batches_that_were_not_predicted(frame):
    data = qwant.audited_power(frame).set_index("batch_size")
    assert len(data) == 6
    assert data.loc[2, "predicted_power_w"] > 0
    assert math.isnan(data.loc[10, "predicted_power_w"])


def test_verdict_and_summary_tables(frame):
    tables = [qwant.metric_frame(frame, name) for name in ("latency", "throughput", "efficiency")]
    assert [list(table["batch_size"]) for table in tables] == [[2, 14]] * 3
    assert all(math.isnan(table["published"].iloc[1]) for table in tables)
    summary = tier_summary(frame, ("system", "metric"))
    latency = summary[(summary["system"] == "C2") & (summary["metric"] == "latency")]
    assert list(latency["rows"]) == [1, 1, 1]
    later = book.open("qwant").table("qwant_m2000_rows", with_errors(frame)).frame
    assert len(later) == 2 and set(later["study"]) == {"results"}


# --- figures


def heights(axis, column_count):
    bars = [patch.get_height() for patch in axis.patches]
    return [sum(bars[index::column_count]) for index in range(column_count)]


def test_bars_reach_the_latency(parts):
    axis = book.open("qwant").figure("qwant_where_the_time_goes", parts).figure.axes[0]
    assert heights(axis, len(parts)) == pytest.approx(list(parts["latency_ms"]))
    published = next(line for line in axis.lines if line.get_label() == "published")
    assert list(published.get_ydata()) == [1.36, 4.75]


def test_block_bars_reach_the_time_of_the_block(profiles):
    figure = book.open("qwant").figure("qwant_blocks", profiles).figure
    for axis, (_, profile) in zip(figure.axes, profiles.groupby("micro_batch"), strict=True):
        assert heights(axis, len(profile)) == pytest.approx(list(profile["time_us"]))
        names = [label.get_text() for label in axis.get_xticklabels()]
        assert names[:5] == ["stem", "2.1", "2", "3", "3.1"]


def test_what_if_draws_every_system_and_measurement(frame):
    others = qwant.what_if(["C2", "IPU-M2000", "Bow-2000"], [1])
    tables = {"simulated": others, "measured": qwant.published_points(frame)}
    figure = book.open("qwant").figure("qwant_what_if", tables).figure
    labels = {line.get_label() for line in figure.axes[1].lines}
    assert labels == {"C2", "IPU-M2000", "Bow-2000", "C2, published"}
    # another set-up has a panel of its own
    in_flight = {line.get_label() for line in figure.axes[2].lines}
    assert in_flight == {"IPU-M2000, published", "IPU-M2000, predicted in that set-up"}


def test_measured_layers_mark_the_vertex():
    rows = evidence.mk1_layer_rows()
    drawing = book.open("qwant").figure("qwant_mk1_layers", rows)
    figure = drawing.figure
    drawn = sum(
        len(line.get_xdata()) for line in figure.axes[0].lines if "stage" in line.get_label()
    )
    assert drawn == len(rows) == 31


def test_a_far_roofline_is_stated_instead_of_drawn():
    near = pd.DataFrame({"batch_size": [1, 2], "published": 9, "roofline": [3, 14], "unit": "s"})
    near[["specification", "calibrated", "low80", "high80"]] = math.nan
    far = near.assign(roofline=[100, 120])
    panels = {"near": near, "far": far, "far, too": far}
    panels = pd.concat(panels, names=["title"]).reset_index("title")
    axes = book.open("qwant").figure("qwant_tables_1_to_3", panels).figure.axes
    assert [len(axis.lines) for axis in axes[:3]] == [2, 1, 1]
    assert "100" in axes[1].texts[0].get_text()
    assert not axes[3].get_visible()
