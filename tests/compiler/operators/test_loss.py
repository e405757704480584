"""Losses and the gradient of softmax: order of operations, costs, bad input."""

import pytest
from hypothesis import given, settings, strategies as st

from ipusim.compiler.operators.argmax import argmax_steps
from ipusim.compiler.operators.loss import loss_steps
from ipusim.compiler.operators.softmax import softmax_gradient_steps, softmax_steps
from ipusim.errors import ConfigError, UnknownNameError
from ipusim.machine import load_chip
from ipusim.workload.operators import LOSSES

MK2 = load_chip("GC200")


def test_cross_entropy_order():
    steps = loss_steps("cross_entropy", 16, 1000, "float16", MK2, era="2021-11")
    softmax = softmax_steps(16, 1000, "float16", MK2, era="2021-11")
    assert steps[: len(softmax)] == softmax
    rest = [step.name for step in steps[len(softmax) :]]
    assert rest[:6] == [
        "fill",
        "one-hot targets",
        "loss and gradient",
        "rows with a label",
        "cast",
        "mask gradient",
    ]
    assert rest[-1] == "reduce on tile" or rest[-1].startswith("reduce")


def test_a_single_row_is_not_masked_and_has_no_mean():
    names = [
        step.name for step in loss_steps("cross_entropy", 1, 1000, "float16", MK2, era="2021-11")
    ]
    assert "mask gradient" not in names


def test_mean_squared_error_needs_no_one_hot_targets():
    steps = loss_steps("mean_squared", 16, 1000, "float16", MK2, era="2021-11")
    assert steps[0].name == "loss and gradient"
    # 64 halves a tile (128 bytes at least): the targets arrive, and so lie beside the losses.
    assert steps[0].exchange_bytes == 128
    assert steps[0].temp_bytes == 2 * 128
    # 16 vectors: three to a worker, six passes of 4 cycles, 19 + 1 + 2 around them.
    assert steps[0].compute_cycles == 6 * (22 + 6 * 4)


def test_a_network_that_computes_its_loss_needs_only_a_sum_and_ones():
    steps = loss_steps("identity", 16, 1000, "float16", MK2, era="2021-11")
    assert steps[-1].name == "fill"
    assert all("reduce" in step.name for step in steps[:-1])
    one = loss_steps("identity", 1, 1, "float16", MK2, era="2021-11")
    assert sum(s.compute_cycles for s in one) < sum(s.compute_cycles for s in steps)


def test_one_hot_vertex_by_hand():
    # 16 rows are four grains on one tile each; 1000 classes are 250 grains, 368 tiles a group, but
    # at least four grains a tile: 63 x 4 vertices, one to a tile, four rows each.
    steps = loss_steps("cross_entropy", 16, 1000, "float16", MK2, era="2021-11")
    (one_hot,) = [step for step in steps if step.name == "one-hot targets"]
    assert one_hot.compute_cycles == 11 + 4 * 74
    assert one_hot.exchange_bytes == 16


def test_softmax_gradient_order_and_costs():
    # 1472 rows of 384: one row a tile, 64 elements a worker.
    steps = softmax_gradient_steps(1472, 384, "float16", MK2, era="2021-11")
    assert [step.name for step in steps] == [
        "softmax gradient, result times gradient",
        "reduce on tile",
        "reduce on tile, combine workers",
        "softmax gradient, times row sum",
        "softmax gradient, subtract",
    ]
    assert steps[0].compute_cycles == 6 * (26 + 16 * 3) + 11
    assert steps[0].exchange_bytes == 768
    assert steps[4].compute_cycles == 6 * (58 + 16 * 3) + 11
    assert steps[4].temp_bytes == 768
    near = softmax_gradient_steps(
        1472, 384, "float16", MK2, era="2021-11", exchanged_gradient=False
    )
    assert near[0].exchange_bytes == 0


def test_gradient_of_log_softmax_takes_the_exponent_of_the_result():
    steps = softmax_gradient_steps(1472, 384, "float16", MK2, era="2021-11", log=True)
    assert steps[0].name == "softmax gradient, exp"
    assert steps[-1].exchange_bytes == 768


@settings(max_examples=20)
@given(
    kind=st.sampled_from(LOSSES),
    rows=st.integers(1, 64),
    classes=st.integers(2, 2000),
    dtype=st.sampled_from(("float16", "float32")),
    era=st.sampled_from(("2020-01", "2021-11")),
)
def test_losses_are_positive_and_repeatable(kind, rows, classes, dtype, era):
    steps = loss_steps(kind, rows, classes, dtype, MK2, era=era)
    assert steps == loss_steps(kind, rows, classes, dtype, MK2, era=era)
    assert all(isinstance(step.compute_cycles, int) and step.compute_cycles > 0 for step in steps)


@pytest.mark.parametrize("kind", ["cross_entropy", "mean_squared"])
def test_more_rows_cost_more(kind):
    totals = [
        sum(
            step.total_cycles(MK2)
            for step in loss_steps(kind, rows, 1000, "float16", MK2, era="2021-11")
        )
        for rows in (16, 64, 256, 1024)
    ]
    assert totals == sorted(totals)


def test_bad_input_is_refused():
    with pytest.raises(UnknownNameError, match="'hinge'"):
        loss_steps("hinge", 4, 10, "float16", MK2, era="2021-11")
    with pytest.raises(ConfigError, match="rows is 0"):
        loss_steps("mean_squared", 0, 10, "float16", MK2, era="2021-11")


def test_binary_cross_entropy_takes_the_sigmoid_first():
    steps = loss_steps("binary_cross_entropy", 400, 1, "float16", MK2, era="2021-11")
    names = [step.name for step in steps]
    assert names[:2] == ["sigmoid", "loss and gradient"]
    assert not {"one-hot targets", "mask gradient"} & set(names)


def test_accuracy_adds_the_largest_prediction_of_each_row():
    plain, counted = (
        loss_steps(kind, 160, 30522, "float16", MK2, era="2021-11", scattered=True)
        for kind in ("cross_entropy", "cross_entropy_accuracy")
    )
    assert counted[: len(plain)] == plain
    largest = argmax_steps(160, 30522, "float16", MK2, scattered=True)
    rest = counted[len(plain) :]
    assert rest[: len(largest)] == largest
    names = [step.name for step in rest[len(largest) :]]
    assert names[:2] == ["rows that are right", "cast"]
    assert names[-1].startswith("reduce")
