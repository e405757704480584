"""Quantised forms cost what the network costs of which they were made."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_single_op import make_model

from ipusim.workload.onnx import from_onnx

MS = {"domain": "com.microsoft"}
SCALE, ZERO = np.array(0.5, np.float32), np.array(0, np.uint8)
TABLES = {
    "w": [8, 8, 1, 1],
    "b": [8],
    "q": np.ones((8, 8, 1, 1), np.uint8),
    "bq": np.ones(8, np.int32),
    "s": SCALE,
    "z": ZERO,
    "m": np.array(128, np.uint8),
}


def _work(*nodes, weights=None, shape=(2, 8, 4, 4)):
    """What a model does: its operators without names and tensors."""
    made = []
    for kind, inputs, outputs, *rest in nodes:
        given = rest[0] if rest else {}
        made.append(helper.make_node(kind, inputs.split(), outputs.split(), **given))
    read = {name for node in made for name in node.input}
    chosen = {name: array for name, array in (weights or TABLES).items() if name in read}
    graph = from_onnx(make_model(made, {"x": shape}, ["y"], chosen)).graph()
    kept = [op.params for op in graph.ops if op.kind != "layout"]
    return [replace(p, in_place_ok=True) if hasattr(p, "in_place_ok") else p for p in kept]


PLAIN = ("Conv", "x w b", "c"), ("Relu", "c", "y")
WITHOUT = (("Conv", "x w b", "y"),)


@pytest.mark.parametrize(
    ("quantised", "plain"),
    [
        pytest.param(
            [
                ("QuantizeLinear", "x s m", "xq"),
                ("DequantizeLinear", "xq s m", "xd"),
                ("Conv", "xd w b", "c"),
                ("QuantizeLinear", "c s z", "cq"),
                ("DequantizeLinear", "cq s z", "y"),
            ],
            PLAIN,
            id="a relu that quantisation does",
        ),
        pytest.param(
            [
                ("QuantizeLinear", "x s m", "xq"),
                ("QLinearConv", "xq s m q s z s z bq", "cq"),
                ("DequantizeLinear", "cq s z", "y"),
            ],
            PLAIN,
            id="a relu within the convolution",
        ),
        pytest.param(
            [
                ("QuantizeLinear", "x s m", "xq"),
                ("QLinearConv", "xq s m q s z s m bq", "cq"),
                ("DequantizeLinear", "cq s m", "y"),
            ],
            WITHOUT,
            id="no relu where results have both signs",
        ),
        pytest.param(
            [
                ("DynamicQuantizeLinear", "x", "xq xs xz"),
                ("Mul", "xs s", "both"),
                ("ConvInteger", "xq q xz z", "ci"),
                ("Cast", "ci", "cf", {"to": 1}),
                ("Mul", "cf both", "c"),
                ("Add", "c bias", "y"),
            ],
            [("Conv", "x w", "c"), ("Add", "c bias", "y")],
            id="scales of a dynamic quantisation",
        ),
    ],
)
def test_a_quantised_convolution_is_a_convolution(quantised, plain):
    weights = TABLES | {"bias": np.ones((1, 8, 1, 1), np.float32)}
    assert _work(*quantised, weights=weights) == _work(*plain, weights=weights)


def test_numbers_of_a_quantised_function_have_their_scales():
    """GELU in pieces, with 1 as 255 / 255: its sum with one is no Relu."""
    numbers = {"root": 2**0.5, "one": 1.0, "half": 0.5}
    weights = {name: np.array(value, np.float32) for name, value in numbers.items()}
    pieces = [("Div", "x root", "d"), ("Erf", "d", "e"), ("Add", "e one", "a"), ("Mul", "x a", "m")]
    plain = _work(*pieces, ("Mul", "m half", "y"), weights=weights)
    whole = np.array(255, np.uint8)
    weights |= {"o": whole, "h": whole, "os": np.array(1 / 255, np.float32), "z": ZERO, "s": SCALE}
    weights |= {"hs": np.array(0.5 / 255, np.float32), "m8": np.array(128, np.uint8)}
    quantised = _work(
        *pieces[:2],
        ("QuantizeLinear", "e s m8", "eq"),
        ("QLinearAdd", "eq s m8 o os z s z", "aq", MS),
        ("QuantizeLinear", "x s m8", "xq"),
        ("QLinearMul", "xq s m8 aq s z s m8", "mq", MS),
        ("QLinearMul", "mq s m8 h hs z s m8", "yq", MS),
        ("DequantizeLinear", "yq s m8", "y"),
        weights=weights,
    )
    assert [op.function for op in plain] == ["gelu"]
    assert quantised == plain


def test_nodes_may_stand_before_those_they_read():
    """Converters to float16 append the casts of inputs at the end of a file."""
    nodes = [
        helper.make_node("Relu", ["c"], ["y"]),
        helper.make_node("Conv", ["h", "w"], ["c"]),
        helper.make_node("Cast", ["x"], ["h"], to=onnx.TensorProto.FLOAT),
    ]
    given = {"x": (2, 8, 4, 4)}, ["y"], {"w": [8, 8, 1, 1]}
    models = [make_model(order, *given) for order in (nodes, nodes[::-1])]
    graphs = [from_onnx(model).graph() for model in models]
    assert graphs[0] == graphs[1]


def _table(*nodes):
    """A quantised table of words, looked up before what reads it."""
    lookup = helper.make_node("Gather", ["table", "x"], ["q"])
    weights = {"table": np.ones((50, 8), np.int8), "zero": np.array(3, np.int8)}
    weights |= {"scale": np.array(0.1, np.float32), "wide": [4, 8]}
    model = make_model([lookup, *nodes], {"x": ["n", 4]}, ["y"], weights)
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return from_onnx(model).graph(2)


def test_a_quantised_table_that_is_looked_up_is_a_parameter():
    turned = helper.make_node("Transpose", ["q"], ["t"], perm=[0, 2, 1])
    scaled = helper.make_node("DequantizeLinear", ["t", "scale", "zero"], ["y"])
    graph = _table(turned, scaled)
    assert (graph.parameters, graph.tensors["table"].dtype) == (400, "float16")


def test_a_quantised_table_may_be_added_as_it_is():
    operands = ["q", "scale", "zero", "wide", "scale", "zero", "scale", "zero"]
    add = helper.make_node("QLinearAdd", operands, ["y"], domain="com.microsoft")
    assert _table(add).parameters == 400 + 32


def test_projections_that_read_copies_of_one_scaled_value_are_one_product():
    """onnxruntime writes a DequantizeLinear for every reader."""
    nodes = [helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"])]
    weights = {"zero": np.array(3, np.int8), "scale": np.array(0.1, np.float32)}
    for name in "abc":
        weights[f"w{name}"] = [8, 8]
        nodes += [
            helper.make_node("DequantizeLinear", ["q", "scale", "zero"], [f"x{name}"]),
            helper.make_node("MatMul", [f"x{name}", f"w{name}"], [name]),
        ]
    nodes.append(helper.make_node("Sum", ["a", "b", "c"], ["y"]))
    graph = from_onnx(make_model(nodes, {"x": ["n", 4, 8]}, ["y"], weights)).graph(2)
    assert [op.params.n for op in graph.ops if op.kind == "matmul"] == [24]
