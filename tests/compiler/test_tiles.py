"""How data is spread over tiles, and what copies within one cost."""

from emitting import MK1
from hypothesis import given, strategies as st

from ipusim.compiler.tiles import (
    Runs,
    copy_cycles,
    largest_part,
    piece_copy_cycles,
    rearranged_copy_cycles,
    split_sizes,
    tile_share,
)


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
    assert largest_part(total, grain, parts, least) == max(sizes)


@given(elements=st.integers(1, 5000), length=st.integers(1, 5000), grain=st.sampled_from((1, 2, 4)))
def test_workers_share_all_runs(elements, length, grain):
    pieces = Runs(elements, length).dealt(grain, 6)
    assert tuple(map(sum, pieces)) == split_sizes(elements, grain, 6, 2 * grain)
    # Where one piece ends within a run, the next goes on in it.
    ends, at = set(), 0
    for piece in (piece for worker in pieces for piece in worker):
        assert at // length == (at + piece - 1) // length
        ends.add(at := at + piece)
    assert set(range(length, elements, length)) <= ends


def test_workers_get_pieces_of_the_runs_of_poplibs_example():
    # Util.cpp explains 11 grains of 42 elements, of which two at least make a part: 3, 3, 3 and 2;
    # its loop gives the larger parts to the last.
    assert Runs(42, 10).dealt(4, 8) == [[8], [2, 10], [10, 2], [8, 2]]


def test_linear_mapping_keeps_128_bytes_per_tile():
    # 250 vectors in parts of at least 16 vectors: 15 parts of up to 17 vectors.
    assert tile_share(1000, "float16", MK1) == 68
    assert tile_share(1216 * 400, "float16", MK1) == 400


def test_copies_run_at_the_copy_rate_and_rearrangements_slower():
    assert copy_cycles(800, MK1) == 100
    assert copy_cycles(800, MK1, atom_bytes=32) == 125
    assert copy_cycles(800, MK1, atom_bytes=2) == 500
    # With an exchange at 4 bytes a cycle: 5.15, 3.13 and 0.44 cycles per byte.
    for piece, cycles in ((2, 4118), (4, 2500), (8, 352), (32, 352)):
        assert 200 + rearranged_copy_cycles(800, piece, MK1) == cycles
    # However long, a piece takes as long as one of 4 bytes.
    assert piece_copy_cycles(200, MK1) == 2500 - 200
