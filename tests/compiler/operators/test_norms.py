"""Normalisation and softmax: the operations they are made of, and their costs."""

import pytest
from emitting import MK1, MK2, emitted, matrix
from hypothesis import given, settings, strategies as st

from ipusim.compiler.emitter import Placed, TensorLayout
from ipusim.compiler.eras import ERA_1_0, ERA_2_4
from ipusim.compiler.operators.norm import norm_forward
from ipusim.compiler.operators.softmax import softmax_forward
from ipusim.compiler.tiles import Tile
from ipusim.compiler.vertices.broadcast import RepeatedVector
from ipusim.compiler.vertices.elementwise import TRANSPOSE, loop_cycles, regrouping
from ipusim.errors import ConfigError, WorkloadError
from ipusim.workload.graph import Norm


def norm(kind="batch", batch=4, channels=256, field=56 * 56, dtype="float16", **how):
    """Return the steps of a normalisation; `how` may name what kind, the chip and era."""
    names = ("groups", "training", "stable")
    sizes = {name: how.pop(name) for name in names if name in how}
    op = Norm(kind=kind, batch=batch, channels=channels, spatial_elements=field, **sizes)
    return emitted(norm_forward, op, Placed((op.elements,), dtype), **how)


def softmax(rows, columns, dtype="float16", **how):
    return emitted(softmax_forward, matrix(rows, columns, dtype), **how)


def test_batch_norm_is_three_small_steps_and_two_passes():
    steps = norm(chip=MK1, era=ERA_1_0)
    assert [step.name for step in steps] == [
        "batch norm, inverse deviation",
        "batch norm, multiplicand",
        "batch norm, addend",
        "batch norm, scale",
        "batch norm, offset",
    ]
    assert [step.vertex for step in steps[-2:]] == [
        "popops::BroadcastVectorInner1D",
        "popops::BroadcastVectorInner1DInPlace",
    ]
    # 2,640 halves per tile: 165 blocks of 16 channels.
    scale, offset = (
        RepeatedVector(Tile(MK1, ERA_1_0), function, 16, "float16", in_place).cycles(165)
        for function, in_place in (("mul", False), ("add", True))
    )
    assert (steps[3].compute_cycles, steps[4].compute_cycles) == (scale, offset)


def test_the_generated_addend_loads_and_computes_once_more_a_vector():
    (addend,) = [s for s in norm(channels=64 * MK1.tiles, chip=MK1) if "addend" in s.name]
    subtract = loop_cycles(Tile(MK1, ERA_2_4), "BinaryOp1D", "sub", 64, "float16")
    assert addend.compute_cycles == subtract + 2 * 6 * 3  # 11 halves a worker are three vectors


def test_small_steps_do_not_depend_on_the_activations():
    few = norm(batch=1, field=49, chip=MK1, era=ERA_1_0)
    many = norm(chip=MK1, era=ERA_1_0)
    assert few[:3] == many[:3]
    assert few[3].compute_cycles < many[3].compute_cycles


def test_float_batch_norm_writes_its_vectors_out():
    steps = norm(dtype="float32", chip=MK1, era=ERA_1_0)
    assert all(step.copy_cycles > 0 for step in steps[-2:])


def test_training_batch_norm_adds_statistics():
    steps = norm(training=True)
    names = [step.name for step in steps]
    assert names[0] == "reduce on tile"
    assert names[-5:] == [
        "inverse deviation",
        "batch norm, multiplicand",
        "batch norm, addend",
        "batch norm, scale",
        "batch norm, offset",
    ]


@pytest.mark.parametrize("kind", ["layer", "group", "instance"])
def test_row_statistics_are_broadcast_by_row(kind):
    steps = norm(kind, 8, 64, 16 * 16, groups=4)
    vertices = [step.vertex for step in steps]
    assert vertices.count("popops::BroadcastVectorOuter") == 2
    assert vertices.count("poplin::InverseStdDeviation") == 1


def layer_norm(items, channels, dtype="float16", **layout):
    op = Norm(kind="layer", batch=items, channels=channels, spatial_elements=1)
    x = Placed((items, channels), dtype, TensorLayout(**layout))
    return emitted(norm_forward, op, x)


@pytest.mark.parametrize(("dtype", "vector"), [("float16", 4), ("float32", 2)])
def test_rows_that_sit_together_are_regrouped_for_the_statistics(dtype, vector):
    """GroupNorm.cpp, groupNormStatistics: blocks of rows by a vector of channels."""
    first, *others = layer_norm(1024, 768, dtype, rows=True)
    expected = regrouping(1024 * 768, 16, vector, dtype, MK2)
    assert (first.name, first.vertex) == ("regroup channels", TRANSPOSE)
    assert first.compute_cycles == expected.cycles
    assert first.exchange_cycles == -(-expected.received // MK2.exchange_bytes_per_cycle)
    assert "regroup channels" not in [step.name for step in others]


@pytest.mark.parametrize(
    ("items", "channels", "layout"),
    [
        (1024, 768, {}),  # channels sit together
        (1023, 768, {"rows": True}),  # no whole groups of rows are found
        (1024, 766, {"rows": True}),  # channels are no whole vectors
        (1024, 768, {"rows": True, "grouping": 2}),  # rows are less than a grain
    ],
)
def test_other_layouts_stay_for_the_statistics(items, channels, layout):
    names = [step.name for step in layer_norm(items, channels, **layout)]
    assert "regroup channels" not in names


def test_softmax_order():
    steps = softmax(12 * 384, 384)
    names = [step.name for step in steps if step.name.startswith(("softmax", "cast"))]
    assert names == [
        "softmax, subtract maximum",
        "softmax, exp",
        "softmax, 1 / sum",
        "cast",
        "softmax, divide by sum",
    ]


def test_rows_that_cross_tiles_are_gathered():
    whole = softmax(1472, 384)
    crossing = softmax(1500, 384)
    assert not [step for step in whole if step.name == "reduce to output"]
    assert [step for step in crossing if step.name == "reduce to output"]


def test_float_softmax_has_no_cast():
    steps = softmax(100, 1000, "float32")
    assert "cast" not in [step.name for step in steps]


@settings(max_examples=25)
@given(
    outer=st.integers(1, 3000),
    length=st.integers(2, 1000),
    era=st.sampled_from((ERA_1_0, ERA_2_4)),
    dtype=st.sampled_from(("float16", "float32")),
)
def test_softmax_steps_are_positive_integers(outer, length, era, dtype):
    steps = softmax(outer, length, dtype, era=era)
    assert steps == softmax(outer, length, dtype, era=era)
    for step in steps:
        assert isinstance(step.compute_cycles, int)
        assert step.compute_cycles > 0


@pytest.mark.parametrize(
    ("era", "estimators"), [(ERA_1_0, ERA_1_0), (ERA_2_4, ERA_2_4), (ERA_1_0, ERA_2_4)]
)
def test_batch_norm_grows_with_the_batch(era, estimators):
    versions = {"era": era, "estimators": estimators}
    totals = [
        sum(step.cycles for step in norm(batch=batch, channels=64, chip=MK1, **versions))
        for batch in (1, 2, 4, 8, 16)
    ]
    assert totals == sorted(totals)
    assert totals[0] < totals[-1]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: norm("group", 1, 8, 16, groups=3), WorkloadError, "divisor"),
        (lambda: softmax(4, 0), ConfigError, "at least 1"),
    ],
)
def test_bad_input_is_refused(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_stable_batch_norm_subtracts_the_mean_by_channel():
    plain, stable = (norm(training=True, stable=one) for one in (False, True))
    (removed,) = [step for step in stable if step.name == "remove mean"]
    moved = next(step for step in plain if step.name == "batch norm, scale")
    assert removed.exchange_bytes == moved.exchange_bytes
    sums = [step.name for step in plain if step.name.startswith("reduce")]
    rest = [step.name for step in plain[len(sums) :]]
    assert [step.name for step in stable] == [*sums, "remove mean", *sums, *rest]


def test_stable_statistics_take_one_more_pass_and_sum_one_after_the_other():
    plain = norm("group", 6, 256, 28 * 28, groups=32)
    stable = norm("group", 6, 256, 28 * 28, groups=32, stable=True)
    names = [step.name for step in stable]
    removed = names.index("remove mean")
    sums = [step for step in plain if step.name.startswith("reduce")]
    assert names[:removed] == [step.name for step in sums]
    assert names[removed + 1 : removed + 1 + len(sums)] == [step.name for step in sums]
    assert len(stable) == len(plain) + 1 + len(sums)
    # The pass costs what the one that subtracts the mean from the result costs.
    whiten = next(step for step in plain if step.name == "subtract mean")
    assert stable[removed].compute_cycles == whiten.compute_cycles
    assert [step.compute_cycles for step in stable[-4:]] == [
        step.compute_cycles for step in plain[-4:]
    ]
