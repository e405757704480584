"""Gradients of normalisation layers: the order of operations, their costs, their memory."""

import pytest
from emitting import MK2, emitted
from hypothesis import given, settings, strategies as st

from ipusim.compiler.emitter import Placed, TensorLayout
from ipusim.compiler.eras import ERA_1_0, ERA_2_4
from ipusim.compiler.operators.norm import norm_forward, norm_gradient
from ipusim.compiler.tiles import rearranged_copy_cycles
from ipusim.compiler.vertices.elementwise import regrouping
from ipusim.errors import WorkloadError
from ipusim.machine import load_chip
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


THERE = TensorLayout(mapping=0)
"""Where the activations lie."""
ELSEWHERE = TensorLayout(mapping=1)
READINGS = ("whitened times gradient", "whitened times scaled gradient", "copy gradient")
"""Steps that read the gradient from where it lies."""


def gradient(kind="batch", incoming=THERE, dtype="float16", **changes):
    op = sizes(kind, **changes)
    x, dy = (Placed((op.elements,), dtype, layout) for layout in (THERE, incoming))
    return emitted(norm_gradient, op, x, dy)


def test_batch_norm_whitens_once_and_reduces_twice():
    names = [step.name for step in gradient()]
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


def test_a_gradient_that_lies_elsewhere_is_read_three_times():
    """Poplibs lib/poplin/Norms.cpp, normParamGradients and normStatisticsGradients."""
    moved, there = gradient(incoming=ELSEWHERE), gradient()
    for far, near in zip(moved, there, strict=True):
        if far.name in READINGS:
            assert (far.exchange_bytes, far.copy_cycles) == (256, 0)
            assert (near.exchange_bytes, far.compute_cycles) == (0, near.compute_cycles)
        else:
            assert far == near


def test_a_gradient_is_scaled_where_it_lies():
    few = {step.name: step for step in gradient(incoming=ELSEWHERE._replace(tiles=46))}
    all_tiles = {step.name: step for step in gradient(incoming=ELSEWHERE)}
    changed = [name for name in few if few[name].compute_cycles != all_tiles[name].compute_cycles]
    assert changed == ["gradient times scale"]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_gradient_whose_neighbours_are_others_is_regrouped_twice(dtype):
    """As it is and after it was scaled: rows sit together in it, channels in the activations
    (lib/popops/Rearrange.cpp, regroupIfBeneficial).
    """
    steps = gradient("layer", ELSEWHERE._replace(rows=True), dtype)
    names = [step.name for step in steps]
    for reading in READINGS[:2]:
        at = names.index(reading) - 1
        assert names[at].startswith("regroup")
        blocks = regrouping(8 * 64 * 16 * 23, 16, 16, dtype, load_chip("GC200"))
        assert (steps[at].exchange_bytes, steps[at].compute_cycles) == blocks
    # From there it is sent to the activations as any that lies elsewhere.
    share = 128 * (2 if dtype == "float16" else 4)
    read = [step for step in steps if step.name in READINGS]
    assert [(step.exchange_bytes, step.copy_cycles) for step in read] == [(share, 0)] * 3


@pytest.mark.parametrize(
    ("layout", "field", "piece"),
    [
        (ELSEWHERE._replace(grouping=2), 16 * 23, 4),  # channels sit together in both
        (ELSEWHERE._replace(rows=True), 17 * 23, 2),  # rows that are no whole groups of 16
        (ELSEWHERE._replace(rows=True, grouping=2), 16 * 23, 2),  # less than a grain of rows
    ],
)
def test_a_gradient_that_is_not_regrouped_is_put_into_place_in_pieces(layout, field, piece):
    steps = gradient("layer", layout, field=field, batch=1)
    assert not [step for step in steps if "regroup" in step.name]
    for step in steps:
        if step.name in READINGS:
            assert step.copy_cycles == rearranged_copy_cycles(step.exchange_bytes, piece, MK2)


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
    era=st.sampled_from((ERA_1_0, ERA_2_4)),
    dtype=st.sampled_from(("float16", "float32")),
)
def test_backward_costs_more_than_forward_and_grows(kind, batch, era, dtype):
    def total(function, size, *, training=True):
        op = sizes(kind, 8 * size, 64, 16 * 16, training=training)
        x = Placed((op.elements,), dtype)
        tensors = (x, x) if function is norm_gradient else (x,)
        steps = emitted(function, op, *tensors, era=era)
        assert all(isinstance(step.compute_cycles, int) for step in steps)
        return sum(step.cycles for step in steps)

    once = total(norm_gradient, batch)
    assert once > total(norm_forward, batch)
    assert total(norm_gradient, 2 * batch) > once


def test_bad_input_is_refused():
    with pytest.raises(WorkloadError, match="divisor"):
        gradient("group", groups=5)
