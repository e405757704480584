"""Pooling: vertex by hand, plan properties, gradients (IPUModel rows: test_fidelity_pooling)."""

from math import prod

import pytest
from hypothesis import given, settings, strategies as st

from ipusim.compiler.operators.pool import PoolParams, plan_pool, pool_steps, pooled_grouping
from ipusim.compiler.vertices.pool import PoolGeometry, TileSlice, pool_tile_cycles
from ipusim.errors import ConfigError, UnknownNameError
from ipusim.machine.chip import load_chip

MK1 = load_chip("GC2")
MK2 = load_chip("GC200")


def pool(**changes):
    """Return ResNet's 3 x 3 / 2 max pooling with some parameters changed."""
    base = {
        "kind": "max",
        "batch": 1,
        "channels": 64,
        "field": (112, 112),
        "kernel": (3, 3),
        "stride": (2, 2),
        "padding_lower": (1, 1),
        "padding_upper": (1, 1),
    }
    return PoolParams(**(base | changes))


def test_output_field():
    assert pool().out_field == (56, 56)
    assert not pool().is_global
    gap = pool(field=(7, 7), kernel=(7, 7), padding_lower=(0, 0), padding_upper=(0, 0))
    assert gap.out_field == (1, 1)
    assert gap.is_global


def test_vertex_by_hand():
    """One row of 12 outputs, window 1 x 2, one vector of channels: two outputs per worker."""
    geometry = PoolGeometry((1, 13), (1, 2), (1, 1), (1, 1), (0, 0))
    part = TileSlice(4, 1, 1, (1, 12))
    item = 20 + 1 + (2 + (4 + 3 * 1) + 1) + 1 + 3
    worker = (4 + 2 + 2 + 7 + 2 + 2) + (4 + 2) + (5 + 1 + 2) + (2 + 1) + (3 + 2 + 4 + 1)
    worker += 13 + 2 * item + 2 + 1
    cycles = pool_tile_cycles(
        geometry,
        (1, 12),
        (1, 1),
        part,
        is_max=True,
        is_grad=False,
        vector_width=4,
        workers=6,
        generation="2021-11",
    )
    assert cycles == 7 + 6 * worker + 6


def test_padding_saves_work_items():
    inside = PoolGeometry((5, 5), (3, 3), (1, 1), (1, 1), (0, 0))
    padded = PoolGeometry((3, 3), (3, 3), (1, 1), (1, 1), (1, 1))
    arguments = {
        "is_max": True,
        "is_grad": False,
        "vector_width": 4,
        "workers": 6,
        "generation": "2021-11",
    }
    part = TileSlice(8, 1, 1, (3, 3))
    full = pool_tile_cycles(inside, (3, 3), (1, 1), part, **arguments)
    less = pool_tile_cycles(padded, (3, 3), (1, 1), part, **arguments)
    assert less < full


def test_gradient_of_a_strided_pool_skips_positions():
    """With stride 2 each input is reached from at most 2 x 2 of the 3 x 3 window positions."""
    geometry = pool().backward_geometry()
    hits = [
        sum(geometry.contributes(0, out, offset) for offset in range(3)) for out in range(20, 24)
    ]
    assert sorted(hits) == [1, 1, 2, 2]


def test_global_pooling_is_a_reduction():
    gap = pool(
        kind="average",
        channels=2048,
        field=(7, 7),
        kernel=(7, 7),
        stride=(1, 1),
        padding_lower=(0, 0),
        padding_upper=(0, 0),
    )
    steps = pool_steps(gap, "float16", MK1, era="2020-01")
    assert {step.vertex for step in steps} == {"popops::Reduce", "popops::Cast"}


def test_average_over_padding_scales_each_output():
    steps = pool_steps(pool(kind="average"), "float16", MK2, era="2021-11")
    assert steps[-1].vertex == "popnn::SelectiveScaling"
    counted = pool(kind="average", include_padding=True)
    assert len(pool_steps(counted, "float16", MK2, era="2021-11")) == len(steps) - 1


def test_max_pool_gradient_copies_the_incoming_gradient():
    steps = pool_steps(pool(), "float16", MK2, era="2021-11", backward=True)
    assert [step.vertex for step in steps] == ["copy", "popnn::MaxPoolingGrad"]


@settings(max_examples=25)
@given(
    batch=st.integers(1, 4),
    groups=st.integers(1, 8),
    size=st.integers(3, 40),
    stride=st.integers(1, 2),
    kind=st.sampled_from(("max", "average")),
    era=st.sampled_from(("2020-01", "2021-11")),
    backward=st.booleans(),
)
def test_any_plan_fits_and_is_deterministic(batch, groups, size, stride, kind, era, backward):
    params = pool(
        kind=kind, batch=batch, channels=16 * groups, field=(size, size), stride=(stride, stride)
    )
    plan = plan_pool(params, "float16", MK2, era=era, backward=backward)
    assert plan.channel_split * plan.batch_split * prod(plan.field_split) <= MK2.tiles
    assert plan.channel_grouping % 4 == 0
    assert plan == plan_pool(params, "float16", MK2, era=era, backward=backward)
    for step in pool_steps(params, "float16", MK2, era=era, backward=backward):
        assert isinstance(step.compute_cycles, int)
        assert step.total_cycles(MK2) > 0


@pytest.mark.parametrize("era", ["2020-01", "2021-11"])
@pytest.mark.parametrize("kind", ["max", "average"])
@pytest.mark.parametrize("backward", [False, True])
def test_more_batch_costs_more(era, kind, backward):
    totals = [
        sum(
            step.total_cycles(MK1)
            for step in pool_steps(
                pool(batch=batch, kind=kind), "float16", MK1, era=era, backward=backward
            )
        )
        for batch in (1, 2, 4, 8, 16)
    ]
    assert totals == sorted(totals)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"kind": "median"}, UnknownNameError, "median"),
        ({"kernel": (3,)}, ConfigError, "2 dimensions"),
        ({"stride": (0, 1)}, ConfigError, "at least 1"),
        ({"field": (1, 1), "padding_lower": (0, 0)}, ConfigError, "does not fit"),
        ({"batch": 0}, ConfigError, "at least 1"),
    ],
)
def test_bad_parameters_are_refused(changes, error, words):
    with pytest.raises(error, match=words):
        pool(**changes)


def test_gradient_of_an_average_is_scaled_by_its_windows_first():
    steps = pool_steps(pool(kind="average"), "float16", MK2, era="2021-11", backward=True)
    assert [step.vertex for step in steps] == ["popops::BinaryOp1D", "popnn::SumPooling"]
    # 64 channels of 56 x 56 on 1472 tiles: 140 elements a tile, six vectors for the slowest worker.
    assert steps[0].compute_cycles == 6 * (26 + 6 * 3) + 11


def test_gradient_of_a_global_average_is_broadcast():
    gap = pool(
        kind="average",
        channels=512,
        field=(7, 7),
        kernel=(7, 7),
        padding_lower=(0, 0),
        padding_upper=(0, 0),
    )
    scale, broadcast = pool_steps(gap, "float16", MK2, era="2021-11", backward=True)
    assert scale.name == "scale gradient by window"
    assert (broadcast.vertex, broadcast.compute_cycles) == ("copy", 0)
    assert broadcast.on_tile_copy_cycles > 0


def test_result_lies_in_the_groups_of_the_plan():
    options = {"era": "2021-11", "channel_grouping": 8}
    plan = plan_pool(pool(), "float16", MK2, **options)
    assert pooled_grouping(pool(), "float16", MK2, **options) == plan.channel_grouping
    window = {"kernel": (112, 112), "padding_lower": (0, 0), "padding_upper": (0, 0)}
    assert pooled_grouping(pool(**window), "float16", MK2, **options) == 8
