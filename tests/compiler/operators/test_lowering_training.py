"""Lowering of training graphs built by hand: layouts, exchanges, memory, weight updates."""

from dataclasses import replace

import pytest
import windows

from ipusim.compiler import memory
from ipusim.compiler.emitter import TensorLayout
from ipusim.compiler.lower import lower
from ipusim.compiler.stacks import load_stack
from ipusim.compiler.tiles import rearranged_copy_cycles
from ipusim.errors import UnknownNameError
from ipusim.machine import load_chip
from ipusim.workload.graph import (
    Cast,
    Elementwise,
    Gather,
    Graph,
    Loss,
    Norm,
    Op,
    Reduce,
    Softmax,
    Tensor,
)

MK2 = load_chip("GC200")
STACK = load_stack("sdk-2.4")


def tensor(name, *shape, dtype="float16", role="activation"):
    return Tensor(name=name, shape=shape, dtype=dtype, role=role)


def op(name, params, inputs, outputs, phase="forward"):
    return Op(name=name, params=params, inputs=inputs, outputs=outputs, phase=phase)


REGROUPS = pytest.mark.parametrize(("stack", "regrouped"), [("sdk-2.0", False), ("sdk-3.x", True)])
"""Whether a stack transposes blocks of an operand first; else its elements move one by one."""


def lowered(tensors, *ops, stack=STACK, layouts=None):
    """Lower operators over tensors; inputs are those of that role."""
    graph = Graph(
        name="hand-made",
        tensors={t.name: t for t in tensors},
        ops=ops,
        inputs=tuple(t.name for t in tensors if t.role == "input"),
        outputs=(ops[-1].outputs[0],),
    )
    program = lower(graph, MK2, stack, host_dtype=None, layouts=layouts)
    return graph, {result.name: result for result in program.ops}, program


elementwise = Elementwise.in_place


FIELD = (8, 64, 16, 23)
ELEMENTS = 8 * 64 * 16 * 23


def small_step():
    """Batch norm, relu, max pool, loss; and everything backward."""
    pooled = (8, 64, 8, 11)
    pool = windows.pool(batch=8, field=(16, 23), kernel=(2, 2), **windows.NO_PADDING)
    norm = Norm(kind="batch", batch=8, channels=64, spatial_elements=368, training=True)
    return lowered(
        [
            tensor("x", *FIELD, role="input"),
            tensor("scale", 64, role="parameter"),
            tensor("bias", 64, role="parameter"),
            tensor("n", *FIELD),
            tensor("statistics", 2, 64, dtype="float32"),
            tensor("r", *FIELD),
            tensor("p", *pooled),
            tensor("target", 8, dtype="int32", role="input"),
            tensor("loss", 8, dtype="float32", role="output"),
            tensor("dp", *pooled),
            tensor("dr", *FIELD),
            tensor("dn", *FIELD),
            tensor("dx", *FIELD),
            tensor("dscale", 64),
            tensor("dbias", 64),
            tensor("sum", 64, role="state"),
            tensor("summed", 64),
        ],
        op("norm", norm, ("x", "scale", "bias"), ("n", "statistics")),
        op("relu", elementwise("relu"), ("n",), ("r",)),
        op("pool", pool, ("r",), ("p",)),
        op(
            "loss",
            Loss(kind="cross_entropy", rows=8, classes=5632),
            ("p", "target"),
            ("loss", "dp"),
        ),
        op(
            "pool.gradient",
            replace(pool, backward=True),
            ("dp", "r", "p"),
            ("dr",),
            "backward",
        ),
        op("relu.gradient", elementwise("relu_grad"), ("dr", "r"), ("dn",), "backward"),
        op(
            "norm.gradient",
            replace(norm, backward=True),
            ("dn", "x", "scale", "statistics"),
            ("dx", "dscale", "dbias"),
            "backward",
        ),
        op("accumulate", elementwise("scaled_add"), ("sum", "dscale"), ("summed",), "backward"),
    )


def test_a_whole_step_lowers():
    graph, ops, program = small_step()
    assert list(ops) == [o.name for o in graph.ops]
    assert all(result.cycles > 0 for result in ops.values())
    assert ops["norm.gradient"].cycles > ops["norm"].cycles
    # Three tensors arrive for the gradient of a maximum, one for the maximum.
    assert ops["pool.gradient"].temp_bytes > ops["pool"].temp_bytes
    used = memory.measure(graph, program, MK2)
    assert used.fits
    # Whitened data and one product beside data, gradients and parameters.
    assert ops["norm.gradient"].temp_bytes >= 2 * 128 * 2


def test_gradients_take_on_the_layout_of_the_forward_pass():
    _, ops, _ = small_step()
    # The pool's gradient lies as the pool planned it and moves to the rectified data.
    first = ops["relu.gradient"].steps[0]
    assert first.exchange_bytes == 256
    # Rectified data lie with the norm's input: nothing more to move for the norm.
    assert ops["norm.gradient"].steps[0].name == "inverse deviation"


def test_accumulators_lie_with_their_gradients():
    _, ops, _ = small_step()
    (step,) = ops["accumulate"].steps
    assert step.exchange_bytes == 0


def test_running_mean_takes_three_numbers_and_sends_two():
    # graphcore/popart willow/src/popx/op/accumulatex.cpp: n + 1, its inverse, and the rest to 1.
    operands = ("float16", "float16", "state", "activation")
    *counts, mean = update("counted_running_mean", *operands)
    assert [step.exchange_bytes for step in (*counts, mean)] == [0, 0, 0, 8]
    assert mean.vertex == "popops::aXPlusbYSupervisor"
    # 128 elements a tile are 11 pairs for the fullest worker.
    assert mean.compute_cycles == 157 + 6 * (24 + 15 + 8 * 5)
    assert len({step.compute_cycles for step in counts}) == 1
    assert update("running_mean", *operands) == (mean,)


def update(function, target, addend, target_role, addend_role, *, elements=1472 * 128):
    _, ops, _ = lowered(
        [
            tensor("a", elements, dtype=target, role=target_role),
            tensor("b", elements, dtype=addend, role=addend_role),
            tensor("c", elements, dtype=target),
        ],
        op("update", elementwise(function), ("a", "b"), ("c",), "update"),
    )
    return ops["update"].steps


def test_weight_update_by_hand():
    # 32 vectors a tile, six for the fullest worker: 3 cycles a vector, 4 where types differ.
    (plain,) = update("scaled_add", "float16", "float16", "parameter", "state")
    overhead = 11 + 7 + 12 + 27
    assert plain.compute_cycles == overhead + 6 * (15 + 6 + 5 * 3 + 4)
    # Momentum lies with the gradient, weights with their consumer.
    assert plain.exchange_bytes == 256
    (moment,) = update("scaled_add", "float16", "float16", "state", "state")
    assert (moment.compute_cycles, moment.exchange_bytes) == (plain.compute_cycles, 0)
    # A float32 master copy: 64 vectors, eleven for a worker.
    (wide,) = update("scaled_add", "float32", "float16", "parameter", "state")
    assert wide.compute_cycles == overhead + 6 * (15 + 6 + 10 * 4 + 4)
    assert wide.exchange_bytes == 256
    (narrow,) = update("scaled_add", "float16", "float32", "parameter", "state")
    assert narrow.compute_cycles == overhead + 6 * (16 + 8 + 5 * 4 + 4)


@pytest.mark.parametrize("function", ["square", "sqrt", "mul", "div", "add", "sub", "scale"])
def test_functions_of_optimisers_have_vertices(function):
    names = ("a",) if function in ("square", "sqrt", "scale") else ("a", "b")
    _, ops, _ = lowered(
        [
            tensor("a", 1472 * 128, dtype="float32", role="state"),
            tensor("b", 1472 * 128, dtype="float32", role="state"),
            tensor("c", 1472 * 128, dtype="float32"),
        ],
        op("f", elementwise(function), names, ("c",), "update"),
    )
    (step,) = ops["f"].steps
    assert step.vertex.startswith("popops::")
    assert step.exchange_bytes <= 4  # a scalar at most: everything lies together


def test_operands_of_another_width_are_cast_first():
    steps = update("mul", "float32", "float16", "state", "state")
    assert [step.vertex for step in steps] == ["popops::Cast1D", "popops::BinaryOp1DInPlace"]


def test_softmax_gather_and_sums():
    _, ops, _ = lowered(
        [
            tensor("table", 1000, 256, role="parameter"),
            tensor("ids", 384, dtype="int32", role="input"),
            tensor("rows", 384, 256),
            tensor("y", 384, 256),
            tensor("dy", 384, 256),
            tensor("dtable", 1000, 256),
            tensor("norm", 1, dtype="float32"),
        ],
        op("gather", Gather(rows=1000, width=256, indices=384), ("table", "ids"), ("rows",)),
        op("softmax", Softmax(outer=384, length=256), ("rows",), ("y",)),
        op(
            "softmax.gradient",
            Softmax(outer=384, length=256, backward=True),
            ("rows", "y"),
            ("dy",),
            "backward",
        ),
        op(
            "gather.gradient",
            Gather(rows=1000, width=256, indices=384, function="add"),
            ("dy", "ids"),
            ("dtable",),
            "backward",
        ),
        op(
            "norm",
            Reduce(function="sumsquare", outer=1, reduced=256000, inner=1),
            ("dtable",),
            ("norm",),
            "update",
        ),
    )
    # Result and incoming gradient share a mapping here.
    assert ops["softmax.gradient"].steps[0].exchange_bytes == 0
    assert ops["gather.gradient"].steps[0].name == "fill"
    assert ops["gather.gradient"].temp_bytes > 0
    assert ops["norm"].cycles > 0


@REGROUPS
def test_the_gradient_of_a_softmax_regroups_what_comes_in(stack, regrouped):
    # 96 heads of 197 rows: their groups of 16 need not divide the rows of one head.
    rows, columns = 96 * 197, 192
    _, ops, _ = lowered(
        [tensor(name, rows, columns, role="input") for name in ("dy", "y")]
        + [tensor("dx", rows, columns)],
        op(
            "softmax.gradient",
            Softmax(outer=rows, length=columns, backward=True),
            ("dy", "y"),
            ("dx",),
            "backward",
        ),
        stack=load_stack(stack),
        layouts={"y": TensorLayout(rows=True), "dy": TensorLayout()},
    )
    steps = {step.name: step for step in ops["softmax.gradient"].steps}
    assert ("regroup operand" in steps) == regrouped
    times = steps["softmax gradient, result times gradient"]
    assert times.exchange_bytes > 0
    copied = rearranged_copy_cycles(times.exchange_bytes, 2, MK2)
    assert times.copy_cycles == (0 if regrouped else copied)


def test_a_master_copy_is_cast():
    _, ops, _ = lowered(
        [
            tensor("w", 1472 * 128, dtype="float32", role="parameter"),
            tensor("half", 1472 * 128),
        ],
        op("cast", Cast(), ("w",), ("half",)),
    )
    assert [step.vertex for step in ops["cast"].steps] == ["popops::Cast1D"]


def test_dropout_runs_the_same_both_ways():
    _, ops, _ = lowered(
        [
            tensor("x", 1472 * 128, role="input"),
            tensor("y", 1472 * 128),
            tensor("dx", 1472 * 128),
        ],
        op("dropout", elementwise("dropout"), ("x",), ("y",)),
        op("dropout.gradient", elementwise("dropout"), ("y",), ("dx",), "backward"),
    )
    assert ops["dropout"].cycles == ops["dropout.gradient"].cycles
    assert ops["dropout"].steps[2].compute_cycles == 6 + 24 * 6 + 2 * 32


@REGROUPS
def test_the_gradient_of_a_dropout_goes_to_where_the_forward_pass_dropped(stack, regrouped):
    back = replace(
        op("drop.back", elementwise("dropout"), ("dy",), ("dx",), "backward"), source="drop"
    )
    _, ops, _ = lowered(
        [
            *(tensor(name, 1472, 128, role="input") for name in ("x", "dy")),
            *(tensor(name, 1472, 128) for name in ("y", "dx", "sum")),
        ],
        op("drop", elementwise("seeded_dropout"), ("x",), ("y",)),
        back,
        op("add", elementwise("add"), ("dx", "y"), ("sum",), "backward"),
        stack=load_stack(stack),
        layouts={"x": TensorLayout(), "dy": TensorLayout(rows=True)},
    )
    steps = {step.name: step for step in ops["drop.back"].steps}
    assert ("regroup operand" in steps) == regrouped
    assert steps["dropout"].exchange_bytes == 128 * 2
    assert steps["dropout"].copy_cycles == (0 if regrouped else rearranged_copy_cycles(256, 2, MK2))
    # The result lies like what was dropped from, as the forward one does.
    assert [step.exchange_bytes for step in ops["add"].steps] == [0]


@pytest.mark.parametrize(("function", "operands"), [("dropout", 1), ("gelu_grad", 2)])
def test_a_vertex_that_writes_anew_holds_its_operand_only_where_the_result_takes_its_memory(
    function, operands
):
    def temp_bytes(read_later):
        _, ops, _ = lowered(
            [
                tensor("x", 1472 * 128, role="input"),
                *(tensor(name, 1472 * 128) for name in ("dy", "dx", "sum")),
            ],
            op("forward", elementwise("gelu"), ("x",), ("dy",)),
            op("back", elementwise(function), ("dy", "x")[:operands], ("dx",), "backward"),
            op("add", elementwise("add"), ("dx", read_later), ("sum",), "backward"),
        )
        return max(step.temp_bytes for step in ops["back"].steps)

    assert temp_bytes("x") - temp_bytes("dy") == 128 * 2


def test_a_seed_of_its_own_is_drawn_before_a_dropout():
    x, y = tensor("x", 1472 * 128, role="input"), tensor("y", 1472 * 128)
    plain, seeded = (
        lowered([x, y], op("drop", elementwise(name), ("x",), ("y",)))[1]["drop"]
        for name in ("dropout", "seeded_dropout")
    )
    made = seeded.steps[: -len(plain.steps)]
    assert seeded.steps[-len(plain.steps) :] == plain.steps
    assert [step.name.split("/")[-1] for step in made if step.exchange_cycles] == [
        "add number of dropout",
        "set seed",
    ]
    assert [step.compute_cycles for step in made if step.vertex == "poprand::Uniform"] == [
        4 + 22 * 6
    ]


def test_the_gradient_of_a_global_average_is_a_copy():
    pool = windows.pool(
        kind="average",
        batch=4,
        channels=512,
        field=(7, 7),
        kernel=(7, 7),
        stride=(1, 1),
        backward=True,
        **windows.NO_PADDING,
    )
    _, ops, _ = lowered(
        [tensor("dy", 4, 512, 1, 1, role="input"), tensor("dx", 4, 512, 7, 7)],
        op("pool.gradient", pool, ("dy",), ("dx",), "backward"),
    )
    scale, copy = ops["pool.gradient"].steps
    assert scale.vertex == "popops::BinaryOp1D"
    # 100352 elements: 72 on the fullest tile, 8 bytes a cycle.
    assert (copy.vertex, copy.copy_cycles) == ("copy", 72 * 2 // 8)


@pytest.mark.parametrize(("read", "moves"), [("x", False), ("z", True)])
def test_what_is_scaled_and_added_moves_where_it_lies_elsewhere(read, moves):
    """Results of one tensor lie together (in place), those of another do not."""
    pairs = Reduce(function="sum", outer=ELEMENTS, reduced=2, inner=1)
    _, ops, _ = lowered(
        [tensor("in", 2 * ELEMENTS, role="input"), *(tensor(name, *FIELD) for name in "xzabc")],
        op("x", pairs, ("in",), ("x",)),
        op("z", pairs, ("in",), ("z",)),
        op("a", elementwise("relu"), ("x",), ("a",)),
        op("b", elementwise("tanh"), (read,), ("b",)),
        op("c", elementwise("scaled_add"), ("a", "b"), ("c",)),
    )
    (step,) = ops["c"].steps
    assert step.vertex == "popops::ScaledAddSupervisor"
    assert (step.exchange_bytes > 0) == moves


@pytest.mark.parametrize("stack", ["sdk-1.0", "sdk-2.4"])
def test_unknown_functions_are_refused(stack):
    with pytest.raises(UnknownNameError, match=r"Unknown elementwise function 'relu_gard'.*\?$"):
        lowered(
            [tensor("x", 64, role="input"), tensor("y", 64)],
            op("f", elementwise("relu_gard"), ("x",), ("y",)),
            stack=load_stack(stack),
        )


@pytest.mark.parametrize("function", ["swish_grad", "gelu_grad", "relu_grad", "hard_swish_grad"])
def test_gradients_exist_in_every_era(function):
    cycles = []
    for stack in ("sdk-1.0", "sdk-2.4"):
        _, ops, _ = lowered(
            [
                tensor("dy", *FIELD, role="input"),
                tensor("x", *FIELD, role="input"),
                tensor("dx", *FIELD),
            ],
            op("f", elementwise(function), ("dy", "x"), ("dx",), "backward"),
            stack=load_stack(stack),
        )
        cycles.append(ops["f"].cycles)
    assert all(cycles)


def test_what_the_gradient_of_a_gelu_reads_is_copied_first():
    def forward(*rest):
        x, y, dx = (tensor(name, 1472 * 96) for name in ("x", "y", "dx"))
        _, ops, _ = lowered(
            [replace(x, role="input"), y, dx], op("f", elementwise("gelu"), ("x",), ("y",)), *rest
        )
        return ops["f"].steps[0].copy_cycles

    gradient = op("g", elementwise("gelu_grad"), ("y", "x"), ("dx",), "backward")
    # 96 halves of a tile, eight bytes a cycle.
    assert (forward(), forward(gradient)) == (0, 24)
