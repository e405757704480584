"""Imported networks that train: gradients of operators that only files bring."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from onnx_single_op import make_model

from ipusim.api import simulate
from ipusim.errors import WorkloadError
from ipusim.workload.onnx.importer import from_onnx

SHAPE = ["n", 8, 4, 4]


def _model(*nodes, **weights):
    """A 1x1 convolution, whose weights want a gradient, before other nodes (x to y)."""
    first = helper.make_node("Conv", ["image", "w"], ["x"])
    given = {"w": [8, 8, 1, 1], **weights}
    return from_onnx(make_model([first, *nodes], {"image": SHAPE}, ["y"], given))


def _backward(model):
    report = simulate(
        model, mode="training", micro_batch=2, loss="mean_squared", replicas=1, tier="specification"
    )
    graph = report.result.graph
    return [op.function for op in graph.ops if op.phase == "backward"]


def _node(kind, inputs, **given):
    return helper.make_node(kind, inputs, ["y"], **given)


CASES = {
    "pow": (_node("Pow", ["x", "p"]), {"p": np.array(3.0, np.float32)}, "pow_grad"),
    "reciprocal": (_node("Reciprocal", ["x"]), {}, "reciprocal_grad"),
    "root": (_node("Pow", ["x", "p"]), {"p": np.array(-0.5, np.float32)}, "rsqrt_grad"),
    "max": (_node("Max", ["x", "b"]), {"b": [8, 4, 4]}, "max_grad"),
    "min": (_node("Min", ["x", "b"]), {"b": [8, 4, 4]}, "min_grad"),
    "mask": (_node("Trilu", ["x"]), {}, "select"),
    "choice": (_node("Where", ["c", "x", "b"]), {"c": np.ones((4, 4), bool), "b": [1]}, "select"),
    "norm": (_node("ReduceL2", ["x"], axes=[1]), {}, "div"),
    "nearest": (
        _node("Resize", ["x", "", "s"]),
        {"s": np.array([1, 1, 2, 2], np.float32)},
        "sum",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_operators_of_files_have_gradients(name):
    node, weights, function = CASES[name]
    assert function in _backward(_model(node, **weights))


def test_gradients_run():
    nodes = [
        helper.make_node("Max", ["x", "b"], ["a"]),
        helper.make_node("Reciprocal", ["a"], ["d"]),
        helper.make_node("Trilu", ["d"], ["e"]),
        helper.make_node("Resize", ["e", "", "s"], ["f"]),
        helper.make_node("Pow", ["f", "p"], ["y"]),
    ]
    weights = {
        "b": [8, 4, 4],
        "s": np.array([1, 1, 2, 2], np.float32),
        "p": np.array(3.0, np.float32),
    }
    model = _model(*nodes, **weights)
    report = simulate(
        model, system="IPU-M2000", mode="training", micro_batch=2, loss="mean_squared", replicas=1
    )
    plain = simulate(model, system="IPU-M2000", micro_batch=2, replicas=1)
    assert report.cycles_per_step > 2 * plain.cycles_per_step


def test_what_has_no_gradient_is_said():
    node = helper.make_node("TopK", ["x", "k"], ["y", "i"])
    with pytest.raises(WorkloadError, match="has no gradient"):
        _backward(_model(node, k=np.array([2])))
