"""Vertex formulas and elementwise supersteps, against sums worked out by hand from the sources."""

import pytest
from emitting import MK1, MK2, emitted, emitter, vector
from hypothesis import given, strategies as st

from ipusim.compiler.emitter import Emitter, Placed, TensorLayout
from ipusim.compiler.tiles import (
    codelet_version,
    copy_cycles,
    largest_part,
    linear_share,
    split_sizes,
)
from ipusim.compiler.vertices import elementwise as codelets, tables
from ipusim.compiler.vertices.broadcast import (
    vector_inner_2d_cycles,
    vector_inner_cycles,
    vector_outer_cycles,
)
from ipusim.errors import ConfigError, UnknownNameError

ERAS = ("2020-01", "2021-11")
DTYPES = ("float16", "float32")


# 240 halves are 40 per worker: 10 vectors.
@pytest.mark.parametrize(
    ("function", "in_place", "era", "expected"),
    [
        # UnaryOp1DInPlace: 6 x (55 + 10 x 2) + 9 + 11
        ("relu", True, "2021-11", 470),
        # UnaryOp1D: 6 x (17 + 10 x 3) + 9 + 11
        ("relu", False, "2021-11", 302),
        # UnaryOp1D, exp: 6 x (33 + 10 x 4) + 9 + 11
        ("exp", False, "2021-11", 458),
        # NonLinearitySupervisor: 9 + 6 x (20 + 2 + 1 + 9 x 2 + 1 + 1 + 4)
        ("relu", True, "2020-01", 291),
        # UnaryOp1DSupervisor: 6 x (20 + 6 x 43 // 4) + 9 + 200
        ("exp", True, "2020-01", 713),
    ],
)
def test_unary_vertices_by_hand(function, in_place, era, expected):
    cycles = codelets.unary_cycles(function, 240, "float16", MK1, in_place=in_place, version=era)
    assert cycles == expected


@pytest.mark.parametrize(
    ("function", "dtype", "in_place", "era", "expected"),
    [
        ("add", "float16", False, "2021-11", 6 * (26 + 10 * 3) + 11),
        ("add", "float32", False, "2021-11", 6 * (29 + 20 * 3) + 11),
        ("multiply", "float16", True, "2021-11", 6 * (58 + 10 * 3) + 11),
        ("div", "float16", False, "2021-11", 6 * (26 + 10 * 21) + 11),
        ("add", "float16", True, "2020-01", 6 * (13 + 10 * 3) + 200),
        ("max", "float32", False, "2020-01", 6 * (22 + 20 * 6) + 200),
    ],
)
def test_binary_vertices_by_hand(function, dtype, in_place, era, expected):
    cycles = codelets.binary_cycles(function, 240, dtype, MK1, in_place=in_place, version=era)
    assert cycles == expected


def test_scalar_broadcast_by_hand():
    assert (
        codelets.scalar_broadcast_cycles("add", 240, "float16", MK1, version="2021-11")
        == 6 * (20 + 10 * 2) + 11
    )
    assert (
        codelets.scalar_broadcast_cycles(
            "variance_to_inv_std_dev", 240, "float16", MK1, version="2020-01"
        )
        == 6 * (20 + 10 * 11) + 200
    )


def test_casts_by_hand():
    # 40 elements per worker, f32 -> f16: vectors of 4, two cycles each, two remainder tests.
    worker = 19 + 2 * 10 + 2
    assert codelets.cast_cycles(240, "float32", "float16", MK2, version="2021-11") == 12 + 6 * (
        worker + 18
    )
    # f16 -> f32: vectors of 2 limited by the store, one cycle each, one remainder test.
    worker = 19 + 20 + 1
    assert codelets.cast_cycles(240, "float16", "float32", MK2, version="2021-11") == 12 + 6 * (
        worker + 18
    )
    # CastSupervisor to half: 20 + (1 + 3) + 26 + 2 x 10
    assert codelets.cast_cycles(240, "float32", "float16", MK1, version="2020-01") == 7 + 6 * 70


def test_scaled_add_by_hand():
    # 60 vectors, 10 per worker: 15 + 6 + 9 x 3 + 4; supervisor 27 + 11 + 7 + 12.
    assert codelets.scaled_add_cycles(240, "float16", MK2, version="2021-11") == 57 + 6 * 52
    # Without a remainder the early supervisor costs 12 + 200 + 7 + 12.
    assert codelets.scaled_add_cycles(240, "float16", MK1, version="2020-01") == 231 + 6 * 52


def test_dynamic_slice_by_hand():
    # 240 halves over 6 workers: 10 vectors; two slices.
    assert codelets.dynamic_slice_cycles(240, 2, "float16", MK2, version="2021-11") == 25 + 6 * (
        35 + (24 + 20) * 2
    )
    assert codelets.dynamic_slice_cycles(240, 2, "float16", MK1, version="2020-01") == 214 + 6 * (
        41 + (27 + 10) * 2
    )


def test_transposes_by_hand():
    # One 4 x 4 block per worker, and 16 x 16 matrices, one per worker.
    assert codelets.transpose_cycles(4, 4, 6, "float16", MK2) == 7 + 6 * (29 - 7)
    assert codelets.transpose_cycles(16, 16, 6, "float16", MK2) == 7 + 6 * (
        29 + 18 + 4 * (12 + 4 * 2) - 7
    )
    assert codelets.transpose_cycles(2, 2, 6, "float32", MK2) == 6 * (27 + 11 + 6)


def test_gather_moves_four_bytes_in_two_cycles():
    assert codelets.gather_cycles(6, 64, "float16", MK2, version="2021-11") == 6 * (
        19 + 19 + 32 * 2
    )


def test_vector_inner_by_hand():
    # 16 channels, 12 blocks: two per worker. Add: 5 + 2 + 4 + 2 x (15 + 2) + 1 = 46.
    assert vector_inner_cycles(
        "add", 16, 12, MK1, in_place=True, version="2020-01"
    ) == 8 + 2 + 6 * (27 + 46)
    assert vector_inner_cycles("add", 16, 12, MK2, in_place=True, version="2021-11") == 13 + 6 * (
        19 + 2 + 46
    )
    # Multiply in place: 5 + 4 + 4 x (7 + 4) = 53; pipelined into another tensor: 9 + 4 + 4 x 11.
    assert vector_inner_cycles(
        "mul", 16, 12, MK1, in_place=False, version="2020-01"
    ) == 8 + 2 + 6 * (24 + 53)
    assert vector_inner_cycles("mul", 16, 12, MK2, in_place=False, version="2021-11") == 13 + 6 * (
        19 + 24 + 2 + 57
    )


def test_vector_outer_by_hand():
    # 12 rows of 64 halves, two per worker: 15 + 2 x (7 + 2 x 16); by column: 12 x (7 + 2 x 3).
    assert vector_outer_cycles(12, 64, 4, MK2, version="2021-11") == 11 + 6 * (15 + 78)


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("dtype", DTYPES)
@given(elements=st.integers(1, 5000), more=st.integers(0, 500))
def test_vertices_are_integers_that_grow_with_their_work(era, dtype, elements, more):
    def costs(count):
        result = [
            codelets.unary_cycles(f, count, dtype, MK1, in_place=p, version=era)
            for f in codelets.unary_functions(era)
            for p in (False, True)
        ]
        result += [
            codelets.binary_cycles(f, count, dtype, MK1, in_place=True, version=era)
            for f in codelets.binary_functions(era)
        ]
        result += [
            codelets.scalar_broadcast_cycles(f, count, dtype, MK1, version=era)
            for f in tables.SCALAR_BROADCAST[era]
        ]
        result.append(codelets.dynamic_slice_cycles(count, 2, dtype, MK1, version=era))
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
    length = 8 * groups

    def cost(count):
        return vector_inner_cycles(function, length, count, MK2, in_place=in_place, version=era)

    assert cost(blocks + 12) >= cost(blocks)
    two_regions = vector_inner_2d_cycles(
        function, length, blocks, 2, MK2, in_place=in_place, version=era
    )
    assert two_regions >= 6 * 2


@given(
    total=st.integers(1, 100_000),
    grain=st.integers(1, 64),
    parts=st.integers(1, 1472),
    least=st.integers(1, 256),
)
def test_split_covers_everything_in_whole_grains(total, grain, parts, least):
    sizes = split_sizes(total, grain, parts, least)
    assert sum(sizes) == total
    assert len(sizes) <= parts
    assert all(size % grain == 0 for size in sizes[:-1])
    assert max(sizes) - min(sizes[:-1] or sizes) <= grain
    share = largest_part(total, grain, parts, least)
    assert (share.tiles, share.elements) == (len(sizes), max(sizes))


def test_linear_mapping_keeps_128_bytes_per_tile():
    share = linear_share(1000, "float16", MK1)
    # 250 vectors in parts of at least 16 vectors: 15 parts of up to 17 vectors.
    assert (share.tiles, share.elements) == (15, 68)
    assert linear_share(1216 * 400, "float16", MK1).elements == 400


def test_copies_run_at_the_copy_rate_and_rearrangements_slower():
    assert copy_cycles(800, MK1) == 100
    assert copy_cycles(800, MK1, atom_bytes=32) == 125
    assert copy_cycles(800, MK1, atom_bytes=2) == 500


def test_superstep_totals():
    m = emitter(chip=MK1)
    m.superstep_cycles = 450
    m.emit("x", "v", 100, exchange=10, copy=7)
    assert m.steps[0].exchange_cycles == 3
    assert m.steps[0].cycles == 560


def test_steps_of_a_loop_repeat_and_hold():
    m = emitter()
    with m.loop(5, tiles=7), m.holding(100):
        m.copy("inside", 40, temp=8)
    m.copy("after", 40)
    inside, after = m.steps
    assert (inside.repeats, inside.tiles, inside.temp_bytes) == (5, 7, 108)
    assert (after.repeats, after.tiles, after.temp_bytes) == (1, 0, 0)
    assert inside.cycles == 5 * after.cycles


IMAGE = (4, 56, 56, 256)


def bias_add(dtype):
    (step,) = emitted(Emitter.by_channel, "add", Placed(IMAGE, dtype), 256, in_place=True, chip=MK1)
    return step


def test_bias_add_uses_the_vector_inner_vertex():
    step = bias_add("float16")
    assert step.vertex == "popops::BroadcastVectorInner1DInPlace"
    assert step.exchange_bytes == 32
    # 2,640 halves per tile are 165 blocks of 16 channels, 28 per worker.
    assert step.compute_cycles == 13 + 6 * (19 + 2 + 5 + 2 + 4 + 2 * (15 + 54) + 1)


def test_float_bias_is_written_out_first():
    step = bias_add("float32")
    assert step.vertex == "popops::BinaryOp1DInPlace"
    assert step.copy_cycles > 0
    assert step.temp_bytes > 0


def unary(function, elements, dtype="float16", era="2021-11", **options):
    (step,) = emitted(
        Emitter.unary, function, vector(elements, dtype), codelets=era, chip=MK1, **options
    )
    return step


def test_early_relu_into_another_tensor_copies_first():
    elsewhere = unary("relu", 121600, era="2020-01")
    here = unary("relu", 121600, era="2020-01", in_place=True)
    assert here.vertex == "popnn::NonLinearitySupervisor"
    assert elsewhere.copy_cycles == 100 * 2 // 8
    assert here.copy_cycles == 0
    assert elsewhere.compute_cycles == here.compute_cycles


def addition(era="2021-11", **options):
    """Two activations of 100 halves a tile, added in place."""
    (step,) = emitted(
        Emitter.binary, "add", vector(121600), in_place=True, chip=MK1, codelets=era, **options
    )
    return step


def test_an_operand_from_other_tiles_is_received():
    assert addition(exchanged=True).exchange_bytes == 200
    assert addition().exchange_bytes == 0


def test_estimators_of_another_version_can_be_chosen():
    early, mixed, late = map(addition, ("2020-01", "2020-01+2021-11", "2021-11"))
    assert mixed.compute_cycles == late.compute_cycles != early.compute_cycles
    assert codelet_version("2020-01").estimator == "2020-01"


def test_casts_and_moves():
    assert emitted(Emitter.cast, vector(1000), "float16") == []
    assert emitted(Emitter.cast, vector(1000, "float32"), "float16")[0].exchange_bytes == 0
    assert emitted(Emitter.fill, vector(100_000))[0].compute_cycles > 0
    moved = []
    for before, after in ((16, 16), (16, 8), (1, 16)):
        x = Placed((121600,), "float16", TensorLayout(grouping=after))
        moved += emitted(Emitter.rearrange, x, before, chip=MK1)
    move, regroup, slow = moved
    assert (move.compute_cycles, move.exchange_bytes) == (0, 200)
    assert regroup.vertex == "popops::Transpose1D"
    assert slow.copy_cycles == 125
    (update,) = emitted(Emitter.scaled_add, vector(121600), chip=MK1)
    assert update.exchange_bytes == 0


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda: unary("rellu", 100),
            UnknownNameError,
            "did you mean 'relu'",
        ),
        (
            lambda: emitter("2019-07"),
            UnknownNameError,
            "2020-01",
        ),
        (
            lambda: unary("relu", 0),
            ConfigError,
            "at least 1",
        ),
        (
            lambda: unary("relu", 100, "float8"),
            UnknownNameError,
            "float8",
        ),
        (
            lambda: emitted(Emitter.by_channel, "add", vector(100), 7),
            ConfigError,
            "do not divide",
        ),
        (
            lambda: emitted(Emitter.fill, vector(100, tiles=2000), chip=MK1),
            ConfigError,
            "1216",
        ),
        (lambda: codelets.transpose_cycles(0, 4, 1, "float16", MK1), ConfigError, "at least 1"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(call, error, words):
    with pytest.raises(error, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_a_worker_of_a_2d_vertex_takes_two_vectors_at_least():
    """Regions are shared out in pieces of two vectors: 2 to 12 of 4 halves take as long."""
    cycles = [
        codelets.regions_cycles(
            "add", 4 * vectors, "float16", MK1, in_place=False, generation="2021-11"
        )
        for vectors in (1, 2, 3, 12, 13)
    ]
    assert cycles[0] < cycles[1] == cycles[2] == cycles[3] < cycles[4]
