"""Normalisation and softmax: the operations they are made of, and their costs."""

import pytest
from hypothesis import given, settings, strategies as st

from ipusim.compiler.operators.norm import batch_norm_steps, norm_steps
from ipusim.compiler.operators.softmax import softmax_steps
from ipusim.compiler.vertices.broadcast import vector_inner_cycles
from ipusim.errors import ConfigError, UnknownNameError
from ipusim.machine.chip import load_chip

MK1 = load_chip("GC2")
MK2 = load_chip("GC200")
ELEMENTS = 4 * 56 * 56 * 256


def test_batch_norm_is_three_small_steps_and_two_passes():
    steps = batch_norm_steps(ELEMENTS, 256, "float16", MK1, era="2020-01")
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
        vector_inner_cycles(function, 16, 165, MK1, in_place=in_place, generation="2020-01")
        for function, in_place in (("mul", False), ("add", True))
    )
    assert (steps[3].compute_cycles, steps[4].compute_cycles) == (scale, offset)


def test_small_steps_do_not_depend_on_the_activations():
    few = batch_norm_steps(256 * 49, 256, "float16", MK1, era="2020-01")
    many = batch_norm_steps(ELEMENTS, 256, "float16", MK1, era="2020-01")
    assert few[:3] == many[:3]
    assert few[3].compute_cycles < many[3].compute_cycles


def test_float_batch_norm_writes_its_vectors_out():
    steps = batch_norm_steps(ELEMENTS, 256, "float32", MK1, era="2020-01")
    assert all(step.on_tile_copy_cycles > 0 for step in steps[-2:])


def test_inference_batch_norm_is_one_kind_of_norm():
    direct = batch_norm_steps(ELEMENTS, 256, "float16", MK2, era="2021-11")
    assert norm_steps("batch", 4, 256, (56, 56), "float16", MK2, era="2021-11") == direct


def test_training_batch_norm_adds_statistics():
    steps = norm_steps("batch", 4, 256, (56, 56), "float16", MK2, era="2021-11", training=True)
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
    steps = norm_steps(kind, 8, 64, (16, 16), "float16", MK2, era="2021-11", groups=4)
    vertices = [step.vertex for step in steps]
    assert vertices.count("popops::BroadcastVectorOuter") == 2
    assert vertices.count("poplin::InverseStdDeviation") == 1


def test_softmax_order():
    steps = softmax_steps(12 * 384, 384, "float16", MK2, era="2021-11")
    names = [step.name for step in steps if step.name.startswith(("softmax", "cast"))]
    assert names == [
        "softmax, subtract maximum",
        "softmax, exp",
        "softmax, 1 / sum",
        "cast",
        "softmax, divide by sum",
    ]
    unstable = softmax_steps(12 * 384, 384, "float16", MK2, era="2021-11", stable=False)
    assert len(unstable) < len(steps)
    scaled = softmax_steps(12 * 384, 384, "float16", MK2, era="2021-11", scaled=True)
    assert len(scaled) == len(steps) + 2


def test_rows_that_cross_tiles_are_gathered():
    whole = softmax_steps(1472, 384, "float16", MK2, era="2021-11")
    crossing = softmax_steps(1500, 384, "float16", MK2, era="2021-11")
    assert not [step for step in whole if step.name == "reduce to output"]
    assert [step for step in crossing if step.name == "reduce to output"]


def test_float_softmax_has_no_cast():
    steps = softmax_steps(100, 1000, "float32", MK2, era="2021-11")
    assert "cast" not in [step.name for step in steps]


@settings(max_examples=25)
@given(
    outer=st.integers(1, 3000),
    length=st.integers(2, 1000),
    era=st.sampled_from(("2020-01", "2021-11")),
    dtype=st.sampled_from(("float16", "float32")),
)
def test_softmax_steps_are_positive_integers(outer, length, era, dtype):
    steps = softmax_steps(outer, length, dtype, MK2, era=era)
    assert steps == softmax_steps(outer, length, dtype, MK2, era=era)
    for step in steps:
        assert isinstance(step.compute_cycles, int)
        assert step.compute_cycles > 0


@pytest.mark.parametrize("era", ["2020-01", "2021-11", "2020-01+2021-11"])
def test_batch_norm_grows_with_the_batch(era):
    totals = [
        sum(
            step.total_cycles(MK1)
            for step in batch_norm_steps(batch * 56 * 56 * 64, 64, "float16", MK1, era=era)
        )
        for batch in (1, 2, 4, 8, 16)
    ]
    assert totals == sorted(totals)
    assert totals[0] < totals[-1]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda: norm_steps("weight", 1, 8, (4, 4), "float16", MK1, era="2021-11"),
            UnknownNameError,
            "weight",
        ),
        (
            lambda: norm_steps("group", 1, 8, (4, 4), "float16", MK1, era="2021-11", groups=3),
            ConfigError,
            "divisor",
        ),
        (
            lambda: batch_norm_steps(0, 8, "float16", MK1, era="2021-11"),
            ConfigError,
            "at least 1",
        ),
        (lambda: softmax_steps(4, 4, "int32", MK1, era="2021-11"), UnknownNameError, "int32"),
        (lambda: softmax_steps(4, 0, "float16", MK1, era="2021-11"), ConfigError, "at least 1"),
    ],
)
def test_bad_input_is_refused(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_stable_statistics_take_one_more_pass_and_sum_one_after_the_other():
    sizes = ("group", 6, 256, (28, 28), "float16", MK2)
    plain = norm_steps(*sizes, era="2021-11", groups=32)
    stable = norm_steps(*sizes, era="2021-11", groups=32, stable=True)
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
