"""Files that are damaged or made to hurt: one sentence each, soon, whatever they hold."""

import itertools
import os
import time
import tracemalloc

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_single_op import make_model, single

from ipusim.errors import WorkloadError
from ipusim.workload.onnx import from_onnx

HUGE = 2**40


def _node(kind, inputs, outputs, **given):
    return helper.make_node(kind, inputs, outputs, **given)


def _calls(*bodies):
    """A model whose function f0 is called; each body lists the functions that it calls."""
    node = helper.make_node("f0", ["x"], ["y"], domain="local")
    model = make_model([node], {"x": [2, 4]}, ["y"])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    for place, body in enumerate(bodies):
        names = ["a", *(f"t{i}" for i in range(len(body) - 1)), "b"]
        nodes = [
            helper.make_node(
                kind, [names[i]], [names[i + 1]], domain="local" if kind[0] == "f" else ""
            )
            for i, kind in enumerate(body)
        ]
        function = helper.make_function("local", f"f{place}", ["a"], ["b"], nodes, opsets)
        model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("local", 1))
    return model


def _gru_without_recurrence():
    return make_model(
        [_node("GRU", ["x", "w"], ["y"], hidden_size=4)], {"x": [3, 2, 5]}, ["y"], {"w": [1, 12, 5]}
    )


def _loop(trips, *, endless=False):
    body = helper.make_graph(
        [
            _node("Relu", ["s"], ["t"]),
            _node("ReduceMax", ["t"], ["r"], keepdims=0),
            _node("Cast", ["r" if endless else "c"], ["go"], to=TensorProto.BOOL),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("s", TensorProto.FLOAT, [4]),
        ],
        [
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("t", TensorProto.FLOAT, [4]),
        ],
    )
    constants = {"trips": np.array(trips), "true": np.array(True)}
    return make_model(
        [_node("Loop", ["trips", "true", "x"], ["y"], body=body)], {"x": [4]}, ["y"], constants
    )


def _mel(bands, length):
    """A matrix of mel bands, whose sizes are values, added up."""
    whole = {"bands": bands, "length": length, "rate": 16_000}
    constants = {name: np.array(size) for name, size in whole.items()}
    constants |= {"low": np.array(0, np.float32), "high": np.array(8000, np.float32)}
    nodes = [
        _node("MelWeightMatrix", list(constants), ["w"]),
        _node("ReduceSum", ["w"], ["s"], keepdims=0),
        _node("Add", ["x", "s"], ["y"]),
    ]
    return make_model(nodes, {"x": [2]}, ["y"], constants)


CASES = {
    "split into fewer parts than it has results": (
        single("Split", {"x": [4]}, num_outputs=1),
        None,
    ),
    "functions in a circle": (_calls(["f1"], ["f0"]), "calls itself"),
    "a function that calls itself": (_calls(["f0", "Relu"]), "calls itself"),
    "functions that stand for 8^10 nodes": (
        _calls(*([f"f{i + 1}"] * 8 for i in range(10)), ["Relu"]),
        "more than 50000 operators",
    ),
    "an operator set of 2^40": (single("Relu", {"x": [2]}), "operator set 1099511627776"),
    "a GRU without recurrent weights": (_gru_without_recurrence(), "cannot take inputs"),
    "nodes in a circle": (
        make_model(
            [_node("Add", ["x", "b"], ["a"]), _node("Relu", ["a"], ["b"])], {"x": [2]}, ["b"]
        ),
        "nothing before it computes",
    ),
    "a size of 2^40": (single("Relu", {"x": [HUGE, 4]}), "elements, what some tens of chips hold"),
    "a product of 2^40 columns": (
        make_model(
            [
                _node("Expand", ["x", "wide"], ["w"]),
                _node("ReduceSum", ["w"], ["y"]),
            ],
            {"x": [1, 4]},
            ["y"],
            {"wide": np.array([HUGE, 4])},
        ),
        "elements, what some tens of chips hold",
    ),
    "a negative size": (
        make_model(
            [_node("Reshape", ["x", "to"], ["y"])], {"x": [4]}, ["y"], {"to": np.array([-5, 4])}
        ),
        "cannot take inputs",
    ),
    "a constant of 2^40 numbers": (
        make_model(
            [_node("ConstantOfShape", ["size"], ["c"]), _node("Add", ["x", "c"], ["y"])],
            {"x": [4]},
            ["y"],
            {"size": np.array([HUGE])},
        ),
        "elements, what some tens of chips hold",
    ),
    "a loop of 2^40 trips": (_loop(HUGE), "operators run"),
    "a loop that data end": (_loop(HUGE, endless=True), "runs as often as data say"),
    "a pad of 2^40": (
        make_model(
            [_node("Pad", ["x", "pads"], ["y"])], {"x": [4]}, ["y"], {"pads": np.array([0, HUGE])}
        ),
        "elements, what some tens of chips hold",
    ),
    "a kind of two lines": (
        make_model([_node("Re\nlu", ["absent"], ["y"])], {"x": [4]}, ["y"]),
        "a name that is no text",
    ),
    "an equation without sense": (
        single("Einsum", {"x": [2, 3], "y0": [3, 4]}, equation="ij,jk,->..->"),
        "cannot take inputs",
    ),
    "a mel matrix of 2^38 numbers": (
        _mel(2**12, 2**27),
        r"node 'w' computes 'w' of shape \(67108865, 4096\), which must have from 0 to "
        f"{2**34} elements.*; give smaller inputs",
    ),
    "a mel matrix of 2^32 numbers": (_mel(2**6, 2**27), None),
    "a mel matrix without bands": (_mel(0, 2**27), r"\(0 bands of 134217728 samples\)"),
    "a mel matrix of no samples": (_mel(2**26, -1), r"\(67108864 bands of -1 samples\)"),
}
CASES["an operator set of 2^40"][0].opset_import[0].version = HUGE


@pytest.mark.parametrize("name", CASES)
def test_one_sentence_soon(name):
    model, message = CASES[name]
    start = time.process_time()
    if message is None:
        assert from_onnx(model).graph().ops
    else:
        with pytest.raises(WorkloadError, match=message) as caught:
            from_onnx(model)
        assert "\n" not in str(caught.value)
    assert time.process_time() - start < 10


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"location": "w.bin", "offset": "-8"}, "damaged initializer"),
        ({"location": "w.bin", "offset": "much"}, "damaged initializer"),
        ({"location": "../../etc/passwd"}, "damaged initializer"),
        ({"location": "w.bin", "offset": str(2**60)}, None),
        ({"location": "w.bin", "length": str(2**60)}, None),
        ({"location": "absent.bin"}, None),
        ({"location": "pipe"}, None),
    ],
)
def test_external_data(tmp_path, entry, message):
    model = single("Add", {"x": [2, 4]}, {"w": [4]})
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entry.items():
        tensor.external_data.add(key=key, value=value)
    (tmp_path / "w.bin").write_bytes(b"\0" * 16)
    os.mkfifo(tmp_path / "pipe")
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    if message is None:
        assert from_onnx(path).graph().parameters == 4
    else:
        with pytest.raises(WorkloadError, match=message):
            from_onnx(path)


LARGE = np.array(2**26)
ONE = np.ones((1, 1, 1), np.float32)
WIDE = {"kernel_shape": [2**26], "pads": [0, 2**26], "strides": [2**26]}
CONSTANTS = {
    "a window": (_node("BlackmanWindow", ["a"], ["w"]), {"a": LARGE}),
    "one hot": (
        _node("OneHot", ["a", "b", "c"], ["w"]),
        {"a": np.array([0]), "b": LARGE, "c": np.array([0.0, 1.0])},
    ),
    "pads": (_node("AveragePool", ["a"], ["w"], **WIDE), {"a": ONE}),
    "dilations": (
        _node("Conv", ["a", "b"], ["w"], dilations=[2**26 - 1], pads=[0, 2**26]),
        {"a": ONE, "b": np.ones((1, 1, 2), np.float32)},
    ),
    "an outer product": (
        _node("Einsum", ["a", "a", "a"], ["w"], equation="a,b,c->abc"),
        {"a": np.ones(400, np.float32)},
    ),
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_large_constants_need_no_values(name):
    node, constants = CONSTANTS[name]
    last = [_node("ReduceSum", ["w"], ["s"], keepdims=0), _node("Add", ["x", "s"], ["y"])]
    model = make_model([node, *last], {"x": [2]}, ["y"], constants)
    tracemalloc.start()
    start = time.process_time()
    assert from_onnx(model).graph().ops
    assert time.process_time() - start < 5
    assert tracemalloc.get_traced_memory()[1] < 2**27
    tracemalloc.stop()


def test_weights_in_nodes_are_read_soon():
    weights = numpy_helper.from_array(np.ones((4096, 2048), np.float32))
    nodes = [_node("Constant", [], ["w"], value=weights), _node("MatMul", ["x", "w"], ["y"])]
    model = make_model(nodes, {"x": ["n", 4096]}, ["y"])
    start = time.process_time()
    assert from_onnx(model).graph().parameters == 4096 * 2048
    assert time.process_time() - start < 2


def test_a_hundred_thousand_nodes():
    names = ["x", *(f"v{i}" for i in range(100_000))]
    nodes = [_node("Relu", [a], [b]) for a, b in itertools.pairwise(names)]
    with pytest.raises(WorkloadError, match="more than 50000 operators"):
        from_onnx(make_model(nodes, {"x": ["n", 4]}, [names[-1]]))
