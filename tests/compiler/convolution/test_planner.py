"""The planner: exact search, bounds, memory, determinism, errors, and evidence for its plans."""

import math
import os
import subprocess
import sys
import time
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import windows
from hypothesis import HealthCheck, example, given, settings, strategies as st

from ipusim.compiler.convolution import planner, search as cs
from ipusim.compiler.convolution.bounds import (
    bytes_floor,
    cycles_floor,
    least_bytes,
    serial_floor,
    summing_floor,
    tile_cycles_floor,
)
from ipusim.compiler.convolution.cost import conv_cost, fill_part, tile_cycles
from ipusim.compiler.convolution.kernel import fill_partials, sort_candidates
from ipusim.compiler.convolution.params import ConvParams, ConvPass
from ipusim.compiler.convolution.planner import PlannerRules, forget_plans, plan
from ipusim.compiler.convolution.record import DIM_SPLIT, PROBLEM, empty_works, joined
from ipusim.compiler.convolution.totals import fill_copies, fill_grains
from ipusim.compiler.convolution.transforms import problems_of, transforms_of
from ipusim.compiler.convolution.vertex_types import candidates_of, vertex_types
from ipusim.compiler.lower import lower
from ipusim.compiler.operators.conv import conv_pass
from ipusim.compiler.stacks import load_stack
from ipusim.compiler.vertices import METHOD_NAMES
from ipusim.compiler.vertices.conv import AMP, HMAC, OUTER_PRODUCT, SLIC, VERTEX, VMAC
from ipusim.errors import ConfigError, WorkloadError
from ipusim.files import evidence_records
from ipusim.machine import load_chip
from ipusim.workload import zoo
from ipusim.workload.graph import Conv, MatMul
from ipusim.workload.training import training_graphs

CHIPS = {name: load_chip(name) for name in ("GC2", "GC200")}

RULES = {
    "GC2": PlannerRules(era=0, partials_bytes=4, available_memory_proportion=0.6),
    "GC200": PlannerRules(era=2, partials_bytes=2, available_memory_proportion=0.6),
}


CONV_KINDS = ("conv", "conv_forward", "conv_data_gradient", "conv_weight_gradient")
PRODUCT_KINDS = (
    "matmul",
    "fc_inference",
    "fc_training",
    "fc_data_gradient",
    "fc_weight_gradient",
)


@st.composite
def convolutions(draw, channels=40, size=9, groups=(1, 1, 4, 9)):
    """Return any convolution that the planner takes, up to these sizes."""
    dims = draw(st.integers(1, 3))
    if dims == 3:
        channels, size = min(channels, 8), min(size, 4)
    per_dim = {
        name: [] for name in ("field", "kernel", "stride", "low", "high", "dilate", "spread")
    }
    for _ in range(dims):
        kernel = draw(st.sampled_from([1, 1, 2, 3, 3, 5]))
        spread = draw(st.sampled_from([1, 1, 1, 2]))
        reach = (kernel - 1) * spread + 1
        low, high = draw(st.integers(0, reach // 2)), draw(st.integers(0, reach // 2))
        per_dim["kernel"].append(kernel)
        per_dim["spread"].append(spread)
        per_dim["low"].append(low)
        per_dim["high"].append(high)
        per_dim["field"].append(draw(st.integers(max(1, reach - low - high), reach + size)))
        per_dim["stride"].append(draw(st.sampled_from([1, 1, 2, 3])))
        per_dim["dilate"].append(draw(st.sampled_from([1, 1, 1, 2])))
    in_bytes = draw(st.sampled_from([2, 2, 4]))
    many = draw(st.sampled_from(groups))
    conv = Conv(
        groups=many,
        batch=draw(st.integers(1, 4)),
        in_channels=many * draw(st.integers(1, channels)),
        out_channels=many * draw(st.integers(1, channels)),
        field=tuple(per_dim["field"]),
        kernel=tuple(per_dim["kernel"]),
        stride=tuple(per_dim["stride"]),
        padding_lower=tuple(per_dim["low"]),
        padding_upper=tuple(per_dim["high"]),
        input_dilation=tuple(per_dim["dilate"]),
        dilation=tuple(per_dim["spread"]),
    )
    out_bytes = draw(st.sampled_from([in_bytes, in_bytes, 4]))
    kind = draw(st.sampled_from(CONV_KINDS))
    return ConvPass(kind, ConvParams.of(conv), in_bytes, out_bytes)


@st.composite
def products(draw, size=60):
    """Return a matrix product."""
    return product(
        draw(st.integers(1, size)),
        draw(st.integers(1, size)),
        draw(st.integers(1, size)),
        groups=draw(st.sampled_from([1, 1, 2, 5])),
        dtype_bytes=draw(st.sampled_from([2, 2, 4])),
        kind=draw(st.sampled_from(PRODUCT_KINDS)),
    )


def product(m, k, n, *, groups=1, dtype_bytes=2, kind="matmul") -> ConvPass:
    return ConvPass.of(kind, MatMul(groups=groups, m=m, k=k, n=n), dtype_bytes)


chips = st.sampled_from(sorted(CHIPS)).map(CHIPS.__getitem__)
all_rules = st.builds(
    PlannerRules,
    era=st.integers(0, 3),
    partials_bytes=st.sampled_from([2, 4]),
    available_memory_proportion=st.sampled_from([0.1, 0.3, 0.6, 1.0]),
)


def small_conv(kind="conv", in_bytes=2, out_bytes=2, **changes) -> ConvPass:
    sizes = {"batch": 2, "in_channels": 32, "out_channels": 48, "field": (10, 10)}
    return ConvPass(kind, ConvParams.of(windows.conv(**(sizes | changes))), in_bytes, out_bytes)


# --- the search is exact --------------------------------------------------------------------


def exhaustive(*asked):
    """Return a plan for which every partition was evaluated."""
    search = planner._search_for(asked[:1], *asked[1:])
    search.works["pruned"] = 0
    planner.kernel(*search[1:], False)
    return planner._found_plan(search, 0, asked)


def assert_pruned_equals_exhaustive(shape, chip, rules):
    pruned, every = plan(shape, chip, rules), exhaustive(shape, chip, rules)
    assert replace(pruned, evaluations=0) == replace(every, evaluations=0)


@settings(max_examples=60)
@given(st.one_of(convolutions(channels=20, size=6), products()), chips, all_rules, st.data())
def test_pruned_equals_exhaustive(shape, chip, rules, data):
    tiles = data.draw(st.sampled_from([5, 12, 24]))
    # Little memory makes serial splits and the fallback likely.
    memory = data.draw(st.sampled_from([1 << 11, 1 << 13, chip.bytes_per_tile]))
    few = replace(chip, tiles=tiles, bytes_per_tile=memory)
    assert_pruned_equals_exhaustive(shape, few, rules)


def test_of_plans_that_cost_the_same_the_first_is_taken():
    # A coarse search alone comes to another of 470 cycles and 160 bytes, which runs in 470.
    shape = small_conv(
        batch=1, in_channels=5, out_channels=15, field=(1, 7), kernel=(1, 1), **windows.NO_PADDING
    )
    chip, rules = replace(CHIPS["GC200"], tiles=24), replace(RULES["GC200"], partials_bytes=2)
    found = plan(shape, chip, rules)
    assert (found.planned_cycles, found.cost.total) == (470, 471)
    assert_pruned_equals_exhaustive(shape, chip, rules)


@pytest.mark.parametrize("era", [2, 3])
@pytest.mark.parametrize(
    ("sizes", "tile_bytes"),
    [
        ({"in_channels": 64, "field": (8, 8), "kernel": (1, 1)}, 1 << 14),
        # Windows of the inputs are copied first.
        ({"in_channels": 2, "field": (16, 16), "kernel": (3, 3)}, 1 << 13),
    ],
)
def test_pruned_equals_exhaustive_where_inputs_are_broadcast_once(era, sizes, tile_bytes):
    # The best plan has serial parts that share inputs fetched before the loop over the parts.
    shape = small_conv(out_channels=256, **sizes, **windows.NO_PADDING)
    rules = replace(RULES["GC200"], era=era)
    chip = replace(CHIPS["GC200"], tiles=8, bytes_per_tile=tile_bytes)
    assert plan(shape, chip, rules).split.broadcast == 1
    assert_pruned_equals_exhaustive(shape, chip, rules)


@pytest.mark.parametrize("m", [16, 64])
def test_pruned_equals_exhaustive_where_most_tiles_are_left_over(m):
    # The best plan splits no field, and so moves no weights.
    shape, rules = product(m, 16, 2), RULES["GC200"]
    assert plan(shape, CHIPS["GC200"], rules).split.weight_users == 1
    assert_pruned_equals_exhaustive(shape, CHIPS["GC200"], rules)


def test_pruning_skips_nearly_everything():
    shape, chip = small_conv(), replace(CHIPS["GC200"], tiles=64)
    pruned, every = (search(shape, chip, RULES["GC200"]) for search in (plan, exhaustive))
    assert pruned.evaluations * 100 < every.evaluations


@given(st.integers(1, 400))
def test_next_split_visits_every_share_once(size):
    splits = [1]
    while (split := cs.next_split(size, splits[-1], False)) <= size:
        splits.append(split)
    shares = [math.ceil(size / split) for split in splits]
    assert shares == sorted({math.ceil(size / split) for split in range(1, size + 1)}, reverse=True)
    assert all(math.ceil(size / (split - 1)) > share
               for split, share in zip(splits[1:], shares[1:], strict=True))  # fmt: skip


@given(st.integers(1, 5000))
def test_next_divisor_visits_every_divisor_once(number):
    found = [1]
    while (divisor := cs.next_divisor(number, found[-1])) <= number:
        found.append(divisor)
    assert found == [one for one in range(1, number + 1) if number % one == 0]
    assert divisor == number + 1


@given(st.integers(1, 400), st.integers(1, 400))
def test_serial_parts_are_equal_until_sdk_3(channels, grains):
    def parts(era):
        found = [cs.next_serial_split(channels, grains, 0, era)]
        while (split := cs.next_serial_split(channels, grains, found[-1], era)) <= grains:
            found.append(split)
        return found

    assert parts(2) == [one for one in range(1, grains + 1) if channels % one == 0]
    # A number of parts that is not the least for its share is in no split that is.
    least = {math.ceil(grains / one): one for one in range(grains, 0, -1)}
    assert parts(3) == sorted(least.values())


@pytest.mark.parametrize(("era", "channels"), [(0, 250), (2, 250), (3, 256)])
def test_serial_parts_have_whole_groups_since_sdk_3(era, channels):
    problem, vertex, work = np.zeros(1, PROBLEM), np.zeros(1, VERTEX), empty_works(1, 0)
    problem["era"], problem["out_chans"], vertex["out_chans_per_group"] = era, 1000, 8
    work["totals"]["out_grains"], work["split"]["out_serial"] = 125, 4
    assert planner.part_channels_of(problem[0], vertex[0], work[0]) == channels
    # All in one part are not filled up.
    problem["out_chans"], work["totals"]["out_grains"], work["split"]["out_serial"] = 1001, 126, 1
    assert planner.part_channels_of(problem[0], vertex[0], work[0]) == 1001


def test_parts_are_cut_where_channels_are_left_over():
    def cut(parts, channels, group):
        split = whole.split._replace(out_serial=parts)
        return replace(
            whole, split=split, part_channels=channels, out_chans_per_group=group
        ).cut_channels

    whole = plan(small_conv(), CHIPS["GC200"], RULES["GC200"])
    assert [cut(4, channels, 8) for channels in (250, 500, 125, 200)] == [2, 4, 1, 0]
    assert cut(4, 12, 16) == 4
    assert cut(1, 250, 8) == 0  # rearranged as the planner has it


def test_what_fills_the_rows_of_an_amp_vertex_is_made_on_the_tile():
    padding = {"padding_lower": (3, 3), "padding_upper": (3, 3)}
    image = {"in_channels": 4, "field": (224, 224), "kernel": (7, 7), "stride": (2, 2)}
    asked = ConvPass.of("conv", windows.conv(**image, **padding), 2)
    found = plan(asked, load_chip("GC2"), load_stack("sdk-2.0").planner_rules())
    assert str(found).startswith("AMP nx1 1x4x8 / b4 f019 f12 o8")
    # Four kernel rows are multiplied at once: an eighth is added, to the input as well, besides
    # the padding at one end of the field. Neighbours want the same input.
    weights, inputs = 7 * 4 * 8, (1 + 3) * 56 * 4
    assert found.cost.tile_transform == 2 * weights // 4 + 2 * inputs // 8
    # The planner bounds memory by what it reckons with itself: kernel rows.
    held = found.cost.input_bytes + found.cost.weight_bytes + found.cost.partial_bytes
    assert found.cost.temp_bytes == held + 2 * (weights + inputs // 4)


@pytest.mark.parametrize(("groups", "channels", "field"), [(32, 128, 28), (16, 64, 14)])
def test_slic_holds_a_second_buffer_of_partials(groups, channels, field):
    image = {"in_channels": channels, "out_channels": channels, "field": (field, field)}
    padding = {"padding_lower": (1, 1), "padding_upper": (1, 1), "kernel": (3, 3)}
    asked = ConvPass.of("conv", windows.conv(**image, **padding, groups=groups), 2)
    found = plan(asked, load_chip("GC2"), load_stack("sdk-2.0").planner_rules())
    assert str(found).startswith("SLIC 1x4x4 ")
    held, zeros = found.cost.input_bytes + found.cost.weight_bytes, 4 * found.cost.tile_transform
    assert found.cost.temp_bytes == held + zeros + 2 * found.cost.partial_bytes + 200


def test_since_sdk_3_the_last_serial_part_may_be_smaller():
    shape, chip = product(2048, 50257, 1024), CHIPS["GC200"]
    before, since = (plan(shape, chip, replace(RULES["GC200"], era=era)) for era in (2, 3))
    assert 1024 % before.split.out_serial == 0
    assert 1024 % since.split.out_serial != 0
    assert since.planned_cycles < before.planned_cycles


@pytest.mark.parametrize("era", [2, 3])
@pytest.mark.parametrize(("m", "k", "n"), [(2048, 50257, 1024), (197, 50257, 3072)])
def test_a_product_over_a_prime_vocabulary_needs_no_long_search(m, k, n, era):
    # A prime number has no equal serial parts, so that few partitions fit, or none.
    rules = replace(RULES["GC200"], era=era)
    assert plan(product(m, k, n), CHIPS["GC200"], rules).evaluations < 20_000


def test_what_no_split_makes_fit_is_not_searched():
    # A weight gradient sums over 600,000 places here, in thousands of groups of channels.
    padding = {"padding_lower": (1, 1), "padding_upper": (1, 1)}
    image = {"batch": 3, "in_channels": 3, "field": (448, 448), "kernel": (3, 3)}
    params = windows.conv(**image, out_channels=32, pass_kind="weight_gradient", **padding)
    asked = ConvPass.of("conv_weight_gradient", params, 4)
    plan(small_conv(), CHIPS["GC200"], RULES["GC200"])  # the kernels are loaded
    begin = time.process_time()
    assert plan(asked, CHIPS["GC200"], RULES["GC200"]).partial_bytes == 4
    assert time.process_time() - begin < 4


@given(st.integers(1, 300), st.integers(1, 12))
def test_channel_splits_are_the_least_for_their_share(grains, serial):
    found = []
    split = cs.next_channel_split(grains, 0, serial, False)
    while split <= grains:
        found.append(split)
        split = cs.next_channel_split(grains, split, serial, False)
    least = {
        total
        for total in range(1, grains + 1)
        if total == 1 or math.ceil(grains / (total - 1)) > math.ceil(grains / total)
    }
    assert found == sorted(total // serial for total in least if total % serial == 0)


# --- bounds ---------------------------------------------------------------------------------


def run(kernel, one, *more):
    """Return what a kernel makes of arrays of one record each, which it may fill."""
    return kernel(*(array.view(np.recarray)[0] for array in one), *more)


def floors(one):
    return run(bytes_floor, one), run(cycles_floor, one)


@st.composite
def partitions(draw):
    """Return (problem, vertex, work) of some operation, each an array of one, any split at all."""
    shape = draw(st.one_of(convolutions(channels=200, size=30), products(300)))
    chip, rules = draw(chips), draw(all_rules)
    transforms = transforms_of(shape, chip, rules)
    problems = problems_of(transforms)
    at = draw(st.integers(0, len(transforms) - 1))
    vertices = joined(vertex_types(transforms, shape, chip, rules)[at], VERTEX)
    which = draw(st.integers(0, len(vertices) - 1))
    one = problems[at : at + 1], vertices[which : which + 1], empty_works(1, 1)
    if not run(fill_grains, one):
        return None
    run(fill_copies, one)
    problem, vertex, totals, split = (
        problems[at],
        vertices[which],
        *(one[2][0][name] for name in ("totals", "split")),
    )
    method = vertex["method"]
    outer = method == OUTER_PRODUCT

    def parts(size, whole):
        return size if whole else draw(st.integers(1, min(int(size), 50)))

    split["group"] = parts(totals["group_grains"], False)
    split["batch"] = parts(problem["batch"], outer)
    split["in_chans"] = parts(totals["in_grains"], method in (SLIC, OUTER_PRODUCT))
    split["out_chans"] = parts(totals["out_grains"], method in (SLIC, VMAC))
    split["dims"][2]["field"] = parts(totals["last_grains"], False)
    for dim, of_dim in zip(problem["dims"][:2], split["dims"], strict=False):
        of_dim["field"], of_dim["kernel"] = parts(dim["out"], outer), parts(dim["kernel"], outer)
    way = draw(st.sampled_from(["in", "out"]))
    if way == "out" or problem["in_serial_allowed"]:
        grains = totals[f"{way}_grains"] // split[f"{way}_chans"]
        split[f"{way}_serial"] = draw(st.integers(1, max(1, int(grains))))
    if split["out_serial"] > 1 and problem["broadcast_allowed"]:
        split["broadcast"] = draw(st.integers(0, 1))
    return one


@settings(max_examples=400, suppress_health_check=[HealthCheck.filter_too_much])
@given(partitions().filter(bool), st.data())
def test_floors_never_exceed_the_cost(one, data):
    part, cost, totals = (one[2][0][name] for name in ("part", "cost", "totals"))
    if not run(conv_cost, one):
        return
    assert part["tiles_used"] == cost["tiles_used"]
    for limit, floor in zip((cost["temp_bytes"], cost["total"]), floors(one), strict=True):
        assert floor <= limit
    assert totals["arithmetic"] // cost["tiles_used"] <= cost["total"]
    # On no more tiles than it takes.
    one[0]["tiles"] = cost["tiles_used"]
    assert run(serial_floor, one[::2]) + run(summing_floor, one) <= cost["total"]
    # The search asks with less work, fewer users of the weights and more tiles.
    run(fill_part, one)
    part["positions"] = data.draw(st.integers(1, int(part["positions"])))
    part["columns"] = data.draw(st.integers(0, int(part["columns"])))
    part["in_positions"] = data.draw(st.integers(0, int(part["in_positions"])))
    part["weight_users"] = data.draw(st.integers(1, int(part["weight_users"])))
    part["tiles_used"] *= data.draw(st.integers(1, 9))
    for limit, floor in zip((cost["temp_bytes"], cost["total"]), floors(one), strict=True):
        assert floor <= limit
    # Before anything is split it asks once, of the tiles that there are.
    assert run(least_bytes, one, bool(cost["serial"] > 1)) <= cost["temp_bytes"]


def test_what_is_mostly_summing_costs_little_more_than_its_floor():
    # Fifteen partials of 256 x 1024 sums, a tile each, of 16 products.
    chip = replace(CHIPS["GC200"], tiles=15)
    problems, vertices, candidates = sorted_candidates(
        product(256, 240, 1024), chip, RULES["GC200"]
    )
    one = problems[:1], vertices[candidates["vertex"][:1]], empty_works(1, 1)
    assert run(fill_grains, one)
    run(fill_copies, one)
    one[2]["split"]["in_chans"] = 15
    assert run(conv_cost, one)
    total = one[2][0]["cost"]["total"]
    assert 0.8 * total < run(serial_floor, one[::2]) + run(summing_floor, one) <= total


@settings(max_examples=60)
@given(partitions().filter(bool))
def test_no_form_of_the_field_beats_its_floor(one):
    problem, vertex, work = (array[0] for array in one)
    part, totals = work["part"], work["totals"]
    run(fill_part, one)
    steps, batch = int(totals["steps"]), int(problem["batch"])
    one_row = problem["era"] != 0 and totals["one_by_one"] and part["kernel_elements"] == 1
    least = []
    for positions in range(1, 60):
        part["positions"] = positions
        least.append(run(tile_cycles_floor, one))
    for rows in range(1, 2 if one_row else 8):
        for length in range(1, 60 // rows):
            positions = rows * length
            if vertex["method"] == VMAC and positions % batch:
                continue
            part["rows"], part["row_length"] = rows, -(-length // steps)
            part["positions"], part["batch"] = positions, math.gcd(batch, positions)
            cycles = run(tile_cycles, one)
            if cycles >= 0:
                assert max(least[:positions]) <= cycles


# --- memory ---------------------------------------------------------------------------------


# Its vertex pads the field on the tile, which the bound does not count.
PADDED = small_conv(
    groups=4,
    in_channels=320,
    out_channels=452,
    field=(31, 21),
    kernel=(2, 1),
    padding_lower=(0, 0),
    padding_upper=(1, 0),
)


@settings(max_examples=30)
@example(PADDED, CHIPS["GC200"], replace(RULES["GC200"], era=1))
@given(convolutions(channels=300, size=30, groups=(1, 4)), chips, all_rules)
def test_more_temporary_memory_never_makes_a_plan_slower(shape, chip, rules):
    # Where nothing fits, poplibs doubles the bound (or, in era 0, minimises memory instead), so a
    # smaller proportion may come out faster: only plans within their bound can be compared.
    cycles = []
    for proportion in (0.02, 0.05, 0.1, 0.3, 0.6, 1.0):
        found = plan(shape, chip, replace(rules, available_memory_proportion=proportion))
        if found.within_memory_bound:
            assert found.cost.temp_bytes <= proportion * chip.bytes_per_tile or rules.era == 0
            cycles.append(found.planned_cycles)
    assert cycles == sorted(cycles, reverse=True)
    assert cycles


def test_the_fallback_doubles_the_bound():
    shape = small_conv(out_channels=50)  # three groups of 16 cannot be computed in serial parts
    chip = replace(CHIPS["GC200"], tiles=4, bytes_per_tile=1 << 13)
    few, more = (
        plan(shape, chip, replace(RULES["GC200"], available_memory_proportion=p)) for p in (0.3, 1)
    )
    assert not few.within_memory_bound
    assert few.cost.temp_bytes > 0.3 * chip.bytes_per_tile
    free = plan(shape, CHIPS["GC200"], RULES["GC200"])
    assert free.within_memory_bound
    assert more.cost.temp_bytes <= 4 * chip.bytes_per_tile


@pytest.mark.parametrize("era", range(4))
def test_less_than_a_byte_is_a_byte(era):
    rules = replace(RULES["GC200"], era=era)
    least, byte = (
        plan(small_conv(), CHIPS["GC200"], replace(rules, available_memory_proportion=p))
        for p in (1e-9, 1 / CHIPS["GC200"].bytes_per_tile)
    )
    assert least == byte
    assert not least.within_memory_bound


def test_era_0_falls_back_to_the_least_memory():
    chip = replace(CHIPS["GC2"], tiles=4, bytes_per_tile=1 << 12)
    found = plan(small_conv(), chip, RULES["GC2"])
    assert not found.within_memory_bound
    roomy = plan(small_conv(), replace(chip, bytes_per_tile=1 << 20), RULES["GC2"])
    assert found.cost.temp_bytes < roomy.cost.temp_bytes
    assert found.planned_cycles > roomy.planned_cycles


def test_serial_splits_appear_where_memory_is_short():
    shape = small_conv(in_channels=128, out_channels=256)
    chip = replace(CHIPS["GC200"], tiles=16)
    plenty = plan(shape, chip, RULES["GC200"])
    short = plan(shape, chip, replace(RULES["GC200"], available_memory_proportion=0.05))
    assert plenty.cost.serial == 1
    assert short.cost.serial > 1
    assert short.within_memory_bound
    assert short.planned_cycles > plenty.planned_cycles


# --- plans are sound and repeatable ---------------------------------------------------------


@settings(max_examples=60)
@given(st.one_of(convolutions(channels=300, size=40), products(600)), chips, all_rules)
def test_a_plan_stays_within_chip_and_shape(shape, chip, rules):
    found = plan(shape, chip, rules)
    split = found.split
    parallel = [split.group, split.batch, split.in_chans, split.out_chans]
    parallel += [*split.field, *split.kernel]
    serial = split.in_serial, split.out_serial
    assert math.prod(parallel) == found.cost.tiles_used <= chip.tiles
    assert min(*parallel, *serial) >= 1
    assert min(serial) == 1
    assert found.cost.serial == math.prod(serial)
    assert rules.era > 0 or split.in_serial == 1
    assert found.cost.depth == split.in_chans * math.prod(split.kernel)
    assert len(split.field) == len(split.kernel) == len(shape.params.dims)
    assert found.planned_cycles > 0
    assert all(isinstance(value, int) for value in found.cost)
    assert found.evaluations > 0
    assert str(found).startswith(found.method)
    forget_plans()
    assert plan(shape, chip, rules) == found


@pytest.mark.parametrize(
    ("chip", "stack"),
    [("GC2", "sdk-1.0"), ("GC2", "sdk-2.4"), ("GC200", "sdk-2.4"), ("GC200", "sdk-3.x")],
)
def test_no_plan_beats_the_multipliers_of_the_chip(chip, stack):
    conv, target = windows.conv(in_channels=256, out_channels=256), CHIPS[chip]
    found = plan(conv_pass(conv, 2), target, load_stack(stack).planner_rules())
    busiest = target.tiles * target.macs_per_cycle("float16", "float16")
    assert found.planned_cycles >= conv.macs / busiest


@pytest.mark.parametrize("chip", sorted(CHIPS))
def test_every_shape_of_the_zoo_has_a_plan(chip):
    shapes = set()
    for name in zoo.names():
        for op in zoo.load(name).graph(1).ops:
            if op.kind == "conv":
                shapes.add(conv_pass(op.params, 2))
            elif op.kind == "matmul":
                shapes.add(ConvPass.of("matmul", op.params, 2))
    assert len(shapes) > 50
    for shape in shapes:
        found = plan(shape, CHIPS[chip], RULES[chip])
        assert found.within_memory_bound, shape
        assert found.cost.tiles_used <= CHIPS[chip].tiles


_FRESH = """
from ipusim.compiler.convolution.planner import ConvPass, PlannerRules, plan
from ipusim.machine import load_chip
from ipusim.workload.graph import MatMul
rules = PlannerRules(era=2, partials_bytes=2, available_memory_proportion=0.6)
for m, k, n in ((64, 100, 8), (1000, 2048, 16)):
    product = ConvPass.of("matmul", MatMul(m=m, k=k, n=n), 2)
    print(repr(plan(product, load_chip("GC200"), rules)))
"""


def test_same_input_same_plan_in_a_fresh_process():
    here = [
        repr(plan(product(*size), CHIPS["GC200"], RULES["GC200"]))
        for size in ((64, 100, 8), (1000, 2048, 16))
    ]
    environment = os.environ | {"PYTHONHASHSEED": "7"}
    fresh = subprocess.run(
        [sys.executable, "-c", _FRESH], capture_output=True, text=True, check=True, env=environment
    )
    assert fresh.stdout.splitlines() == here


def test_plans_are_remembered_until_forgotten():
    shape = small_conv(in_channels=24)
    first = plan(shape, CHIPS["GC200"], RULES["GC200"])
    assert plan(shape, CHIPS["GC200"], RULES["GC200"]) is first
    forget_plans()
    again = plan(shape, CHIPS["GC200"], RULES["GC200"])
    assert again == first
    assert again is not first


@pytest.mark.parametrize("chip", ["GC2", "GC200"])
def test_plans_made_side_by_side_are_those_made_one_by_one(chip, monkeypatch):
    ops = zoo.load("resnet18").graph(2).ops
    target = CHIPS[chip], RULES[chip]
    shapes = [conv_pass(op.params, 2) for op in ops if op.kind == "conv"]
    # One that fits no bound is searched for again, among the others.
    shapes.insert(3, small_conv(batch=4, in_channels=64, field=(2048, 2048)))
    forget_plans()
    one_by_one = [plan(shape, *target) for shape in shapes]
    assert [one.within_memory_bound for one in one_by_one].count(False) == 1
    searched, search_for = [], planner._search_for
    monkeypatch.setattr(
        planner,
        "_search_for",
        lambda asked, *rest: searched.append(asked) or search_for(asked, *rest),
    )
    forget_plans()
    with planner.planned_ahead(shapes, *target):
        assert sorted(map(len, searched))[-1] == planner._AT_ONCE
        started, searches, _ = zip(*planner._AHEAD.get().values(), strict=True)
        for one in started:
            one.result()
        vertices = [search.vertices.tobytes() for search in searches]
        assert [plan(shape, *target) for shape in shapes] == one_by_one
    # A plan that is executed changes nothing that others are still searched among.
    assert [search.vertices.tobytes() for search in searches] == vertices
    assert list(chain(*searched)) == list(dict.fromkeys(shapes))
    assert not planner._AHEAD.get()
    with planner.planned_ahead(shapes, *target):
        assert not planner._AHEAD.get()


def test_a_lowering_plans_its_convolutions_ahead(monkeypatch):
    asked, planned_ahead = [], planner.planned_ahead
    monkeypatch.setattr(
        planner, "planned_ahead", lambda some, *to: asked.extend(some) or planned_ahead(some, *to)
    )
    planned = []
    monkeypatch.setattr(planner, "plan", lambda *given: planned.append(given[0]) or plan(*given))
    graph = training_graphs(zoo.load("braggnn").graph(4), loss="mean_squared").micro_batch
    lower(graph, CHIPS["GC200"], load_stack("sdk-2.4"), host_dtype=None)
    convolutions = {one for one in planned if one.kind.startswith("conv")}
    assert convolutions == set(asked)
    assert {one.kind for one in convolutions} == set(CONV_KINDS) - {"conv"}


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(shape=convolutions(), chip=st.sampled_from(sorted(CHIPS)))
def test_partials_lie_in_runs(shape, chip):
    one = plan(shape, CHIPS[chip], RULES[chip])
    partials, together = one.partials, one.out_chans_per_group * one.conv_groups_per_group
    assert partials.elements * one.partial_bytes == one.cost.partial_bytes
    assert partials.elements % partials.length == partials.length % together == 0
    assert one.result.elements == one.cost.outputs * one.split.out_serial


@pytest.mark.parametrize(
    ("chip", "shape", "splits", "cycles"),
    [
        # 137 columns of 40 rows: 685 groups of 8, of which one of four tiles gets 172. Of these
        # 1,376 sums it holds one partial, and three come in one piece: 344 vectors.
        ("GC200", (200, 512, 10000), "f173 i4 o5", 6 * (20 + (2 * 3 + 7) * 58) + 33),
        # 167 columns: 209 of 835 groups, 418 vectors. Memory elements of a GC2 are too large for
        # one piece.
        ("GC2", (200, 512, 10000), "f160 i4 o5", 6 * (32 + (3 * 4 + 6) * 70)),
        # 128 columns of 16 rows, 19 partials: five at once on four tiles each, 128 vectors of 32
        # groups, then four on all 19, 28 vectors of 7 groups.
        (
            *("GC2", (128, 4096, 1024), "f18 i19 o8"),
            6 * (32 + (3 * 5 + 7) * 22) + 6 * (32 + (3 * 4 + 6) * 5),
        ),
    ],
)
def test_partials_are_dealt_out_in_groups_of_channels(chip, shape, splits, cycles):
    rules = PlannerRules(era=1, partials_bytes=4, available_memory_proportion=0.6)
    found = plan(product(*shape), CHIPS[chip], rules)
    assert str(found).endswith(splits)
    assert found.cost.reduce == cycles


def test_runs_end_with_the_first_dimension_that_is_split():
    def runs(**splits):
        problem, vertex = np.zeros(1, PROBLEM), np.zeros(1, VERTEX)
        work = empty_works(1, 0)
        problem["batch"], problem["dims"]["out"] = 2, (6, 1, 10)
        vertex["conv_groups_per_group"], vertex["out_chans_per_group"] = 1, 8
        totals, split = work["totals"], work["split"]
        totals["group_grains"], totals["out_grains"] = 1, 5
        totals["last_grains"], totals["field_grain"] = 5, 2
        for name, parts in splits.items():
            split[name] = parts
        run(fill_partials, (problem, vertex, work))
        return work["partials"][0], work["run"][0]

    whole = 8 * 10 * 6 * 2 * 5
    assert runs() == (whole, whole)
    fields = np.array([(2, 1), (1, 1), (1, 1)], DIM_SPLIT)
    assert runs(dims=fields) == (whole // 2, 8 * 10 * 3)
    fields["field"] = 2, 1, 2  # of five pairs of columns a tile has three
    assert runs(dims=fields, out_chans=2) == (8 * 6 * 3 * 2 * 3, 8 * 6)
    assert runs(out_chans=2) == (8 * 10 * 6 * 2 * 3,) * 2
    assert runs(out_serial=5) == (whole // 5,) * 2


def test_describe_leaves_out_splits_of_one():
    found = plan(small_conv(), replace(CHIPS["GC200"], tiles=1), RULES["GC200"])
    assert found.cost.tiles_used == 1
    assert str(found) == "AMP nx1 1x16x16 / one tile"
    spread = plan(small_conv(), CHIPS["GC200"], RULES["GC200"])
    grouping, _, parts = str(spread).partition(" / ")
    assert grouping.startswith(spread.method)
    assert math.prod(int(part.lstrip("gbikos").removeprefix("f")[-1:]) for part in parts.split())


# --- what stacks and chips offer ------------------------------------------------------------


def methods(shape, chip, rules):
    problems, vertices, candidates = sorted_candidates(shape, CHIPS[chip], rules)
    rows = vertices[candidates["vertex"][: problems["end"][0]]]
    return rows, {METHOD_NAMES[method] for method in rows["method"]}


def sorted_candidates(shape, chip, rules):
    transforms = transforms_of(shape, chip, rules)
    problems = problems_of(transforms)
    listed = candidates_of(problems, vertex_types(transforms, shape, chip, rules))
    sort_candidates(problems, *listed)
    return problems, *listed


@given(convolutions(channels=200), chips, all_rules)
# Where partials decide: an outer product in half against VMAC in float.
@example(
    small_conv(groups=9, in_channels=9, out_channels=36, kernel=(1, 1)),
    CHIPS["GC2"],
    replace(RULES["GC2"], era=1),
)
def test_candidates_are_sorted_by_rate_padding_and_partials(shape, chip, rules):
    transforms = transforms_of(shape, chip, rules)
    problems, vertices, candidates = sorted_candidates(shape, chip, rules)
    types = vertex_types(transforms, shape, chip, rules)
    for problem, arrays in zip(problems, types, strict=True):
        every, wanted = joined(arrays, VERTEX), (problem["in_chans"], problem["out_chans"])
        in_per, out_per = every["in_chans_per_group"], every["out_chans_per_group"]
        padded = -(-wanted[0] // in_per) * in_per * (-(-wanted[1] // out_per) * out_per)
        padding = (padded - math.prod(wanted)) / padded
        rate = every["peak_macs"] * (1 - padding)
        order = np.lexsort((every["partial_bytes"], padding, -rate))
        found = candidates["vertex"][problem["begin"] : problem["end"]]
        assert vertices[found].tobytes() == every[order].tobytes()


def test_vertex_types_follow_the_stack():
    _, old = methods(small_conv(), "GC2", RULES["GC2"])
    assert old == {"AMP", "HMAC"}
    rows, new = methods(small_conv(), "GC200", RULES["GC200"])
    assert new == {"AMP", "HMAC", "SLIC", "VMAC", "OUTER_PRODUCT"}
    assert len({row.tobytes() for row in rows}) == len(rows)
    assert rows[0].item()[:6] == (AMP, 1, 16, 16, 16, 2)
    layer = product(8, 8, 8, kind="fc_inference")
    assert "SLIC" not in methods(layer, "GC200", RULES["GC200"])[1]
    floats = small_conv(in_bytes=4, out_bytes=4)
    assert methods(floats, "GC200", RULES["GC200"])[1] == {"AMP", "HMAC", "OUTER_PRODUCT"}


@given(st.integers(1, 600))
def test_hmac_groupings_are_the_least_for_their_count(in_channels):
    rows, _ = methods(small_conv(in_channels=in_channels), "GC2", RULES["GC2"])
    groupings = sorted(rows["in_chans_per_group"][rows["method"] == HMAC].tolist())
    rounded = -(-in_channels // 2) * 2
    counts = {-(-rounded // size): size for size in range(rounded, 0, -2)}
    assert groupings == sorted(counts.values())


def test_transforms():
    chip, rules = CHIPS["GC200"], RULES["GC200"]
    transforms = transforms_of(small_conv(), chip, rules)
    problems = problems_of(transforms)
    names = [transform.name for transform in transforms]
    assert names[:4] == ["none", "expand 0", "expand 1", "expand 01"]
    # A kernel of 3 x 3 as the input and the input as the kernel: its field can only be flattened.
    assert names[4:] == ["swap", *(f"swap, flatten {dims}" for dims in ("0", "1", "01"))]
    expanded = problems[names.index("expand 01")]
    assert expanded["in_chans"] == 9 * 32
    assert expanded["dims"]["out"].tolist() == [1, 1, 2 * 10 * 10]
    depthwise = small_conv(groups=32, in_channels=32, out_channels=32)
    names = [transform.name for transform in transforms_of(depthwise, chip, rules)]
    assert [name for name in names if name.startswith("combine")] == [
        "combine 4",
        "combine 8",
        "combine 16",
    ]
    transforms = transforms_of(product(8, 16, 32), chip, rules)
    assert [transform.name for transform in transforms] == ["none", "swap"]


# --- evidence -------------------------------------------------------------------------------


def test_worst_tile_bytes_of_products_match_the_plans():
    """The IPUModel's worst tile holds the interleaved region's start and the partials."""
    chip = CHIPS["GC200"]
    rules = PlannerRules(era=1, partials_bytes=4, available_memory_proportion=0.6)
    slack = []
    for row in evidence_records("ipumodel_layers_dev.csv"):
        if (row["op_kind"], row["snapshot"], row["target"]) != ("gemm", "2021-03", "mk2"):
            continue
        size = {key: int(row[key]) for key in ("m", "k", "n")} | {
            "groups": int(row["matmul_groups"])
        }
        shape = product(**size, dtype_bytes=2 if row["input_dtype"] == "half" else 4)
        partials = int(row["max_tile_memory_bytes"]) - chip.interleaved_offset_bytes
        slack.append(partials - plan(shape, chip, rules).cost.partial_bytes)
    assert len(slack) == 16
    assert sum(0 <= value <= 64 for value in slack) >= 12


# --- errors ---------------------------------------------------------------------------------

_PER_DIMENSION = ("field", "kernel", "stride", "padding_lower", "padding_upper", "dilation")
FOUR = dict.fromkeys(_PER_DIMENSION, (1,) * 4)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kind": "convolution"}, "'convolution'"),
        ({"in_bytes": 3}, "float16 (2) or float32 (4)"),
        ({"out_bytes": 8}, "float16 (2) or float32 (4)"),
        (FOUR, "4 spatial dimensions"),
        ({"field": ()}, "field = ()"),
        ({"kernel": (3,)}, "one per spatial dimension"),
        ({"padding_upper": (1, 1, 1)}, "one per spatial dimension"),
        ({"groups": 0}, "groups = 0"),
        ({"out_channels": 0}, "out_channels = 0"),
        ({"stride": (0, 1)}, "stride = (0, 1)"),
        ({"kernel": (13, 3)}, "larger than the padded field (10, 10)"),
    ],
)
def test_shapes_that_cannot_be_planned(changes, words):
    with pytest.raises((ConfigError, WorkloadError)) as caught:
        small_conv(**changes)
    message = str(caught.value)
    assert words in message
    assert message.endswith(".")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"era": 4}, "planner era 4"),
        ({"era": -1}, "planner era -1"),
        ({"partials_bytes": 8}, "half (2) or float (4)"),
        ({"available_memory_proportion": 0.0}, "more than 0"),
        ({"available_memory_proportion": 1.5}, "at most 1"),
    ],
)
def test_rules_that_do_not_exist(changes, words):
    values = {"era": 2, "partials_bytes": 2, "available_memory_proportion": 0.6}
    with pytest.raises(ConfigError) as caught:
        PlannerRules(**(values | changes))
    assert words in str(caught.value)
