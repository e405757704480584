"""Gradients of normalisation layers: the order of operations, their costs, their memory."""

import pytest
from hypothesis import given, settings, strategies as st

from ipusim.compiler.operators.norm import norm_steps
from ipusim.compiler.operators.norm_gradient import norm_gradient_steps
from ipusim.errors import ConfigError, UnknownNameError
from ipusim.machine import load_chip

MK2 = load_chip("GC200")


def gradient(kind="batch", batch=8, channels=64, spatial=(16, 23), **changes):
    """Return the steps of a norm with 128 float16 elements a tile."""
    return norm_gradient_steps(
        kind, batch, channels, spatial, "float16", MK2, era="2021-11", **changes
    )


def test_batch_norm_whitens_once_and_reduces_twice():
    names = [step.name for step in gradient(exchanged_gradient=False)]
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
    assert steps["copy gradient"].on_tile_copy_cycles == 128 * 2 // 8


def test_the_incoming_gradient_moves_unless_it_lies_there():
    moved = gradient()
    assert moved[0].name == "move"
    assert moved[0].exchange_bytes == 256
    assert gradient(exchanged_gradient=False) == moved[1:]
    regrouped = gradient(gradient_grouping=8)
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
    forward = norm_steps("batch", 8, 64, (16, 23), "float16", MK2, era="2021-11", training=True)
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
    def total(function, size, **options):
        steps = function(kind, 8 * size, 64, (16, 16), dtype, MK2, era=era, **options)
        assert all(isinstance(step.compute_cycles, int) for step in steps)
        return sum(step.total_cycles(MK2) for step in steps)

    once = total(norm_gradient_steps, batch)
    assert once > total(norm_steps, batch, training=True)
    assert total(norm_gradient_steps, 2 * batch) > once


def test_bad_input_is_refused():
    with pytest.raises(UnknownNameError, match="weight"):
        gradient("weight")
    with pytest.raises(ConfigError, match="divisor"):
        gradient("group", groups=5)
