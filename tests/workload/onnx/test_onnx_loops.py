"""What the rounds of a loop slice, carry on and stack, beside what their body computes."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_single_op import make_model

from ipusim.errors import WorkloadError
from ipusim.workload.onnx import from_onnx
from ipusim.workload.operators.base import name_in_body
from ipusim.workload.training import training_graphs

TRIPS = 3


def _node(kind, inputs, outputs, **given):
    return helper.make_node(kind, inputs.split(), outputs.split(), **given)


def _info(name, kind=TensorProto.FLOAT, shape=None):
    return helper.make_tensor_value_info(name, kind, shape)


def _loop(nodes, given="", results="", carried=(), stacked=()):
    """A loop of a body that reads `xs` from outside, with what it carries and stacks."""
    body = helper.make_graph(
        [*nodes, _node("Identity", "go", "on")],
        "body",
        [
            _info("i", TensorProto.INT64, []),
            _info("go", TensorProto.BOOL, []),
            *map(_info, given.split()),
        ],
        [_info("on", TensorProto.BOOL, []), *map(_info, results.split())],
    )
    outputs = [*(f"{name}.last" for name in given.split()), *stacked]
    loop = helper.make_node("Loop", ["trips", "", *carried], outputs, name="it", body=body)
    weights = {
        "trips": np.array(TRIPS),
        "zero": np.array(0),
        "one": np.array(1),
        "first": np.array([1]),
        "front": np.array([0]),
        "w": [4, 4],
    }
    inputs = {"xs": [TRIPS, 2, 4], "h": [2, 4], "k": [2, 4]}
    return make_model([loop], inputs, stacked or outputs, weights)


def _moves(model):
    """Functions of what moves data, in order."""
    ops = from_onnx(model).graph().ops
    return [op.function or op.kind for op in ops if getattr(op.params, "moves_data", True)]


def test_a_computed_state_is_carried_and_one_that_passes_is_not():
    nodes = [
        _node("MatMul", "h w", "next"),
        _node("Add", "next fixed", "sum"),
        _node("Identity", "fixed", "same"),
    ]
    model = _loop(nodes, "h fixed", "sum same", ["h", "k"])
    assert _moves(model) == ["carry", "matmul", "add"] * TRIPS


def test_a_state_of_zeros_is_computed_from_the_first_round_on_and_is_no_parameter():
    nodes = [_node("MatMul", "h w", "next"), _node("Add", "next k", "sum")]
    model = _loop(nodes, "h", "sum", ["zeros"])
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((1, 4), np.float32), "zeros"))
    graph = from_onnx(model).graph()
    assert (graph.macs, graph.parameters) == ((1 + (TRIPS - 1) * 2) * 16, 16)


def test_states_that_change_places_are_carried():
    nodes = [_node("Tanh", "a", "c")]
    assert _moves(_loop(nodes, "a b", "b c", ["h", "k"])).count("carry") == 2 * TRIPS


def test_what_a_body_stacks_is_written_by_its_round_and_joined_in_place():
    nodes = [_node("Tanh", "h", "next")]
    model = _loop(nodes, "h", "next next", ["h"], ["all"])
    graph = from_onnx(model).graph()
    assert graph.tensors["all"].shape == (TRIPS, 2, 4)
    assert _moves(model) == ["carry", "tanh", "dynamic_update"] * TRIPS
    assert [op.function for op in graph.ops][-1] == "concat"


COUNTED = {
    "row": ([_node("Gather", "xs i", "x", axis=0)], "gather"),
    "row of a sum": ([_node("Add", "i zero", "k"), _node("Gather", "xs k", "x", axis=0)], "gather"),
    "row of what is given": ([_node("Gather", "xs zero", "x", axis=0)], None),
    "slice": (
        [
            _node("Unsqueeze", "i front", "low"),
            _node("Add", "low one", "high"),
            _node("Slice", "xs low high front", "x"),
        ],
        "dynamic_slice",
    ),
    "slice of what is given": ([_node("Slice", "xs front first front", "x")], None),
}


@pytest.mark.parametrize("case", COUNTED)
def test_what_the_round_chooses_is_looked_up(case):
    nodes, expected = COUNTED[case]
    moves = _moves(_loop([*nodes, _node("Tanh", "x", "y")], "", "y", (), ["all"]))
    before = [expected] if expected else []
    assert moves == [*before, "tanh", "dynamic_update"] * TRIPS


def test_a_loop_over_bags_is_one_sum():
    nodes, _ = COUNTED["slice"]
    total = _node("ReduceSum", "x front", "y", keepdims=0)
    assert _moves(_loop([*nodes, total], "", "y", (), ["all"])) == ["sum"]


def test_a_number_that_rounds_carry_on_chooses_like_the_round():
    nodes = [
        _node("Gather", "xs k", "x", axis=0),
        _node("Tanh", "x", "y"),
        _node("Add", "k one", "more"),
    ]
    model = _loop(nodes, "k", "more y", ["zero"], ["all"])
    assert _moves(model).count("gather") == TRIPS


def _scan(**given):
    nodes = [_node("Add", "state x", "next"), _node("Relu", "next", "out")]
    sizes = [_info(name, shape=[2, 4]) for name in ("state", "x")]
    body = helper.make_graph(nodes, "body", sizes, [_info("next"), _info("out")])
    scan = _node("Scan", "h xs", "last all", body=body, num_scan_inputs=1, **given)
    return make_model([scan], {"xs": [TRIPS, 2, 4], "h": [2, 4]}, ["last", "all"])


def test_a_scan_slices_what_it_scans():
    moves = _moves(_scan())
    assert moves[:5] == ["dynamic_slice", "carry", "add", "relu", "dynamic_update"]
    assert {moves.count(name) for name in moves} == {TRIPS}


def test_rounds_have_one_body_and_gradients_go_back_through_all():
    graph = from_onnx(_loop([_node("MatMul", "h w", "next")], "h", "next", ["h"])).graph()
    assert len({name_in_body(op.name) for op in graph.ops}) == len(graph.ops) - 2 * (TRIPS - 1)
    step = training_graphs(graph, loss="mean_squared").micro_batch
    backward = [op for op in step.ops if op.phase == "backward"]
    # The gradient of a carried state is carried; what the first round reads needs none.
    assert [op.function for op in backward].count("carry") == TRIPS - 1
    assert sum(op.macs for op in backward) == (2 * TRIPS - 1) * graph.macs // TRIPS


def test_a_scan_of_batches_is_refused():
    model = _scan()
    model.opset_import[0].version = 8
    with pytest.raises(WorkloadError, match="set 8, which scans batches; export it with 9"):
        from_onnx(model)


def test_a_body_is_mapped_over_the_items_of_sequences():
    body = helper.make_graph(
        [_node("MatMul", "a w", "b"), _node("Add", "b c", "d")],
        "body",
        [_info("a"), _info("c")],
        [_info("d"), _info("b")],
    )
    nodes = [
        _node("SplitToSequence", "xs", "parts", axis=0),
        _node("SequenceConstruct", "h h h", "others"),
        _node("SequenceMap", "parts others", "sums products", body=body),
        _node("ConcatFromSequence", "sums", "y", axis=0),
        _node("SequenceAt", "products last", "z"),
    ]
    weights = {"w": [4, 4], "last": np.array(TRIPS - 1)}
    inputs = {"xs": [TRIPS, 2, 4], "h": [2, 4]}
    graph = from_onnx(make_model(nodes, inputs, ["y", "z"], weights)).graph()
    assert [graph.tensors[name].shape for name in graph.outputs] == [(TRIPS, 2, 4), (1, 2, 4)]
    assert graph.macs == TRIPS * 2 * 16


def test_rounds_share_weights_that_constants_of_the_body_cut_and_join():
    """torch's older exporter puts the gates of a cell in order within the loop."""
    numbers = {"low": [0], "middle": [2], "high": [4], "columns": [1]}
    constants = [
        _node("Constant", "", name, value=numpy_helper.from_array(np.array(values)))
        for name, values in numbers.items()
    ]
    stored = numpy_helper.from_array(np.ones((4, 4), np.float32))
    nodes = [
        *constants,
        _node("Slice", "w low middle columns", "first"),
        _node("Slice", "w middle high columns", "second"),
        _node("Concat", "second first", "turned", axis=1),
        _node("MatMul", "h turned", "product"),
        _node("Constant", "", "more", value=stored),
        _node("MatMul", "product more", "next"),
    ]
    graph = from_onnx(_loop(nodes, "h", "next", ["h"])).graph()
    assert (graph.macs, graph.parameters) == (2 * TRIPS * 2 * 16, 2 * 16)


@pytest.mark.parametrize("data_decide", [True, False])
def test_a_loop_that_data_may_end_runs_as_often_as_it_may_and_says_so(data_decide):
    nodes = [
        _node("Tanh", "h", "next"),
        _node("ReduceMax", "next", "most", keepdims=0),
        _node("Less", "most limit", "small"),
    ]
    model = _loop(nodes, "h", "next", ["h"])
    limit = numpy_helper.from_array(np.array(0.5, np.float32), "limit")
    model.graph.initializer.append(limit)
    body = model.graph.node[0].attribute[0].g
    if data_decide:
        del body.node[-1]
        body.output[0].name = "small"
    read = from_onnx(model)
    functions = [op.function for op in read.graph().ops]
    assert functions.count("tanh") == TRIPS
    # What ends the loop is computed in every round.
    assert functions.count("max") == functions.count("less") == TRIPS * data_decide
    assert ("loops that data may end" in read.note) == data_decide
