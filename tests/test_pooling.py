"""Pooling: vertex by hand, plan properties, and the IPUModel on the development rows."""

import csv
import statistics
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipusim.compiler.pool_vertex import PoolGeometry, TileSlice, pool_tile_cycles
from ipusim.compiler.pooling import PoolParams, plan_pool, pool_steps
from ipusim.errors import ConfigError, UnknownNameError
from ipusim.machine.chip import load_chip
from ipusim.paths import data_dir

MK1 = load_chip("GC2")
MK2 = load_chip("GC200")

# Sync and control code per superstep in the IPUModel's cycles (a constant of this comparison).
OVERHEAD_CYCLES = 450


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


@settings(max_examples=25, deadline=None)
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
def test_more_batch_costs_more(era):
    totals = [
        sum(
            step.total_cycles(MK1)
            for step in pool_steps(pool(batch=batch), "float16", MK1, era=era)
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


def _sizes(text):
    return tuple(map(int, text.split("x")))


def _errors(snapshot, target, era):
    with (data_dir() / "evidence" / "ipumodel_layers_dev.csv").open(newline="") as file:
        rows = [
            row
            for row in csv.DictReader(file)
            if row["op_kind"] == "pooling"
            and row["snapshot"] == snapshot
            and row["target"] == target
        ]
    chip = MK1 if target == "mk1" else MK2
    errors = {}
    for row in rows:
        params = PoolParams(
            kind="max",
            batch=int(row["batch"]),
            channels=int(row["in_channels"]),
            field=_sizes(row["field"]),
            kernel=_sizes(row["kernel"]),
            stride=_sizes(row["stride"]),
            padding_lower=_sizes(row["padding_lower"]),
            padding_upper=_sizes(row["padding_upper"]),
        )
        option = next(
            text for text in row["special_options"].split("; ") if text.startswith("fwd-chans")
        )
        grouping = int(option.partition("=")[2])
        forward = plan_pool(params, "float16", chip, era=era, channel_grouping=grouping)
        steps = pool_steps(params, "float16", chip, era=era, channel_grouping=grouping)
        steps += pool_steps(
            params,
            "float16",
            chip,
            era=era,
            backward=True,
            channel_grouping=forward.channel_grouping,
        )
        predicted = sum(step.total_cycles(chip, OVERHEAD_CYCLES) for step in steps)
        errors[row["name"]] = (grouping, 100 * (predicted / int(row["cycles"]) - 1))
    return errors


@pytest.mark.parametrize("target", ["mk1", "mk2"])
def test_pooling_of_2021_agrees_with_the_ipumodel(target):
    """Forward plus gradient; rows with single-channel layouts cost copies not modelled here."""
    errors = _errors("2021-03", target, "2021-11")
    assert len(errors) == 5
    grouped = [abs(error) for grouping, error in errors.values() if grouping > 1]
    assert len(grouped) == 4
    assert statistics.median(grouped) <= 8
    assert max(grouped) <= 11
    assert statistics.median(abs(error) for _, error in errors.values()) <= 9


def test_pooling_of_early_2020_agrees_with_the_ipumodel():
    errors = [abs(error) for _, error in _errors("2020-03", "mk1", "2020-01").values()]
    assert statistics.median(errors) <= 17
    assert max(errors) <= 35
