"""Recurrent layers: their work, gradients, import from ONNX, and the loop that they lower to."""

from dataclasses import replace

import numpy as np
import onnx
import onnx_single_op as single_op
import pytest
from hypothesis import given, settings, strategies as st
from onnx import helper

from ipusim.compiler.eras import ERA_2_4
from ipusim.compiler.lower import lower
from ipusim.compiler.memory import measure
from ipusim.compiler.operators.recurrent import GATHER_MEMORY_PROPORTION, GATHERED_SHARE
from ipusim.compiler.operators.recurrent_cell import StateLayout
from ipusim.compiler.stacks import load_stack
from ipusim.compiler.tiles import Tile
from ipusim.compiler.vertices.elementwise import loop_cycles
from ipusim.errors import WorkloadError
from ipusim.machine import load, load_chip
from ipusim.runtime.gpu.kernels import GpuStack, step_kernels
from ipusim.study.evidence.graphs import recurrent_graph
from ipusim.workload.graph import Recurrent
from ipusim.workload.layers import GraphBuilder
from ipusim.workload.onnx import check_onnx, from_onnx
from ipusim.workload.training import training_graphs

CHIP = load_chip("GC200")
EARLY, LATE = load_stack("sdk-2.0"), load_stack("sdk-2.4")


def layer(kind="lstm", **changes):
    sizes = {"steps": 7, "batch": 2, "features": 24, "hidden": 40} | changes
    return Recurrent(kind=kind, **sizes)


def lowered(params, stack=EARLY, precision="16.16"):
    return lower(recurrent_graph(params, precision), CHIP, stack, host_dtype=None)


@pytest.mark.parametrize("stack", [EARLY, LATE], ids=["early", "late"])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_a_superstep_of_the_loop_costs_its_syncs(kind, stack):
    for op in lowered(layer(kind), stack).ops:
        for step in op.steps:
            # two syncs in IPUModel's loops, one where a chip was measured
            syncs = 2 if step.exchange_bytes and stack is EARLY else 1
            assert step.sync_cycles == 126 * syncs
    assert EARLY.superstep_cycles > 2 * 126


@given(st.sampled_from(["lstm", "gru"]), *[st.integers(1, 50)] * 4, st.booleans())
def test_work_by_the_definition_of_the_cell(kind, steps, batch, features, hidden, first):
    params = layer(kind, steps=steps, batch=batch, features=features, hidden=hidden)
    gates = {"lstm": 4, "gru": 3}[kind]
    # Every gate is a matrix product with the input and one with the state.
    assert params.macs == steps * batch * gates * (features * hidden + hidden * hidden)
    back = replace(params, backward=True, input_gradient=not first)
    data = hidden if first else hidden + features
    assert back.macs - params.macs == steps * batch * gates * hidden * data


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"kind": "elman"}, "elman"),
        ({"steps": 0}, "steps = 0"),
        ({"kind": "lstm", "reset_after": True}, "reset_after"),
        ({"kind": "gru", "input_product_first": True}, "input_product_first"),
    ],
)
def test_impossible_layers_are_named(changes, wrong):
    with pytest.raises(WorkloadError, match=wrong):
        layer(**({"kind": "lstm"} | changes))


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_a_sequence_is_a_loop(kind):
    """Twice the steps take twice the cycles of the loop, and no more supersteps in the program."""
    short, long = (lowered(layer(kind, steps=steps)) for steps in (10, 20))
    assert len(short.steps) == len(long.steps)
    loop = sum(step.cycles for step in short.steps if step.repeats >= 10)
    assert loop > 0.9 * short.cycles
    assert abs(long.cycles - short.cycles - loop) < 0.02 * loop
    assert long.macs == 2 * short.macs


def test_what_training_keeps_lives_until_the_gradient():
    graph = recurrent_graph(layer(training=True))
    assert graph.tensors["forward.out1"].shape == (7, 6, 2, 40)
    program = lower(graph, CHIP, EARLY, host_dtype=None)
    memory = measure(graph, program, CHIP)
    tiles = program.ops[0].tiles
    assert memory.points[1].activation_bytes >= graph.tensors["forward.out1"].bytes // tiles


def test_weight_gradients_are_gathered_from_sdk_2_4_on():
    """Early, every step multiplies once forward, once back and once for the weights."""
    params = layer(training=True, steps=64, batch=4, features=128, hidden=128)

    def weight_products(stack):
        steps = lowered(params, stack).ops[1].steps
        return sum(step.repeats for step in steps if step.name == "multiply") - params.steps

    assert weight_products(EARLY) == 64
    assert 1 <= weight_products(LATE) < 8


def test_a_second_loop_where_gradients_are_smaller_than_weights():
    """poplibs' rule: (features + hidden) weights against batch x steps gradients per gate."""

    def kept(steps):
        params = layer(training=True, steps=steps, batch=2, features=24, hidden=40)
        names = [step.name for step in lowered(params).ops[1].steps]
        return "slice gate gradients" in names

    assert kept(31)  # 64 x 160 weights > 2 x 31 x 160 gradients
    assert not kept(32)


def test_gradients_that_are_too_large_are_not_gathered():
    """The gates of one step of a large layer take more than is kept of them: a second loop."""
    params = layer(training=True, steps=2, batch=1024, features=8, hidden=2400)
    gates = 4 * StateLayout.of(1024, 2400, CHIP).per_tile * 2
    assert gates > GATHERED_SHARE * GATHER_MEMORY_PROPORTION * CHIP.bytes_per_tile
    names = [step.name for step in lowered(params, LATE).ops[1].steps]
    assert "slice gate gradients" in names


def test_units_are_transposed_in_blocks_whose_rows_are_of_the_batch():
    """Poplibs lib/popnn/RnnUtil.hpp, tryGroupedPartialTranspose: the vertex reads rows of what sits
    together, sequences of the batch, and writes rows of units. One block for each worker.
    """

    def grouped(batch, hidden):
        steps = lowered(layer(batch=batch, hidden=hidden)).steps
        return [step.compute_cycles for step in steps if step.name == "group units"]

    assert grouped(4, 64) == [7 + 6 * (27 + 35 + 4 * (16 // 4 - 2) - 7)]  # 16 units, 4 sequences
    assert grouped(4, 100) == [7 + 6 * (29 - 7)]  # states come in grains of 4 units
    assert grouped(16, 64) == []  # the plan swaps: units sit together
    assert grouped(12, 40) == []  # 12 sequences are no whole groups of 8


def test_options_and_forms_change_the_loop():
    names = {
        form: [step.name for step in lowered(params).steps]
        for form, params in {
            "plain": layer(),
            "first": layer(input_product_first=True),
            "gru": layer("gru"),
            "after": layer("gru", reset_after=True),
        }.items()
    }
    assert names["first"].count("multiply") == 2
    assert "slice input products" in names["first"]
    assert names["plain"].count("multiply") == 1
    assert names["gru"].count("multiply") == names["after"].count("multiply") == 2
    assert "reset state" in names["gru"]
    assert "add reset product" in names["after"]
    assert "write output" in names["plain"]
    for form in ("gru", "after"):
        trained = layer("gru", reset_after=form == "after", training=True)
        assert lowered(trained).cycles > lowered(replace(trained, training=False)).cycles
    last = [step.name for step in lowered(layer(sequence=False)).steps]
    assert "write output" not in last


def test_a_long_sequence_is_shared_by_as_many_sets_of_tiles_as_hold_its_data():
    """States of 4 x 16 on 4 tiles, data of 4 x 1,024 on 256: 1,472 tiles hold five such sets."""
    params = layer(steps=10_000, batch=4, features=1024, hidden=16)
    assert lowered(params).ops[0].tiles == 5 * 4


@settings(max_examples=30)
@given(st.integers(1, 64), st.integers(1, 3000))
def test_states_are_spread_in_grains(batch, size):
    state = StateLayout.of(batch, size, CHIP)
    assert state.tiles <= CHIP.tiles
    assert state.tiles * state.per_tile >= batch * size == state.elements
    assert (state.tiles - 1) * state.per_tile < batch * size


def test_several_regions_by_hand():
    """Three regions of 16 halves: 12 vectors, two for each of six workers."""
    tile = Tile(CHIP, ERA_2_4)
    for vertex, function, worker in (
        ("UnaryOp2DInPlace", "sigmoid", 20 + 4 * 2),
        ("BinaryOp2DInPlace", "mul", 20 + 3 * 2),
        ("BinaryOp2D", "mul", 5 + 3 * 2),
    ):
        assert loop_cycles(tile, vertex, function, 48, "float16") == 6 * worker


def network(kind, layers=2):
    g = GraphBuilder("sequence")
    x = g.input("x", (6, 3, 8))
    for index in range(layers):
        x = g.recurrent(f"layer{index}", x, 16, kind=kind, sequence=index < layers - 1)
    return g.finish(g.linear("head", x, 5)).with_precision("16.32")


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_training_a_stack_of_layers(kind):
    graphs = training_graphs(network(kind), loss="cross_entropy", accumulate="scaled_add")
    back = [op for op in graphs.micro_batch.ops if op.kind == "recurrent" and op.params.backward]
    assert [op.params.input_gradient for op in back] == [True, False]  # the data have none
    weights = {name for name in graphs.gradient_bytes if "weight" in name}
    assert {"layer0.weight_ih", "layer0.weight_hh", "layer1.weight_hh"} <= weights
    assert graphs.gradient_bytes["layer1.bias"] > 0
    program = lower(graphs.micro_batch, CHIP, LATE, host_dtype=None)
    assert program.cycles > lower(network(kind), CHIP, LATE, host_dtype=None).cycles


def test_gpu_kernels_do_the_same_work():
    graph = recurrent_graph(layer())
    stack = load(GpuStack, "pytorch-21")
    kernels = step_kernels(graph, stack, mode="inference", precision="mixed")
    assert sum(one.m * one.n * one.k for one in kernels) == graph.macs


def onnx_layer(op_type, *, outputs=("y",), directions=1, **attributes):
    gates, hidden, features = {"LSTM": 4, "GRU": 3}[op_type], 16, 8
    bias = np.zeros((directions, 2 * gates * hidden), np.float32)
    names = [name for name in outputs if name]
    node = helper.make_node(
        op_type,
        ["x", "w", "r", "b"],
        list(outputs),
        name="node",
        hidden_size=hidden,
        **attributes,
    )
    return single_op.make_model(
        [node],
        {"x": (5, 2, features)},
        names,
        {
            "w": (directions, gates * hidden, features),
            "r": (directions, gates * hidden, hidden),
            "b": bias,
        },
    )


@pytest.mark.parametrize("op_type", ["LSTM", "GRU"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("outputs", [("y",), ("y", "h"), ("", "h")])
def test_onnx_layers_have_the_shapes_that_run(tmp_path, op_type, direction, outputs):
    directions = 2 if direction == "bidirectional" else 1
    model = onnx_layer(op_type, outputs=outputs, directions=directions, direction=direction)
    onnx.save(model, tmp_path / "layer.onnx")
    graph = from_onnx(tmp_path / "layer.onnx").graph()
    assert [graph.tensors[name].shape for name in graph.outputs] == single_op.runtime_shapes(model)
    cells = [op for op in graph.ops if op.kind == "recurrent"]
    assert len(cells) == directions
    assert cells[0].params.sequence == bool(outputs[0])
    gates = {"LSTM": 4, "GRU": 3}[op_type]
    assert graph.macs == directions * 5 * 2 * gates * 16 * (8 + 16)
    assert graph.parameters == directions * gates * 16 * (8 + 16 + 2)
    assert lower(graph.with_precision("16.16"), CHIP, LATE, host_dtype=None).cycles > 0


def test_onnx_cell_state_and_initial_states(tmp_path):
    model = onnx_layer("LSTM", outputs=("y", "h", "c"))
    onnx.save(model, tmp_path / "layer.onnx")
    graph = from_onnx(tmp_path / "layer.onnx").graph()
    assert [graph.tensors[name].shape for name in graph.outputs] == single_op.runtime_shapes(model)


def test_onnx_reset_after(tmp_path):
    onnx.save(onnx_layer("GRU", linear_before_reset=1), tmp_path / "layer.onnx")
    (cell,) = [op for op in from_onnx(tmp_path / "layer.onnx").graph().ops if op.kind != "layout"]
    assert cell.params.reset_after


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"clip": 3.0}, "clipping"),
        ({"activations": ["Relu", "Tanh", "Tanh"]}, "activations"),
        ({"input_forget": 1}, "coupled"),
    ],
)
def test_onnx_forms_without_a_layer_are_said_to_be_assumed(tmp_path, attributes, reason):
    onnx.save(onnx_layer("LSTM", **attributes), tmp_path / "layer.onnx")
    assert reason in str(check_onnx(tmp_path / "layer.onnx"))


def test_gradients_of_final_states_join_those_of_the_last_step(tmp_path):
    onnx.save(onnx_layer("LSTM", outputs=("y", "", "c")), tmp_path / "layer.onnx")
    graph = from_onnx(tmp_path / "layer.onnx").graph()
    names = [op.name for op in training_graphs(graph, loss="mean_squared").micro_batch.ops]
    assert sum("final" in name for name in names) == 1
