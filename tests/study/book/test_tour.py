"""The tour's controls and its static figure."""

import time

import onnx
import pandas as pd
import pytest

import ipusim
from ipusim.errors import ConfigError, UnknownNameError
from ipusim.study import book
from ipusim.study.book.explorer import FALLBACK, Explorer, published

GOOD = {"model": "resnet18", "systems": ["C2"], "micro_batches": [1, 2]}
STEP_SECONDS = 0.1


@pytest.fixture(scope="module")
def explorer():
    return Explorer(model="resnet18", system="c2")


def test_controls_show_what_a_run_comes_to(explorer):
    assert explorer.system.value == "C2" and explorer.replicas.value == 2
    assert "It fits 2 GC2" in explorer.answer.value and "items/s" in explorer.answer.value
    explorer.micro_batch.value = 2
    assert "resnet18, micro-batch 2" in explorer.details.value
    assert explorer.line.value == (
        "ipusim.simulate('resnet18', system='C2', micro_batch=2, replicas=2)"
    )
    explorer.system.value = "Bow-2000"
    assert explorer.replicas.options == (1, 2, 4) and explorer.replicas.value == 4
    explorer.mode.value, explorer.chips.value = "training", 2
    assert explorer.replicas.options == (1, 2)
    report = explorer.report()
    assert report.config.training and report.config.ipus_per_replica == 2
    assert "overlap_io" not in explorer.options()
    assert f"{report.throughput.value:,.0f} items/s" in explorer.answer.value
    assert explorer.busy.value == ""


def test_the_line_really_says_the_same(explorer):
    again = eval(explorer.line.value, {"ipusim": ipusim})
    assert again.throughput.value == explorer.report().throughput.value


def test_the_curve_passes_the_present_point_and_published_ones_lie_beside():
    explorer = Explorer(model="resnet50", system="IPU-M2000", micro_batch=3)
    assert dict(explorer.curve())[3] == explorer.report().throughput.value
    alone = explorer.report().throughput.value
    explorer.host.index = 2
    assert explorer.report().config.overlap_io and explorer.report().throughput.value > alone
    asked = {"model": "resnet50", **explorer.options()}
    assert (64, 40085.0) in published(asked)
    assert not published(asked | {"replicas": 1})
    assert explorer.answer.value.count("r='4'") == len(published(asked))
    assert "you are here" in explorer.answer.value


def test_a_step_between_planned_runs_is_quick(explorer):
    for size in (1, 2, 1, 2):
        explorer.micro_batch.value = size
    start = time.process_time()
    for size in (1, 2):
        explorer.micro_batch.value = size
    assert (time.process_time() - start) / 2 < STEP_SECONDS


def test_a_file_of_ones_own_says_what_it_needs(tmp_path):
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["b", "t", 64])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["b", "t", 64])],
    )
    path = tmp_path / "own.onnx"
    opset = onnx.helper.make_opsetid("", 17)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8), path)
    explorer = Explorer(model=str(path))
    assert "leaves sizes open" in explorer.answer.value and explorer.line.value == ""
    explorer.dims.value = "t=32"
    assert "It fits" in explorer.answer.value and "dims={'t': 32}" in explorer.line.value
    explorer.dims.value = "t=many"
    assert "must be such as" in explorer.answer.value


def test_what_does_not_fit_is_said_first(explorer):
    explorer.system.value, explorer.mode.value, explorer.micro_batch.value = "C2", "inference", 128
    assert explorer.answer.value.index("does not fit") < explorer.answer.value.index("<svg")
    assert "items/s</p>" not in explorer.answer.value


def test_what_makes_no_sense_is_said(explorer, monkeypatch):
    def refuse():
        raise ConfigError("This <run> makes no sense.")

    monkeypatch.setattr(explorer, "report", refuse)
    explorer.update()
    assert explorer.answer.value == "<p>This &lt;run&gt; makes no sense.</p>"


def test_there_is_a_picture_where_widgets_cannot_be_shown(explorer):
    shown = explorer._repr_mimebundle_()
    assert shown["text/plain"] == FALLBACK == repr(explorer)
    assert explorer.answer.value in shown["text/html"]
    assert "application/vnd.jupyter.widget-view+json" in shown


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"systems": []}, "systems is"),
        ({"systems": "C2"}, "give a list"),
        ({"micro_batches": [0]}, "1 or more"),
        ({"micro_batches": []}, "1 or more"),
        ({"micro_batches": 4}, "1 or more"),
        ({"micro_batches": [True]}, "1 or more"),
    ],
)
def test_bad_parameters_of_the_tour(changed, says):
    book.open("tour", **GOOD)
    with pytest.raises(ConfigError, match=says):
        book.open("tour", **(GOOD | changed))


@pytest.mark.parametrize("changed", [{"model": "resnet51"}, {"systems": ["C3 card"]}])
def test_unknown_names_in_the_tour(changed):
    with pytest.raises(UnknownNameError, match="did you mean|nearest|use"):
        book.open("tour", **(GOOD | changed))


def test_a_run_that_does_not_fit_is_not_drawn():
    frame = pd.DataFrame(
        {
            "system": ["C2", "C2", "Bow-2000"],
            "micro_batch": [1, 2, 1],
            "latency_ms": [1.0, 2.0, 0.5],
            "throughput_items_per_s": [10.0, 11.0, 30.0],
            "fits": [True, False, True],
        }
    )
    axes = book.open("tour").figure("tour_sweep", frame, model="m").figure.axes
    lines = {line.get_label(): list(line.get_ydata()) for line in axes[0].lines}
    assert lines == {"C2": [1.0], "Bow-2000": [0.5]}
