"""Layers of the graph builder: shapes against ONNX, payloads, refusals."""

from dataclasses import replace

import pytest
from onnx_single_op import single

from ipusim.errors import WorkloadError
from ipusim.workload.graph import Gather, Layout, MatMul, Norm, Reduce
from ipusim.workload.layers import GraphBuilder
from ipusim.workload.onnx import from_onnx
from ipusim.workload.training import training_graphs


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(
    ("kernel", "stride", "size"),
    [
        ((2, 2), (2, 2), 7),
        ((3, 3), (2, 2), 7),
        ((4, 4), (2, 2), 5),
        ((3, 3), (1, 1), 6),
        ((5, 5), (3, 3), 4),
        ((3, 1), (2, 1), 5),
        ((1, 4), (1, 3), 6),
    ],
)
def test_transposed_convolution_pads_like_onnx_same_upper(kernel, stride, size, groups, tmp_path):
    g = GraphBuilder("transposed")
    x = g.input("x", (2, 6, size, size))
    graph = g.finish(g.conv_transpose("y", x, 4, kernel, stride=stride, groups=groups))
    weights = (6, 4 // groups, *kernel)
    model = single(
        "ConvTranspose",
        {"x": (2, 6, size, size)},
        {"w": weights},
        strides=list(stride),
        group=groups,
        auto_pad="SAME_UPPER",
    )
    path = tmp_path / "transposed.onnx"
    path.write_bytes(model.SerializeToString())
    (imported,) = from_onnx(path).graph().ops
    assert graph.ops[0].params == imported.params
    assert graph.tensors["y.weight"].shape == weights
    assert graph.tensors["y.out"].shape == (2, 4, size * stride[0], size * stride[1])


def test_elementwise_repeats_smaller_tensors():
    g = GraphBuilder("broadcast")
    x, y = g.input("x", (2, 3, 4, 4)), g.input("y", (3, 1, 1))
    assert g.shape(g.elementwise("scale", "mul", x, y)) == (2, 3, 4, 4)
    assert g.ops[-1].params.broadcast
    g.elementwise("same", "mul", x, x)
    assert not g.ops[-1].params.broadcast
    with pytest.raises(WorkloadError, match=r"cannot repeat a tensor of shape \(2, 3, 4, 4\)"):
        g.elementwise("larger", "mul", y, x)
    with pytest.raises(WorkloadError, match="same size or 1"):
        g.elementwise("other", "mul", x, g.input("z", (2, 1, 1)))


def test_a_chain_names_its_steps():
    g = GraphBuilder("chain")
    last = g.at("angle").chain(g.input("x", (2, 3)), half="scale", cosine="cos")
    assert [(op.name, op.function) for op in g.ops] == [
        ("angle.half", "scale"),
        ("angle.cosine", "cos"),
    ]
    assert g.ops[1].inputs == g.ops[0].outputs
    assert last == "angle.cosine.out"


def test_norms_by_group_and_row():
    g = GraphBuilder("norms")
    x = g.group_norm("gn", g.input("x", (2, 8, 3, 5)), 4)
    assert g.ops[-1].params == Norm(
        kind="group", batch=2, channels=8, spatial_elements=15, groups=4
    )
    g.layer_norm("ln", g.reshape("rows", x, (16, 15)))
    assert g.ops[-1].params == Norm(kind="layer", batch=16, channels=15, spatial_elements=1)
    assert g.shape("ln.weight") == g.shape("ln.bias") == (15,)
    g.layer_norm("fixed", "rows.out", {"scale": "constant", "shift": "constant"})
    assert g.ops[-1].inputs == ("rows.out", "fixed.scale", "fixed.shift")
    assert g.tensors["fixed.scale"].role == "constant"


def test_views_and_moves():
    g = GraphBuilder("layouts")
    x = g.input("x", (2, 3, 1, 4))
    assert g.shape(g.transpose("swap", x, (1, 0, 2, 3))) == (3, 2, 1, 4)
    assert g.ops[-1].params == Layout.move("transpose")
    g.transpose("view", x, (0, 2, 1, 3))
    assert not g.ops[-1].params.moves_data
    assert [g.shape(part) for part in g.unstack("parts", x)] == [(3, 1, 4)] * 2
    assert g.ops[-1].params == Layout.view("split")
    assert g.shape(g.narrow("first", x, axis=1, size=2)) == (2, 2, 1, 4)
    assert g.ops[-1].params == Layout.view("slice")


def test_products_and_lookups():
    g = GraphBuilder("products")
    a, b = g.input("a", (2, 3, 5, 4)), g.input("b", (2, 3, 7, 4))
    assert g.shape(g.matmul("ab", a, b, transpose_b=True)) == (2, 3, 5, 7)
    expected = MatMul(groups=6, m=5, k=4, n=7, weights_operand=False, transpose_b=True)
    assert g.ops[-1].params == expected
    transposed = g.transpose("k_m", a, (0, 1, 3, 2))
    assert g.shape(g.matmul("ab_again", transposed, b, transpose_a=True, transpose_b=True)) == (
        2,
        3,
        5,
        7,
    )
    assert g.ops[-1].params == replace(expected, transpose_a=True)
    every_row = g.matmul("stored", a, g.parameter("weights", (4, 7)))
    assert g.shape(every_row) == g.shape(g.linear("dense", a, 7)) == (2, 3, 5, 7)
    assert all(
        op.params.m == 30 and op.params.groups == 1
        for op in g.ops
        if op.kind == "matmul" and op.params.weights_operand
    )
    table, indices = g.parameter("table", (10, 4)), g.input("indices", (2, 3), "int32")
    assert g.shape(g.gather("rows", table, indices)) == (2, 3, 4)
    assert g.ops[-1].params == Gather(rows=10, width=4, indices=6)
    assert g.tensors[g.cast("cast", indices, "float32")].dtype == "float32"
    assert g.shape(g.softmax("softmax", a)) == (2, 3, 5, 4)
    assert g.ops[-1].params.outer == 30


def test_shifts_copies_and_parts():
    g = GraphBuilder("parts")
    x = g.input("x", (2, 6, 4))
    assert g.shape(g.roll("roll", x)) == (2, 6, 4)
    assert g.ops[-1].params == Layout.move("roll")
    assert g.shape(g.copy("copy", x)) == (2, 6, 4)
    assert g.shape(g.pad("pad", x, axis=1, size=8)) == (2, 8, 4)
    assert g.ops[-1].params == Layout.move("pad")
    assert [g.shape(part) for part in g.split("split", x, (1, 5), axis=1)] == [(2, 1, 4), (2, 5, 4)]
    with pytest.raises(WorkloadError, match=r"cannot split 6 elements into parts of \(2, 3\)"):
        g.split("uneven", x, (2, 3), axis=1)
    assert [g.shape(part) for part in g.split("thirds", x, 3, axis=1)] == [(2, 2, 4)] * 3
    with pytest.raises(WorkloadError, match="cannot split 6 elements"):
        g.split("fourths", x, 4, axis=1)
    assert g.shape(g.reduce("mean", "mean", x, axis=1)) == (2, 4)
    assert g.ops[-1].params == Reduce(function="mean", outer=2, reduced=6, inner=4)
    assert g.shape(g.reduce("least", "min", x, axis=1, keep=True)) == (2, 1, 4)
    assert g.ops[-1].params == Reduce(function="min", outer=2, reduced=6, inner=4)
    assert g.shape(g.column("column", x)) == (2, 6, 4, 1)
    assert g.softmax("log", x, log=True) and g.ops[-1].params.log


def test_parts_of_what_no_precision_changes_are_not_changed_either():
    g = GraphBuilder("parts")
    wide = g.cast("wide", g.input("x", (2, 6)), "float32", fixed=True)
    parts = g.split("split", wide, 2, axis=1)
    graph = g.finish(g.elementwise("sum", "add", *parts)).with_precision("16.16")
    assert {graph.tensors[name].dtype for name in (*parts, "sum.out")} == {"float32"}


def test_a_block_names_its_layers_after_itself():
    g = GraphBuilder("blocks")
    x = g.input("x", (2, 3))
    inner = g.at("outer").at("inner")
    inner.share("again.", "first.")
    inner.freeze("fixed.")
    for name in ("first", "again", "fixed"):
        x = inner.linear(name, x, 3, bias=False)
    x = inner.elementwise("mask", "mul", x, inner.input("mask.given", (3,)))
    places = inner.constant("places", (2, 3), "int32")
    assert (inner.tensors[places].role, inner.tensors[places].dtype) == ("constant", "int32")
    x = inner.elementwise("place", "add", x, places)
    table = inner.streamed("table", (2, 3), dtype="float32")
    graph = g.finish(inner.elementwise("add", "add", x, table))
    assert graph.inputs == ("x", "outer.inner.mask.given")
    assert [op.name for op in graph.ops] == [
        f"outer.inner.{name}" for name in ("first", "again", "fixed", "mask", "place", "add")
    ]
    assert graph.ops[1].inputs[1] == "outer.inner.first.weight"
    assert graph.tensors["outer.inner.fixed.weight"].role == "constant"
    assert graph.streamed == graph.fixed[:1] == ("outer.inner.table",)
    with pytest.raises(WorkloadError, match=r"already has a tensor 'outer.inner.first.weight'"):
        inner.linear("first", x, 3)


def test_shared_and_frozen_weights():
    g = GraphBuilder("shared")
    x = g.input("x", (2, 8))
    g.share("again.", "first.")
    g.freeze("fixed.")
    for name in ("first.fc", "again.fc", "fixed.fc"):
        x = g.linear(name, x, 8)
    graph = g.finish(x)
    weights = [op.inputs[1] for op in graph.ops if op.kind == "matmul"]
    assert weights == ["first.fc.weight", "first.fc.weight", "fixed.fc.weight"]
    assert graph.parameters == 8 * 8 + 8
    assert graph.tensors["fixed.fc.bias"].role == "constant"
    micro = training_graphs(graph, loss="mean_squared").micro_batch
    names = [op.name for op in micro.ops if op.phase == "backward"]
    assert "first.fc.weight.gradient_sum1" in names
    assert "first.fc.bias_add.bias.gradient_sum1" in names
    assert "fixed.fc.data_gradient" in names
    assert "fixed.fc.weight_gradient" not in names


def test_moves_go_back_as_moves():
    g = GraphBuilder("moves")
    x = g.reshape("rows", g.linear("fc", g.input("x", (4, 8)), 8), (2, 2, 8))
    x = g.pad("pad", g.copy("copy", g.roll("roll", x)), axis=1, size=4)
    first, rest = g.split("split", x, (1, 3), axis=1)
    graph = g.finish(g.concat("concat", rest, first, rest, axis=1))
    micro = training_graphs(graph, loss="mean_squared").micro_batch
    back = {op.source: op.params for op in micro.ops if op.phase == "backward"}
    assert back["split"] == Layout.move("concat")
    assert back["pad"] == Layout.view("slice")
    assert back["copy"] == Layout.move("copy")
    assert back["roll"] == Layout.move("roll")
    sums = [op.name for op in micro.ops if ".gradient_sum" in op.name]
    assert sums == ["split.out1.gradient_sum1"]  # read twice
