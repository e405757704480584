"""Embeddings: plans, what a tile looks at, costs by hand."""

from fractions import Fraction

import pytest
from emitting import MK2, emitted
from hypothesis import given, settings, strategies as st

from ipusim.compiler.emitter import Emitter
from ipusim.compiler.eras import ERA_2_0
from ipusim.compiler.operators.gather import (
    EmbeddingPlan,
    add_rows,
    bring_into_place,
    look_up,
    plan_embedding,
)
from ipusim.compiler.stacks import load_stack
from ipusim.compiler.tiles import Tile
from ipusim.compiler.vertices.elementwise import cast_cycles, fill_cycles
from ipusim.errors import WorkloadError
from ipusim.workload.graph import Gather


def plan_of(rows, width, indices, *, goal, dtype="float16", updates=True, groups=1):
    sizes = Gather(rows=rows, width=width, indices=indices, groups=groups)
    return plan_embedding(sizes, dtype, MK2, early=goal == "memory", updates=updates)


def tiles_of(plan):
    return plan.group_split * plan.width_split * plan.row_split * plan.index_split


def table(rows, width, hottest, function="lookup"):
    """Lookups in a table, or changes of it, a share of whose indices falls on one row."""
    indices = {"indices": hottest.denominator, "hottest": hottest.numerator}
    return Gather(rows=rows, width=width, function=function, **indices)


def gather_steps(plan, rows=1000, dtype="float16", hottest=Fraction(0)):
    return emitted(look_up, table(rows, 1024, hottest), plan, dtype)


def update_add_steps(plan, rows=1000, width=1024, dtype="float16", hottest=Fraction(0), what="add"):
    return emitted(add_rows, table(rows, width, hottest, what), plan, dtype)


def early_steps(run, *arguments):
    m = Emitter(chip=MK2, stack=load_stack("sdk-2.0"))
    run(m, *arguments)
    return m.steps


GOALS = ("memory", "cycles")
WHOLE = EmbeddingPlan(width_split=64, row_split=1, index_split=1, width=16, rows=1000, indices=60)
ROWS_SPLIT = EmbeddingPlan(
    width_split=64, row_split=4, index_split=1, width=16, rows=250, indices=60
)


def test_lookup_in_a_whole_table_by_hand():
    # Ten indices a worker, 8 pairs of halves at 2 cycles each.
    (step,) = gather_steps(WHOLE)
    assert step.compute_cycles == 6 * (19 + 10 * (19 + 2 * 8))
    assert step.exchange_bytes == 60 * 4
    (more,) = gather_steps(WHOLE._replace(indices=61))
    assert more.compute_cycles == 6 * (19 + 11 * (19 + 2 * 8))


def test_split_rows_need_a_second_step():
    first, *_, second = gather_steps(ROWS_SPLIT)
    # A quarter of the indices is found, three for the fullest worker; the others are passed over.
    assert first.compute_cycles == 6 * (19 + 3 * (19 + 16) + 7 * 8)
    # 15 of the rows end here, and the candidates of the other three parts arrive.
    assert second.compute_cycles == 6 * (19 + 3 * (19 + 16))
    assert second.exchange_bytes == 3 * 15 * 32 + 15 * 4


def test_candidates_are_numbered_before_they_are_chosen():
    _, *steps, _ = emitted(
        look_up, Gather(rows=1000, width=1024, indices=60), ROWS_SPLIT, "float16"
    )
    vertices = [step.vertex.removeprefix("popops::") for step in steps]
    assert vertices == ["Iota", *["BroadcastScalar1D"] * 2, "BinaryOp1D"]
    # Sixty indices lie on one tile, ten to a worker, which writes two vectors of fifteen places.
    assert [step.compute_cycles for step in steps] == [
        6 * (14 + 3 * 2),
        11 + 6 * (20 + 10 * 260),
        11 + 6 * (20 + 10 * 6),
        11 + 6 * (26 + 10 * 7),
    ]
    assert [step.exchange_bytes for step in steps] == [0, 4, 4, 60 * 4]
    assert {step.tiles for step in steps} == {1}


def test_split_indices_bring_the_table_to_each_group():
    plan = EmbeddingPlan(
        width_split=64, row_split=1, index_split=4, width=16, rows=1000, indices=15
    )
    (step,) = gather_steps(plan)
    assert step.exchange_bytes == 15 * 4 + 1000 * 32 * 3 // 4
    steps = update_add_steps(plan)
    # Each of the four tiles sums a quarter of the table of 1,000 x 16 halves.
    assert steps[3].exchange_bytes == 4 * (1000 * 16 // 4) * 2
    # Of 4,000 grains of four halves, which stay whole, one of seven tiles sums 572.
    assert update_add_steps(plan._replace(index_split=7))[3].exchange_bytes == 7 * 572 * 4 * 2
    assert [s.name for s in steps] == [
        "fill",
        "zero partial tables",
        "add rows",
        "sum partial tables",
        "scaled add",
    ]


def test_early_sums_are_of_floats_and_so_is_the_table_they_are_added_to():
    plan = WHOLE._replace(index_split=4, indices=15)
    change = table(1000, 1024, Fraction(0), "write")
    steps = early_steps(add_rows, change, plan, "float16")
    assert [s.name for s in steps[-3:]] == ["cast", "scaled add", "cast"]
    floats = early_steps(add_rows, change, plan, "float32")
    assert "cast" not in [s.name for s in floats]
    assert floats[-1].cycles == steps[-2].cycles


def test_only_the_vertices_of_rows_are_early_ones():
    plan = WHOLE._replace(index_split=4, indices=15)
    rearranged, cast, zeroed, add, *_ = early_steps(
        add_rows, table(1000, 1024, Fraction(0), "write"), plan, "float16"
    )
    tile = Tile(MK2, ERA_2_0)
    assert cast.compute_cycles == cast_cycles(tile, 15 * 16, "float16", "float32")
    assert zeroed.compute_cycles == fill_cycles(tile, 1000 * 16, "float32")
    # One worker takes 11 cycles for a row and 3 for each but its first element.
    assert add.compute_cycles == 6 * (17 + 15 * (11 + 15 * 3))
    assert rearranged.vertex == "copy"


def test_addition_of_rows_by_hand():
    fill, rearrange, add = update_add_steps(ROWS_SPLIT)
    # 42 of 1000 rows to a worker: three of sixty indices.
    assert add.compute_cycles == 6 * (37 + 3 * (13 + 7 * 3) + 57 * 5)
    # A quarter of the rows is here since they were rearranged; with fewer parts none need be.
    assert add.exchange_bytes == 60 * 4 + 45 * 32
    *_, add = update_add_steps(ROWS_SPLIT._replace(row_split=3))
    assert add.exchange_bytes == 60 * (4 + 32)
    assert rearrange.exchange_bytes == 15 * 32
    assert fill.vertex == "popops::Fill"
    # Rows that lie there are copied all the same.
    _, copied, same = emitted(
        add_rows, table(1000, 1024, Fraction(0), "add"), ROWS_SPLIT, "float16", placed=True
    )
    assert (copied.exchange_bytes, copied.copy_cycles) == (0, 15 * 32 // 8)
    assert same.cycles == update_add_steps(ROWS_SPLIT)[-1].cycles


def test_the_worst_case_finds_every_index_on_one_worker():
    *_, worst = update_add_steps(ROWS_SPLIT, hottest=Fraction(1), what="write")
    assert worst.compute_cycles == 6 * (37 + 60 * (13 + 7 * 3))


@settings(max_examples=30)
@given(
    rows=st.integers(1, 40000),
    width=st.integers(1, 1024),
    indices=st.integers(1, 4000),
    goal=st.sampled_from(GOALS),
    dtype=st.sampled_from(("float16", "float32")),
    updates=st.booleans(),
)
def test_any_plan_covers_everything_and_fits(rows, width, indices, goal, dtype, updates):
    plan = plan_of(rows, width, indices, goal=goal, dtype=dtype, updates=updates)
    assert tiles_of(plan) <= MK2.tiles
    assert plan.width * plan.width_split >= width
    assert plan.rows * plan.row_split >= rows
    assert plan.indices * plan.index_split >= indices
    steps = gather_steps(plan, rows, dtype)
    steps += update_add_steps(plan, rows, width, dtype)
    assert all(step.cycles > 0 for step in steps)


@pytest.mark.parametrize("goal", GOALS)
def test_more_indices_cost_more(goal):
    totals = []
    for indices in (64, 256, 1024, 4096):
        plan = plan_of(30000, 768, indices, goal=goal)
        steps = gather_steps(plan, 30000)
        steps += update_add_steps(plan, 30000, 768)
        totals.append(sum(step.cycles for step in steps))
    assert totals == sorted(totals)


def test_bad_sizes_are_refused():
    with pytest.raises(WorkloadError, match="indices = 0"):
        plan_of(10, 10, 0, goal="cycles")


def test_groups_take_turns_on_a_tile():
    one = plan_of(24, 300, 50, goal="cycles")
    few = plan_of(24, 300, 50, goal="cycles", groups=4)
    assert few.group_split * few.groups >= 4
    assert tiles_of(few) <= MK2.tiles
    many = plan_of(24, 300, 50, goal="cycles", groups=2 * MK2.tiles)
    assert many.groups == 2
    (single,) = gather_steps(
        plan_of(24, 300, 50, goal="cycles", groups=MK2.tiles),
        24,
    )
    (double,) = gather_steps(many, 24)
    assert double.compute_cycles == 2 * single.compute_cycles
    assert double.exchange_bytes == 2 * single.exchange_bytes
    assert one.groups == one.group_split == 1


def test_one_row_that_many_indices_hit_keeps_its_tile_busy():
    # 24 of 60 fall on one row: the worker that has it adds them and its share of the other 36.
    share = Fraction(24, 60)
    *_, add = update_add_steps(ROWS_SPLIT, hottest=share)
    hits = 24 + 2
    assert add.compute_cycles == 6 * (37 + hits * (13 + 7 * 3) + (60 - hits) * 5)
    # Four of a worker's ten lookups go there, and a quarter of the other six.
    first, *_ = gather_steps(ROWS_SPLIT, hottest=share)
    assert first.compute_cycles == 6 * (19 + 6 * (19 + 16) + 4 * 8)


def test_a_computed_table_is_brought_into_place():
    (moved,) = emitted(bring_into_place, WHOLE, "float16")
    assert moved.exchange_bytes == 1000 * 16 * 2
    assert moved.copy_cycles == 1000 * 32 // MK2.memcpy_bytes_per_cycle


def test_neighbours_on_a_bus_receive_the_same_indices_together():
    # 64 parts of a row look at the same sixty indices: 8 bytes arrive in a cycle.
    (step,) = gather_steps(WHOLE)
    assert step.exchange_bytes == 240
    assert step.exchange_cycles == 240 // 8
    (odd,) = gather_steps(WHOLE._replace(width_split=63))
    assert odd.exchange_cycles == 240 // 4
    # The rows that they add are parts of their own.
    *_, add = update_add_steps(WHOLE._replace(row_split=3))
    assert add.exchange_cycles == 240 // 8 + 60 * 32 // 4


def test_narrow_tables_and_rows_are_received_together():
    # Four parts of the indices, side by side, look at the whole table: a quarter that one holds its
    # neighbour has to receive, so both take as long as for all of it.
    plan = EmbeddingPlan(width_split=1, row_split=1, index_split=4, width=8, rows=1000, indices=15)
    (step,) = gather_steps(plan)
    assert step.exchange_bytes == 60 + 1000 * 16
    assert step.exchange_cycles == 60 // 4 + 1000 * 16 // 8
    # Two parts of the table, side by side, add the same rows.
    halves = plan._replace(row_split=2, index_split=1, rows=500, indices=60)
    *_, add = update_add_steps(halves)
    assert add.exchange_cycles == 240 // 8 + 60 * 16 // 8
