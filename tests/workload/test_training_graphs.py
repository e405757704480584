"""Training graphs: what differentiation adds, what recomputation repeats, what updates touch."""

from collections import Counter
from dataclasses import replace
from math import prod

import onnx
import pytest
from hypothesis import given, strategies as st
from onnx import helper
from onnx_single_op import make_model

from ipusim.errors import ConfigError, UnknownNameError, WorkloadError
from ipusim.workload import zoo
from ipusim.workload.graph import Elementwise, Graph, Layout, Pool, Reduce
from ipusim.workload.layers import GraphBuilder
from ipusim.workload.onnx import from_onnx
from ipusim.workload.optimizers import OPTIMIZERS, state_bytes
from ipusim.workload.training import training_graphs

SEGMENTS = (
    "layer1.0.relu3",
    "layer1.2.relu3",
    "layer2.0.relu3",
    "layer2.2.relu3",
    "layer3.0.relu3",
    "layer3.3.relu3",
)


def small_network(precision: str = "16.16") -> Graph:
    """Convolution, batch norm, residual addition, pool and classifier."""
    g = GraphBuilder("small")
    x = g.input("images", (2, 3, 8, 8))
    x = g.elementwise("relu", "relu", g.batch_norm("bn1", g.conv("conv1", x, 16, 3, padding=1)))
    y = g.batch_norm("bn2", g.conv("conv2", x, 16, 3, padding=1))
    x = g.elementwise("relu2", "relu", g.elementwise("add", "add", y, x))
    x = g.flatten("flatten", g.global_average_pool("pool", x))
    return g.finish(g.linear("fc", x, 10)).with_precision(precision).validate()


def trained(graph: Graph, **options: object):
    return training_graphs(graph, **({"loss": "cross_entropy"} | options))


@pytest.mark.parametrize("name", [name for name in zoo.names() if zoo.load(name).loss])
def test_backward_macs_are_twice_the_forward_ones_except_where_the_input_is_data(name: str) -> None:
    model = zoo.load(name)
    graph = model.graph(1 if model.family == "cluster-gcn" else 2)
    graphs = trained(graph, loss=model.loss)
    # Counted on the forward graph alone: an operand gets a gradient unless nothing that is trained
    # went into it.
    data = {t.name for t in graph.tensors.values() if t.role in ("input", "constant", "state")}
    for op in graph.ops:
        weights = [n for n in op.inputs if graph.tensors[n].role == "parameter"]
        if not weights and data.issuperset(op.inputs):
            data.update(op.outputs)
    expected = 0
    for op in graph.ops:
        if op.kind == "recurrent":
            # Its state always has a gradient, its input where it is not data (test_recurrent).
            given = op.inputs[0] not in data
            expected += replace(op.params, backward=True, input_gradient=given).macs
            continue
        expected += op.macs * sum(name not in data for name in op.inputs[:2])
    backward = sum(op.macs for op in graphs.micro_batch.ops if op.phase == "backward")
    assert backward == expected
    assert sum(op.macs for op in graphs.micro_batch.ops if op.phase == "forward") == graph.macs


@pytest.mark.parametrize("name", [name for name in zoo.names() if zoo.load(name).loss])
def test_every_parameter_gets_a_gradient_of_its_size_and_is_updated(name: str) -> None:
    model = zoo.load(name)
    graph = model.graph(1)
    graphs = trained(graph, loss=model.loss, accumulate="scaled_add")
    micro = graphs.micro_batch
    parameters = [t for t in graph.with_role("parameter") if t.dtype.startswith("float")]
    for tensor in parameters:
        assert micro.tensors[f"{tensor.name}.accumulated"].shape == tensor.shape
        adding = next(o for o in micro.ops if o.outputs == (f"{tensor.name}.accumulated",))
        assert micro.tensors[adding.inputs[1]].elements == tensor.elements
    written = {
        t.alias_of
        for op in graphs.update.ops
        for n in op.outputs
        if (t := graphs.update.tensors[n])
    }
    assert {tensor.name for tensor in parameters} <= written
    # Rows of a table in Streaming Memory are nobody else's, so replicas do not add them up.
    reduced = {t.name for t in parameters} - set(graph.streamed)
    assert set(graphs.gradient_bytes) == reduced


def test_gradients_arrive_from_both_branches_of_a_residual_block() -> None:
    micro = trained(small_network()).micro_batch
    sums = [op for op in micro.ops if ".gradient_sum" in op.name]
    assert [op.name for op in sums] == ["relu.gradient_sum1"]
    assert sums[0].params.function == "add"


def test_the_first_convolution_has_no_data_gradient() -> None:
    names = {op.name for op in trained(small_network()).micro_batch.ops}
    assert "conv1.weight_gradient" in names
    assert "conv1.data_gradient" not in names
    assert "conv2.data_gradient" in names


def test_training_batch_norm_reads_no_stored_statistics_but_moves_them() -> None:
    micro = trained(small_network(), batch_norm_span=2).micro_batch
    norms = [op for op in micro.ops if op.kind == "norm"]
    assert {op.params.training for op in norms} == {True}
    assert {op.params.replica_span for op in norms} == {2}
    assert Counter(op.params.backward for op in norms) == {False: 2, True: 2}
    assert micro.tensors["bn1.running_mean"].role == "state"
    assert any(op.outputs == ("bn1.running_mean.moved",) for op in micro.ops)


def test_recomputation_repeats_forward_work_of_all_but_the_last_segment() -> None:
    graph = zoo.load("resnet50").graph(2)
    plain = trained(graph).micro_batch
    micro = trained(graph, recompute=SEGMENTS).micro_batch
    again = Counter(op.kind for op in micro.ops if op.phase == "recompute")
    # 53 convolutions, of which 6 and 10 lie behind the last checkpoint in stages 3 and 4.
    assert again["conv"] == 53 - 6 - 10
    assert again["norm"] == 37  # also before a checkpoint: its gradient reads the statistics
    assert micro.macs - plain.macs == sum(o.macs for o in micro.ops if o.phase == "recompute")
    position = {op.name: index for index, op in enumerate(micro.ops)}
    assert position["layer3.0.conv1.again"] > position["layer4.0.conv1.weight_gradient"]


@given(cuts=st.sets(st.integers(0, 30), max_size=6))
def test_any_checkpoints_give_a_valid_graph_with_the_same_gradients(cuts: set[int]) -> None:
    graph = small_network()
    names = sorted({graph.ops[cut % len(graph.ops)].name for cut in cuts})
    plain, cut = trained(graph), trained(graph, recompute=names)
    cut.micro_batch.validate()
    assert cut.gradient_bytes == plain.gradient_bytes
    counts = [
        Counter(op.name for op in graphs.micro_batch.ops if op.phase == "backward")
        for graphs in (plain, cut)
    ]
    assert counts[0] == counts[1]


def test_automatic_checkpoints_keep_less_alive() -> None:
    graph = zoo.load("resnet50").graph(4)
    kept = trained(graph).micro_batch
    micro = trained(graph, recompute="auto").micro_batch

    def waiting_bytes(graph: Graph) -> int:
        """Forward results that the backward pass reads."""
        made = {n for op in graph.ops if op.phase == "forward" for n in op.outputs}
        read = {n for op in graph.ops if op.phase != "forward" for n in op.inputs}
        return sum(graph.tensors[name].bytes for name in made & read)

    assert waiting_bytes(micro) < waiting_bytes(kept) / 3


def test_without_accumulation_gradients_are_kept_for_the_update() -> None:
    graphs = trained(small_network())
    assert set(graphs.micro_batch.kept) <= set(graphs.micro_batch.tensors)
    assert len(graphs.micro_batch.kept) == len(graphs.gradient_bytes)
    assert not trained(small_network(), accumulate="scaled_add").micro_batch.kept


@pytest.mark.parametrize(
    ("precision", "function"), [("16.16", "running_mean"), ("16.32", "scaled_add")]
)
def test_narrow_accumulators_may_keep_the_mean(precision: str, function: str) -> None:
    micro = trained(small_network(precision), accumulate="running_mean").micro_batch
    into = [op for op in micro.ops if op.name.endswith(".accumulated")]
    assert {op.params.function for op in into} == {function}
    assert len(into) == len(trained(small_network(precision)).gradient_bytes)


def test_accumulators_may_be_wider_than_the_gradients_that_they_sum() -> None:
    plain, wide = (
        trained(small_network(), accumulate="running_mean", accumulator_dtype=dtype)
        for dtype in ("", "float32")
    )
    added = [op for op in wide.micro_batch.ops if op.outputs[0].endswith(".accumulated")]
    tensors = wide.micro_batch.tensors
    assert {tensors[op.inputs[0]].dtype for op in added} == {"float32"}
    assert {tensors[op.inputs[1]].dtype for op in added} == {"float16"}
    # A sum: only float16 accumulators keep the mean.
    assert {op.function for op in added} == {"scaled_add"}
    assert {name: 2 * size for name, size in plain.gradient_bytes.items()} == wide.gradient_bytes
    assert wide.update.tensors["fc.weight.gradient"].dtype == "float32"
    assert wide.update.tensors["fc.weight"].dtype == "float16"
    kept = trained(small_network(), accumulator_dtype="float32")
    assert kept.gradient_bytes == plain.gradient_bytes


def test_wide_weights_are_converted_in_every_pass() -> None:
    micro = trained(small_network("16.32"), accumulate="scaled_add").micro_batch
    casts = [op for op in micro.ops if op.kind == "cast"]
    assert {op.name for op in casts if op.phase == "forward"} == {
        f"{layer}.weight_cast" for layer in ("conv1", "conv2", "fc")
    }
    assert micro.tensors["conv1.weight.accumulator"].dtype == "float32"
    assert micro.tensors["conv1.weight_gradient"].dtype == "float16"
    assert sum(op.phase == "backward" for op in casts) == 3


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_states_are_as_large_as_the_parameters(name: str) -> None:
    graph = small_network("16.16")
    update = trained(graph, optimizer=name).update
    rule = OPTIMIZERS[name]
    width = 4 if rule.wide_states else 2
    assert state_bytes(update) == len(rule.states) * width * graph.parameters
    weights = graph.with_role("parameter")
    matrices = sum(len(t.shape) > 1 for t in weights)
    biases = sum(t.name.endswith("bias") for t in weights)
    # Two norms and their ratio, which scale no bias.
    scaling = sum(" n0" in step or " n1" in step for step in rule.steps)
    assert scaling == (3 if name in ("lars", "lamb") else 0)
    steps = len(weights) * len(rule.steps) - biases * scaling
    assert 0 < biases < len(weights)
    assert len(update.ops) == steps + matrices * rule.decays_weights


def test_loss_takes_the_softmax_itself() -> None:
    g = GraphBuilder("classifier")
    graph = g.finish(g.softmax("softmax", g.linear("fc", g.input("x", (4, 8)), 10)))
    micro = trained(graph).micro_batch
    assert not [op for op in micro.ops if op.kind == "softmax"]
    (loss,) = (op for op in micro.ops if op.kind == "loss")
    assert (loss.params.rows, loss.params.classes) == (4, 10)
    assert micro.tensors[loss.inputs[1]].shape == (4,)
    squared = trained(graph, loss="mean_squared").micro_batch
    (loss,) = (op for op in squared.ops if op.kind == "loss")
    assert squared.tensors[loss.inputs[1]].shape == (4, 10)


def test_views_and_broadcasts_go_back_as_sums_and_pads() -> None:
    g = GraphBuilder("views")
    x = g.linear("fc", g.input("x", (4, 8)), 8)
    bias = g.parameter("scale", (8,))
    scaled = Elementwise(function="mul", broadcast=True)
    y = g.apply("scaled", scaled, (x, bias), (4, 8))
    y = g.apply("half", Layout.view("slice"), (y,), (4, 4))
    y = g.apply("mean", Reduce(function="mean", outer=4, reduced=4, inner=1), (y,), (4,))
    micro = trained(g.finish(y), loss="mean_squared").micro_batch
    functions = {op.name: (op.kind, op.function) for op in micro.ops if op.phase == "backward"}
    assert functions["half.gradient"] == ("layout", "pad")
    assert functions["mean.gradient"] == ("layout", "expand")
    assert functions["mean.scaled"] == ("elementwise", "scale")
    assert functions["scaled.gradient1"] == ("reduce", "sum")
    assert prod(micro.tensors["scaled.gradient1"].shape) == 8


@pytest.mark.parametrize(
    ("function", "steps"),
    [
        ("div", ["div quotient", "mul product", "neg negative", "sum gradient1"]),
        ("pow", ["mul power", "log logarithm", "mul product", "sum gradient1"]),
        ("max", ["max_grad part1", "sum gradient1"]),
    ],
)
def test_an_operand_is_sent_what_its_steps_compute_and_no_more(function: str, steps: list) -> None:
    g = GraphBuilder("weights")
    weight = g.parameter("weight", (8,))
    y = g.elementwise("both", function, g.input("x", (4, 8)), weight)
    micro = trained(g.finish(y), loss="mean_squared").micro_batch
    back = [op for op in micro.ops if op.source == "both"]
    assert [f"{op.function} {op.name.removeprefix('both.')}" for op in back] == steps


def test_what_no_steps_are_known_for_is_refused() -> None:
    g = GraphBuilder("threefold")
    x = g.linear("fc", g.input("x", (4, 8)), 8)
    y = g.elementwise("product", "mul", x, g.input("y", (4, 8)), g.input("z", (4, 8)))
    with pytest.raises(WorkloadError, match="'product' .* has no gradient"):
        trained(g.finish(y), loss="mean_squared")


def test_a_maximum_pool_keeps_what_its_gradient_compares() -> None:
    g = GraphBuilder("pooled")
    x = g.conv("conv", g.input("x", (1, 4, 8, 8)), 8, 3, padding=1)
    x = g.max_pool("pool", x, 2, stride=2)
    x = g.flatten("flatten", x)
    micro = trained(g.finish(g.linear("fc", x, 2))).micro_batch
    back = next(op for op in micro.ops if op.name == "pool.gradient")
    assert isinstance(back.params, Pool)
    assert back.params.backward
    assert back.inputs[1:] == ("conv.out", "pool.out")


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"loss": ""}, ConfigError, "it names no loss: give one of cross_entropy"),
        ({"loss": "hinge"}, ConfigError, "the loss 'hinge' does not exist"),
        ({"optimizer": "adamm"}, UnknownNameError, "adam"),
        ({"recompute": "some"}, ConfigError, "use none, auto or the names"),
        ({"recompute": ["conv3"]}, UnknownNameError, "conv"),
    ],
)
def test_bad_options_are_refused_in_one_sentence(options: dict, error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        trained(small_network(), **options)


def test_an_operator_without_a_gradient_is_named() -> None:
    graph = small_network()
    ops = tuple(
        replace(op, params=replace(op.params, function="gamma")) if op.name == "relu" else op
        for op in graph.ops
    )
    with pytest.raises(WorkloadError, match=r"'relu' \(elementwise gamma\) has no gradient"):
        trained(replace(graph, ops=ops))


def test_a_model_without_parameters_cannot_be_trained() -> None:
    g = GraphBuilder("fixed")
    graph = g.finish(g.elementwise("relu", "relu", g.input("x", (2, 4))))
    with pytest.raises(WorkloadError, match="no parameters"):
        trained(graph)


def test_gradients_of_an_onnx_model_have_the_shapes_that_onnx_infers():
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], name="c1", strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"], name="r1"),
        helper.make_node("Conv", ["b", "w2"], ["c"], name="c2", group=4),
        helper.make_node("Flatten", ["c"], ["d"], name="f"),
        helper.make_node("Gemm", ["d", "w3"], ["y"], name="g"),
    ]
    weights = {"w1": (8, 3, 3, 3), "w2": (8, 2, 3, 3), "w3": (8 * 6 * 6, 5)}
    file = make_model(nodes, {"x": (2, 3, 16, 16)}, ["y"], weights)
    inferred = {
        value.name: tuple(d.dim_value for d in value.type.tensor_type.shape.dim)
        for value in onnx.shape_inference.infer_shapes(file).graph.value_info
    }
    micro = trained(from_onnx(file).graph(), loss="cross_entropy").micro_batch
    for op, tensor in (("r1", "a"), ("c2", "b"), ("f", "c"), ("g", "d")):
        backward = [o for o in micro.ops if o.source == op and o.phase == "backward"]
        shapes = {micro.tensors[name].shape for o in backward for name in o.outputs}
        assert inferred[tensor] in shapes, op
    assert micro.tensors["c2.weight_gradient"].shape == weights["w2"]


def test_the_gradient_of_a_dropout_draws_from_the_seed_of_its_forward_pass():
    def functions(**options) -> list[str]:
        g = GraphBuilder("drops")
        x = g.elementwise("drop", "dropout", g.linear("first", g.input("x", (4, 8)), 8))
        graph = g.finish(g.linear("last", x, 8))
        micro = training_graphs(graph, loss="cross_entropy", **options).micro_batch
        return [op.function for op in micro.ops if op.source == "drop" or op.name == "drop"]

    assert functions() == ["dropout", "dropout"]
    assert functions(seeds_dropouts=True) == ["seeded_dropout", "dropout"]
