"""Plans of fully connected layers in training."""

from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from ipusim.compiler.convolution.kernel import fill_joint_splits
from ipusim.compiler.convolution.params import ConvPass
from ipusim.compiler.convolution.planner import layer_passes, plan, plan_layer
from ipusim.compiler.convolution.record import empty_works
from ipusim.compiler.convolution.rules import PlannerRules
from ipusim.compiler.lower import lower
from ipusim.compiler.operators.matmul import layer_pass
from ipusim.compiler.stacks import load_stack
from ipusim.machine import load_chip
from ipusim.study.evidence.graphs import training_graph
from ipusim.workload.graph import MatMul
from ipusim.workload.operators.matmul import matmul_data_gradient, matmul_weight_gradient

CHIP = load_chip("GC200")
RULES = PlannerRules(era=1, partials_bytes=4, available_memory_proportion=0.6)
PASSES = ("forward", "data_gradient", "weight_gradient")


def layer(m: int, k: int, n: int, dtype_bytes: int = 2) -> ConvPass:
    return ConvPass.of("fc_training", MatMul(m=m, k=k, n=n), dtype_bytes)


@settings(max_examples=15)
@given(*[st.integers(1, 40)] * 3, st.sampled_from([1, 2, 3]))
def test_layers_cost_no_more_than_three_plans(m, k, n, era):
    shape, few = layer(m, k, n), replace(CHIP, tiles=24)
    rules = replace(RULES, era=era)
    plans = plan_layer(shape, few, rules)
    joint = sum(getattr(plans, name).planned_cycles for name in PASSES)
    separate = sum(plan(one, few, rules).planned_cycles for one in layer_passes(shape))
    assert joint <= separate
    if not plans.forward.joint:
        assert plans.forward == plan(shape, few, rules)


def test_a_joint_plan_keeps_weights_in_place():
    # The planner of IPUModel's day joins the passes of this float layer (its worst tile says so).
    plans = plan_layer(layer(8, 1000, 1000, 4), CHIP, RULES)
    assert plans.forward.joint
    forward, back, update = (getattr(plans, name).split for name in PASSES)
    assert forward.out_chans == 1
    assert (forward.in_chans, forward.field[1]) == (back.field[1], back.in_chans)
    assert (update.out_chans, update.field[1]) == (forward.in_chans, forward.field[1])
    assert plans.forward.in_chans_per_group == plans.weight_gradient.out_chans_per_group
    assert plans.forward.out_chans_per_group == plans.weight_gradient.in_chans_per_group
    assert len({getattr(plans, name).cost.tiles_used for name in PASSES}) == 1


def test_groups_of_channels_are_exchanged_for_the_weight_gradient():
    rules, few = replace(RULES, partials_bytes=2), replace(CHIP, tiles=24)
    plans = plan_layer(layer(8, 64, 64), few, rules)
    forward, update = plans.forward, plans.weight_gradient
    assert (forward.in_chans_per_group, forward.out_chans_per_group) == (16, 8)
    assert (update.in_chans_per_group, update.out_chans_per_group) == (8, 16)


@pytest.mark.parametrize(
    ("chip", "dtype_bytes", "vertices"),
    [
        # So IPUModel's worst tiles say: without AMP nothing lies in interleaved memory.
        ("GC200", 2, ["HMAC 1x40x1", "HMAC 1x40x1", "OUTER_PRODUCT 1x1x40"]),
        ("GC2", 2, ["HMAC 1x40x1", "HMAC 1x40x1", "OUTER_PRODUCT 1x1x40"]),
        ("GC2", 4, ["HMAC 1x40x1", "HMAC 1x40x1", "OUTER_PRODUCT 1x1x40"]),
        # Groups are multiples of the 16 conv units for float32 there, and so cost too much.
        ("GC200", 4, ["AMP 1x1 1x8x8"] * 3),
    ],
)
def test_the_weight_gradient_of_one_item_is_an_outer_product(chip, dtype_bytes, vertices):
    plans = plan_layer(layer(1, 1000, 1000, dtype_bytes), load_chip(chip), RULES)
    assert [plan.joint for plan in plans] == [True] * 3
    assert [plan.codelet for plan in plans] == vertices


def test_half_partials_leave_no_outer_product():
    # Their dot products make two outputs at a time.
    plans = plan_layer(layer(1, 1000, 1000), load_chip("GC2"), replace(RULES, partials_bytes=2))
    assert plans.forward.codelet == "HMAC 1x200x2"
    assert not plans.forward.joint


def test_splits_of_the_gradients():
    works = empty_works(3, 1)
    fill_joint_splits(works, 7, 2, 3, 5)
    forward, gradient, update = works["split"]
    last = [split["dims"][2]["field"] for split in (forward, gradient, update)]
    assert (works["split"]["group"] == 2).all()
    assert (forward["in_chans"], last[0], forward["out_serial"]) == (3, 5, 7)
    assert (gradient["in_chans"], last[1], gradient["out_serial"]) == (5, 3, 7)
    assert (update["out_chans"], last[2], update["in_serial"]) == (3, 5, 7)
    assert (works["split"]["broadcast"] == 0).all()


def test_every_pass_finds_its_layer():
    product = MatMul(groups=3, m=8, k=16, n=32, weights_operand=True)
    shapes = {
        layer_pass(one, 2)
        for one in (product, matmul_data_gradient(product), matmul_weight_gradient(product))
    }
    assert len(shapes) == 1
    forward, back, update = (one.params for one in layer_passes(shapes.pop()))
    assert (forward.batch, forward.in_channels, forward.out_channels) == (32, 16, 8)
    # dA = dC B^T: 8 x 32 by 32 x 16; dB = A^T dC: 16 x 8 by 8 x 32; operands exchanged.
    assert (back.batch, back.in_channels, back.out_channels) == (16, 32, 8)
    assert (update.batch, update.in_channels, update.out_channels) == (32, 8, 16)


def test_plans_are_remembered():
    plan_layer.cache_clear()
    first = plan_layer(layer(8, 16, 32), CHIP, RULES)
    assert plan_layer(layer(8, 16, 32), CHIP, RULES) is first


@pytest.mark.parametrize("stack", ["sdk-1.0", "sdk-2.0", "sdk-2.4", "sdk-3.x"])
def test_layers_lower_in_every_stack(stack):
    chip = load_chip("GC2" if stack == "sdk-1.0" else "GC200")
    graph = training_graph(MatMul(m=128, k=768, n=3072, weights_operand=True))
    program = lower(graph.validate(), chip, load_stack(stack), host_dtype=None)
    assert program.macs == 3 * graph.ops[0].macs
    by_name = {op.name: op for op in program.ops}
    names = [step.name for step in by_name["forward.data_gradient"].steps]
    assert names[:2] == ["transpose weights", "turn weights"]
    assert all(op.cycles > 0 for op in program.ops)
