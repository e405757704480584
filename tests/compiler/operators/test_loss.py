"""Losses and the gradient of softmax: order of operations, costs, bad input."""

import pytest
from emitting import emitted, matrix
from hypothesis import given, settings, strategies as st

from ipusim.compiler.eras import ERA_1_0, ERA_2_4
from ipusim.compiler.operators.loss import loss_and_gradient
from ipusim.compiler.operators.reduce import argmax
from ipusim.compiler.operators.softmax import softmax_forward, softmax_gradient
from ipusim.errors import WorkloadError
from ipusim.workload.graph import Loss
from ipusim.workload.operators.loss import CROSS_ENTROPIES, LOSSES


def loss(kind, rows, classes, dtype="float16", era=ERA_2_4, scattered=False, form="fused"):
    op = Loss(kind=kind, rows=rows, classes=classes, cross_entropy=form)
    x = matrix(rows, classes, dtype, by_rows=scattered)
    return emitted(loss_and_gradient, op, x, era=era)


def gradient(log=False, received=768):
    """1472 rows of 384: one row a tile, 64 elements a worker."""
    return emitted(softmax_gradient, matrix(1472, 384), log=log, received=received)


MASKED = ["rows with a label", "cast", "mask gradient"]


def test_cross_entropy_order():
    steps = loss("cross_entropy", 16, 1000)
    softmax = emitted(softmax_forward, matrix(16, 1000))
    assert steps[: len(softmax)] == softmax
    rest = [step.name for step in steps[len(softmax) :]]
    assert rest[:6] == ["fill", "one-hot targets", "loss and gradient", *MASKED]
    assert rest[-1] == "reduce on tile" or rest[-1].startswith("reduce")


def large(form):
    """Steps of 1472 rows of 768 classes, and their names but for reductions: 768 halves a tile."""
    steps = loss("cross_entropy", 1472, 768, form=form, scattered=True)
    return steps, [step.name for step in steps if not step.name.startswith("reduce")]


def test_a_likelihood_of_probabilities_makes_its_targets_once():
    """graphcore/popart willow/src/popx/op/softmaxx.cpp, NlllWithSoftmaxGradDirectOpx."""
    steps, names = large("probabilities")
    start = names.index("fill")
    assert names[start : start + 9] == [
        "fill",
        "one-hot targets",
        "regroup targets",
        "copy targets",
        "probability of target",
        "gradient",
        *MASKED,
    ]
    assert names.count("one-hot targets") == 1
    (copy,) = [step for step in steps if step.name == "copy targets"]
    assert (copy.exchange_bytes, copy.copy_cycles) == (2 * 768, 0)


def test_a_likelihood_of_logarithms_makes_targets_and_softmax_again_for_the_gradient():
    """willow/src/popx/op/nllx.cpp and logsoftmaxx.cpp; nothing is done in place of the scores."""
    steps, names = large("logarithms")
    x = matrix(1472, 768, by_rows=True)
    assert (steps[0].name, steps[0].copy_cycles) == ("copy predictions", 2 * 768 // 8)
    made = emitted(softmax_forward, x, log=True)
    assert [s.cycles for s in steps[1 : 1 + len(made)]] == [s.cycles for s in made]
    again = len(steps) - steps[::-1].index(steps[0])
    softmax = emitted(softmax_forward, x)
    assert [s.cycles for s in steps[again : again + len(softmax)]] == [s.cycles for s in softmax]
    assert names.count("one-hot targets") == 2
    assert names[-2:] == ["softmax times sum of gradient", "gradient of log softmax"]


def test_a_single_row_is_not_masked_and_has_no_mean():
    names = [step.name for step in loss("cross_entropy", 1, 1000)]
    assert "mask gradient" not in names


def test_mean_squared_error_needs_no_one_hot_targets():
    steps = loss("mean_squared", 16, 1000)
    assert steps[0].name == "loss and gradient"
    # 64 halves a tile (128 bytes at least): the targets arrive, and so lie beside the losses.
    assert steps[0].exchange_bytes == 128
    assert steps[0].temp_bytes == 2 * 128
    # 16 vectors: three to a worker, six passes of 4 cycles, 19 + 1 + 2 around them.
    assert steps[0].compute_cycles == 6 * (22 + 6 * 4)


def test_a_network_that_computes_its_loss_needs_only_a_sum_and_ones():
    steps = loss("identity", 16, 1000)
    assert steps[-1].name == "fill"
    assert all("reduce" in step.name for step in steps[:-1])
    one = loss("identity", 1, 1)
    assert sum(s.compute_cycles for s in one) < sum(s.compute_cycles for s in steps)


def test_one_hot_vertex_by_hand():
    # 16 rows are four grains on one tile each; 1000 classes are 250 grains, 368 tiles a group, but
    # at least four grains a tile: 63 x 4 vertices, one to a tile, four rows each.
    steps = loss("cross_entropy", 16, 1000)
    (one_hot,) = [step for step in steps if step.name == "one-hot targets"]
    assert one_hot.compute_cycles == 11 + 4 * 74
    assert one_hot.exchange_bytes == 16


def test_softmax_gradient_order_and_costs():
    steps = gradient()
    assert [step.name for step in steps] == [
        "softmax gradient, result times gradient",
        "reduce on tile",
        "softmax gradient, times row sum",
        "softmax gradient, subtract",
    ]
    assert steps[0].compute_cycles == 6 * (26 + 16 * 3) + 11
    assert steps[0].exchange_bytes == 768
    assert steps[-1].compute_cycles == 6 * (58 + 16 * 3) + 11
    assert steps[-1].temp_bytes == 768
    near = gradient(received=0)
    assert near[0].exchange_bytes == 0


def test_gradient_of_log_softmax_takes_the_exponent_of_the_result():
    steps = gradient(log=True)
    assert steps[0].name == "softmax gradient, exp"
    assert steps[-1].exchange_bytes == 768


@settings(max_examples=20)
@given(
    kind=st.sampled_from(LOSSES),
    form=st.sampled_from(CROSS_ENTROPIES),
    rows=st.integers(1, 64),
    classes=st.integers(2, 2000),
    dtype=st.sampled_from(("float16", "float32")),
    era=st.sampled_from((ERA_1_0, ERA_2_4)),
)
def test_losses_are_positive_and_repeatable(kind, form, rows, classes, dtype, era):
    steps = loss(kind, rows, classes, dtype, era, form=form)
    assert steps == loss(kind, rows, classes, dtype, era, form=form)
    assert all(isinstance(step.cycles, int) and step.cycles > 0 for step in steps)


@pytest.mark.parametrize("kind", ["cross_entropy", "mean_squared"])
def test_more_rows_cost_more(kind):
    totals = [sum(step.cycles for step in loss(kind, rows, 1000)) for rows in (16, 64, 256, 1024)]
    assert totals == sorted(totals)


def test_bad_input_is_refused():
    with pytest.raises(WorkloadError, match="'hinge'"):
        loss("hinge", 4, 10)
    with pytest.raises(WorkloadError, match="rows = 0"):
        loss("mean_squared", 0, 10)


def test_binary_cross_entropy_takes_the_sigmoid_first():
    steps = loss("binary_cross_entropy", 400, 1)
    names = [step.name for step in steps]
    assert names[:2] == ["sigmoid", "loss and gradient"]
    assert not {"one-hot targets", "mask gradient"} & set(names)


def test_accuracy_adds_the_largest_prediction_of_each_row():
    plain, counted = (
        loss(kind, 160, 30522, scattered=True)
        for kind in ("cross_entropy", "cross_entropy_accuracy")
    )
    assert counted[: len(plain)] == plain
    largest = emitted(argmax, matrix(160, 30522, by_rows=True))
    rest = counted[len(plain) :]
    assert rest[: len(largest)] == largest
    names = [step.name for step in rest[len(largest) :]]
    assert names[:2] == ["rows that are right", "cast"]
    assert names[-1].startswith("reduce")
