"""Gradients of normalisation layers: the order of operations, their costs, their memory."""

import pytest
from emitting import emitted
from hypothesis import given, settings, strategies as st

from ipusim.compiler.emitter import Placed
from ipusim.compiler.operators.norm import norm_forward, norm_gradient
from ipusim.errors import WorkloadError
from ipusim.workload.graph import Norm


def sizes(kind="batch", batch=8, channels=64, field=16 * 23, groups=1, training=False):
    """Return a norm with 128 float16 elements a tile."""
    return Norm(
        kind=kind,
        batch=batch,
        channels=channels,
        spatial_elements=field,
        groups=groups,
        training=training,
    )


def gradient(kind="batch", arriving=16, **changes):
    op = sizes(kind, **changes)
    return emitted(norm_gradient, op, Placed((op.elements,), "float16"), arriving)


def test_batch_norm_whitens_once_and_reduces_twice():
    names = [step.name for step in gradient(arriving=None)]
    kept = [name for name in names if "reduce" not in name]
    assert kept == [
        "inverse deviation",
        "whiten, subtract mean",
        "whiten, scale to unit variance",
        "whitened times gradient",
        "gradient times scale",
        "whitened times scaled gradient",
        "copy gradient",
        "whitened times variance gradient",
        "scale mean gradient",
        "add mean gradient",
        "scaled add",
        "scale by inverse deviation",
    ]
    assert [name for name in names if name.endswith("reduce on tile")] == [
        "scale and offset gradient, reduce on tile",
        "statistics gradient, reduce on tile",
    ]


def test_products_of_two_tensors_by_hand():
    # 128 halves a tile: 22 elements for the slowest of six workers, six vectors of 3 cycles.
    steps = {step.name: step for step in gradient()}
    assert steps["whitened times gradient"].compute_cycles == 6 * (26 + 6 * 3) + 11
    # Scaled add: 32 vectors over six workers are 6 each; 8 bytes a cycle copied.
    assert steps["scaled add"].compute_cycles == 11 + 7 + 12 + 27 + 6 * (15 + 6 + 3 * 5 + 4)
    assert steps["copy gradient"].copy_cycles == 128 * 2 // 8


def test_the_incoming_gradient_moves_unless_it_lies_there():
    moved = gradient()
    assert moved[0].name == "move"
    assert moved[0].exchange_bytes == 256
    assert gradient(arriving=None) == moved[1:]
    regrouped = gradient(arriving=8)
    assert regrouped[0].name == "regroup"


@pytest.mark.parametrize("kind", ["layer", "group", "instance"])
def test_statistics_of_rows_are_broadcast_by_row(kind):
    steps = gradient(kind, groups=4 if kind == "group" else 1)
    by_row = [step for step in steps if step.vertex == "popops::BroadcastVectorOuter"]
    assert len(by_row) == 5
    assert "inverse deviation" not in [step.name for step in steps]


def test_two_tensors_live_beside_inputs_and_result():
    whole = 128 * 2
    assert min(step.temp_bytes for step in gradient()) == 2 * whole
    op = sizes(training=True)
    forward = emitted(norm_forward, op, Placed((op.elements,), "float16"))
    assert max(step.temp_bytes for step in forward) >= whole
    assert forward[-1].temp_bytes == 0


@settings(max_examples=20)
@given(
    kind=st.sampled_from(("batch", "layer", "group", "instance")),
    batch=st.integers(1, 8),
    era=st.sampled_from(("2020-01", "2021-11")),
    dtype=st.sampled_from(("float16", "float32")),
)
def test_backward_costs_more_than_forward_and_grows(kind, batch, era, dtype):
    def total(function, size, *arriving, training=True):
        op = sizes(kind, 8 * size, 64, 16 * 16, training=training)
        steps = emitted(function, op, Placed((op.elements,), dtype), *arriving, codelets=era)
        assert all(isinstance(step.compute_cycles, int) for step in steps)
        return sum(step.cycles for step in steps)

    once = total(norm_gradient, batch, 16)
    assert once > total(norm_forward, batch)
    assert total(norm_gradient, 2 * batch, 16) > once


def test_bad_input_is_refused():
    with pytest.raises(WorkloadError, match="divisor"):
        gradient("group", groups=5)
