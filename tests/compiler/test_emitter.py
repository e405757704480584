"""Supersteps of elementwise operations, casts and moves, against sums worked out by hand."""

import pytest
from emitting import MK1, emitted, emitter, matrix, vector

from ipusim.compiler.emitter import Emitter, Placed, TensorLayout
from ipusim.compiler.eras import ERA_1_0, ERA_2_0, ERA_2_4, estimator_era
from ipusim.compiler.stacks import load_stack, stack_names
from ipusim.compiler.tiles import rearranged_copy_cycles
from ipusim.errors import ConfigError, UnknownNameError


def test_superstep_totals():
    m = emitter(chip=MK1)
    assert m.stack.superstep_cycles == 450
    m.emit("x", "v", 100, exchange=10, copy=7)
    assert m.steps[0].exchange_cycles == 3
    assert m.steps[0].cycles == 560


def test_steps_of_a_loop_repeat_and_hold():
    m = emitter()
    with m.loop(5, tiles=7), m.holding(100):
        m.copy("inside", 40, temp=8)
    m.copy("after", 40)
    inside, after = m.steps
    assert (inside.repeats, inside.tiles, inside.temp_bytes) == (5, 7, 108)
    assert (after.repeats, after.tiles, after.temp_bytes) == (1, 0, 0)
    assert inside.cycles == 5 * after.cycles


def test_temporaries_of_few_tiles_stand_beside_what_all_hold():
    m = emitter(chip=MK1)
    with m.holding(100):
        m.emit("few", "v", temp=8, chip_temp=8 * 5)
    m.emit("all", "v", temp=8)
    few, all_ = m.steps
    assert (few.temp_bytes, few.chip_temp_bytes) == (108, 8 * 5 + 100 * MK1.tiles)
    assert (all_.temp_bytes, all_.chip_temp_bytes) == (8, 0)


IMAGE = (4, 56, 56, 256)


def bias_add(dtype):
    (step,) = emitted(Emitter.by_channel, "add", Placed(IMAGE, dtype), 256, in_place=True, chip=MK1)
    return step


def test_bias_add_uses_the_vector_inner_vertex():
    step = bias_add("float16")
    assert step.vertex == "popops::BroadcastVectorInner1DInPlace"
    assert step.exchange_bytes == 32
    # 2,640 halves per tile are 165 blocks of 16 channels, 28 per worker.
    assert step.compute_cycles == 13 + 6 * (19 + 2 + 5 + 2 + 4 + 2 * (15 + 54) + 1)


def test_float_bias_is_written_out_first():
    step = bias_add("float32")
    assert step.vertex == "popops::BinaryOp1DInPlace"
    assert step.copy_cycles > 0
    assert step.temp_bytes > 0


@pytest.mark.parametrize("by_rows", [False, True])
def test_the_vertex_of_a_repeated_vector_follows_what_sits_together(by_rows):
    # 64 elements a tile: 4 runs of 16 neighbours, along a row or along rows.
    x = matrix(64, 1472, by_rows=by_rows)
    (channel,) = emitted(Emitter.by_channel, "add", x, 1472, in_place=True)
    (row,) = emitted(Emitter.by_row, "sub", x, "mean")
    inner, outer = (row, channel) if by_rows else (channel, row)
    assert inner.vertex.startswith("popops::BroadcastVectorInner1D")
    assert outer.vertex == "popops::BroadcastVectorOuter"
    assert inner.exchange_bytes == 16 * 2
    if by_rows:
        # 4 runs of 16 and a value each: workers take a run each, 7 + 2 x 4 cycles.
        assert channel.exchange_bytes == 4 * 2
        assert channel.compute_cycles == 11 + 6 * (15 + 7 + 2 * 4)
    else:
        assert row.exchange_bytes == 2


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_divisors_that_are_repeated_have_a_vertex_from_sdk_2_0_on(dtype):
    """Poplibs lib/popops/ElementWise.cpp, haveInnerVectorBroadcastVertexForOp."""
    x = Placed(IMAGE, dtype, TensorLayout(grouping=2))  # no whole vectors of float16
    for era, vertex in (
        (ERA_1_0, "popops::BinaryOp1D"),
        (ERA_2_0, "popops::BroadcastVectorInner1D"),
    ):
        (step,) = emitted(Emitter.by_channel, "div", x, 256, era=era)
        assert step.vertex == vertex
        assert bool(step.copy_cycles) == bool(step.temp_bytes) == (era == ERA_1_0)


def test_two_regions_have_a_vertex_each_from_sdk_2_1_on():
    """Poplibs lib/popops/ElementWise.cpp, binaryOpBroadcastInnerVector."""

    def step(tiles, era):
        # 16 groups of channels on 16, 8 or 4 tiles, 64 blocks of each.
        x = Placed((16, 64, 16), "float16", TensorLayout(tiles=tiles))
        return emitted(Emitter.by_channel, "add", x, 256, era=era)[0]

    late = {regions: step(16 // regions, ERA_2_4) for regions in (1, 2, 4)}
    assert late[2].compute_cycles == 2 * late[1].compute_cycles
    assert late[2].vertex == late[1].vertex == "popops::BroadcastVectorInner1D"
    assert late[2].exchange_bytes == 2 * 16 * 2
    for shared in (late[4], step(8, ERA_2_0)):
        assert shared.vertex == "popops::BroadcastVectorInner2D"


@pytest.mark.parametrize("function", ["div", "max"])
def test_only_sums_and_products_have_a_vertex_for_one_value_per_row(function):
    """The value is written out, an element at a time (haveOuterVectorBroadcastVertexForOp)."""
    (step,) = emitted(Emitter.by_row, function, matrix(64, 1472), in_place=True)
    assert step.vertex == "popops::BinaryOp1DInPlace"
    assert (step.copy_cycles, step.temp_bytes) == (64 * 2 * 5 // (4 * 2), 64 * 2)
    (channel,) = emitted(Emitter.by_channel, function, matrix(64, 1472, by_rows=True), 1472)
    assert (channel.vertex, channel.copy_cycles) == ("popops::BinaryOp1D", step.copy_cycles)


def test_rows_that_sit_together_are_summed_side_by_side():
    seen = emitted(Emitter.reduce, "add", matrix(64, 1472, by_rows=True))
    as_shaped = emitted(Emitter.reduce, "add", Placed((4, 1472, 16), "float16"), 1)
    assert seen == as_shaped != emitted(Emitter.reduce, "add", matrix(64, 1472))


def unary(function, elements, dtype="float16", era=ERA_2_4, **options):
    (step,) = emitted(
        Emitter.unary, function, vector(elements, dtype), era=era, chip=MK1, **options
    )
    return step


@pytest.mark.parametrize(
    ("function", "era", "vertex"),
    [
        ("relu", ERA_1_0, "popnn::NonLinearitySupervisor"),
        ("gelu", ERA_2_4, "popnn::NonLinearity1DInPlace"),
    ],
)
def test_what_only_runs_in_place_copies_first_into_another_tensor(function, era, vertex):
    elsewhere = unary(function, 121600, era=era)
    here = unary(function, 121600, era=era, in_place=True)
    assert elsewhere.vertex == here.vertex == vertex
    assert elsewhere.copy_cycles == 100 * 2 // 8
    assert here.copy_cycles == 0
    assert elsewhere.compute_cycles == here.compute_cycles


def test_swish_into_another_tensor_copies_nothing():
    swish = unary("swish", 121600)
    assert (swish.vertex, swish.copy_cycles) == ("popnn::NonLinearity1D", 0)


def addition(era=ERA_2_4, **options):
    """Two activations of 100 halves a tile, added in place."""
    (step,) = emitted(
        Emitter.binary, "add", vector(121600), in_place=True, chip=MK1, era=era, **options
    )
    return step


def test_an_operand_from_other_tiles_is_received():
    assert addition(received=200).exchange_bytes == 200
    assert addition().exchange_bytes == 0


def test_estimators_of_another_era_can_be_chosen():
    early, late = map(addition, (ERA_1_0, ERA_2_4))
    mixed = addition(ERA_1_0, estimators=ERA_2_4)
    assert mixed.compute_cycles == late.compute_cycles != early.compute_cycles
    for name in stack_names():
        stack = load_stack(name)
        # The first of its codelets are those of the era, as far as they were read.
        assert estimator_era(stack.codelets.split("+")[0]) == min(stack.planner_era, ERA_2_4)
    assert estimator_era("2020-01+2021-11") == estimator_era("2021-11") == ERA_2_4


def test_casts_and_fills():
    assert emitted(Emitter.cast, vector(1000), "float16") == []
    assert emitted(Emitter.cast, vector(1000, "float32"), "float16")[0].exchange_bytes == 0
    assert emitted(Emitter.fill, vector(100_000))[0].compute_cycles > 0
    (update,) = emitted(Emitter.scaled_add, vector(121600), chip=MK1)
    assert update.exchange_bytes == 0


@pytest.mark.parametrize(
    ("layout", "piece"),
    [
        ({}, 0),  # lies alike
        ({"grouping": 8}, 16),
        ({"grouping": 2}, 4),
        ({"rows": True}, 2),  # rows sit together there, channels here
    ],
)
def test_pieces_are_what_sits_together_in_both_layouts(layout, piece):
    x = vector(121600)
    expected = rearranged_copy_cycles(200, piece, MK1) if piece else 0
    assert emitter(chip=MK1).piece_copies(x, TensorLayout(**layout)) == expected


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda: estimator_era("2019-07+2021-11"),
            UnknownNameError,
            "2020-01",
        ),
        (
            lambda: unary("relu", 0),
            ConfigError,
            "at least 1",
        ),
        (
            lambda: emitted(Emitter.by_channel, "add", vector(100), 7),
            ConfigError,
            "do not divide",
        ),
    ],
)
def test_bad_input_is_refused_in_one_sentence(call, error, words):
    with pytest.raises(error, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_integers_by_hand():
    indices = vector(60, "float32", tiles=1)
    (late,) = emitted(Emitter.integers, "div", indices, "quotient", scalar=True)
    assert late.vertex == "popops::BroadcastScalar1D"
    assert late.compute_cycles == 11 + 6 * (20 + 10 * 260)
    (early,) = emitted(Emitter.integers, "div", indices, "quotient", scalar=True, era=ERA_1_0)
    # The divisor is written out, a word at a time, and no vertex knows that it is one number.
    assert early.vertex == "popops::BinaryOp1D"
    assert early.compute_cycles == 200 + 6 * (22 + 10 * 45)
    assert early.copy_cycles == 5 * 240 // (4 * 4)
    (added,) = emitted(Emitter.integers, "add", indices, "sum")
    assert added.compute_cycles == 11 + 6 * (26 + 10 * 7)
