"""Vertex cycle formulas: measured sizes, examples worked by hand, and what must always hold."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ipusim import files
from ipusim.compiler.convolution import reduction as conv_reduce
from ipusim.compiler.convolution.reduction import cast_cycles, reduce_stages, reduce_vertex_cycles
from ipusim.compiler.vertices import amp as amp_vertices, conv as conv_vertices, mac as mac_vertices
from ipusim.compiler.vertices.amp import amp_nx1_cycles, amp_nx1_window_cycles
from ipusim.compiler.vertices.conv import (
    ERA_1_0,
    ERA_2_0,
    ERA_2_4,
    ERA_3_3,
    WORKERS,
    amp_1x1_cycles,
    distinct_workers,
    worker_share,
    zero_partials_cycles,
)
from ipusim.compiler.vertices.mac import (
    hmac_cycles,
    outer_product_cycles,
    slic_cycles,
    vmac_cycles,
)

ERAS = (ERA_1_0, ERA_2_0, ERA_2_4, ERA_3_3)

eras = st.sampled_from(ERAS)
late_eras = st.sampled_from(ERAS[1:])
counts = st.integers(1, 5)
rows = st.integers(1, 40)
lengths = st.integers(1, 400)


@st.composite
def number_types(draw):
    """Return (float_input, float_partials): float inputs always have float partials."""
    float_input = draw(st.booleans())
    return float_input, float_input or draw(st.booleans())


def amp_1x1(length, *, types, units=16, era=ERA_2_4, groups=(1, 1, 1), n_rows=1):
    return amp_1x1_cycles(n_rows, length, *groups, 16, 4 * units, *types, units, era)


def amp_nx1(n_rows, length, *, types, units=16, era=ERA_2_4, kernel=(3, 3), groups=(1, 1, 1)):
    return amp_nx1_cycles(n_rows, length, *kernel, 1, *groups, 16, 4 * units, *types, units, era)


def hmac(n_rows, length, *, types, era=ERA_2_4, kernel=1, groups=(1, 1, 1), channels=(8, 2)):
    return hmac_cycles(n_rows, length, kernel, *groups, *channels, *types, era)


def slic(n_rows, length, *, sub_kernels=3, chains=4, float_partials=False, era=ERA_2_4, groups=1):
    return slic_cycles(n_rows, length, sub_kernels, groups, 1, 4, chains, 1, float_partials, era)


# --- measured -------------------------------------------------------------------------------


@pytest.mark.parametrize("era", [ERA_2_4, ERA_3_3])
def test_amp_1x1_against_128_measured_sizes(era):
    path = files.data_dir() / "evidence" / "ipu_microbench.csv"
    with path.open(encoding="utf-8", newline="") as stream:
        measured = [
            (int(row["size"].removeprefix("N=")), float(row["value"]))
            for row in csv.DictReader(stream)
            if row["operation"].startswith("ConvPartial1x1 AMP") and row["metric"] == "cycles"
        ]
    assert len(measured) == 128
    errors = [
        abs(amp_1x1(size, types=(False, False), era=era) / cycles - 1) for size, cycles in measured
    ]
    assert sum(errors) / len(errors) <= 0.01
    assert max(errors) <= 0.02


# --- worked by hand from poplibs PerformanceEstimation.hpp of each era's tag ---------------------


def test_amp_1x1_by_hand():
    # Era 2, half, 16 units, 48 positions: 8 a worker, 37 + 5 x 4 - 7 = 50; slowest max(300, 314).
    # 50 + 6 x 7 + (12 + 1) + (11 + 19 - 1 + 7 + 64 + 314) = 519.
    assert amp_1x1_cycles(1, 48, 1, 1, 1, 16, 64, False, False, 16, ERA_2_4) == 519
    # Era 0, float partials, 8 units and so 2 passes, weights in 8 cycles, 12 positions: 2 a worker,
    # 42 + 10 = 52 with zeroing and 42 without; slowest 326 and 266.
    # 50 + 2 x (11 + 2 x (13 + 2 x (18 + 2 x 280)) + 10 + 2 x (18 + 2 x 340)) = 7560.
    assert amp_1x1_cycles(1, 12, 2, 3, 2, 16, 8, False, True, 8, ERA_1_0) == 7560


def test_amp_nx1_by_hand():
    # Era 2, half, 3x3 kernel, two rows of 9: 3 a worker, 16 + 7 - 4 + 34 = 53; slowest
    # max(318, 327). Inner 3 x (14 + 3 x (12 + 82 + 327)) = 3831.
    # 103 + 24 + 60 + 18 + 1 + 16 + 2 x (14 + 14 + 3831) = 7940, zeroing 6 x (24 + 5) = 174.
    args = (2, 9, 3, 3, 1, 1, 2, 1, 16, 64, False, False, 16, ERA_2_4)
    assert amp_nx1_cycles(*args) == 7940 + 174
    # Era 0, float partials, 5 rows of 3: the second worker gets 2 + 1, 19 + 34 + 30 = 83, 498.
    # 95 + 16 + 23 + 23 + 15 + 20 + 23 + 498 = 713, zeroing 6 x (10 + 5) + 12 = 102.
    args = (5, 3, 1, 1, 1, 1, 1, 1, 8, 8, False, True, 8, ERA_1_0)
    assert amp_nx1_cycles(*args) == 713 + 102


def test_hmac_by_hand():
    # Era 2, half partials, 4 rows of 10: two thirds of a row each, 8 positions; dot product 11 + 2.
    # Worker 16 + 19 + 8 x (7 + 13) = 195; 63 + 60 + 23 + 15 + 2 x (10 + 6 x 211) = 2713;
    # zeroing 6 x 2 x (7 + 5) = 144.
    args = (4, 10, 1, 1, 1, 2, 8, 2, False, False, ERA_2_4)
    assert hmac_cycles(*args) == 2713 + 144
    # Era 0, 6 rows of 5, 3 kernel elements: worker 16 + 19 + 5 x (7 + 7) = 105.
    # 63 + 2 x (23 + 2 x (15 + 10 + 6 x (3 x 105 + 16))) = 8153, zeroing 6 x 2 x (3 + 5) + 12.
    args = (6, 5, 3, 2, 2, 1, 4, 1, False, True, ERA_1_0)
    assert hmac_cycles(*args) == 8153 + 108
    # Era 3 has its own 1x1 loop: worker 1 + 14 + 3 x (2 + 13) = 60.
    # 55 + 54 + 90 + 23 + 15 + 3 x (10 + 6 x 76) = 1635, zeroing 6 x 3 x (2 + 5) = 126.
    args = (1, 13, 1, 1, 1, 3, 6, 1, False, True, ERA_3_3)
    assert hmac_cycles(*args) == 1635 + 126


def test_slic_by_hand():
    # Four chains, one group of 4 channels, 30 positions: 5 a worker; weights in 34 cycles.
    # Passes 6 x (17 + 11 + 15) = 258 with zeroing, 6 x (17 + 10 + 15) = 252 without.
    # 28 + (30 + 7) + (3 x 54 + 13) + 2 x (258 + 2 x 252) = 1764.
    assert slic_cycles(1, 30, 3, 2, 1, 4, 4, 1, False, ERA_2_4) == 1764
    # Two chains, half partials, two groups of 2 channels: two data passes and a merge of 26.
    # 25 + (12 + 1) + (125 + 1) + 6 x (19 + 10 + 2 x 15) + 26 = 544.
    assert slic_cycles(1, 12, 1, 1, 2, 2, 2, 1, False, ERA_2_4) == 544
    # Eight groups of one channel run in two strides of four.
    # 28 + (23 + 1) + (2 x 270 + 7) + 6 x 45 + 2 x 6 x 44 = 1397.
    assert slic_cycles(1, 6, 2, 1, 8, 1, 4, 1, False, ERA_2_4) == 1397


def test_vmac_by_hand():
    # Era 2, float partials, 12 outputs, 3x3: 6 kernel rows a worker, 19 + 6 x (7 + 5 + 3 + 4).
    # 101 + 2 x (10 + 32 + 24 + 6 x 133 + 9 + 19 x 2 // 4) = 1865.
    assert vmac_cycles(12, 12, 3, 3, 2, 1, 4, True, ERA_2_4) == 1865
    # Era 1, 5 outputs share 30 parts of a row: 10 a worker, 6 + 10 x (10 + 5 + 5) = 206.
    # 100 + (9 + 32 + 2 x (24 + 6 x 206) + 10 + 19 // 4) = 2675.
    assert vmac_cycles(5, 5, 2, 3, 1, 2, 4, True, ERA_2_0) == 2675


def test_outer_product_cast_and_zeroing_by_hand():
    # Half, 4 channels a group, 13 positions: 6 x (25 + 2 x (10 + 3 x (10 + 10))).
    assert outer_product_cycles(13, 8, 4, False) == 990
    # Half, 16 channels a group: the unrolled loop, 6 x (25 + 10 + 3 x (6 + 1)).
    assert outer_product_cycles(13, 16, 16, False) == 336
    # Float, 2 channels a group: 6 x (25 + 4 x (11 + 3 x (10 + 4))).
    assert outer_product_cycles(13, 8, 2, True) == 1422
    # 100 floats to halves: 17 a worker, in pairs 9 loads against 5 stores: 6 x (9 + 26).
    assert cast_cycles(100, 4, 2) == 210
    assert zero_partials_cycles(100, 2, ERA_2_4) == 6 * 2 * (9 + 5)
    assert zero_partials_cycles(100, 2, ERA_1_0) == 6 * 2 * (9 + 5) + 12


def test_reduction_by_hand():
    # Contiguous partials, 96 floats of depth 5: 24 vectors, 4 a worker: 6 x (20 + 4 x 17) + 33.
    assert reduce_vertex_cycles(96, 5, False, True, True) == 561
    # Scattered partials: 6 x (32 + 4 x (15 + 6)).
    assert reduce_vertex_cycles(96, 5, False, True, False) == 696
    # 97 floats: one odd loop, 6 x (32 + 10 + 13 + 4 x (15 + 6)).
    assert reduce_vertex_cycles(97, 5, False, True, False) == 834
    assert reduce_stages(15) == (1, 1)
    assert reduce_stages(16) == (4, 1)
    assert reduce_stages(124)[1] == 1
    assert reduce_stages(512) == (64, 8)


# --- always ---------------------------------------------------------------------------------


@given(rows, lengths, st.integers(0, WORKERS - 1))
def test_shares_of_the_workers_cover_the_positions(n_rows, length, worker):
    total = n_rows * length
    head, whole, tail = worker_share(n_rows, length, worker)
    assert head + whole * length + tail == (worker + 1) * total // 6 - worker * total // 6
    assert 0 <= head <= length
    assert 0 <= tail < length


@given(rows, lengths)
def test_distinct_workers_have_every_share(n_rows, length):
    every = {worker_share(n_rows, length, worker) for worker in range(WORKERS)}
    kept = {worker_share(n_rows, length, worker) for worker in distinct_workers.py_func(n_rows)}
    if n_rows == 1:  # only the number of positions counts in a single row
        every = {head + tail + whole * length for head, whole, tail in every}
        kept = {head + tail + whole * length for head, whole, tail in kept}
    assert kept == every


@given(lengths, number_types(), st.sampled_from([8, 16]), eras)
def test_amp_grows_with_positions(length, types, units, era):
    # Below three positions a worker, a later stack's vertex may be slower than at three.
    longer = length + WORKERS
    fast = 3 * WORKERS
    assert amp_1x1(max(length, fast), types=types, units=units, era=era) <= amp_1x1(
        max(longer, fast), types=types, units=units, era=era
    )
    assert amp_nx1(1, length, types=types, era=era) <= amp_nx1(1, longer, types=types, era=era)


@given(rows, lengths, number_types(), eras, counts, counts, counts)
def test_vertices_grow_with_every_count_of_groups(
    n_rows, length, types, era, conv_groups, in_groups, out_groups
):
    groups = (conv_groups, in_groups, out_groups)
    for index in range(3):
        more = tuple(count + (i == index) for i, count in enumerate(groups))
        for vertex in (amp_nx1, hmac):
            few = vertex(n_rows, length, types=types, era=era, groups=groups)
            assert few < vertex(n_rows, length, types=types, era=era, groups=more)
        few = amp_1x1(length, types=types, era=era, groups=groups)
        assert few < amp_1x1(length, types=types, era=era, groups=more)


@given(rows, lengths, number_types(), eras)
def test_one_long_row_is_never_slower_than_several(n_rows, length, types, era):
    positions = n_rows * length
    assert amp_nx1(1, positions, types=types, era=era) <= amp_nx1(
        n_rows, length, types=types, era=era
    )
    assert hmac(1, positions, types=types, era=era) <= hmac(n_rows, length, types=types, era=era)


@given(rows, lengths, st.integers(1, 4), st.sampled_from([2, 4]), late_eras)
def test_slic_grows_with_kernels_and_groups(n_rows, length, sub_kernels, chains, era):
    less = slic(n_rows, length, sub_kernels=sub_kernels, chains=chains, era=era)
    more = slic(n_rows, length, sub_kernels=sub_kernels + 1, chains=chains, era=era)
    wider = slic(n_rows, length, sub_kernels=sub_kernels, chains=chains, era=era, groups=2)
    assert less < more
    assert less < wider


@given(rows, lengths, number_types(), eras)
def test_no_vertex_beats_its_multipliers(n_rows, length, types, era):
    positions = n_rows * length
    per_pass = 8 if types[0] else 4
    assert amp_1x1(positions, types=types, era=era) >= per_pass * positions
    assert amp_nx1(n_rows, length, types=types, era=era) >= 9 * per_pass * positions
    assert hmac(n_rows, length, types=types, era=era) >= positions * (8 // (2 if types[0] else 4))


@given(st.integers(1, 5000), st.integers(2, 200), st.booleans(), st.booleans())
def test_reduction_grows_with_depth_and_reads_every_partial(outputs, depth, float_out, floats):
    width = 4 if floats else 8
    for single in (False, True) if outputs % width == 0 else (False,):
        cycles = reduce_vertex_cycles(outputs, depth, float_out, floats, single)
        assert cycles <= reduce_vertex_cycles(outputs, depth + 1, float_out, floats, single)
        assert cycles >= 2 * depth * outputs // width


@given(st.integers(2, 2000))
def test_stages_of_a_reduction_get_smaller(depth):
    first, second = reduce_stages(depth)
    assert 1 <= second <= first < depth
    assert (first == 1) == (depth < 16)
    assert (second == 1) == (depth < 125)


@settings(max_examples=40)
@given(rows, lengths, number_types(), eras, counts, counts, counts, st.data())
def test_compiled_equals_python(n_rows, length, types, era, groups, ins, outs, data):
    late = max(era, ERA_2_0)
    per_group, channels = data.draw(st.sampled_from([(1, 4), (2, 2), (4, 1), (8, 1), (16, 1)]))
    calls = [
        (amp_1x1_cycles, (n_rows, length, groups, ins, outs, 16, 64, *types, 16, era)),
        (amp_nx1_cycles, (n_rows, length, 3, 2, 1, groups, ins, outs, 16, 64, *types, 16, era)),
        (
            amp_nx1_window_cycles,
            (
                np.array([n_rows, 1]),
                np.array([length, 0, 2]),
                n_rows * length,
                *(1, groups, ins, outs, 16, 64),
                *types,
                *(16, era),
            ),
        ),
        (hmac_cycles, (n_rows, length, 3, groups, ins, outs, 8, 2, *types, era)),
        (slic_cycles, (n_rows, length, 3, groups, per_group, channels, 4, 2, types[1], late)),
        (vmac_cycles, (n_rows * length, length, 3, 3, groups, ins, 4, types[1], late)),
        (outer_product_cycles, (length, 16 * outs, 16, types[0])),
        (cast_cycles, (length, 4, 2)),
        (reduce_vertex_cycles, (length, ins + 1, types[0], types[1], length % 8 == 0)),
        (zero_partials_cycles, (length, groups, era)),
        (reduce_stages, (length + 1,)),
    ]
    for function, arguments in calls:
        cycles = function(*arguments)
        assert cycles == function.py_func(*arguments), function.__name__
        assert all(
            isinstance(value, int) for value in (cycles if isinstance(cycles, tuple) else (cycles,))
        )


def test_every_vertex_function_is_listed_above():
    modules = (amp_vertices, conv_vertices, mac_vertices, conv_reduce)
    public = {
        name
        for module in modules
        for name, value in vars(module).items()
        if name.endswith("_cycles") and hasattr(value, "py_func")
    }
    assert public == {
        "amp_1x1_cycles",
        "amp_nx1_cycles",
        "amp_nx1_window_cycles",
        "cast_cycles",
        "hmac_cycles",
        "outer_product_cycles",
        "reduce_vertex_cycles",
        "slic_cycles",
        "vmac_cycles",
        "zero_partials_cycles",
    }
