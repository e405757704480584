"""Lookups in a table of rows, the addition of gradients into it, and how both are split over tiles.

Sources: poplibs lib/popops/DynamicSlice.cpp (multiSlicePlanned, generatePlannedMultiUpdateOp) and
lib/popops/PerformanceEstimation.cpp, tags sdk/poplar/2.0.0 and sdk/poplar/2.4.0. Indices are taken
to be spread evenly over the table, as the planner takes them; IPUModel instead charges every index
as if one worker of each tile found it (``hottest`` 1).

Elements of a row, rows of the table and indices can each be split (embedding::plan). Up to tag
sdk/poplar/2.0.0 the plan that needs least memory wins, bytes that stay counting tenfold; at tag
sdk/poplar/2.4.0 the one that takes the fewest cycles, with a fee for tables that are not spread
evenly. All splits are weighed at once, as numpy arrays. Several tables of one size with indices of
their own form groups, which tag sdk/poplar/3.0.0 shares out over the tiles before anything else; a
tile with several of them serves one after the other.
"""

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ipusim.compiler.emitter import SPREAD, Emitter, Placed, TensorLayout
from ipusim.compiler.eras import ERA_1_0, ERA_2_4
from ipusim.compiler.reduction import gathered_stages
from ipusim.compiler.state import Lowering, lowers
from ipusim.compiler.tiles import (
    Tile,
    ceil_div,
    copy_cycles,
    distinct_splits,
    element_bytes,
)
from ipusim.compiler.vertices.elementwise import cast_cycles, fill_cycles, iota_cycles
from ipusim.compiler.vertices.reduce import ReduceVertex, Region
from ipusim.compiler.vertices.training import multi_slice_cycles, multi_update_add_cycles
from ipusim.machine import Chip
from ipusim.workload.graph import Gather

INDEX_BYTES = 4
_MIN_INDICES_PER_TILE = 32
_STORE_BYTES = 4


class EmbeddingPlan(NamedTuple):
    """A split of lookups and updates: by elements of a row, rows of the table, indices and groups.

    `width`, `rows`, `indices` and `groups` are the largest part of each on one tile. While all
    splits are weighed, each is an array of them (int64).
    """

    width_split: int
    row_split: int
    index_split: int
    width: int
    rows: int
    indices: int
    group_split: int = 1
    groups: int = 1


def _all_splits(op: Gather, grain: int, chip: Chip) -> EmbeddingPlan:
    """Return every split of rows, grains of a row and indices over the tiles of some groups."""
    grains, found = ceil_div(op.width, grain), []
    for groups in distinct_splits(op.groups, chip.tiles):
        tiles = chip.tiles // groups
        splits = np.meshgrid(
            distinct_splits(grains, tiles),
            distinct_splits(op.rows, min(tiles, ceil_div(op.rows, 2))),
            distinct_splits(op.indices, tiles),
            groups,
            indexing="ij",
        )
        all_of = np.stack(splits).reshape(4, -1)
        found.append(all_of[:, all_of[:3].prod(axis=0) <= tiles])
    width_split, row_split, index_split, group_split = np.concatenate(found, axis=1)
    return EmbeddingPlan(
        width_split=width_split,
        row_split=row_split,
        index_split=index_split,
        width=ceil_div(grains, width_split) * grain,
        rows=ceil_div(op.rows, row_split),
        indices=ceil_div(op.indices, index_split),
        group_split=group_split,
        groups=ceil_div(op.groups, group_split),
    )


def _memory_goal(
    splits: EmbeddingPlan, op: Gather, size: int, chip: Chip, *, updates: bool
) -> np.ndarray:
    """Bytes of a tile that the plan of tag sdk/poplar/2.0.0 minimises."""
    row_bytes, index_bytes = splits.width * size, splits.indices * INDEX_BYTES
    rows_split, indices_split = splits.row_split > 1, splits.index_split > 1
    second = ceil_div(splits.indices, splits.row_split)
    spread = ceil_div(op.indices, chip.tiles // splits.group_split)
    index_storage = np.maximum(min(op.indices, _MIN_INDICES_PER_TILE), spread)
    index_code = ceil_div(splits.indices, index_storage)
    code = 4 * (indices_split * splits.index_split + 2 * index_code + rows_split * splits.row_split)
    first_output = rows_split * splits.indices * row_bytes
    temporary = np.maximum(
        indices_split * splits.rows * row_bytes + first_output + index_bytes,
        first_output + rows_split * splits.row_split * second * row_bytes + second * INDEX_BYTES,
    )
    if updates:
        wide = element_bytes("float32")
        cast = (size != wide) * second * (row_bytes // _STORE_BYTES) * wide
        updated = rows_split * splits.indices * splits.width * wide
        partials = indices_split * splits.rows * splits.width * wide
        update = np.maximum(cast + updated, updated + partials + index_bytes)
        temporary = np.maximum(temporary, np.maximum(update, indices_split * partials * 2))
        code = code + 4 * (index_code + indices_split * splits.index_split)
    words = splits.rows * row_bytes // _STORE_BYTES
    storage = ceil_div(words, splits.index_split) * _STORE_BYTES
    kept = storage + second * row_bytes + index_storage * INDEX_BYTES + code
    return 10 * kept + temporary


def _cycle_goal(
    splits: EmbeddingPlan, op: Gather, size: int, chip: Chip, *, updates: bool
) -> np.ndarray:
    """Cycles that the plan of tag sdk/poplar/2.4.0 minimises; indices are taken as uniform."""
    workers, rate, grain_bytes = chip.workers, chip.exchange_bytes_per_cycle, chip.data_path_bytes
    row_bytes = splits.width * size
    grains = row_bytes // grain_bytes
    table_bytes = splits.rows * row_bytes
    # A table that is not spread evenly is taken to be brought into place first.
    all_grains = op.rows * ceil_div(op.width * size, grain_bytes)
    evenly = ceil_div(all_grains, chip.tiles // splits.group_split)
    uneven = table_bytes - evenly * grain_bytes
    rows_split, indices_split = splits.row_split > 1, splits.index_split > 1

    def sliced(width: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        per_worker = ceil_div(offsets, workers)
        hits = ceil_div(per_worker * splits.rows, op.rows)
        copied = 19 + 2 * ceil_div(width, 2 if size == 2 else grain_bytes // size)
        return workers * (19 + hits * copied + (per_worker - hits) * 8)

    second = ceil_div(splits.indices, splits.row_split)
    total = ceil_div(np.maximum(indices_split * table_bytes, uneven), rate)
    total = total + sliced(splits.width, splits.indices)
    total = total + rows_split * (
        ceil_div(splits.row_split * second * row_bytes, rate) + sliced(grains, second)
    )
    if not updates:
        return total
    hits = ceil_div(splits.indices * ceil_div(splits.rows, workers), op.rows)
    per_row = (11 if size == 4 else 13) + 3 * (row_bytes // _STORE_BYTES - 1)
    partials = splits.rows * splits.width
    reduced = ceil_div(partials, splits.index_split)
    stored = ceil_div(grains * splits.rows, splits.index_split) * (grain_bytes // size)
    total = total + 2 * ceil_div(uneven, rate)
    total = total + rows_split * ceil_div(splits.indices * row_bytes, rate)
    total = total + workers * (37 + per_row * hits + 5 * (splits.indices - hits))

    def pairs(elements: np.ndarray) -> np.ndarray:
        return ceil_div(ceil_div(elements, 2), workers)

    return total + indices_split * (
        workers * (26 + pairs(partials))
        + ceil_div(splits.index_split * reduced * 4, rate)
        + workers * (24 + pairs(reduced) * (6 + splits.index_split))
        + workers * (19 + 2 * pairs(stored))
    )


def _grain(dtype: str, chip: Chip, *, early: bool) -> int:
    """Return the elements that are not split: what is stored at once, since 2.4 what is loaded."""
    return (_STORE_BYTES if early else chip.data_path_bytes) // element_bytes(dtype)


@lru_cache(maxsize=256)
def plan_embedding(
    op: Gather, dtype: str, chip: Chip, *, early: bool, updates: bool = True
) -> EmbeddingPlan:
    """Return the split of the lookups in a table, and of its updates where they share the plan.

    It is the one of fewest cycles, or, `early`, of least memory.
    """
    weigh, size = _memory_goal if early else _cycle_goal, element_bytes(dtype)
    splits = _all_splits(op, _grain(dtype, chip, early=early), chip)
    best = int(np.argmin(splits.groups * weigh(splits, op, size, chip, updates=updates)))
    chosen = EmbeddingPlan(*(int(each[best]) for each in splits))
    return chosen._replace(width=min(op.width, chosen.width))


_REARRANGED_FROM_SPLIT = 4
"""From this many parts of the rows on, gradients are first brought into the plan's layout."""


def _row_tile(m: Emitter) -> Tile:
    """Return the tile that times MultiSlice and MultiUpdateAdd: as tag 1.0.136 did up to 2.0.0."""
    return Tile(m.chip, ERA_1_0) if m.era < ERA_2_4 else m.tile


@lowers(Gather)
def gather(m: Lowering, op: Gather, *inputs: Placed) -> TensorLayout:
    """Lower lookups or updates; their planner and vertices changed between SDK 2.0 and 2.4."""
    early = m.era < ERA_2_4
    # Lookups and updates of one table share the plan.
    table = replace(op, function="lookup", hottest=0)
    plan = plan_embedding(table, m.dtype, m.chip, early=early, updates=m.task.changes_table)
    if op.function == "lookup":
        # Tables that an operation computes lie as that operation left them.
        if not early and not inputs[0].layout.free:
            bring_into_place(m, plan, m.dtype)
        look_up(m, op, plan, m.dtype)
    else:
        add_rows(m, op, plan, m.dtype, placed=inputs[-2].layout.free)
    return SPREAD


def hits(op: Gather, looked_at: int, part: int) -> int:
    """Return how many of `looked_at` indices are of the `part` rows that are hit most."""
    same = ceil_div(looked_at * op.hottest, op.indices)
    return min(looked_at, same + ceil_div((looked_at - same) * part, op.rows))


def bring_into_place(m: Emitter, plan: EmbeddingPlan, dtype: str) -> None:
    """Copy a table from where an operation left it (multiSlice, regroupBaseTensor)."""
    own = ceil_div(plan.groups * plan.rows * plan.width, plan.index_split)
    own *= element_bytes(dtype)
    m.copy("bring table into place", received=own, cycles=copy_cycles(own, m.chip))


class Needed(NamedTuple):
    """Bytes that each of so many `neighbours` needs, of which `own` lie on its tile already."""

    whole: int
    neighbours: int
    own: int = 0


def _arriving(m: Emitter, groups: int, *needed: Needed) -> dict[str, int]:
    """Return the bytes that a tile receives of `groups` groups, as `Emitter.emit` takes them.

    Tiles count parts of a row first, then parts of the table, then of the indices
    (linearizeSliceIndices). Two on a bus receive what both need together; as one has to receive
    alone what the other holds, that takes as long as if neither held any.
    """
    alone = paired = 0
    for one in needed:
        if one.neighbours % m.chip.tiles_per_exchange_bus:
            alone += one.whole - one.own
        else:
            paired += one.whole
    return {"exchange": groups * alone, "paired": groups * paired}


def look_up(m: Emitter, op: Gather, plan: EmbeddingPlan, dtype: str) -> None:
    """Copy the rows that the indices choose.

    Where the table's rows are split over tiles, each gives a candidate for every index, and a
    second step picks the right one. Where indices are split, several tiles need the same rows.
    """
    tile = _row_tile(m)
    row_bytes = plan.width * element_bytes(dtype)
    table_bytes = plan.rows * row_bytes
    index_users = plan.row_split * plan.width_split
    needed = [Needed(plan.indices * INDEX_BYTES, index_users)]
    if plan.index_split > 1:
        neighbours = plan.index_split if index_users == 1 else 1
        needed.append(Needed(table_bytes, neighbours, own=table_bytes // plan.index_split))
    candidates = plan.indices * row_bytes if plan.row_split > 1 else 0
    temporary = candidates + sum(one.whole for one in needed)

    def sliced(indices: int, found: int) -> int:
        return plan.groups * multi_slice_cycles(tile, indices, found, plan.width, dtype)

    per_worker = tile.per_worker(plan.indices)
    m.emit(
        "gather",
        "popops::MultiSlice",
        sliced(per_worker, hits(op, per_worker, plan.rows)),
        temp=plan.groups * temporary,
        **_arriving(m, plan.groups, *needed),
    )
    if plan.row_split == 1:
        return
    chosen = ceil_div(plan.indices, plan.row_split)
    _number_candidates(m, op, chosen)
    arriving = plan.row_split * chosen * row_bytes
    rows = Needed(arriving, 1, own=chosen * row_bytes)
    indices = Needed(chosen * INDEX_BYTES, plan.width_split)
    per_worker = tile.per_worker(chosen)
    m.emit(
        "gather, choose candidates",
        "popops::MultiSlice",
        sliced(per_worker, per_worker),
        temp=plan.groups * (candidates + arriving),
        **_arriving(m, plan.groups, rows, indices),
    )


def _number_candidates(m: Emitter, op: Gather, chosen: int) -> None:
    """Compute where the right candidate of each index lies among those that arrive.

    Its place among the `chosen` indices of a tile, after those of the parts of the table before its
    own (multiSlicePlanned, adjustedIndicesStage1): as places and counts repeat, each operation has
    a vertex of its own. Places lie as the first of the indices do.
    """
    indices = Placed((op.groups * op.indices,), "float32")
    here = min(chosen, m.share(indices))
    with m.loop(1, tiles=ceil_div(chosen, here)):
        m.emit("number places", "popops::Iota", iota_cycles(m.tile, here))
    with m.loop(1, tiles=m.tiles_of(indices)):
        for function, name in (("div", "part of the table"), ("mul", "candidates before")):
            m.integers(function, indices, name, scalar=True, exchange=INDEX_BYTES)
        m.integers("add", indices, "candidate", exchange=m.tile_bytes(indices))


def add_rows(
    m: Emitter, op: Gather, plan: EmbeddingPlan, dtype: str, *, placed: bool = False
) -> None:
    """Add rows into a table, gradients or messages of neighbours.

    Every tile looks at all its indices and adds the rows that fall into its part of the table.
    Split indices fill partial tables of zeros, which are summed and added; up to sdk/poplar/2.0.0
    these are always float32. Rows that are `placed` lie as the plan has them.
    """
    early = m.era < ERA_2_4
    stored = Placed((plan.group_split * plan.groups * op.rows * op.width,), dtype)
    if op.function == "add":
        # A sum starts from zeros, laid out as planned; rows are written where they are stored.
        m.fill(stored)
    several = plan.index_split > 1
    partial_dtype = "float32" if several and early else dtype
    partial_size = element_bytes(partial_dtype)
    # Rows that are rearranged lie on the tiles that add them, those of one part in equal shares.
    rearranged = plan.row_split >= _REARRANGED_FROM_SPLIT or partial_dtype != dtype
    here = ceil_div(plan.indices, plan.row_split) if rearranged else 0
    own = plan.groups * here * plan.width
    moved = own * element_bytes(dtype)
    if rearranged and placed:
        m.copy("copy gradients", temp=moved, cycles=copy_cycles(moved, m.chip))
    elif rearranged:
        m.copy("rearrange gradients", received=moved)
    if partial_dtype != dtype:
        cycles = cast_cycles(m.tile, own, dtype, partial_dtype)
        m.emit("cast gradients", "popops::Cast1D", cycles)
    partials = plan.groups * plan.rows * plan.width
    partial_bytes = partials * partial_size if several else 0
    if several:
        cycles = fill_cycles(m.tile, partials, partial_dtype)
        m.emit("zero partial tables", "popops::Fill", cycles, temp=partial_bytes)
    row_bytes = plan.width * partial_size
    neighbours = plan.row_split if plan.width_split == 1 else 1
    indices = Needed(plan.indices * INDEX_BYTES, plan.row_split * plan.width_split)
    rows = Needed(plan.indices * row_bytes, neighbours, own=here * row_bytes)
    received = plan.groups * (indices.whole + rows.whole - rows.own)
    # The early vertex runs on one worker; later ones divide the rows of the table.
    own_rows = plan.rows if early else m.tile.per_worker(plan.rows)
    work = plan.indices, hits(op, plan.indices, own_rows), plan.width, partial_dtype
    cycles = multi_update_add_cycles(_row_tile(m), *work)
    arriving = _arriving(m, plan.groups, indices, rows)
    vertex = "popops::ScaledMultiUpdateOp"
    m.emit("add rows", vertex, plan.groups * cycles, temp=partial_bytes + received, **arriving)
    if not several:
        return
    # Sums lie as the table does, which its parts share out in grains (createSliceableTensor).
    grain, name = _grain(dtype, m.chip, early=early), "sum partial tables"
    outputs = ceil_div(ceil_div(partials, grain), plan.index_split) * grain
    reducing = ReduceVertex(m.tile, partial_dtype, partial_dtype, partial_dtype)
    with m.holding(partial_bytes):
        for stage in gathered_stages(name, reducing, Region(outputs, 1, plan.index_split)):
            m.run(stage, name)
    # A table of halves is converted, and the sum back into it.
    summed = Placed(stored.shape, partial_dtype)
    m.cast(stored, partial_dtype)
    m.scaled_add(summed, constrained=True)
    m.cast(summed, dtype)
