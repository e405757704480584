"""Reduction: vertices by hand, stages (IPUModel rows: test_fidelity_pooling)."""

from dataclasses import replace

import numpy as np
import pytest
from emitting import MK1, MK2, emitted
from hypothesis import given, settings, strategies as st

from ipusim.compiler.emitter import Emitter, Placed
from ipusim.compiler.eras import ERA_1_0, ERA_2_0, ERA_2_4
from ipusim.compiler.reduction import Stage, together
from ipusim.compiler.reduction_layout import collapse, examine_layout
from ipusim.compiler.tiles import Tile
from ipusim.compiler.vertices.reduce import (
    ReduceVertex,
    Region,
    compute_set_cycles,
)
from ipusim.errors import ConfigError

TILE = Tile(MK1, ERA_2_4)
HALF_TO_FLOAT = ReduceVertex(TILE, "float16", "float32", "float32")
FLOAT = ReduceVertex(TILE, "float32", "float32", "float32")


def reduce_steps(shape, dims, dtype="float16", chip=MK1, era=ERA_2_4, function="add"):
    return emitted(Emitter.reduce, function, Placed(shape, dtype), *dims, chip=chip, era=era)


@pytest.mark.parametrize(
    ("inputs", "output", "accumulates", "era", "fixed", "loop"),
    [
        ("float16", "float32", True, ERA_2_0, 7 + 17, 6),
        ("float32", "float32", True, ERA_1_0, 7 + 17, 6),
        ("float16", "float32", False, ERA_2_0, 7 + 17, 6),
        # Entry, set-up, and of each loop its set-up, completion and store less the first load.
        ("float16", "float16", True, ERA_2_4, 5 + 11, 3 + 1 + 7 + 3 - 1),
        ("float16", "float32", True, ERA_2_4, 5 + 11, 3 + 1 + 6 + 3 - 1),
        ("float16", "float32", False, ERA_2_4, 5 + 11, 3 + 1 + 7 + 3 - 1),
        ("float32", "float32", True, ERA_2_4, 5 + 11, 3 + 3 + 2 + 3 - 1),
        ("float32", "float16", False, ERA_2_4, 5 + 11, 3 + 2 + 2 + 3 - 1),
    ],
)
def test_strided_vertex_by_hand(inputs, output, accumulates, era, fixed, loop):
    vertex = ReduceVertex(Tile(MK1, era), inputs, output, output, accumulates=accumulates)
    # Two columns of vectors, whether or not anything is accumulated, of 32 rows.
    assert vertex.strided(2 * vertex.path, 32) == fixed + 2 * (loop + 32)


def test_continuous_vertex_by_hand():
    # Two outputs of 49 halves: 12 whole vectors each, an odd element, 12 per output.
    assert HALF_TO_FLOAT.continuous(2, 49) == 2 * 12 + 2 + 24 + 17


def test_general_vertex_by_hand():
    # Two halves in one piece of 3 rows: remainder path of width 2 only.
    store = 2 * 2 + 1
    expected = 7 + 26 + 16 + 6 + 6 + 2 + (4 + store + 10) + 3 * (2 + 1 + 3)
    assert HALF_TO_FLOAT.default(2, 1, 3) == expected
    # The early one: 16 + 5 + 6 + 2 per region, 8 set-up, 11 + 8 x 3 for the piece.
    assert HALF_TO_FLOAT.early_default(2, 1, 3) == 7 + 26 + 29 + 8 + 11 + 24
    # Four floats are one vector: 22 set-up of the loop, 7 for each of 3 rows.
    assert FLOAT.early_default(4, 1, 3) == 7 + 26 + 29 + 22 + 11 + 7 * 3


def test_columns_are_shared_by_six_workers():
    # 48 columns in grains of 8: one grain per worker, one compute set.
    ((vertices,), between) = HALF_TO_FLOAT.tile_vertices([Region(48, 1, 10)])
    assert between == 0
    assert vertices == [HALF_TO_FLOAT.strided(8, 10)] * 6
    assert compute_set_cycles(vertices, MK1.workers) == 6 * vertices[0]


def test_columns_stay_whole_where_other_regions_fill_the_workers():
    regions = [Region(4, 2, 1)] * 6 + [Region(16, 1, 4)]
    ((vertices,), _) = HALF_TO_FLOAT.tile_vertices(regions)
    assert len(vertices) == len(regions)


def test_whole_rows_take_the_workers_that_parts_of_rows_leave():
    """Ten rows of 64 halves between parts of two others: four workers share the rows."""
    regions = [Region(1, 20, 1), Region(10, 64, 1), Region(1, 44, 1)]
    ((vertices,), _) = HALF_TO_FLOAT.tile_vertices(regions)
    rows = [HALF_TO_FLOAT.continuous(count, 64) for count in (3, 3, 2, 2)]
    assert vertices == [*rows, *(HALF_TO_FLOAT.continuous(1, count) for count in (20, 44))]


@pytest.mark.parametrize(
    ("outputs", "shares"),
    [(3, [1, 1, 1]), (7, [2, 2, 2, 1]), (9, [2, 2, 2, 2, 1]), (13, [3] + [2] * 5)],
)
def test_single_outputs_come_in_pairs_where_a_worker_has_two(outputs, shares):
    ((vertices,), _) = HALF_TO_FLOAT.tile_vertices([Region(outputs, 64, 1)])
    assert vertices == [HALF_TO_FLOAT.continuous(count, 64) for count in shares]


@pytest.mark.parametrize(
    ("columns", "inner", "parts"),
    # Parts are equal and of whole vectors of four halves: 9 columns of 2 are cut nowhere.
    [(8, 4, 4), (10, 4, 5), (9, 4, 3), (7, 4, 1), (9, 2, 1), (6, 2, 3)],
)
def test_columns_that_are_reduced_in_two_steps_are_cut_evenly(columns, inner, parts):
    (first, second), between = HALF_TO_FLOAT.tile_vertices([Region(columns, inner, 3)])
    each = columns // parts
    assert first == parts * [HALF_TO_FLOAT.region(Region(each * inner, 1, 3))]
    assert second == parts * [FLOAT.continuous(each, inner)]
    assert between == columns * inner * 4


@pytest.mark.parametrize(
    ("vertex", "columns", "rows", "together", "shares"),
    [
        # 16 rows of four halves are too few for six workers, 100 of twelve are not.
        (HALF_TO_FLOAT, 2, 32, 2, [16]),
        (HALF_TO_FLOAT, 3, 400, 4, [16] * 5 + [20]),
        (FLOAT, 3, 8, 2, [4]),
    ],
)
def test_columns_that_fill_no_vector_are_taken_several_rows_at_once(
    vertex, columns, rows, together, shares
):
    (first, second), between = vertex.tile_vertices([Region(columns, 1, rows)])
    assert first == [vertex.strided(columns * together, share) for share in shares]
    assert second == columns * [FLOAT.continuous(1, together * len(shares))]
    assert between == len(shares) * columns * together * 4


@pytest.mark.parametrize("region", [Region(2, 1, 31), Region(2, 1, 2), Region(3, 1, 6)])
def test_rows_that_fill_no_vectors_take_the_general_vertex(region):
    ((vertices,), _) = HALF_TO_FLOAT.tile_vertices([region])
    assert vertices == [HALF_TO_FLOAT.default(region.columns, 1, region.outer)]


def test_few_columns_are_shared_by_rows_in_two_compute_sets():
    (first, second), between = HALF_TO_FLOAT.tile_vertices([Region(8, 1, 32)])
    assert max(first) == HALF_TO_FLOAT.strided(8, 6)
    assert second == [FLOAT.strided(8, 6)]
    assert between == 6 * 8 * 4


def test_a_single_sum_counts_as_whole_vectors():
    """200 floats into a half: 30 + 200 / 8 cycles are fewer than those of two steps."""
    vertex = ReduceVertex(TILE, "float32", "float16", "float32")
    assert vertex.tile_vertices([Region(1, 200, 1)]).sets == ([vertex.continuous(1, 200)],)
    assert len(vertex.tile_vertices([Region(1, 500, 1)]).sets) == 2


def test_reductions_at_once_share_the_workers():
    few = Stage("few", "popops::Reduce", 6 * 50, 8, 16, (50, 40), 1600)
    many = Stage("many", "popops::Reduce", 6 * 90, 4, 2, (90,) * 6)
    assert together([few, few], MK1) == Stage(
        "few", "popops::Reduce", 6 * 50, 16, 32, (50, 40, 50, 40), 2 * 1600
    )
    assert together([many, many], MK1).cycles == 6 * 180
    # The two of few start on the first workers that are free: after vertices of many.
    assert together([many, few], MK1).cycles == 6 * 140
    cast = Stage("cast result", "popops::Cast", 100)
    assert together([few, cast], MK1)[2:5] == (6 * 50 + 100, 8, 16)


def test_partials_are_counted_on_the_tiles_that_hold_them():
    """1,024 tiles sum 4 rows of 8 columns of 4 halves each; 16 of them receive all of an output."""
    chip = replace(MK1, tiles=1024)
    on_tile, combined, last = reduce_steps((16, 256, 8, 4), (1, 3), chip=chip)
    own = 8 * 4
    for step in (on_tile, combined):
        # Four partials of each of 8 columns until they are combined.
        assert (step.temp_bytes, step.chip_temp_bytes) == (5 * own, 1024 * 5 * own)
    # 128 sums, 8 to a tile, each of 64 partials.
    assert last.temp_bytes == own + 64 * own
    assert last.chip_temp_bytes == 1024 * own + 16 * 64 * own


def test_partials_of_a_stage_stay_until_the_next_has_run():
    *_, between, last = reduce_steps((100_000, 16), (0,), chip=MK2)
    sources = last.exchange_bytes // (8 * 4)
    # Two tiles gather 8 sums each from the tiles of the stage before, whose partials are of 4.
    assert last.temp_bytes == last.exchange_bytes + 4 * 4
    assert last.chip_temp_bytes == 2 * last.exchange_bytes + 16 * sources * 4
    assert between.temp_bytes > between.exchange_bytes + 4 * 4


def test_layout_of_a_linear_mapping():
    levels = collapse((16, 4, 16, 32, 8), (1, 3))
    assert [level.size for level in levels] == [16, 4, 16, 32, 8]
    assert [level.reduced for level in levels] == [False, True, False, True, False]
    layout = examine_layout(levels, 256, 1024, 4)
    assert layout.patterns == ((Region(8, 1, 32),),)
    assert (layout.spread, layout.columns_per_tile, layout.partial_elements) == (4, 8, 8192)
    assert collapse((2, 3, 1, 5), (1, 2, 3)) == ((2, False, 15, 1), (15, True, 1, 1))


def test_outputs_of_several_outer_indices_are_no_neighbours():
    # Tiles hold two blocks of 10 rows of 4 columns, or runs of 10 in order of their outputs.
    levels = collapse((8, 10, 4), (1,))
    assert examine_layout(levels, 80, 4, 4).patterns == (2 * (Region(4, 1, 10),),)
    levels = collapse((8, 4, 10), (2,))
    assert examine_layout(levels, 80, 4, 4).patterns == ((Region(8, 10, 1),),)
    # A tile that begins within a block has less of its first and of its last.
    pattern = (Region(4, 1, 5), Region(4, 1, 10), Region(4, 1, 5))
    assert pattern in examine_layout(collapse((7, 10, 4), (1,)), 80, 4, 20).patterns


@given(
    sizes=st.lists(st.integers(2, 7), min_size=2, max_size=4),
    first=st.booleans(),
    grain=st.sampled_from((1, 2, 4)),
    tiles=st.integers(1, 100),
)
def test_a_layout_counts_what_lies_on_every_tile(sizes, first, grain, tiles):
    reduced = tuple(first ^ bool(dim % 2) for dim in range(len(sizes)))
    grains = -(-np.prod(sizes) // grain)
    share = int(-(-grains // tiles) * grain)
    tiles = min(tiles, int(grains))
    kept = np.where(reduced, 1, sizes)
    columns = np.broadcast_to(np.arange(kept.prod()).reshape(kept), sizes).ravel()
    levels = collapse(sizes, np.flatnonzero(reduced))
    layout = examine_layout(levels, share, tiles, grain)
    edges = [tile * int(grains) // tiles * grain for tile in range(1, tiles)]
    held = [np.unique(part, return_counts=True)[1] for part in np.split(columns, edges)]
    assert layout.partial_elements == sum(map(len, held))
    assert layout.columns_per_tile == max(map(len, held))
    alike = ([(one.rows, one.columns) for one in pattern] for pattern in layout.patterns)
    found = {tuple(np.repeat(*np.transpose(regions)).tolist()) for regions in alike}
    assert found == {tuple(rows.tolist()) for rows in held}
    places = np.arange(columns.size) // share
    assert layout.spread == max(len(set(places[columns == one])) for one in range(kept.prod()))


def test_local_reduction_needs_no_exchange():
    # One row of 64 halves per tile.
    steps = reduce_steps((1216, 64), (1,), function="max")
    assert sum(step.exchange_bytes for step in steps) == 0


def test_partials_on_several_tiles_are_gathered():
    steps = reduce_steps((16, 4, 49, 16), (2,))
    assert [step.name for step in steps][-1] == "reduce to output"
    # 1,024 sums in runs of four vectors of two: 8 to a tile, each from 13 tiles.
    assert steps[-1].exchange_bytes == 8 * 13 * 4


@pytest.mark.parametrize(("dtype", "share"), [("float16", 16), ("float32", 8)])
def test_outputs_are_laid_out_by_what_arrives(dtype, share):
    """No tile has two partials of an output: they are gathered as they are, in four vectors."""
    (step,) = reduce_steps((4, 1024), (0,), dtype=dtype)
    size = 2 if dtype == "float16" else 4
    assert step.exchange_bytes == share * 4 * size
    assert step.chip_temp_bytes == 1024 // share * step.temp_bytes


def test_much_data_takes_an_intermediate_stage():
    steps = reduce_steps((100_000, 16), (0,), chip=MK2)
    names = ["reduce on tile", "reduce on tile, combine workers"]
    assert [step.name for step in steps] == [
        *names,
        *2 * ["reduce between tiles"],
        "reduce to output",
    ]
    # 1,471 tiles hold all columns; 4 of them go together, in 1,471 x 4 / 64 = 91 pieces of 17 rows,
    # then what is left of 87 in 87 x 4 / 64 = 5 pieces of 18; 8 of the sums end on a tile.
    received = [step.exchange_bytes for step in steps[2:]]
    assert received == [17 * 4 * 4, 18 * 4 * 4, 5 * 8 * 4]


def test_the_first_era_casts_the_result():
    early = reduce_steps((16, 4, 49, 16), (2,), era=ERA_1_0)
    late = reduce_steps((16, 4, 49, 16), (2,))
    assert early[-1].vertex == "popops::Cast"
    assert len(early) == len(late) + 1


def test_nothing_to_reduce():
    assert reduce_steps((16, 1, 4), (1,)) == []


@settings(max_examples=40)
@given(
    outer=st.integers(1, 300),
    reduced=st.integers(2, 300),
    inner=st.sampled_from((1, 4, 16, 64)),
    function=st.sampled_from(("add", "square_add", "max")),
    era=st.sampled_from((ERA_1_0, ERA_2_4)),
    dtype=st.sampled_from(("float16", "float32")),
)
def test_any_reduction_has_integer_steps_and_is_deterministic(
    outer, reduced, inner, function, era, dtype
):
    def run():
        return reduce_steps((outer, reduced, inner), (1,), dtype, MK2, era=era, function=function)

    steps = run()
    assert 1 <= len(steps) <= 9
    for step in steps:
        assert isinstance(step.compute_cycles, int)
        assert step.compute_cycles > 0
        assert step.exchange_bytes >= 0
    assert steps == run()


@given(columns=st.integers(1, 30), rows=st.integers(2, 400), more=st.integers(1, 50))
def test_vertices_grow_with_rows(columns, rows, more):
    for cost in (HALF_TO_FLOAT.strided, lambda c, r: HALF_TO_FLOAT.default(c, 1, r)):
        assert cost(4 * columns, 4 * rows) <= cost(4 * columns, 4 * (rows + more))


def test_an_empty_input_is_refused():
    with pytest.raises(ConfigError, match="at least 1"):
        reduce_steps((4, 0), (1,))
