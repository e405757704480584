"""Imported networks that train: gradients of operators that only files bring."""

import numpy as np
import pytest
from onnx import helper
from onnx_single_op import make_model

from ipusim.api import simulate
from ipusim.errors import WorkloadError
from ipusim.workload.onnx import from_onnx
from ipusim.workload.training import training_graphs

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
    "third": (
        _node("Resize", ["x", "", "s"]),
        {"s": np.array([1, 1, 1.5, 1.5], np.float32)},
        "pad",
    ),
    "best": (_node("TopK", ["x", "k"]), {"k": np.array([2])}, "add"),
    "assigned": (
        _node("ScatterND", ["x", "i", "u"]),
        {"i": np.array([[0]]), "u": [1, 8, 4, 4]},
        "slice",
    ),
    "written": (
        _node("ScatterND", ["x", "i", "u"], reduction="add"),
        {"i": np.array([[0]]), "u": [1, 8, 4, 4]},
        "pad",
    ),
    "elements": (_node("GatherElements", ["x", "i"]), {"i": np.zeros((1, 8, 4, 4), int)}, "pad"),
    "sine": (_node("Sin", ["x"]), {}, "cos"),
    "tangent": (_node("Tan", ["x"]), {}, "tanh_grad"),
    "slope": (_node("PRelu", ["x", "b"]), {"b": [8, 1, 1]}, "prelu_grad"),
    "steps": (_node("Floor", ["x"]), {}, None),
    "selu": (_node("Selu", ["x"]), {}, "selu_grad"),
    "softsign": (_node("Softsign", ["x"]), {}, "softsign_grad"),
    "exponent": (_node("Pow", ["x", "b"]), {"b": [8, 1, 1]}, "log"),
    "absolute": (_node("ReduceL1", ["x"], axes=[1]), {}, "abs_grad"),
    "squares": (_node("ReduceSumSquare", ["x"], axes=[1]), {}, "mul"),
    "log sum": (_node("ReduceLogSum", ["x"], axes=[1]), {}, "div"),
    "log sum exp": (_node("ReduceLogSumExp", ["x"], axes=[1]), {}, "exp"),
    "product": (_node("ReduceProd", ["x"], axes=[1]), {}, "reciprocal"),
    "running": (_node("CumSum", ["x", "a"]), {"a": np.array(1)}, "transpose"),
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
    functions = _backward(_model(node, **weights))
    assert function in functions or (function is None and "relu_grad" not in functions)


def _trained(*nodes, inputs, **weights):
    model = from_onnx(make_model(list(nodes), inputs, ["y"], weights, opset=24))
    options = {"mode": "training", "loss": "mean_squared", "replicas": 1}
    report = simulate(model, system="IPU-M2000", micro_batch=2, **options)
    return report.layers[report.layers["phase"] == "backward"]


def test_an_operand_that_groups_share_gets_the_sum_of_their_gradients():
    """The keys of multi-query attention serve every head."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["q"]),
        helper.make_node("Slice", ["q", "zero", "one", "one"], ["k"]),
        helper.make_node("Transpose", ["k"], ["t"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "t"], ["y"]),
    ]
    ends = {"zero": np.array([0]), "one": np.array([1])}
    layers = _trained(*nodes, inputs={"x": ["batch", 4, 6, 8]}, w=[8, 8], **ends)
    assert (layers["kind"] == "reduce").sum() == 1


def test_equal_constants_of_norms_may_be_stored_once():
    """What torch's newer exporter does before any training: ones are scale and variance."""
    node = helper.make_node("BatchNormalization", ["x", "one", "zero", "zero", "one"], ["a"])
    again = helper.make_node("BatchNormalization", ["a", "one", "zero", "zero", "one"], ["y"])
    layers = _trained(node, again, inputs={"x": ["batch", 4, 6]}, one=[4], zero=[4])
    assert (layers["kind"] == "norm").sum() == 2


def test_a_cache_without_positions_is_written_in_front():
    node = helper.make_node("TensorScatter", ["cache", "a"], ["y"], axis=1)
    product = helper.make_node("MatMul", ["x", "w"], ["a"])
    inputs = {"x": ["batch", 4, 8], "cache": ["batch", 16, 8]}
    assert len(_trained(product, node, inputs=inputs, w=[8, 8]))


def test_gradients_run():
    nodes = [
        helper.make_node("Max", ["x", "b"], ["a"]),
        helper.make_node("Reciprocal", ["a"], ["d"]),
        helper.make_node("Trilu", ["d"], ["e"]),
        helper.make_node("Resize", ["e", "", "s"], ["f"]),
        helper.make_node("Pow", ["f", "p"], ["g"]),
        helper.make_node("TopK", ["g", "k"], ["h", "i"]),
        helper.make_node("Resize", ["h", "", "t"], ["j"]),
        helper.make_node("ReduceLogSumExp", ["j"], ["l"], axes=[1]),
        helper.make_node("ScatterElements", ["l", "where", "new"], ["y"]),
    ]
    weights = {
        "k": np.array([3]),
        "t": np.array([1, 1, 1.5, 1.5], np.float32),
        "where": np.zeros((1, 1, 2, 2), np.int64),
        "new": [1, 1, 2, 2],
        "b": [8, 4, 4],
        "s": np.array([1, 1, 2, 2], np.float32),
        "p": np.array(3.0, np.float32),
    }
    model = _model(*nodes, **weights)
    report = simulate(
        model, system="IPU-M2000", mode="training", micro_batch=2, loss="mean_squared", replicas=1
    )
    plain = simulate(model, system="IPU-M2000", micro_batch=2, replicas=1)
    # Sorting has no gradient, so that it is a little less than twice the forward pass.
    assert report.cycles_per_step > 1.9 * plain.cycles_per_step


def test_states_of_recurrent_layers_pass_gradients_on():
    """An encoder's final states are a decoder's initial ones."""
    nodes = [
        helper.make_node("LSTM", ["x", "w", "r"], ["", "h", "c"], hidden_size=8),
        helper.make_node(
            "LSTM", ["target", "w", "r", "", "", "h", "c"], ["y0", "h1", "c1"], hidden_size=8
        ),
        helper.make_node("Add", ["y0", "c1"], ["y"]),
    ]
    weights = {"w": [1, 32, 8], "r": [1, 32, 8]}
    model = from_onnx(make_model(nodes, {"x": [4, 2, 8], "target": [3, 2, 8]}, ["y"], weights))
    report = simulate(model, mode="training", loss="mean_squared", replicas=1, system="IPU-M2000")
    assert report.cycles_per_step > 0


@pytest.mark.parametrize("norm", [False, True])
def test_folded_batch_norms_are_said(norm):
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["u"]),
        helper.make_node("Conv", ["u", "w", "b"], ["v"]),
        helper.make_node(
            *(("BatchNormalization", ["v", *"bbbb"]) if norm else ("Relu", ["v"])), ["y"]
        ),
    ]
    model = from_onnx(make_model(nodes, {"x": SHAPE}, ["y"], {"w": [8, 8, 1, 1], "b": [8]}))
    assert ("folded batch norms" in model.note) is not norm


def test_a_network_that_only_gives_labels_cannot_be_trained():
    node = helper.make_node("ArgMax", ["x"], ["y"], axis=1)
    with pytest.raises(WorkloadError, match="no output with a gradient"):
        _backward(_model(node))


def test_labels_and_positions_beside_scores_are_not_trained():
    nodes = [
        helper.make_node("Softmax", ["x"], ["y"], axis=1),
        helper.make_node("ArgMax", ["y"], ["label"], axis=1),
        helper.make_node("TopK", ["y", "k"], ["", "best"], axis=1),
    ]
    first = helper.make_node("Conv", ["image", "w"], ["x"])
    weights = {"w": [8, 8, 1, 1], "k": np.array([2])}
    given = ([first, *nodes], {"image": SHAPE}, ["label", "y", "best"], weights)
    functions = _backward(from_onnx(make_model(*given)))
    alone = _backward(_model(nodes[0]))
    assert functions == alone


def _cell(batch):
    """Two steps of a recurrent cell that begins with zeros, which the file holds with the batch."""
    steps = [
        helper.make_node("Gather", ["x", f"at{step}"], [f"x{step}"], axis=1) for step in (0, 1)
    ]
    for step in (0, 1):
        inputs = [f"h{step}", "r", "b"]
        steps += [
            helper.make_node("Gemm", [f"x{step}", "w"], [f"ahead{step}"]),
            helper.make_node("Gemm", inputs, [f"again{step}"], transB=1),
            helper.make_node("Add", [f"ahead{step}", f"again{step}"], [f"sum{step}"]),
            helper.make_node("Tanh", [f"sum{step}"], [f"h{step + 1}"]),
        ]
    steps.append(helper.make_node("Concat", ["h2", "rest"], ["y"], axis=1))
    weights = {"w": [80, 96], "r": [96, 96], "b": [96], "at0": np.array(0), "at1": np.array(1)}
    zeros = {name: np.zeros((batch, 96), np.float32) for name in ("h0", "rest")}
    return make_model(steps, {"x": [batch, 2, 80]}, ["y"], weights | zeros)


@pytest.mark.parametrize("batch", [1, 3, 50])
def test_states_of_zeros_are_no_parameters_and_follow_the_batch(batch):
    model = from_onnx(_cell(batch))
    graph = model.graph()
    # A single row of zeros, the rest, may be a bias; the bias of the first step is held once.
    assert graph.parameters == 80 * 96 + 96 * 96 + 96 + (96 if batch == 1 else 0)
    assert graph.macs == batch * 96 * (2 * 80 + 96)
    assert model.graph(6).macs * batch == graph.macs * 6
    stored = [tensor for tensor in graph.tensors.values() if tensor.role == "parameter"]
    assert batch == 1 or not any(batch in tensor.shape for tensor in stored)


def test_weights_may_be_nodes_of_constants():
    """Without initializers they are what the file stores its weights in."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Add", ["a", "b"], ["c"]),
        helper.make_node("Add", ["c", "place"], ["y"]),
    ]
    stored = make_model(nodes, {"x": ["n", 4, 8]}, ["y"], {"w": [8, 6], "b": [6], "place": [4, 6]})
    written = make_model(nodes, {"x": ["n", 4, 8]}, ["y"])
    constants = [
        helper.make_node("Constant", [], [item.name], value=item)
        for item in stored.graph.initializer
    ]
    del written.graph.node[:]
    written.graph.node.extend([*constants, *nodes])
    reports = [
        simulate(from_onnx(file), mode="training", micro_batch=2, loss="mean_squared", replicas=1)
        for file in (stored, written)
    ]
    assert [report.result.graph.parameters for report in reports] == [8 * 6 + 6 + 24] * 2
    assert len({report.cycles_per_step for report in reports}) == 1


def test_a_transposed_convolution_of_one_position_is_a_product():
    spread = helper.make_node("ConvTranspose", ["x", "w"], ["y"])
    model = from_onnx(make_model([spread], {"x": ["n", 20, 1, 1]}, ["y"], {"w": [20, 6, 4, 4]}))
    report = simulate(model, mode="training", micro_batch=2, loss="mean_squared", replicas=1)
    macs = report.layers.groupby("phase")["macs"].sum()
    assert macs["forward"] == macs["backward"] == 2 * 20 * 6 * 16


def test_products_of_weights_run_and_train_them():
    """Keys of positions that are projected, as DeBERTa and XLNet have them."""
    nodes = [
        helper.make_node("MatMul", ["x", "q"], ["queries"]),
        helper.make_node("MatMul", ["positions", "k"], ["keys"]),
        helper.make_node("Transpose", ["keys"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["queries", "turned"], ["y"]),
    ]
    weights = {"q": [16, 8], "k": [16, 8], "positions": [12, 16]}
    model = from_onnx(make_model(nodes, {"x": [2, 5, 16]}, ["y"], weights))
    of_item, of_weights = 5 * (16 * 8 + 8 * 12), 12 * 16 * 8
    for batch in (1, 2, 3):
        graph = model.graph(batch)
        assert graph.parameters == 16 * 8 + 16 * 8 + 12 * 16
        assert graph.macs == batch * of_item + of_weights
    trained = training_graphs(model.graph(2), loss="mean_squared")
    assert set(trained.gradient_bytes) == set(weights)
    # Of all products but the first, which reads data, both operands have a gradient.
    backward = sum(op.macs for op in trained.micro_batch.ops if op.phase == "backward")
    assert backward == 2 * (2 * of_item + of_weights) - 2 * 5 * 16 * 8


def test_a_vector_times_another_one_is_a_table_of_positions():
    nodes = [
        helper.make_node("MatMul", ["places", "frequencies"], ["angles"]),
        helper.make_node("Mul", ["x", "angles"], ["z"]),
        helper.make_node("MatMul", ["z", "w"], ["y"]),
    ]
    weights = {"places": [600, 1], "frequencies": [1, 16], "w": [16, 3]}
    graph = from_onnx(make_model(nodes, {"x": [1, 600, 16]}, ["y"], weights)).graph(1)
    assert [op.kind for op in graph.ops] == ["elementwise", "matmul"]


@pytest.mark.parametrize("kind", ["GridSample", "DeformConv"])
def test_positions_between_elements_are_learnt(kind):
    """Offsets of deformable attention and convolutions have weights of their own."""
    places = helper.make_node("Conv", ["x", "offsets"], ["places"])
    sampled = [helper.make_node("DeformConv", ["x", "taps", "places"], ["y"])]
    if kind == "GridSample":
        turned = helper.make_node("Transpose", ["places"], ["grid"], perm=[0, 2, 3, 1])
        sampled = [turned, helper.make_node("GridSample", ["x", "grid"], ["y"])]
    weights = {"w": [8, 8, 1, 1], "offsets": [2, 8, 1, 1], "taps": [8, 8, 1, 1]}
    model = _model(places, *sampled, **weights)
    graphs = training_graphs(model.graph(2), loss="mean_squared")
    taps = {"taps"} if kind == "DeformConv" else set()
    assert set(graphs.gradient_bytes) == {"w", "offsets"} | taps
    backward = sum(op.macs for op in graphs.micro_batch.ops if op.phase == "backward")
    # Of the first convolution only the weights have a gradient, of the others both operands.
    assert backward == 2 * 16 * (8 * 8 + 2 * 2 * 8 + 2 * 8 * 8 * len(taps))
