"""Vertex cycle formulas: measured sizes, examples worked by hand, and what must always hold."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ipusim.compiler.convolution import reduction as conv_reduce
from ipusim.compiler.convolution.reduction import cast_cycles, reduce_stages, reduce_vertex_cycles
from ipusim.compiler.eras import ERA_1_0, ERA_2_0, ERA_2_4, ERA_3_3
from ipusim.compiler.vertices import amp as amp_vertices, conv as conv_vertices, mac as mac_vertices
from ipusim.compiler.vertices.amp import (
    amp_1x1_cycles,
    amp_nx1_cycles,
    amp_nx1_window_cycles,
    amp_vertex,
)
from ipusim.compiler.vertices.conv import (
    DISTINCT_SHARES,
    PART,
    WORKERS,
    run_cycles,
    worker_share,
    zero_partials_cycles,
)
from ipusim.compiler.vertices.mac import (
    hmac_cycles,
    hmac_vertices,
    outer_product_cycles,
    outer_product_vertex,
    slic_cycles,
    slic_vertex,
    vmac_cycles,
    vmac_vertex,
)
from ipusim.files import evidence_records

ERAS = (ERA_1_0, ERA_2_0, ERA_2_4, ERA_3_3)

eras = st.sampled_from(ERAS)
late_eras = st.sampled_from(ERAS[1:])
counts = st.integers(1, 5)
rows = st.integers(1, 40)
lengths = st.integers(1, 400)
number_types = st.sampled_from([(2, 2), (2, 4), (4, 4)])
"""Bytes of inputs and partials: float inputs always have float partials."""


def part_of(**counts):
    """Return a share of a tile as an array of one."""
    part = np.zeros(1, PART)
    names = ("group_grains", "in_grains", "out_grains")
    counts |= dict(zip(names, counts.pop("groups", (1, 1, 1)), strict=True))
    for name, value in counts.items():
        part[name] = value
    return part


def record(array):
    """Return an array's one entry, fields as attributes."""
    return array.view(np.recarray)[0]


def cycles_of(kernel, vertex, *more, **counts):
    return kernel(record(vertex), record(part_of(**counts)), *more)


def amp(types, units=16, era=ERA_2_4, out_per=16, load=None):
    """Return an AMP vertex that loads all its units, weights as the planner or as given."""
    vertex = amp_vertex((32 // types[0], out_per), units, types, era, units)
    if load is not None:
        vertex["weight_load"] = load
    return vertex


def amp_1x1(length, *, types, units=16, era=ERA_2_4, groups=(1, 1, 1), n_rows=1):
    vertex = amp(types, units, era, load=4 * units)
    return cycles_of(amp_1x1_cycles, vertex, rows=n_rows, row_length=length, groups=groups)


def amp_nx1(n_rows, length, *, types, units=16, era=ERA_2_4, kernel=(3, 3), groups=(1, 1, 1)):
    sizes = {"kernel_outer": kernel[0], "kernel_elements": kernel[0] * kernel[1]}
    vertex = amp(types, units, era, load=4 * units)
    return cycles_of(amp_nx1_cycles, vertex, rows=n_rows, row_length=length, groups=groups, **sizes)


def hmac(
    n_rows,
    length,
    *,
    types,
    era=ERA_2_4,
    kernel=1,
    groups=(1, 1, 1),
    channels=(8, 2),
    pointwise=1,
):
    in_per, out_per = channels
    vertex = hmac_vertices(np.array([in_per]), out_per, *types, era)
    sizes = {"kernel_elements": kernel, "groups": groups}
    return cycles_of(hmac_cycles, vertex, pointwise, rows=n_rows, row_length=length, **sizes)


def slic(
    n_rows,
    length,
    *,
    sub_kernels=3,
    chains=4,
    float_partials=False,
    era=ERA_2_4,
    groups=1,
    grouping=(1, 4),
):
    vertex = slic_vertex(grouping, chains, 4 if float_partials else 2, 1, era)
    sizes = {"kernel_elements": 4 * sub_kernels, "groups": (groups, 1, 1)}
    return cycles_of(slic_cycles, vertex, 4, rows=n_rows, row_length=length, **sizes)


def vmac(positions, outputs, kernel, groups, ins, float_partials, era):
    vertex = vmac_vertex(4, 4 if float_partials else 2, era)
    sizes = {"kernel_elements": kernel[0] * kernel[1], "groups": (groups, ins, 1)}
    batch = positions // outputs
    return cycles_of(vmac_cycles, vertex, kernel[1], positions=positions, batch=batch, **sizes)


def outer_product(width, groups, chans, is_float):
    vertex = outer_product_vertex(chans, 4 if is_float else 2, is_float)
    return cycles_of(outer_product_cycles, vertex, row_length=width, groups=(1, 1, groups))


# --- measured -------------------------------------------------------------------------------


@pytest.mark.parametrize("era", [ERA_2_4, ERA_3_3])
def test_amp_1x1_against_128_measured_sizes(era):
    measured = [
        (int(row["size"].removeprefix("N=")), float(row["value"]))
        for row in evidence_records("ipu_microbench.csv")
        if row["operation"].startswith("ConvPartial1x1 AMP") and row["metric"] == "cycles"
    ]
    assert len(measured) == 128
    errors = [abs(amp_1x1(size, types=(2, 2), era=era) / cycles - 1) for size, cycles in measured]
    assert sum(errors) / len(errors) <= 0.01
    assert max(errors) <= 0.02


# --- worked by hand from poplibs PerformanceEstimation.hpp of each era's tag ---------------------


def test_amp_1x1_by_hand():
    # Era 2, half, 16 units, 48 positions: 8 a worker, 37 + 5 x 4 - 7 = 50; slowest max(300, 314).
    # 50 + 6 x 7 + (12 + 1) + (11 + 19 - 1 + 7 + 64 + 314) = 519.
    assert amp_1x1(48, types=(2, 2)) == 519
    # Era 0, float partials, 8 units and so 2 passes, weights in 8 cycles, 12 positions: 2 a worker,
    # 42 + 10 = 52 with zeroing and 42 without; slowest 326 and 266.
    # 50 + 2 x (11 + 2 x (13 + 2 x (18 + 2 x 280)) + 10 + 2 x (18 + 2 x 340)) = 7560.
    vertex = amp((2, 4), 8, ERA_1_0)
    assert cycles_of(amp_1x1_cycles, vertex, rows=1, row_length=12, groups=(2, 3, 2)) == 7560


def test_amp_of_float8_by_hand():
    """poplibs HEAD, the functions whose names end in Quarter."""
    vertex = amp_vertex((32, 16), 16, (1, 2), ERA_3_3, 16)
    # 48 positions: 8 a worker, 17 + 27 - 5 + 5 x 4 = 59; slowest max(354, 368).
    # 46 + (2 x 6 + 9) + (6 x 6 + 10) + (14 x 6 + 11 + 6 x 6) + 64 + 368 = 676.
    assert cycles_of(amp_1x1_cycles, vertex, rows=1, row_length=48, groups=(1, 1, 1)) == 676
    # Each of 9 positions of the kernel: 18 + 16 + 27 + 5 x 4 = 81, slowest 495, and 64 for weights.
    # 83 + 37 + 2 x 61 + 3 x (33 + 103 + 2 x 86) + 9 x (64 + 495), and 414 to clear the partials.
    shape = {"kernel_outer": 3, "kernel_elements": 9, "rows": 6, "row_length": 8}
    assert cycles_of(amp_nx1_cycles, vertex, groups=(1, 1, 1), **shape) == 6611


def test_amp_nx1_by_hand():
    # Era 2, half, 3x3 kernel, two rows of 9: 3 a worker, 16 + 7 - 4 + 34 = 53; slowest
    # max(318, 327). Inner 3 x (14 + 3 x (12 + 82 + 327)) = 3831.
    # 103 + 24 + 60 + 18 + 1 + 16 + 2 x (14 + 14 + 3831) = 7940, zeroing 6 x (24 + 5) = 174.
    assert amp_nx1(2, 9, types=(2, 2), groups=(1, 2, 1)) == 7940 + 174
    # Era 0, float partials, 5 rows of 3: the second worker gets 2 + 1, 19 + 34 + 30 = 83, 498.
    # 95 + 16 + 23 + 23 + 15 + 20 + 23 + 498 = 713, zeroing 6 x (10 + 5) + 12 = 102.
    sizes = {"kernel_outer": 1, "kernel_elements": 1}
    vertex = amp((2, 4), 8, ERA_1_0, out_per=8)
    assert cycles_of(amp_nx1_cycles, vertex, rows=5, row_length=3, **sizes) == 713 + 102


def test_hmac_by_hand():
    # Era 2, half partials, 4 rows of 10: two thirds of a row each, 8 positions; dot product 11 + 2.
    # Worker 16 + 19 + 8 x (7 + 13) = 195; 63 + 60 + 23 + 15 + 2 x (10 + 6 x 211) = 2713;
    # zeroing 6 x 2 x (7 + 5) = 144.
    assert hmac(4, 10, types=(2, 2), groups=(1, 1, 2)) == 2713 + 144
    # Era 0, 6 rows of 5, 3 kernel elements: worker 16 + 19 + 5 x (7 + 7) = 105.
    # 63 + 2 x (23 + 2 x (15 + 10 + 6 x (3 x 105 + 16))) = 8153, zeroing 6 x 2 x (3 + 5) + 12.
    sizes = {"types": (2, 4), "era": ERA_1_0, "groups": (2, 2, 1)}
    assert hmac(6, 5, kernel=3, channels=(4, 1), **sizes) == 8153 + 108
    # Era 3 has its own 1x1 loop: worker 1 + 14 + 3 x (2 + 13) = 60.
    # 55 + 54 + 90 + 23 + 15 + 3 x (10 + 6 x 76) = 1635. It does not add to zeros.
    sizes = {"types": (2, 4), "era": ERA_3_3}
    assert hmac(1, 13, channels=(6, 1), groups=(1, 1, 3), **sizes) == 1635
    # But where it adds up two groups of channels: 1398 more, and zeroing 6 x 3 x (2 + 5) = 126.
    both = 1635 + 15 + 3 * (10 + 6 * 76) + 126
    assert hmac(1, 13, channels=(6, 1), groups=(1, 2, 3), **sizes) == both
    # Of a convolution that is not pointwise, or with several outputs, the vertex is the plain one:
    # worker 10 + 19 + 3 x (7 + 13) = 89; 65 + 54 + 23 + 15 + 3 x (10 + 6 x 105) = 2077.
    plain = hmac(1, 13, channels=(6, 1), groups=(1, 1, 3), pointwise=0, **sizes)
    assert plain == 2077 + 126
    # Worker 1 + 13 + 3 x (7 + 2 x 13) = 113; 55 + 54 + 90 + 23 + 15 + 10 + 6 x 129 = 1021,
    # zeroing 6 x (3 + 5) = 48.
    assert hmac(1, 13, channels=(6, 2), **sizes) == 1021 + 48


def test_slic_by_hand():
    # Four chains, one group of 4 channels, 30 positions: 5 a worker; weights in 34 cycles.
    # Passes 6 x (17 + 11 + 15) = 258 with zeroing, 6 x (17 + 10 + 15) = 252 without.
    # 28 + (30 + 7) + (3 x 54 + 13) + 2 x (258 + 2 x 252) = 1764.
    assert slic(1, 30, groups=2) == 1764
    # Two chains, half partials, two groups of 2 channels: two data passes and a merge of 26.
    # 25 + (12 + 1) + (125 + 1) + 6 x (19 + 10 + 2 x 15) + 26 = 544.
    assert slic(1, 12, sub_kernels=1, chains=2, grouping=(2, 2)) == 544
    # Eight groups of one channel run in two strides of four.
    # 28 + (23 + 1) + (2 x 270 + 7) + 6 x 45 + 2 x 6 x 44 = 1397.
    assert slic(1, 6, sub_kernels=2, grouping=(8, 1)) == 1397


def test_vmac_by_hand():
    # Era 2, float partials, 12 outputs, 3x3: 6 kernel rows a worker, 19 + 6 x (7 + 5 + 3 + 4).
    # 101 + 2 x (10 + 32 + 24 + 6 x 133 + 9 + 19 x 2 // 4) = 1865.
    assert vmac(12, 12, (3, 3), 2, 1, True, ERA_2_4) == 1865
    # Era 1, 5 outputs share 30 parts of a row: 10 a worker, 6 + 10 x (10 + 5 + 5) = 206.
    # 100 + (9 + 32 + 2 x (24 + 6 x 206) + 10 + 19 // 4) = 2675.
    assert vmac(5, 5, (2, 3), 1, 2, True, ERA_2_0) == 2675


def test_outer_product_cast_and_zeroing_by_hand():
    # Half, 4 channels a group, 13 positions: 6 x (25 + 2 x (10 + 3 x (10 + 10))).
    assert outer_product(13, 2, 4, False) == 990
    # Half, 16 channels a group: the unrolled loop, 6 x (25 + 10 + 3 x (6 + 1)).
    assert outer_product(13, 1, 16, False) == 336
    # Float, 2 channels a group: 6 x (25 + 4 x (11 + 3 x (10 + 4))).
    assert outer_product(13, 4, 2, True) == 1422
    # 100 floats to halves: 17 a worker, in pairs 9 loads against 5 stores: 6 x (9 + 26).
    assert cast_cycles(100, 4, 2) == 210
    assert zero_partials_cycles(100, 2) == 6 * 2 * (9 + 5)


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
    kept = {
        worker_share(n_rows, length, worker) for worker in range(DISTINCT_SHARES[n_rows % WORKERS])
    }
    assert kept == every
    # Of a single row the last worker has the longest share and the first the shortest.
    shares = [sum(worker_share(1, length, worker)) for worker in range(WORKERS)]
    assert (shares[0], shares[-1]) == (min(shares), max(shares))


@given(lengths, number_types, st.sampled_from([8, 16]), eras)
def test_amp_grows_with_positions(length, types, units, era):
    # Below three positions a worker, a later stack's vertex may be slower than at three.
    longer = length + WORKERS
    fast = 3 * WORKERS
    assert amp_1x1(max(length, fast), types=types, units=units, era=era) <= amp_1x1(
        max(longer, fast), types=types, units=units, era=era
    )
    assert amp_nx1(1, length, types=types, era=era) <= amp_nx1(1, longer, types=types, era=era)


@given(rows, lengths, number_types, eras, counts, counts, counts)
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


@given(rows, lengths, number_types, eras)
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


@given(rows, lengths, number_types, eras)
def test_no_vertex_beats_its_multipliers(n_rows, length, types, era):
    positions = n_rows * length
    in_bytes, _ = types
    assert amp_1x1(positions, types=types, era=era) >= 2 * in_bytes * positions
    assert amp_nx1(n_rows, length, types=types, era=era) >= 9 * 2 * in_bytes * positions
    assert hmac(n_rows, length, types=types, era=era) >= in_bytes * positions


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


def vertex_functions():
    """Return the names of all kernels that give cycles."""
    modules = (amp_vertices, conv_vertices, mac_vertices, conv_reduce)
    return {
        name
        for module in modules
        for name, value in vars(module).items()
        if name.endswith("_cycles") and not name.startswith("_") and hasattr(value, "py_func")
    }


@settings(max_examples=40)
@given(rows, lengths, number_types, eras, counts, counts, counts, st.data())
def test_compiled_equals_python(n_rows, length, types, era, groups, ins, outs, data):
    late = max(era, ERA_2_0)
    grouping = data.draw(st.sampled_from([(1, 4), (2, 2), (4, 1), (8, 1), (16, 1)]))
    in_bytes, partial_bytes = types
    vertex = amp(types, 16, era)
    part = part_of(
        groups=(groups, ins, outs),
        kernel_outer=3,
        kernel_elements=9,
        rows=n_rows,
        row_length=length,
        batch=n_rows,
        positions=n_rows * length,
    )
    # As Python a kernel reads fields of records.
    arrays = vertex.view(np.recarray), part.view(np.recarray)
    taps = np.full(3, n_rows), np.full(3, length)
    hmacs = hmac_vertices(np.array([8]), 2, in_bytes, partial_bytes, era)
    slics = slic_vertex(grouping, 8 // partial_bytes, partial_bytes, 2, late)
    calls = [
        (amp_1x1_cycles, (record(vertex), record(part))),
        (amp_nx1_cycles, (record(vertex), record(part))),
        (amp_nx1_window_cycles, (*arrays, *taps)),
        (hmac_cycles, (record(hmacs), record(part), 1)),
        (slic_cycles, (record(slics), record(part), 3)),
        (vmac_cycles, (record(vmac_vertex(4, partial_bytes, late)), record(part), 3)),
        (outer_product_cycles, (record(outer_product_vertex(16, 2, in_bytes == 4)), record(part))),
        (run_cycles, (record(vertex).first, n_rows, length)),
        (cast_cycles, (length, 4, 2)),
        (
            reduce_vertex_cycles,
            (length, ins + 1, in_bytes == 4, partial_bytes == 4, length % 8 == 0),
        ),
        (zero_partials_cycles, (length, groups)),
        (reduce_stages, (length + 1,)),
    ]
    assert {function.__name__ for function, _ in calls} == vertex_functions() | {"reduce_stages"}
    for function, arguments in calls:
        cycles = function(*arguments)
        assert cycles == function.py_func(*arguments), function.__name__
        assert all(
            isinstance(value, int | np.integer)
            for value in (cycles if isinstance(cycles, tuple) else (cycles,))
        )
    # Taps that reach every output are those of the plain vertex.
    whole = amp_nx1_window_cycles(*arrays, *taps)
    assert whole == calls[1][0](*calls[1][1])
    fewer = amp_nx1_window_cycles(*arrays, np.array([n_rows, 1, 1]), np.array([length, 0, 2]))
    assert fewer <= whole or length < 2
