"""Layers of the graph builder: shapes against ONNX, payloads, refusals."""

from __future__ import annotations

import pytest
from onnx_single_op import single

from ipusim.errors import WorkloadError
from ipusim.workload.builder import GraphBuilder
from ipusim.workload.graph import Gather, Layout, MatMul, Norm
from ipusim.workload.onnx_import import from_onnx


@pytest.mark.parametrize(
    ("kernel", "stride", "size"), [(2, 2, 7), (3, 2, 7), (4, 2, 5), (3, 1, 6), (5, 3, 4)]
)
def test_transposed_convolution_pads_like_onnx_same_upper(kernel, stride, size, tmp_path):
    g = GraphBuilder("transposed")
    graph = g.finish(
        g.conv_transpose("y", g.input("x", (2, 6, size, size)), 4, kernel, stride=stride)
    )
    model = single(
        "ConvTranspose",
        {"x": (2, 6, size, size)},
        {"w": (6, 4, kernel, kernel)},
        strides=[stride, stride],
        auto_pad="SAME_UPPER",
    )
    path = tmp_path / "transposed.onnx"
    path.write_bytes(model.SerializeToString())
    (imported,) = from_onnx(path).graph().ops
    assert graph.ops[0].params == imported.params
    assert graph.tensors["y.out"].shape == (2, 4, size * stride, size * stride)


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


def test_norms_by_group_and_row():
    g = GraphBuilder("norms")
    x = g.group_norm("gn", g.input("x", (2, 8, 3, 5)), 4)
    assert g.ops[-1].params == Norm(
        kind="group", batch=2, channels=8, spatial_elements=15, groups=4
    )
    g.layer_norm("ln", g.reshape("rows", x, (16, 15)))
    assert g.ops[-1].params == Norm(kind="layer", batch=16, channels=15, spatial_elements=1)
    assert g.shape("ln.weight") == g.shape("ln.bias") == (15,)


def test_views_and_moves():
    g = GraphBuilder("layouts")
    x = g.input("x", (2, 3, 1, 4))
    assert g.shape(g.transpose("swap", x, (1, 0, 2, 3))) == (3, 2, 1, 4)
    assert g.ops[-1].params == Layout(function="transpose", elements=24, moves_data=True)
    g.transpose("view", x, (0, 2, 1, 3))
    assert not g.ops[-1].params.moves_data
    assert [g.shape(part) for part in g.unstack("parts", x)] == [(3, 1, 4)] * 2
    assert g.ops[-1].params == Layout(function="split", elements=24, moves_data=False)
    assert g.shape(g.narrow("first", x, axis=1, size=2)) == (2, 2, 1, 4)
    assert g.ops[-1].params == Layout(function="slice", elements=16, moves_data=False)


def test_products_and_lookups():
    g = GraphBuilder("products")
    a, b = g.input("a", (2, 3, 5, 4)), g.input("b", (2, 3, 7, 4))
    assert g.shape(g.matmul("ab", a, b, transpose_b=True)) == (2, 3, 5, 7)
    expected = MatMul(groups=6, m=5, k=4, n=7, weights_operand=False, transpose_b=True)
    assert g.ops[-1].params == expected
    table, indices = g.parameter("table", (10, 4)), g.input("indices", (2, 3), "int32")
    assert g.shape(g.gather("rows", table, indices)) == (6, 4)
    assert g.ops[-1].params == Gather(rows=10, width=4, indices=6)
    assert g.tensors[g.cast("cast", indices, "float32")].dtype == "float32"
    assert g.shape(g.softmax("softmax", a)) == (2, 3, 5, 4)
    assert g.ops[-1].params.outer == 30
