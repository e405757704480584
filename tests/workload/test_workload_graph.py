"""Graphs: counting, ordering, validation, precision, folding."""

from dataclasses import replace

import pytest
import windows
from hypothesis import given, strategies as st

from ipusim.errors import ConfigError, WorkloadError
from ipusim.workload import zoo
from ipusim.workload.folding import drop_dropout, fold_batch_norm
from ipusim.workload.graph import (
    Cast,
    Conv,
    Elementwise,
    Gather,
    Graph,
    Layout,
    MatMul,
    Op,
    Tensor,
    arriving_dtype,
)
from ipusim.workload.layers import GraphBuilder
from ipusim.workload.model import Model


def _chain() -> Graph:
    g = GraphBuilder("chain")
    x = g.input("x", (2, 4, 8, 8))
    x = g.conv("conv", x, 6, 3, padding=1)
    x = g.batch_norm("bn", x)
    return g.finish(g.elementwise("relu", "relu", x))


def test_counts_by_hand():
    graph = _chain()
    assert graph.macs == 2 * 6 * 8 * 8 * 4 * 9
    assert graph.parameters == 6 * 4 * 9 + 6 + 6
    elements = 2 * 6 * 8 * 8
    assert graph.output_bytes == 4 * elements


def test_a_window_fits_so_often():
    pool = windows.pool(channels=2, field=(4, 4), kernel=(2, 2), **windows.NO_PADDING)
    assert pool.out_field == (2, 2)


def test_shared_parameters_count_once():
    tensors = [
        Tensor(name="x", shape=(1, 3), role="input"),
        Tensor(name="w", shape=(3, 3), role="parameter"),
        Tensor(name="w_t", shape=(3, 3), role="parameter", alias_of="w"),
    ]
    graph = Graph(
        name="tied", tensors={t.name: t for t in tensors}, ops=(), inputs=("x",), outputs=("x",)
    )
    assert graph.parameters == 9
    assert graph.parameter_bytes == 36


def _relu(name: str, source: str, target: str) -> Op:
    params = Elementwise(function="relu")
    return Op(name=name, params=params, inputs=(source,), outputs=(target,))


def _tiny(ops: tuple[Op, ...], **changes: object) -> Graph:
    tensors = {"a": Tensor(name="a", shape=(1,), role="input")}
    tensors |= {name: Tensor(name=name, shape=(1,)) for name in "bcd"}
    fields = {"name": "tiny", "tensors": tensors, "inputs": ("a",), "outputs": ("d",)}
    return Graph(**(fields | {"ops": ops} | changes))


GOOD = (_relu("1", "a", "b"), _relu("2", "b", "c"), _relu("3", "c", "d"))


def test_good_graph_validates():
    assert _tiny(GOOD).validate().outputs == ("d",)


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (_tiny((GOOD[1], GOOD[0], GOOD[2])), "reads 'b', which nothing before it provides"),
        (_tiny((*GOOD, _relu("4", "a", "d"))), "writes 'd', which already has a value"),
        (_tiny((*GOOD, _relu("4", "a", "a"))), "writes 'a', which already has a value"),
        (_tiny((*GOOD[:2], _relu("1", "c", "d"))), "two operators named '1'"),
        (_tiny((*GOOD, _relu("4", "a", "z"))), "unknown tensor 'z'"),
        (_tiny(GOOD, outputs=("z",)), "exchanges unknown tensor 'z'"),
        (_tiny(GOOD[:2], outputs=("c",)), "lists tensor 'd', which nothing provides"),
        (
            _tiny((*GOOD[:2], replace(GOOD[2], params=MatMul(m=1, k=1, n=2), inputs=("c", "c")))),
            "expects 2 elements in 'd'",
        ),
    ],
)
def test_bad_graphs_are_refused(graph, message):
    with pytest.raises(WorkloadError, match=message):
        graph.validate()


def test_conv_must_agree_with_its_tensors():
    graph = _chain()
    conv = graph.ops[0]
    wrong = replace(conv, params=replace(conv.params, kernel=(1, 1), padding_lower=(0, 0)))
    with pytest.raises(WorkloadError, match="expects 24 elements in 'conv.weight'"):
        replace(graph, ops=(wrong, *graph.ops[1:])).validate()


@pytest.mark.parametrize("changes", [{"dtype": "float4"}, {"role": "weight"}, {"shape": (2, -1)}])
def test_bad_tensor(changes):
    with pytest.raises(WorkloadError, match="Tensor 't'"):
        Tensor(**({"name": "t", "shape": (1,)} | changes))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: windows.pool(kind="median"), "kind = 'median', which must be one of max, average"),
        (lambda: MatMul(m=4, k=0, n=2), "MatMul has k = 0, which must be at least 1"),
        (lambda: windows.conv(kernel=(3, 0)), r"kernel = \(3, 0\), which must be at least 1"),
        (lambda: windows.conv(stride=(1,)), "must have 2 entries, one per spatial dimension"),
        (lambda: windows.conv(input_dilation=(2,)), r"input_dilation = \(2,\), which must have 2"),
        (lambda: windows.pool(dilation=(1, 1, 1)), "must have 2 entries"),
    ],
)
def test_bad_attributes_are_refused(make, message):
    with pytest.raises(WorkloadError, match=message):
        make()


def test_what_is_usual_needs_no_name():
    gathers = [Gather(rows=4, width=2, indices=3, function=name) for name in ("lookup", "add")]
    assert [one.variant for one in gathers] == ["", "add"]
    assert [conv.variant for conv in (windows.conv(), windows.pool(), Cast())] == ["", "max", ""]


def test_precision_leaves_integers_and_settles_casts():
    tensors = {
        "ids": Tensor(name="ids", shape=(4,), dtype="int32", role="input"),
        "wide": Tensor(name="wide", shape=(4,), dtype="float32"),
        "narrow": Tensor(name="narrow", shape=(4,), dtype="float16", role="output"),
    }
    ops = (
        Op(name="1", params=Cast(), inputs=("ids",), outputs=("wide",)),
        Op(name="2", params=Cast(), inputs=("wide",), outputs=("narrow",)),
    )
    graph = Graph(name="casts", tensors=tensors, ops=ops, inputs=("ids",), outputs=("narrow",))
    half = graph.with_precision("16.16").validate()
    assert half.tensors["ids"].dtype == "int32"
    assert (half.ops[0].params, half.tensors["wide"].dtype) == (Cast(), "float16")
    assert half.ops[1].params == Layout.view("identity")


def _batch_norms(name: str) -> int:
    ops = zoo.load(name).graph().ops
    return sum(op.kind == "norm" and op.params.kind == "batch" for op in ops)


KEPT = {f"yolo_v4_p5_{size}": 5 for size in (416, 512, 640, 896)}
KEPT |= {f"efficientdet_d{size}": 2 * 5 * (3 if size < 3 else 4) for size in range(5)}
"""Batch norms that follow a concatenation, or convolutions that other levels share."""


@pytest.mark.parametrize("name", KEPT)
def test_folding_leaves_what_is_not_one_convolution_alone(name):
    graph = zoo.load(name).graph()
    folded = fold_batch_norm(graph)
    assert sum(op.kind == "norm" for op in folded.ops) == KEPT[name]
    assert folded.macs == graph.macs


@pytest.mark.parametrize(
    "name", [name for name in zoo.names() if name not in KEPT and _batch_norms(name)]
)
def test_folding_a_zoo_network(name):
    graph = zoo.load(name).graph()
    folded = fold_batch_norm(graph)
    norms = [op for op in graph.ops if op.kind == "norm"]
    channels = sum(op.params.channels for op in norms)
    assert not [op for op in folded.ops if op.kind == "norm"]
    assert [op.params for op in folded.ops if op.kind == "conv"] == [
        op.params for op in graph.ops if op.kind == "conv"
    ]
    assert folded.macs == graph.macs
    # Scale and shift of each channel become one bias.
    assert folded.parameters == graph.parameters - channels
    assert not folded.with_role("constant")
    assert folded.inputs == graph.inputs
    assert folded.outputs == graph.outputs
    assert len(folded.ops) == len(graph.ops)
    assert fold_batch_norm(folded) == folded


def test_folding_merges_an_existing_bias():
    g = GraphBuilder("biased")
    x = g.input("x", (1, 4, 8, 8))
    x = g.conv("conv", x, 6, 1, bias=True)
    graph = g.finish(g.batch_norm("bn", x))
    folded = fold_batch_norm(graph)
    assert [(op.name, op.function) for op in folded.ops] == [
        ("conv", ""),
        ("bn.bias_add", "bias_add"),
    ]
    assert folded.ops[1].inputs == ("conv.out", "conv.bias")
    assert folded.ops[1].outputs == graph.outputs
    assert folded.parameters == 24 + 6


def test_folded_bias_has_the_type_of_the_weights():
    folded = fold_batch_norm(_chain().with_precision("16.32"))
    assert folded.tensors["bn.folded_bias"].dtype == "float32"
    assert folded.tensors["bn.out"].dtype == "float16"


def _branching() -> Graph:
    """A convolution whose result is also added to the batch norm of it."""
    g = GraphBuilder("branching")
    y = g.conv("conv", g.input("x", (1, 4, 8, 8)), 4, 1)
    return g.finish(g.elementwise("add", "add", g.batch_norm("bn", y), y))


def _pre_activation() -> Graph:
    g = GraphBuilder("pre_activation")
    x = g.batch_norm("bn", g.input("x", (1, 4, 8, 8)))
    return g.finish(g.conv("conv", x, 4, 1))


def _raw_result_leaves() -> Graph:
    g = GraphBuilder("two_outputs")
    y = g.conv("conv", g.input("x", (1, 4, 8, 8)), 4, 1)
    return g.finish(g.batch_norm("bn", y), y)


def _training() -> Graph:
    graph = _chain()
    norm = graph.ops[1]
    return replace(
        graph,
        ops=(graph.ops[0], replace(norm, params=replace(norm.params, training=True)), graph.ops[2]),
    )


@pytest.mark.parametrize("make", [_branching, _pre_activation, _raw_result_leaves, _training])
def test_folding_leaves_what_it_must_not_touch(make):
    graph = make()
    assert fold_batch_norm(graph) == graph


def test_shared_weights_are_not_folded():
    graph = _chain()
    conv = graph.ops[0]
    twin = replace(conv, name="twin", outputs=("twin.out",))
    tensors = dict(graph.tensors)
    tensors["twin.out"] = replace(tensors["conv.out"], name="twin.out", role="output")
    shared = replace(
        graph,
        tensors=tensors,
        ops=(*graph.ops, twin),
        outputs=(*graph.outputs, "twin.out"),
    ).validate()
    assert fold_batch_norm(shared) == shared


@given(
    field=st.integers(1, 12),
    kernel=st.integers(1, 4),
    stride=st.integers(1, 3),
    lower=st.integers(0, 3),
    upper=st.integers(0, 3),
    dilation=st.integers(1, 3),
)
def test_out_field_counts_window_positions(field, kernel, stride, lower, upper, dilation):
    conv = Conv(
        batch=1,
        in_channels=1,
        out_channels=1,
        groups=1,
        field=(field,),
        kernel=(kernel,),
        stride=(stride,),
        padding_lower=(lower,),
        padding_upper=(upper,),
        dilation=(dilation,),
    )
    positions = [
        start
        for start in range(0, field + lower + upper, stride)
        if start + dilation * (kernel - 1) < field + lower + upper
    ]
    assert conv.out_field == (len(positions),)
    assert conv.macs == min(len(positions), field) * kernel


def test_dropout_goes_and_its_readers_read_what_it_read():
    g = GraphBuilder("dropping")
    x = g.input("x", (2, 4))
    y = g.elementwise("first", "dropout", g.elementwise("second", "dropout", x))
    y = g.elementwise("add", "add", y, x)
    graph = drop_dropout(g.finish(y, g.elementwise("last", "dropout", y)))
    assert [(op.name, op.inputs) for op in graph.ops] == [
        ("add", ("x", "x")),
        ("last", ("add.out",)),
    ]
    assert graph.ops[1].params == Layout.view("identity")
    assert set(graph.tensors) == {"x", "add.out", "last.out"}
    assert drop_dropout(graph) == graph


@pytest.mark.parametrize("name", ["efficientnet_b0", "bert_base_squad", "resnet18"])
def test_dropout_of_a_zoo_network(name):
    graph = zoo.load(name).graph(2)
    dropped = drop_dropout(graph)
    count = sum(op.function == "dropout" for op in graph.ops)
    assert count == {"efficientnet_b0": 1, "bert_base_squad": 1 + 3 * 12, "resnet18": 0}[name]
    assert len(dropped.ops) == len(graph.ops) - count
    assert (dropped.parameters, dropped.macs) == (graph.parameters, graph.macs)
    assert dropped.outputs == graph.outputs


def test_only_images_arrive_as_bytes():
    images = Tensor(name="images", shape=(2, 3, 8, 8), role="input")
    vector = Tensor(name="share", shape=(2, 1), role="input")
    tokens = Tensor(name="tokens", shape=(2, 3, 8, 8), dtype="int32", role="input")
    assert arriving_dtype(images, "uint8") == "uint8"
    assert arriving_dtype(vector, "uint8") == "float32"
    assert arriving_dtype(vector, "float16") == "float16"
    assert arriving_dtype(images, None) == "float32"
    assert arriving_dtype(tokens, "uint8") == "int32"


def test_a_model_says_what_it_is_in_three_lines():
    lines = repr(zoo.load("resnet50")).splitlines()
    assert lines[0] == "resnet50: images (1, 3, 224, 224) -> fc.bias_add.out (1, 1000)"
    assert lines[1] == "25,557,032 parameters, 4,089,184,256 MACs for these shapes"
    assert lines[2].startswith("66 elementwise, 53 conv, 53 norm") and len(lines) == 3

    def refuse(micro_batch):
        raise ConfigError("Give the sequence.")

    assert repr(Model(name="open", family="test", build=refuse)) == "open: Give the sequence."


def test_operands_of_products_and_dense_convolutions_are_float8():
    g = GraphBuilder("mixed")
    x = g.input("x", (1, 64, 8, 8))
    y = g.conv("one", x, 64, 1)
    z = g.conv("two", x, 64, 3, padding=1)
    z = g.conv("grouped", z, 64, 3, padding=1, groups=64)
    graph = g.finish(g.elementwise("sum", "add", y, z)).with_precision("float8").validate()
    assert [op.name for op in graph.ops if op.kind == "cast"] == ["x.float8"]
    assert {op.inputs[0] for op in graph.ops if op.kind == "conv"} == {"x.float8", "two.out"}
    types = {name: graph.tensors[f"{name}.weight"].dtype for name in ("one", "two", "grouped")}
    assert types == {"one": "float8", "two": "float8", "grouped": "float16"}
    assert {graph.tensors[op.outputs[0]].dtype for op in graph.ops[1:]} == {"float16"}
