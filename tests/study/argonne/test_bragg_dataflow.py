"""Dataflows of BraggNN: host, link and chip, times to train, what the slides' numbers mean."""

from dataclasses import replace

import numpy as np
import pytest

from ipusim.errors import ConfigError, DataError, IpuSimError, UnknownNameError
from ipusim.runtime.host import fed_items_per_s
from ipusim.runtime.options.config import make_config
from ipusim.study import book, claims as engine
from ipusim.study.argonne import (
    dataflow as bragg_dataflow,
    study as argonne,
    timeline as bragg_timeline,
)
from ipusim.study.argonne.dataflow import (
    dataflow_frame,
    item_seconds,
    load_dataflow,
    load_dataflows,
    load_training,
    simulate_board,
    simulate_flow,
    training_seconds,
    worker_times_us,
)
from ipusim.workload import zoo


@pytest.fixture(scope="module")
def boards():
    return {name: simulate_board(name) for name in ("V100", "A100")}


# -- the graphs --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["braggnn_scaled", "braggnn_prepared"])
def test_preparation_adds_no_parameters_and_no_products(name):
    plain, variant = zoo.load("braggnn").graph(8), zoo.load(name).graph(8)
    assert variant.parameters == plain.parameters == 33_172
    assert variant.macs == plain.macs
    assert variant.tensors[variant.outputs[0]].shape == (8, 2)


def test_the_chip_looks_up_every_pixel_of_every_patch():
    graph = zoo.load("braggnn_prepared").graph(8)
    (gather,) = (op.params for op in graph.ops if op.kind == "gather")
    assert (gather.rows, gather.width, gather.indices) == (8 * 15 * 15, 1, 8 * 11 * 11)
    reductions = [op.params.function for op in graph.ops if op.kind == "reduce"]
    assert reductions == ["min", "max"]


# -- the host ----------------------------------------------------------------------------


def test_prepared_items_take_the_time_that_is_stated():
    def feed(**given):
        options = {"mode": "training", "instances": 1, "dataset": "prepared", "replicas": 1}
        return fed_items_per_s(make_config(**options, **given), 1)

    assert feed(loader_workers=8, loader_item_s=80e-6) == pytest.approx(8 / 80e-6)
    for item_s in (None, 0.0):
        with pytest.raises(ConfigError, match="give loader_item_s"):
            feed(loader_item_s=item_s)
    for item_s in (-1.0, float("nan")):
        with pytest.raises(ConfigError, match="seconds, 0 or more"):
            feed(loader_item_s=item_s)


def test_items_of_a_worker_add_up_as_the_port_has_them():
    times = worker_times_us()
    first = sum(times[step] for step in ("crop", "label", "scale", "collate"))
    assert 1e6 * item_seconds(load_dataflow("stock")) == pytest.approx(first)
    assert item_seconds(load_dataflow("extracted")) == item_seconds(load_dataflow("stock"))
    several = item_seconds(load_dataflow("stock"), several_components=True)
    assert 1e6 * several == pytest.approx(first + times["choose"])
    # labels are found once, beforehand, so several components cost nothing later
    scaled = load_dataflow("scaled")
    assert item_seconds(scaled, several_components=True) == item_seconds(scaled)


def test_steps_are_those_of_the_authors_code():
    run = load_training()
    assert run.items // run.batch == 108
    assert run.steps(512) == 54_000
    assert run.steps(2 * 512) == 500 * 54


# -- time to train -----------------------------------------------------------------------


def test_every_flow_is_as_fast_as_its_slower_side():
    frame = dataflow_frame()
    assert list(frame["flow"].unique()) == list(load_dataflows())
    slower = np.maximum(frame["loader_ms"], frame["chip_ms"])
    assert frame["step_ms"].to_numpy() == pytest.approx(slower.to_numpy())
    assert list(frame["bound"] == "host") == list(frame["loader_ms"] > frame["chip_ms"])
    assert frame["training_s"].to_numpy() == pytest.approx(54 * frame["step_ms"].to_numpy())
    chip = frame[frame["chip"] == "GC200"].set_index("flow")["chip_ms"]
    assert chip["stock"] == chip["extracted"] < chip["scaled"] < chip["on_chip"]


def test_batches_and_ipus():
    flow = load_dataflow("on_chip")
    two = simulate_flow(flow, ipus=2)
    assert training_seconds(two) == pytest.approx(27_000 * two.result.step_s)
    shared = simulate_flow(flow, ipus=2, share="in all")
    assert shared.config.micro_batch == 256
    assert training_seconds(shared) == pytest.approx(54_000 * shared.result.step_s)
    merged = simulate_flow(flow, ipus=8, merged=True)
    apart = simulate_flow(flow, ipus=8)
    assert (
        merged.result.parts_s["gradient all-reduce"]
        < apart.result.parts_s["gradient all-reduce"] / 10
    )


def test_bad_requests_are_one_sentence():
    flow = load_dataflow("stock")
    for make, message in (
        (lambda: simulate_flow(flow, ipus=0), "ipus is 0: give a whole number from 1 to 16"),
        (lambda: simulate_flow(flow, ipus=True), "ipus is True"),
        (lambda: simulate_flow(flow, ipus=3, share="in all"), "cannot be shared by 3 IPUs"),
        (lambda: simulate_flow(flow, chip="GC300"), "did you mean 'GC200'"),
        (lambda: load_dataflow("stok"), "did you mean 'stock'"),
        (lambda: simulate_board("V10"), "did you mean 'V100'"),
    ):
        with pytest.raises(IpuSimError, match=message):
            make()


def test_a_board_waits_for_its_loader(boards):
    for run in boards.values():
        assert run.loader_s == pytest.approx(512 * item_seconds(load_dataflow("stock")) / 8)
        assert run.training_s == pytest.approx(54_000 * max(run.report.step_s, run.loader_s))
    slow = replace(run, loader_s=2 * run.report.step_s)
    assert slow.step_s == slow.loader_s


# -- timelines ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prepare", "link", "chip", "period"),
    [(8.0, 0.1, 0.5, 1.0), (0.8, 0.1, 0.5, 0.6), (4.0, 0.3, 0.2, 0.5)],
)
def test_the_slowest_lane_sets_the_pace(prepare, link, chip, period):
    frame = bragg_timeline.run_lanes(
        prepare_s=prepare, link_s=link, chip_s=chip, workers=8, batches=160
    )
    shares = bragg_timeline.lane_shares(frame)
    assert shares["step_ms"] == pytest.approx(1e3 * period, rel=0.02)
    assert shares["chip_percent"] == pytest.approx(100 * chip / period, rel=0.02)
    # a lane does one thing at a time, and a batch is done in order
    for _, part in frame.groupby(["lane", "worker"]):
        assert (part["start_s"].to_numpy()[1:] >= part["end_s"].to_numpy()[:-1] - 1e-12).all()
    for _, part in frame.groupby("batch"):
        assert list(part["lane"]) == ["host", "link", "chip"]
        assert (part["start_s"].to_numpy()[1:] >= part["end_s"].to_numpy()[:-1] - 1e-12).all()


def test_timelines_agree_with_the_simulated_step():
    timelines, busy_percent = {}, []
    for flow in load_dataflows().values():
        timeline = bragg_timeline.dataflow_timeline(flow)
        timelines[flow.title] = timeline
        shares = bragg_timeline.lane_shares(timeline)
        expected = simulate_flow(flow).result.step_s
        assert shares["step_ms"] == pytest.approx(1e3 * expected, rel=0.01)
        busy_percent.append(shares["chip_percent"])
    assert busy_percent[0] < 25 and busy_percent[-1] > 90
    tables = bragg_timeline.drawn_timelines(timelines, window_ms=10)
    figure = book.open("argonne").figure("bragg_timelines", tables).figure
    assert len(figure.axes) == 4
    titles = [axis.get_title(loc="left").split(":")[0] for axis in figure.axes]
    assert titles == list(timelines)
    assert figure.axes[0].get_xlim() == (0, 10)


# -- the slides --------------------------------------------------------------------------


def test_the_reference_time_can_only_be_that_of_a_v100():
    frame = argonne.reference_frame().set_index("candidate")
    assert frame.loc["V100", "final_s"] == pytest.approx(800 / 11)
    assert frame.loc["V100", "a100_s"] == pytest.approx(800 / 11 * 5)
    assert frame.loc["A100", "final_s"] == pytest.approx(160)
    assert frame.loc["A100", "v100_s"] == pytest.approx(1760)
    assert list(frame["meets_goal"]) == [True, False]
    implied = argonne.implied_seconds()
    assert implied["stock"] == pytest.approx((200, 800 / 3))


def test_ratios_are_judged_by_what_their_words_allow(boards, monkeypatch):
    monkeypatch.setattr(argonne, "board_factors", lambda run: (0.5, 2.0))
    specs = [spec for spec in engine.load_specs("argonne") if spec.title.startswith("BraggNN: ")]
    monkeypatch.setattr(engine, "load_specs", lambda study: tuple(specs))
    frame = book.open("argonne").table("bragg_ratios", argonne.compare_claims()).frame
    frame = frame.set_index("row_id")
    assert list(frame["printed"]) == ["800", "3-4", "11", "5", "120"]
    v100, final = boards["V100"].training_s, frame.loc["argonne.claims.AR42", "predicted"]
    above = frame.loc["argonne.claims.AR46"]
    assert above["predicted"] == pytest.approx(v100 / final)
    short = min(0.0, 100 * (above["predicted"] / 11 - 1))  # more than 11
    assert above["verdict"] == "hit" and above["error_percent"] == pytest.approx(short)
    assert frame.loc["argonne.claims.AR42", "verdict"] == "hit"
    reference = frame.loc["argonne.claims.AR41"]
    assert reference["low80"] == pytest.approx(0.5 * reference["predicted"])
    assert reference["error_percent"] == pytest.approx(100 * (v100 / 800 - 1))
    box = frame.loc["argonne.claims.AR44"]
    assert box["error_percent"] == pytest.approx(100 * (box["predicted"] / 3 - 1))
    assert frame["note"].str.len().min() > 10


def test_training_bars_mark_what_the_slides_say(boards):
    frame = dataflow_frame(["GC200"])
    tables = argonne.time_to_train(frame, boards)
    (axis,) = book.open("argonne").figure("bragg_time_to_train", tables).figure.axes
    labels = [label.get_text() for label in axis.get_yticklabels()]
    assert labels[0].startswith("V100") and len(labels) == 6
    marks = [line for line in axis.get_lines() if line.get_marker() == "|"]
    assert list(marks[0].get_xdata()) == pytest.approx([800, 800])
    assert len(marks) == 4


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("batches_in_flight = 1\n", "", "'batches_in_flight' of 'stock'.*missing"),
        ('"label", "scale"', '"nap", "scale"', "'worker' of 'stock'.*'nap'.*crop, label"),
        ("model = ", "network = ", "'model' of 'stock'.*missing"),
    ],
)
def test_damaged_flows_are_refused(own_data, before, after, says):
    path = own_data / bragg_dataflow.FILE
    text = path.read_text(encoding="utf-8")
    assert before in text
    path.write_text(text.replace(before, after, 1), encoding="utf-8")
    with pytest.raises(DataError, match=says):
        load_dataflows()


def test_a_dataflow_that_does_not_exist_is_named():
    with pytest.raises(UnknownNameError, match="odd"):
        load_dataflow("odd")
