"""Generated single-operator files against onnxruntime and independent counts."""

import itertools
from math import prod

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st
from onnx_single_op import runtime_shapes, single

from ipusim.workload.graph import Conv, Graph, MatMul
from ipusim.workload.onnx import from_onnx

FEW = settings(max_examples=40)


def _only(graph: Graph, kind: str):
    (op,) = [op for op in graph.ops if op.kind == kind]
    return op.params


def _shapes(graph: Graph) -> list[tuple[int, ...]]:
    return [graph.tensors[name].shape for name in graph.outputs]


@st.composite
def conv_cases(draw):
    rank = draw(st.integers(1, 3))
    sizes = st.integers(1, 3)

    def each(strategy):
        return draw(st.lists(strategy, min_size=rank, max_size=rank))

    groups = draw(sizes)
    case = {
        "batch": draw(sizes),
        "groups": groups,
        "in_per_group": draw(sizes),
        "out_per_group": draw(sizes),
        "field": each(st.integers(3, 9)),
        "kernel": each(sizes),
        "stride": each(sizes),
        "dilation": each(st.integers(1, 2)),
        "lower": each(st.integers(0, 2)),
        "upper": each(st.integers(0, 2)),
        "mode": draw(st.sampled_from(["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"])),
        "bias": draw(st.booleans()),
        "weights_are_input": draw(st.booleans()),
    }
    if case["mode"] != "NOTSET":  # ONNX leaves dilation undefined beside automatic padding
        case["dilation"] = [1] * rank
    return case


def _conv_model(case, op_type="Conv", **extra):
    weight_shape = [
        case["groups"] * case["out_per_group"],
        case["in_per_group"],
        *case["kernel"],
    ]
    if op_type == "ConvTranspose":
        weight_shape[:2] = [case["groups"] * case["in_per_group"], case["out_per_group"]]
    inputs = {"x": [case["batch"], case["groups"] * case["in_per_group"], *case["field"]]}
    weights = {}
    (inputs if case["weights_are_input"] else weights)["w"] = weight_shape
    order = ["x", "w"]
    if case["bias"]:
        weights["b"] = [case["groups"] * case["out_per_group"]]
        order.append("b")
    attributes = {
        "group": case["groups"],
        "kernel_shape": case["kernel"],
        "strides": case["stride"],
        "dilations": case["dilation"],
        **extra,
    }
    if case["mode"] == "NOTSET":
        attributes["pads"] = [*case["lower"], *case["upper"]]
    else:
        attributes["auto_pad"] = case["mode"]
    return single(op_type, inputs, weights, order, **attributes)


@FEW
@given(conv_cases())
def test_conv(case):
    spans = [d * (k - 1) + 1 for d, k in zip(case["dilation"], case["kernel"], strict=True)]
    padding = [
        low + high if case["mode"] == "NOTSET" else 0
        for low, high in zip(case["lower"], case["upper"], strict=True)
    ]
    assume(all(n + p >= s for n, p, s in zip(case["field"], padding, spans, strict=True)))
    model = _conv_model(case)
    graph = from_onnx(model).graph()
    (shape,) = runtime_shapes(model)
    assert _shapes(graph) == [shape]
    conv = _only(graph, "conv")
    assert conv.out_field == shape[2:]
    # Every output element is a product over the taps of all channels of its group; of more output
    # than input positions some see padding alone.
    taps = case["in_per_group"] * prod(case["kernel"])
    positions = min(prod(shape[2:]), prod(case["field"]))
    assert graph.macs == prod(shape[:2]) * positions * taps
    weights = case["groups"] * case["out_per_group"] * taps
    bias = case["groups"] * case["out_per_group"] if case["bias"] else 0
    assert graph.parameters == bias + (0 if case["weights_are_input"] else weights)
    assert graph.inputs == (("x", "w") if case["weights_are_input"] else ("x",))


@FEW
@given(
    conv_cases().filter(lambda case: case["mode"] == "NOTSET"),
    st.integers(0, 1),
)
def test_conv_transpose(case, output_padding):
    rank = len(case["field"])
    assume(all(output_padding < step for step in case["stride"]))
    spans = [
        (n - 1) * s + d * (k - 1) + 1 - low - high + output_padding
        for n, s, d, k, low, high in zip(
            case["field"],
            case["stride"],
            case["dilation"],
            case["kernel"],
            case["lower"],
            case["upper"],
            strict=True,
        )
    ]
    assume(min(spans) > 0)
    model = _conv_model(case, "ConvTranspose", output_padding=[output_padding] * rank)
    graph = from_onnx(model).graph()
    assert _shapes(graph) == runtime_shapes(model)
    conv = _only(graph, "conv")
    assert isinstance(conv, Conv)
    assert conv.weights == prod(graph.tensors["w"].shape)
    if conv.is_transposed:
        # Every input element meets every tap of its group's outputs once.
        inputs = prod(graph.tensors["x"].shape)
        assert graph.macs == inputs * case["out_per_group"] * prod(case["kernel"])


C_FORMS = ("none", "scalar", "one", "row", "row2d", "column", "full")


@FEW
@given(
    m=st.integers(1, 6),
    k=st.integers(1, 6),
    n=st.integers(1, 6),
    flip_a=st.booleans(),
    flip_b=st.booleans(),
    alpha=st.sampled_from([1.0, 0.5]),
    beta=st.sampled_from([1.0, 0.0, 2.0]),
    form=st.sampled_from(C_FORMS),
    stored=st.booleans(),
)
def test_gemm(m, k, n, flip_a, flip_b, alpha, beta, form, stored):
    shapes = {
        "scalar": [],
        "one": [1],
        "row": [n],
        "row2d": [1, n],
        "column": [m, 1],
        "full": [m, n],
    }
    inputs = {"a": [k, m] if flip_a else [m, k]}
    rest = {"b": [n, k] if flip_b else [k, n]}
    if form != "none":
        rest["c"] = shapes[form]
    attributes = {"transA": int(flip_a), "transB": int(flip_b), "alpha": alpha, "beta": beta}
    if stored:
        model = single("Gemm", inputs, rest, **attributes)
    else:
        model = single("Gemm", inputs | rest, **attributes)
    graph = from_onnx(model).graph()
    assert _shapes(graph) == runtime_shapes(model) == [(m, n)]
    # One multiplication for each triple of indices.
    assert graph.macs == sum(1 for _ in itertools.product(range(m), range(k), range(n)))
    product = _only(graph, "matmul")
    assert (product.m, product.k, product.n) == (m, k, n)
    assert product.weights_operand is stored
    adds = form != "none" and beta != 0.0
    functions = [op.function for op in graph.ops[1:]]
    expected = ["scale"] if alpha != 1.0 else []
    if adds:
        is_row = shapes[form][-1:] == [n] and prod(shapes[form]) == n
        plain = "bias_add" if stored and is_row else "add"
        expected.append("scaled_add" if beta != 1.0 else plain)
    assert functions == expected
    assert graph.parameters == (k * n + adds * prod(shapes.get(form, [])) if stored else 0)


def _broadcast_pair(draw):
    batch = draw(st.lists(st.integers(1, 3), max_size=3))

    def thin():
        kept = [draw(st.sampled_from([1, size])) for size in batch]
        return kept[draw(st.integers(0, len(kept))) :]

    return thin(), thin()


@st.composite
def matmul_shapes(draw):
    a_batch, b_batch = _broadcast_pair(draw)
    m, k, n = (draw(st.integers(1, 5)) for _ in range(3))
    a, b = [*a_batch, m, k], [*b_batch, k, n]
    if draw(st.booleans()) and draw(st.booleans()):
        a = [k]
    if draw(st.booleans()) and draw(st.booleans()):
        b = [k]
    return a, b


@FEW
@given(matmul_shapes(), st.booleans())
def test_matmul(shapes, stored):
    a, b = shapes
    model = single("MatMul", {"a": a}, {"b": b}) if stored else single("MatMul", {"a": a, "b": b})
    graph = from_onnx(model).graph()
    result = np.ones(a) @ np.ones(b)
    assert _shapes(graph) == runtime_shapes(model) == [result.shape]
    # Ones times ones: every result element counts its own products.
    assert graph.macs == int(np.sum(result))
    product = _only(graph, "matmul")
    assert isinstance(product, MatMul)
    if len(b) <= 2:
        assert product.groups == 1


@FEW
@given(
    op_type=st.sampled_from(["MaxPool", "AveragePool"]),
    field=st.lists(st.integers(4, 9), min_size=2, max_size=2),
    kernel=st.lists(st.integers(1, 3), min_size=2, max_size=2),
    stride=st.lists(st.integers(1, 3), min_size=2, max_size=2),
    pads=st.lists(st.integers(0, 1), min_size=4, max_size=4),
    ceil_mode=st.booleans(),
)
def test_pool(op_type, field, kernel, stride, pads, ceil_mode):
    assume(all(p < kernel[axis % 2] for axis, p in enumerate(pads)))
    model = single(
        op_type,
        {"x": [2, 3, *field]},
        kernel_shape=kernel,
        strides=stride,
        pads=pads,
        ceil_mode=int(ceil_mode),
    )
    graph = from_onnx(model).graph()
    (shape,) = _shapes(graph)
    pool = _only(graph, "pool")
    assert pool.out_field == shape[2:]
    assert runtime_shapes(model) == [shape]


@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize(
    ("axes", "expected"),
    [
        ([1], (2, 3, 20)),
        ([1, 2], (2, 12, 5)),
        ([-1], (24, 5, 1)),
        ([0, 1, 2, 3], (1, 120, 1)),
        ([0, 2], (15, 8, 1)),
        (None, (1, 120, 1)),
    ],
)
def test_reduce(axes, expected, keep):
    attributes = {"keepdims": keep} | ({} if axes is None else {"axes": axes})
    model = single("ReduceMean", {"x": [2, 3, 4, 5]}, **attributes)
    graph = from_onnx(model).graph()
    params = _only(graph, "reduce")
    assert (params.outer, params.reduced, params.inner) == expected
    assert params.function == "mean"
    assert _shapes(graph) == runtime_shapes(model)


@pytest.mark.parametrize(("mode", "lower", "upper"), [("SAME_UPPER", 0, 1), ("SAME_LOWER", 1, 0)])
def test_the_odd_row_of_automatic_padding_is_where_its_name_says(mode, lower, upper, tmp_path):
    model = single(
        "Conv", {"x": (1, 2, 8, 8)}, {"w": (2, 2, 2, 2)}, auto_pad=mode, kernel_shape=[2, 2]
    )
    path = tmp_path / "padded.onnx"
    path.write_bytes(model.SerializeToString())
    (op,) = from_onnx(path).graph().ops
    assert op.params.padding_lower == (lower,) * 2
    assert op.params.padding_upper == (upper,) * 2


@pytest.mark.parametrize(("mode", "lower", "upper"), [("SAME_UPPER", 1, 0), ("SAME_LOWER", 0, 1)])
def test_the_odd_row_that_a_transposed_convolution_drops_is_where_its_name_says(mode, lower, upper):
    model = single("ConvTranspose", {"x": (1, 2, 8, 8)}, {"w": (2, 2, 2, 2)}, auto_pad=mode)
    (op,) = from_onnx(model).graph().ops
    assert op.params.padding_lower == (lower,) * 2
    assert op.params.padding_upper == (upper,) * 2
