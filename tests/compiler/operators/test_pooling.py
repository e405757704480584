"""Pooling: vertex by hand, plan properties, gradients (IPUModel rows: test_evidence_operations)."""

from dataclasses import replace
from math import prod

import pytest
from emitting import MK1, MK2, emitted, emitter
from hypothesis import given, settings, strategies as st
from windows import NO_PADDING, pool

from ipusim.compiler.eras import ERA_1_0, ERA_2_0, ERA_2_4
from ipusim.compiler.operators import pool as pool_plan
from ipusim.compiler.operators.pool import PoolPass, plan_pool, pool_pass
from ipusim.compiler.tiles import Tile
from ipusim.compiler.vertices.pool import (
    PoolVertex,
    TileSlice,
    pool_tile_cycles,
    pool_vertex_estimate,
)
from ipusim.errors import WorkloadError


def pool_steps(op, chip=MK2, era=ERA_2_4):
    return emitted(pool_pass, op, "float16", 16, era=era, chip=chip)


def test_output_field():
    assert pool().out_field == (56, 56)
    gap = pool(field=(7, 7), kernel=(7, 7), **NO_PADDING)
    assert gap.out_field == (1, 1)


ROW = (1, 13), (1, 2), (1, 1), (1, 1), (0, 0)


def pool_vertex(sees, era=ERA_2_4, *, gradient=False):
    """Return the maximum of halves, or its gradient, whose outputs see such inputs."""
    return PoolVertex(*sees, True, gradient, 4, Tile(MK2, era))


def test_vertex_by_hand():
    """One row of 12 outputs, window 1 x 2, one vector of channels: two outputs per worker."""
    part = TileSlice(4, 1, 1, (1, 12))
    item = 20 + 1 + (2 + (4 + 3 * 1) + 1) + 1 + 3
    worker = (4 + 2 + 2 + 7 + 2 + 2) + (4 + 2) + (5 + 1 + 2) + (2 + 1) + (3 + 2 + 4 + 1)
    worker += 13 + 2 * item + 2 + 1
    cycles = pool_tile_cycles(pool_vertex(ROW), (1, 12), (1, 1), part)
    assert cycles == 7 + 6 * worker + 6


@pytest.mark.parametrize(
    ("era", "channels", "groups", "worker", "cycles"),
    [
        # Twelve outputs of two groups with two vectors each: four of those to a worker, and one
        # more as 12 - 6 * 4 wraps around. One vector each: two, and the first takes what is left.
        (ERA_2_4, 8, 2, 5, 2 * (4 + 4 + 1)),
        (ERA_2_4, 4, 1, 0, 4 + 2),
        (ERA_2_4, 4, 1, 1, 4 + 2),
        (ERA_1_0, 8, 2, 0, 3 + 8 * (24 + 1)),
        (ERA_1_0, 8, 1, 0, 0),
    ],
)
def test_outputs_are_written_first(era, channels, groups, worker, cycles):
    vertex = pool_vertex(ROW, era)
    part = TileSlice(channels, groups, 1, (1, 12))
    assert vertex.init_cycles(part, 12, worker) == cycles
    left = vertex.init_cycles(part, 13, worker) - cycles
    assert left == {ERA_1_0: 16 * (groups - 1), ERA_2_4: worker == 0 and channels == 4}[era]


def test_between_channel_groups_a_gradient_costs_more():
    """Two groups of a vector each: the second costs its loop and 4 cycles, of a gradient 6."""
    one, two = (TileSlice(4, groups, 1, (1, 12)) for groups in (1, 2))
    for gradient, between in ((False, 4), (True, 6)):
        vertex = pool_vertex(ROW, gradient=gradient)
        loop = 1 + (3 + vertex.loop_cycles(12)) + 1
        assert vertex.item_cycles(two, 12) - vertex.item_cycles(one, 12) == between + loop


def test_padding_saves_work_items():
    inside = (5, 5), (3, 3), (1, 1), (1, 1), (0, 0)
    padded = (3, 3), (3, 3), (1, 1), (1, 1), (1, 1)
    part = TileSlice(8, 1, 1, (3, 3))
    full, less = (
        pool_tile_cycles(pool_vertex(one), (3, 3), (1, 1), part) for one in (inside, padded)
    )
    assert less < full


def test_gradient_of_a_strided_pool_skips_positions():
    """With stride 2 each input is reached from at most 2 x 2 of the 3 x 3 window positions."""
    vertex = PoolPass(pool(backward=True), "float16", 16, ERA_2_4).vertex(Tile(MK2, ERA_2_4))
    reached = vertex.reached(0, 20, 24)
    assert sorted(reached.sum(axis=0)) == [1, 1, 2, 2]


def test_global_pooling_is_a_reduction():
    gap = pool(
        kind="average",
        channels=2048,
        field=(7, 7),
        kernel=(7, 7),
        stride=(1, 1),
        **NO_PADDING,
    )
    steps = pool_steps(gap, MK1, ERA_1_0)
    assert {step.vertex for step in steps} == {"popops::Reduce", "popops::Cast"}
    # The number that the sums are scaled by is received where they are completed.
    largest = pool_steps(replace(gap, kind="max"), MK1, ERA_1_0)
    *_, total, cast = [step.exchange_bytes for step in steps]
    assert (total - largest[-1].exchange_bytes, cast) == (4, 0)


def test_average_over_padding_scales_each_output():
    steps = pool_steps(pool(kind="average"))
    assert steps[-1].vertex == "popnn::SelectiveScaling"
    counted = pool(kind="average", include_padding=True)
    assert len(pool_steps(counted)) == len(steps) - 1


def test_max_pool_gradient_copies_the_incoming_gradient():
    steps = pool_steps(pool(backward=True))
    assert [step.vertex for step in steps] == ["copy", "popnn::MaxPoolingGrad"]


@settings(max_examples=25)
@given(
    batch=st.integers(1, 4),
    groups=st.integers(1, 8),
    size=st.integers(3, 40),
    stride=st.integers(1, 2),
    kind=st.sampled_from(("max", "average")),
    era=st.sampled_from((ERA_1_0, ERA_2_4)),
    backward=st.booleans(),
)
def test_any_plan_fits_and_is_deterministic(batch, groups, size, stride, kind, era, backward):
    op = pool(
        kind=kind,
        batch=batch,
        channels=16 * groups,
        field=(size, size),
        stride=(stride, stride),
        backward=backward,
    )
    plan = plan_pool(PoolPass(op, "float16", 16, era), MK2)
    split, (grouping, *parts) = plan.asked, plan.split
    cost = pool_plan._early_cost if era == ERA_1_0 else pool_plan._late_cost
    for one in pool_plan._splits(split, grouping, MK2.tiles):
        other = cost(split, split.part(one), MK2)
        assert other >= plan.cost_cycles, "a cheaper plan was left out"
    assert cost(split, plan.part, MK2) == plan.cost_cycles
    assert prod(parts) <= MK2.tiles
    assert grouping % 4 == 0
    for step in pool_steps(op, era=era):
        assert isinstance(step.compute_cycles, int)
        assert step.cycles > 0


@pytest.mark.parametrize("era", [ERA_1_0, ERA_2_4])
@pytest.mark.parametrize("kind", ["max", "average"])
@pytest.mark.parametrize("backward", [False, True])
def test_more_batch_costs_more(era, kind, backward):
    totals = [
        sum(
            step.cycles
            for step in pool_steps(pool(batch=batch, kind=kind, backward=backward), MK1, era)
        )
        for batch in (1, 2, 4, 8, 16)
    ]
    assert totals == sorted(totals)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kind": "median"}, "median"),
        ({"kernel": (3,)}, "kernel"),
        ({"stride": (0, 1)}, "stride"),
        ({"batch": 0}, "batch"),
    ],
)
def test_bad_sizes_are_refused(changes, words):
    with pytest.raises(WorkloadError, match=words):
        pool(**changes)


def test_gradient_of_an_average_is_scaled_by_its_windows_first():
    """A number per output meets its group of 16 channels; only the numbers are received."""
    steps = pool_steps(pool(kind="average", backward=True))
    assert [step.vertex for step in steps] == ["popops::BroadcastVectorOuter", "popnn::SumPooling"]
    # 64 channels of 56 x 56 on 1472 tiles: 140 elements a tile, nine rows of 16; two to a worker.
    assert steps[0].compute_cycles == 11 + 6 * (15 + 2 * (7 + 2 * 4))
    assert steps[0].exchange_bytes == 9 * 2
    (single, *_) = emitted(pool_pass, pool(kind="average", backward=True), "float16", 1)
    assert single.vertex == "popops::BinaryOp1D"


def test_gradient_of_a_global_average_is_broadcast():
    gap = pool(
        kind="average",
        channels=512,
        field=(7, 7),
        kernel=(7, 7),
        backward=True,
        **NO_PADDING,
    )
    scale, broadcast = pool_steps(gap)
    assert scale.name == "scale gradient by window"
    assert (broadcast.vertex, broadcast.compute_cycles) == ("copy", 0)
    assert broadcast.copy_cycles > 0


def test_result_lies_in_the_groups_of_the_plan():
    plan = plan_pool(PoolPass(pool(), "float16", 8, ERA_2_4), MK2)
    assert pool_pass(emitter(), pool(), "float16", 8) == plan.part.channel_grouping
    whole = pool(kernel=(112, 112), **NO_PADDING)
    assert pool_pass(emitter(), whole, "float16", 8) == 8


def test_windows_that_do_not_overlap_become_one_long_row():
    """2 x 2 windows of 64 channels: 28 rows of 56, and 16 groups of 4, side by side."""
    op = pool(batch=3, field=(56, 56), kernel=(2, 2), **NO_PADDING)
    asked = PoolPass(op, "float16", 16, ERA_2_4)
    gathered = asked.gathered(4)
    assert (gathered.op.batch, gathered.op.channels, gathered.grouping) == (1, 4, 4)
    assert gathered.op.field == (2, 28 * 56 * 3 * 16)
    assert gathered.out_field == (1, 28 * 28 * 3 * 16)
    # A tile has its share of the row, and no column of another.
    plan = plan_pool(asked, MK2)
    assert plan.part.field == (1, -(-plan.asked.out_field[1] // MK2.tiles))
    # Channels that make no whole groups stay; so do windows that overlap, are padded or cut off.
    odd = replace(asked, op=replace(op, batch=1, channels=6)).gathered(4).op
    assert (odd.channels, odd.field) == (6, (2, 28 * 56))
    for change in ({"kernel": (3, 3)}, {"padding_lower": (1, 0)}, {"field": (57, 56)}):
        kept = replace(asked, op=replace(op, **change)).gathered(4).op
        assert (kept.batch, kept.channels, kept.field) == (1, 192, change.get("field", op.field))
    # Neither the gradient nor the library of era 0 puts anything together.
    for left in (replace(asked, op=replace(op, backward=True)), replace(asked, era=ERA_1_0)):
        assert left.gathered(4) is left


def test_windows_in_other_groups_are_rearranged_each_on_its_own():
    """A plan in groups of 16: a gradient's own acts in groups of 8 come in pieces of 16 bytes."""
    op = pool(backward=True)
    asked = PoolPass(op, "float16", 16, ERA_2_4)
    part, vertex = plan_pool(asked, MK2).part, asked.vertex(Tile(MK2, ERA_2_4))
    assert part.channel_grouping == 16
    outs, ins = (2 * 16 * n for n in (prod(part.field), vertex.input_extent(part.field)))
    copies = {}
    for acts in (16, 8, 1):
        m = emitter()
        pool_pass(m, op, "float16", 16, acts)
        copies[acts] = m.steps[-1].copy_cycles
        assert m.steps[-1].exchange_bytes == 2 * ins + outs
    # Cycles of poplibs' regression for pieces of 16 and of 2 bytes, less 4 bytes a cycle received.
    by_piece = {8: outs * 451 // 1024, 1: outs * 5272 // 1024}
    assert copies == {16: 0} | {acts: all_of - outs // 4 for acts, all_of in by_piece.items()}


@pytest.mark.parametrize(("field", "grouping", "cycles"), [(28, 4, 2247), (56, 16, 3623)])
def test_averages_of_halves_prefer_groups_of_sixteen(field, grouping, cycles):
    """PoolPlan.hpp: unless that takes a third longer than the cheapest grouping."""
    op = pool(kind="average", channels=32, field=(field, field), stride=(1, 1))
    plan = plan_pool(PoolPass(op, "float16", 16, ERA_2_4), MK2)
    assert (plan.split[0], plan.cost_cycles) == (grouping, cycles)


@pytest.mark.parametrize(("era", "share"), [(ERA_2_4, (2, 3)), (ERA_1_0, (1, 2))])
def test_of_equal_plans_the_one_found_first_is_taken(era, share):
    """Shares of 2 x 3 and of 3 x 2 outputs cost the same; popsolver counts up the rows outermost.

    There are 8 values for a row and 320 for channel groups, so that rows are looked at first.
    """
    op = pool(channels=1280, field=(8, 8), stride=(1, 1), padding_upper=(1, 1))
    plan = plan_pool(PoolPass(op, "float16", 1, era), MK1)
    assert plan.part.field == share
    if era == ERA_2_4:
        other = replace(plan.part, field=share[::-1])
        assert pool_plan._late_cost(plan.asked, other, MK1) == plan.cost_cycles


def test_gradients_of_inputs_that_no_window_reads_are_zeroed_first():
    """2 x 2 windows leave out the last row and column of 57 x 57, but not of 56 x 56."""
    for field, era, zeroed in ((57, ERA_2_4, 1), (57, ERA_2_0, 0), (56, ERA_2_4, 0)):
        op = pool(field=(field, field), kernel=(2, 2), backward=True, **NO_PADDING)
        vertices = [step.vertex for step in pool_steps(op, era=era)]
        assert vertices == ["copy", *["popops::Fill"] * zeroed, "popnn::MaxPoolingGrad"]


def test_gaps_within_a_share_are_written_by_the_vertex():
    """Of 12 inputs every third is read: a share that begins and ends with such a one has no gap."""
    gradient = pool_vertex(((4,), (1,), (1,), (3,), (0,)))
    assert not gradient.leaves_out(0, 10, 1)
    assert gradient.leaves_out(0, 10, 2)
    assert gradient.leaves_out(0, 12, 1)


def test_a_smaller_share_may_take_longer():
    """Shares that differ are by one; the planner takes the slowest tile, of splits all at once."""
    op = pool(batch=5, channels=64, field=(40, 39), stride=(2, 2), backward=True)
    asked = PoolPass(op, "float16", 16, ERA_2_4)
    vertex, slower = asked.vertex(Tile(MK2, ERA_2_4)), 0
    splits = pool_plan._splits(asked, 16, MK2.tiles)
    costs = pool_plan._late_cost(asked, asked.part(splits.T), MK2)
    of_largest = pool_plan._late_cost(asked, asked.part(splits.T), MK2, of_largest=True)
    for split, cost, largest in zip(splits.tolist(), costs, of_largest, strict=True):
        part = asked.part(split)
        tiles = [part.field]
        for dim, (extent, share) in enumerate(zip(asked.out_field, part.field, strict=True)):
            if extent % share:
                tiles.append(tuple(n - (d == dim) for d, n in enumerate(part.field)))
        cycles = [int(pool_vertex_estimate(vertex, replace(part, field=one))) for one in tiles]
        assert cost - largest == max(cycles) - cycles[0]
        slower += cost > largest
    assert slower
