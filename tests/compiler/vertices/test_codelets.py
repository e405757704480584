"""Vertex formulas, against sums worked out by hand from the sources."""

import pytest
from emitting import MK1, MK2, emitter, vector
from hypothesis import given, strategies as st

from ipusim.compiler.eras import ERA_1_0, ERA_2_4
from ipusim.compiler.operators.elementwise_functions import known_functions
from ipusim.compiler.tiles import Runs, Tile
from ipusim.compiler.vertices import elementwise as codelets, tables
from ipusim.compiler.vertices.broadcast import (
    RepeatedVector,
    vector_outer_cycles,
)

ERAS = (ERA_1_0, ERA_2_4)
DTYPES = ("float16", "float32")
EARLY, LATE = (Tile(MK2, era) for era in ERAS)


def scalar_cycles(tile, function, elements, dtype="float16"):
    return codelets.loop_cycles(tile, "BroadcastScalar1D", function, elements, dtype)


# 240 halves are 40 per worker: 10 vectors.
@pytest.mark.parametrize(
    ("function", "in_place", "era", "expected"),
    [
        # UnaryOp1DInPlace: 6 x (55 + 10 x 2) + 9 + 11
        ("relu", True, ERA_2_4, 470),
        # UnaryOp1D: 6 x (17 + 10 x 3) + 9 + 11
        ("relu", False, ERA_2_4, 302),
        # UnaryOp1D, exp: 6 x (33 + 10 x 4) + 9 + 11
        ("exp", False, ERA_2_4, 458),
        # NonLinearitySupervisor: 9 + 6 x (20 + 2 + 1 + 9 x 2 + 1 + 1 + 4)
        ("relu", True, ERA_1_0, 291),
        # UnaryOp1DSupervisor: 6 x (20 + 6 x 43 // 4) + 9 + 200
        ("exp", True, ERA_1_0, 713),
    ],
)
def test_unary_vertices_by_hand(function, in_place, era, expected):
    x = vector(240, tiles=1)
    assert emitter(era, MK1).unary_cycles(function, x, in_place=in_place) == expected


@pytest.mark.parametrize(
    ("function", "dtype", "suffix", "era", "expected"),
    [
        ("add", "float16", "", ERA_2_4, 6 * (26 + 10 * 3) + 11),
        ("add", "float32", "", ERA_2_4, 6 * (29 + 20 * 3) + 11),
        ("mul", "float16", "InPlace", ERA_2_4, 6 * (58 + 10 * 3) + 11),
        ("div", "float16", "", ERA_2_4, 6 * (26 + 10 * 21) + 11),
        ("add", "float16", "InPlace", ERA_1_0, 6 * (13 + 10 * 3) + 200),
        ("max", "float32", "", ERA_1_0, 6 * (22 + 20 * 6) + 200),
    ],
)
def test_binary_vertices_by_hand(function, dtype, suffix, era, expected):
    vertex = "BinaryOp1D" + suffix
    cycles = codelets.loop_cycles(Tile(MK1, era), vertex, function, 240, dtype)
    assert cycles == expected


def test_scalar_broadcast_by_hand():
    assert scalar_cycles(LATE, "add", 240) == 6 * (20 + 10 * 2) + 11
    assert scalar_cycles(EARLY, "variance_to_inv_std_dev", 240) == 6 * (20 + 10 * 11) + 200
    # 241 halves: 41 for the slowest worker, 11 vectors.
    assert scalar_cycles(LATE, "add", 241) == 6 * (20 + 11 * 2) + 11


@pytest.mark.parametrize(
    ("elements", "dtype", "era", "worker"),
    [
        # Two vectors for each worker at the least.
        (12, "float32", ERA_2_4, 23 + 2),
        (3, "float32", ERA_2_4, 23 + 1 + 1),
        (12, "float16", ERA_2_4, 26 + 2),
        (1, "float16", ERA_2_4, 15),
        (2, "float16", ERA_2_4, 21),
        (12, "uint8", ERA_2_4, 28 + 12 // 4),
        (1200, "uint8", ERA_2_4, 39 + 200 // 8),
        (12, "float16", ERA_1_0, 20 + 2),
    ],
)
def test_fills_by_hand(elements, dtype, era, worker):
    assert codelets.fill_cycles(Tile(MK2, era), elements, dtype) == 6 * worker


@pytest.mark.parametrize(
    ("elements", "pair", "era", "expected"),
    [
        # Ten bytes: two atoms and a rest of two.
        (60, ("uint8", "float16"), ERA_2_4, 12 + 6 * (4 + 14 + 9 + 14 + 18)),
        (60, ("uint8", "float16"), ERA_1_0, 6 * (5 + 5)),
        (18, ("float32", "float16"), ERA_1_0, 7 + 6 * (20 + 2 + 2 + 11 + 14)),
        (66, ("float16", "float32"), ERA_1_0, 7 + 6 * (20 + 2 + 26 + 4 + 14)),
        # 40 elements per worker, to halves: vectors of 4, two cycles each, two remainder tests.
        (240, ("float32", "float16"), ERA_2_4, 12 + 6 * (19 + 2 * 10 + 2 + 18)),
        # From halves: vectors of 2 limited by the store, one cycle each, one remainder test.
        (240, ("float16", "float32"), ERA_2_4, 12 + 6 * (19 + 20 + 1 + 18)),
        # CastSupervisor to half: 20 + (1 + 3) + 26 + 2 x 10
        (240, ("float32", "float16"), ERA_1_0, 7 + 6 * 70),
    ],
)
def test_casts_by_hand(elements, pair, era, expected):
    assert codelets.cast_cycles(Tile(MK2, era), elements, *pair) == expected


@pytest.mark.parametrize(
    ("elements", "dtypes", "constrained", "era", "expected"),
    [
        # 60 vectors and three halves: a pair and a single.
        (243, ("float16", "float16"), False, ERA_2_4, 63 + 6 * (15 + 6 + 27 + 4 + 5 + 7 + 6)),
        (242, ("float16", "float16"), False, ERA_2_4, 63 + 6 * (15 + 6 + 27 + 4 + 5 + 7)),
        (241, ("float32", "float32"), False, ERA_2_4, 63 + 6 * (15 + 6 + 57 + 4 + 8)),
        (240, ("float16", "float16"), True, ERA_2_4, 57 + 6 * (15 + 6 + 18 + 4)),
        (240, ("float16", "float32"), False, ERA_2_4, 57 + 6 * (16 + 8 + 36 + 4)),
        (240, ("float16", "float32"), False, ERA_1_0, 231 + 6 * (16 + 16 + 14 + 4)),
        (240, ("float32", "float16"), False, ERA_2_4, 57 + 6 * (15 + 6 + 76 + 4)),
        (240, ("float32", "float16"), False, ERA_1_0, 231 + 6 * (15 + 6 + 57 + 4)),
        # 60 vectors, 10 per worker: 15 + 6 + 9 x 3 + 4; supervisor 27 + 11 + 7 + 12.
        (240, ("float16", "float16"), False, ERA_2_4, 57 + 6 * 52),
        # Without a remainder the early supervisor costs 12 + 200 + 7 + 12.
        (240, ("float16", "float16"), False, ERA_1_0, 231 + 6 * 52),
    ],
)
def test_scaled_adds_of_every_kind(elements, dtypes, constrained, era, expected):
    dtype, addend = dtypes
    cycles = codelets.scaled_add_cycles(
        Tile(MK2, era), elements, dtype, addend, constrained=constrained
    )
    assert cycles == expected


@pytest.mark.parametrize(
    ("era", "runs", "worker"),
    [
        # 2760 elements, 460 for a worker, in two pieces for all but the first and last of them;
        # each piece has its start and two tests for what remains.
        (ERA_2_4, (2760, 552), 5 + 2 * (11 + 19 + 2) + 2 * 115),
        # 240 elements, 40 for a worker, are one piece each.
        (ERA_2_4, (240, 120), 5 + 19 + 2 * 10 + 2),
        (ERA_1_0, (240, 120), 4 + 26 + 2 * 10),
        # The first and last have one piece of 460; of two, in pairs, a vertex is sooner done.
        (ERA_1_0, (2760, 552), 4 + 26 + 2 * 115),
        # 240 elements, 40 for each worker, in two pieces of 20, ten pairs each.
        (ERA_1_0, (240, 20), 5 + 2 * (6 + 10)),
    ],
)
def test_casts_of_runs(era, runs, worker):
    tile = Tile(MK2, era)
    assert codelets.cast_runs_cycles(tile, Runs(*runs), "float32", "float16") == 6 * worker
    whole = codelets.cast_cycles(tile, runs[0], "float32", "float16")
    one = Runs(runs[0], runs[0])
    assert codelets.cast_runs_cycles(tile, one, "float32", "float16") == whole


@pytest.mark.parametrize(
    ("elements", "worker"),
    [(1, 14), (24, 14), (25, 15), (240, 15 + 17 * 5), (241, 15 + 18 * 5)],
)
def test_running_means_by_hand(elements, worker):
    # Up to two pairs for a worker there is no loop; 240 elements are 20 pairs, three of them at
    # the loop's ends; one more takes a pair of its own.
    assert codelets.running_mean_cycles(LATE, elements) == 157 + 6 * (24 + worker)


@pytest.mark.parametrize(
    ("runs", "dtype", "worker"),
    [
        # Five runs of 138 vectors: 115 for a worker, in two pieces for all but the first and last.
        ((2760, 552), "float16", 9 + 2 * (15 + 5) + 2 * 115),
        # One worker has two vectors at least: both runs of 5, each a vector and one more half.
        ((10, 5), "float16", 9 + 2 * (15 + 5 + 2 + 4 + 7)),
        # The first of two has a run of 7, a vector and three halves, and one half of the next.
        ((14, 7), "float16", 9 + (15 + 5 + 2 + 4 + 6 + 7) + (15 + 4 + 7)),
        ((6, 3), "float32", 9 + 2 * (15 + 5 + 2 + 7)),
    ],
)
def test_scaled_adds_of_runs(runs, dtype, worker):
    assert codelets.scaled_add_runs_cycles(LATE, Runs(*runs), dtype) == 6 * worker


def test_a_scaled_add_of_one_run_has_one_vertex_and_early_runs_start_sooner():
    for tile in (EARLY, LATE):
        whole = codelets.scaled_add_cycles(tile, 2760, "float16")
        assert codelets.scaled_add_runs_cycles(tile, Runs(2760, 2760), "float16") == whole
    cycles = 6 * (9 + 2 * (11 + 5) + 2 * 115)
    assert codelets.scaled_add_runs_cycles(EARLY, Runs(2760, 552), "float16") == cycles


def test_dynamic_slice_by_hand():
    # 240 halves over 6 workers: 10 vectors.
    assert codelets.dynamic_slice_cycles(LATE, 240, "float16") == 25 + 6 * (35 + 24 + 20)
    assert codelets.dynamic_slice_cycles(EARLY, 240, "float16") == 214 + 6 * (41 + 27 + 10)
    # 240 bytes over 6 workers: 5 vectors, by the path of single bytes.
    assert codelets.dynamic_slice_cycles(LATE, 240, "uint8") == 25 + 6 * (72 + 70 + 2 * 5)


def test_blocks_are_halved_for_tiles_that_have_none():
    whole = 512 * 256
    # 512 blocks of 16 x 16 on 1,472 tiles: twice as many of 8 x 16, four times as many are more.
    found = codelets.regrouping(whole, 16, 16, "float16", MK2)
    assert found.received == 8 * 16 * 2
    # The 8 that sit together are the columns that the vertex reads.
    assert found.cycles == codelets.transpose_cycles(16, 8, 1, "float16", MK2)
    assert codelets.regrouping(64, 16, 4, "float16", MK2).received == 4 * 4 * 2
    # Enough blocks stay whole, and so does the smallest.
    assert codelets.regrouping(4 * whole, 16, 16, "float16", MK2).received == 2 * 16 * 16 * 2
    assert codelets.regrouping(16, 4, 4, "float16", MK2).received == 4 * 4 * 2


def test_transposes_by_hand():
    # One 4 x 4 block per worker, and 16 x 16 matrices, one per worker.
    assert codelets.transpose_cycles(4, 4, 6, "float16", MK2) == 7 + 6 * (29 - 7)
    assert codelets.transpose_cycles(16, 16, 6, "float16", MK2) == 7 + 6 * (
        29 + 18 + 4 * (12 + 4 * 2) - 7
    )
    assert codelets.transpose_cycles(2, 2, 6, "float32", MK2) == 6 * (27 + 11 + 6)
    # No whole pairs of floats: element by element.
    # From 34 columns of 32 rows on, pairs of float32 lie too far apart for a stride.
    assert codelets.transpose_cycles(32, 32, 6, "float32", MK2) == 6 * (27 + 11 + 16 * (6 + 3 * 15))
    assert codelets.transpose_cycles(32, 34, 6, "float32", MK2) == 6 * (13 + 8 + 34 * (5 + 64))
    assert codelets.transpose_cycles(3, 2, 12, "float32", MK2) == 6 * (13 + 2 * (8 + 2 * (5 + 6)))


AROUND = 13 + 6 * 19
"""Supervisor and six workers around the core of an addition of era 2."""


@pytest.mark.parametrize(
    ("tile", "function", "length", "blocks", "in_place", "expected"),
    [
        # 16 channels, 12 blocks: two per worker. Add: 5 + 2 + 4 + 2 x (15 + 2) + 1 = 46.
        (EARLY, "add", 16, 12, True, 8 + 2 + 6 * (27 + 46)),
        (LATE, "add", 16, 12, True, AROUND + 6 * (2 + 46)),
        # Multiply in place: 5 + 4 + 4 x (7 + 4) = 53; pipelined elsewhere: 9 + 4 + 4 x 11.
        (EARLY, "mul", 16, 12, False, 8 + 2 + 6 * (24 + 53)),
        (LATE, "mul", 16, 12, False, AROUND + 6 * (24 + 2 + 57)),
        # Four but not eight channels, five blocks: 9 + 5 + 3 x (7 + 2 + 1 + 1 + 5) + 1; then two.
        (LATE, "add", 12, 30, True, AROUND + 6 * (2 + 63)),
        (LATE, "add", 12, 12, True, AROUND + 6 * (2 + 9 + 5 + 3 * (7 + 1 + 5) + 1)),
        (LATE, "add", 12, 6, True, AROUND + 6 * (2 + 7 + 6 + 12 * 14)),
        (LATE, "add", 8, 6, True, AROUND + 6 * (2 + 5 + 2 + 3 + 7 + 1)),
        # Longer than the strides reach.
        (LATE, "add", 2056, 12, True, AROUND + 6 * (2 + 3 + 6 + 2056 * (5 + 9 * 2))),
        (LATE, "sub", 8, 6, False, AROUND + 6 + 6 * (3 + 18)),
        (LATE, "mul", 2048, 12, False, AROUND + 6 * (24 + 2 + 7 + 4 + 512 * (7 + 2 * 2))),
        (LATE, "mul", 16, 6, False, AROUND + 6 * (24 + 2 + 9 + 4 + 4 * (7 + 2))),
    ],
)
def test_vector_inner_by_hand(tile, function, length, blocks, in_place, expected):
    cycles = RepeatedVector(tile, function, length, "float16", in_place).cycles(blocks)
    assert cycles == expected


@pytest.mark.parametrize(
    ("dtype", "length", "blocks", "core"),
    [
        # Three blocks to a worker: a pair of floats takes 2 + 3 + 2 x 6 + 3 + 3, an odd one
        # 3 + 2 x 4 + 3 + 3.
        ("float32", 16, 18, 1 + 5 + 3 + 8 * 23 + 1),
        ("float32", 5, 18, 1 + 5 + 2 + 5 * 17 + 1),
        # A pair of halves takes 3 + 6 + 2 x 8 + 4.
        ("float16", 16, 18, 1 + 8 + 8 * 29 + 4 + 1),
        # Five halves: 3 + 6 + 9 + 3 in a block of whole words, 5 + 6 + 1 + 10 + 3 + 6 + 3 in the
        # next, and 2 + 3 + 3 for what is left of the last.
        ("float16", 5, 18, 1 + 8 + 21 + 34 + 21 + 8 + 1),
        ("float16", 5, 12, 1 + 8 + 21 + 34 + 1),
        # Single halves are divided in pairs of blocks.
        ("float16", 1, 6, 1 + 7 + 15 + 1),
        ("float16", 1, 12, 1 + 7 + 10 + 6 + 3 + 1),
        ("float16", 1, 30, 1 + 7 + 10 + 6 + 8 + 3 + 8 + 1),
    ],
)
def test_vector_divisions_by_hand(dtype, length, blocks, core):
    """Poplibs popopsCycleEstimators.cpp, vectorInnerDivCoreCycles and what is around it."""
    start = {"float16": 24, "float32": 19}[dtype]
    for in_place, supervisor in ((True, 16), (False, 18)):
        cycles = RepeatedVector(LATE, "div", length, dtype, in_place).cycles(blocks)
        assert cycles == supervisor + 6 * (start + core)
    region = {"float16": 15, "float32": 9}[dtype]
    for in_place, around in ((True, 9), (False, 10)):
        cycles = RepeatedVector(LATE, "div", length, dtype, in_place).cycles_2d(blocks, 1)
        assert cycles == 6 * (around + region + core)


def test_vectors_of_several_regions_by_hand():
    # 27 blocks in three regions, five to a worker, which may touch two regions:
    # 5 + 2 + 4 + 2 x (15 + 2 x 4) + 1 for the first, 5 + 2 + 3 + 2 x 7 + 1 for the second.
    vector = RepeatedVector(LATE, "add", 16, "float16", True)
    assert vector.cycles_2d(9, 3) == 6 * (7 + 15 + 58 + 15 + 25)
    # Two regions of three blocks, one to a worker, which may not begin a region.
    assert vector.cycles_2d(3, 2) == 6 * (7 + 15 + 25 + 15 + 25)


def test_vector_outer_by_hand():
    # One row of 76 halves: by column 13 for each worker, four vectors.
    assert vector_outer_cycles(LATE, 1, 76, "float16") == 11 + 6 * (15 + 7 + 2 * 4)
    assert vector_outer_cycles(EARLY, 1, 76, "float16") == 200 + 6 * (15 + 7 + 2 * 4)
    # 12 rows of 64 halves: by column, three vectors for each worker, though two rows take less.
    assert vector_outer_cycles(LATE, 12, 64, "float16") == 11 + 6 * (15 + 12 * (7 + 2 * 3))
    # Rows of 66 halves are not whole vectors: 25 a row besides three vectors.
    assert vector_outer_cycles(LATE, 12, 66, "float16") == 11 + 6 * (15 + 12 * (25 + 2 * 3))
    # A row with less than a vector for each worker is one worker's: 23 halves, 11 floats.
    assert vector_outer_cycles(LATE, 12, 20, "float16") == 11 + 6 * (15 + 2 * (7 + 2 * 5))
    assert vector_outer_cycles(LATE, 12, 24, "float16") == 11 + 6 * (15 + 12 * (7 + 2 * 1))
    assert vector_outer_cycles(LATE, 12, 11, "float32") == 11 + 6 * (15 + 2 * (25 + 2 * 6))


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("dtype", DTYPES)
@given(elements=st.integers(1, 5000), more=st.integers(0, 500))
def test_vertices_are_integers_that_grow_with_their_work(era, dtype, elements, more):
    tile, m = Tile(MK1, era), emitter(era, MK1)

    def costs(count):
        x = vector(count, dtype, tiles=1)
        result = [
            m.unary_cycles(f, x, in_place=p)
            for f in known_functions(era)
            for p in (False, True)
            if codelets.vertex_of(f, era) == "UnaryOp1D"
        ]
        result += [
            codelets.loop_cycles(tile, "BinaryOp1DInPlace", f, count, dtype)
            for f in known_functions(era)
            if codelets.vertex_of(f, era) == "BinaryOp1D"
        ]
        scalar = tables.LOOPS["BroadcastScalar1D"][era]
        result += [scalar_cycles(tile, f, count, dtype) for f in scalar]
        result.append(codelets.dynamic_slice_cycles(tile, count, dtype))
        return result

    # A whole number of vectors per worker, so that remainders do not cost more than a vector.
    grain = MK1.workers * 4
    small, large = costs(elements * grain), costs((elements + more) * grain)
    assert all(isinstance(value, int) and value > 0 for value in small)
    assert all(a <= b for a, b in zip(small, large, strict=True))
    assert small == costs(elements * grain)


@given(
    blocks=st.integers(1, 600),
    groups=st.integers(1, 4),
    era=st.sampled_from(ERAS),
    function=st.sampled_from(("add", "sub", "mul")),
    in_place=st.booleans(),
)
def test_vector_inner_grows_with_blocks(blocks, groups, era, function, in_place):
    vector = RepeatedVector(Tile(MK2, era), function, 8 * groups, "float16", in_place)
    assert vector.cycles(blocks + 12) >= vector.cycles(blocks)
    assert vector.cycles_2d(blocks, 2) >= 6 * 2


def test_a_worker_of_a_2d_vertex_takes_two_vectors_at_least():
    """Regions are shared out in pieces of two vectors: 2 to 12 of 4 halves take as long."""
    cycles = [
        codelets.loop_cycles(LATE, "BinaryOp2D", "add", 4 * vectors, "float16")
        for vectors in (1, 2, 3, 12, 13)
    ]
    assert cycles[0] < cycles[1] == cycles[2] == cycles[3] < cycles[4]
