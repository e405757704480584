"""What any plan must satisfy, on random shapes."""

from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from ipusim.compiler.convolution.planner import forget_plans, plan
from ipusim.compiler.operators.conv import conv_pass
from ipusim.compiler.stacks import load_stack
from ipusim.machine import load_chip
from ipusim.workload.graph import Conv

STACKS = {"GC2": ("sdk-1.0", "sdk-2.4"), "GC200": ("sdk-2.4", "sdk-3.x")}


@st.composite
def convolutions(draw, largest=256):
    kernel = draw(st.sampled_from([1, 1, 3]))
    groups = draw(st.sampled_from([1, 1, 4]))
    size = draw(st.integers(1, 14))
    return Conv(
        batch=draw(st.integers(1, 3)),
        in_channels=groups * draw(st.integers(1, largest // groups)),
        out_channels=groups * draw(st.integers(1, largest // groups)),
        groups=groups,
        field=(size, size),
        kernel=(kernel, kernel),
        stride=(draw(st.sampled_from([1, 2])),) * 2,
        padding_lower=(kernel // 2,) * 2,
        padding_upper=(kernel // 2,) * 2,
        dilation=(1, 1),
    )


targets = st.sampled_from([(chip, stack) for chip, names in STACKS.items() for stack in names])


@settings(max_examples=25)
@given(convolutions(), targets)
def test_more_temporary_memory_never_makes_a_plan_slower(conv, target):
    chip, rules = load_chip(target[0]), load_stack(target[1]).planner_rules()
    cycles = []
    for proportion in (0.05, 0.2, 0.6):
        allowed = replace(rules, available_memory_proportion=proportion)
        found = plan(conv_pass(conv, 2), chip, allowed)
        if found.cost.temp_bytes <= proportion * chip.bytes_per_tile:  # else the bound was given up
            cycles.append(found.planned_cycles)
    assert cycles == sorted(cycles, reverse=True)


@settings(max_examples=12)
@given(convolutions(largest=24), targets)
def test_pruned_equals_exhaustive(conv, target):
    small = replace(load_chip(target[0]), tiles=16)
    rules = load_stack(target[1]).planner_rules()
    pruned = plan(conv_pass(conv, 2), small, rules)
    every = plan(conv_pass(conv, 2), small, rules, pruned=False)
    assert pruned.planned_cycles <= 1.001 * every.planned_cycles
    assert every.planned_cycles <= 1.001 * pruned.planned_cycles


@settings(max_examples=20)
@given(convolutions(), targets)
def test_same_input_same_plan(conv, target):
    chip, rules = load_chip(target[0]), load_stack(target[1]).planner_rules()
    first = plan(conv_pass(conv, 2), chip, rules)
    forget_plans()
    again = plan(conv_pass(conv, 2), chip, rules)
    assert first == again
    assert first is not again


@pytest.mark.parametrize("chip", ["GC2", "GC200"])
def test_a_plan_stays_on_the_chip(chip):
    target = load_chip(chip)
    for stack in STACKS[chip]:
        conv = Conv(
            batch=4, in_channels=256, out_channels=256, groups=1, field=(14, 14), kernel=(3, 3),
            stride=(1, 1), padding_lower=(1, 1), padding_upper=(1, 1), dilation=(1, 1),
        )  # fmt: skip
        found = plan(conv_pass(conv, 2), target, load_stack(stack).planner_rules())
        assert 0 < found.cost.tiles_used <= target.tiles
        busiest = target.tiles * target.macs_per_cycle("float16", "float16")
        assert found.planned_cycles >= conv.macs / busiest
