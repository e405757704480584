"""How popops splits lookups in a table, and updates of it, over the tiles.

Source: poplibs lib/popops/DynamicSlice.cpp, embedding::plan. Elements of a row, rows of the table
and indices can each be split. Up to tag sdk/poplar/2.0.0 the plan that needs least memory wins,
what stays counting tenfold; at tag sdk/poplar/2.4.0 the one that takes the fewest cycles, with a
fee for tables that are not spread evenly. All splits are weighed at once, as numpy arrays. Several
tables of one size with indices of their own form groups, which tag sdk/poplar/3.0.0 shares out
over the tiles before anything else; those of one tile take their turns.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from ipusim.compiler.tiles import ceil_div, distinct_splits, element_bytes
from ipusim.machine import Chip
from ipusim.workload.graph import Gather

INDEX_BYTES = 4
_MIN_INDICES_PER_TILE = 32
_STORE_BYTES = 4
_WEIGHED = ("width_split", "row_split", "index_split", "width", "rows", "indices")


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingPlan:
    """A split of lookups and updates: by elements of a row, rows of the table, indices and groups.

    `width`, `rows`, `indices` and `groups` are the largest part of each on one tile. While all
    splits are weighed, the first six are arrays of them (int64).
    """

    width_split: int
    row_split: int
    index_split: int
    width: int
    rows: int
    indices: int
    group_split: int = 1
    groups: int = 1


def _all_splits(op: Gather, grain: int, chip: Chip, group_split: int) -> EmbeddingPlan:
    """Return every split of rows, grains of a row and indices over the tiles of some groups."""
    tiles, grains = chip.tiles // group_split, ceil_div(op.width, grain)
    splits = np.meshgrid(
        distinct_splits(grains, tiles),
        distinct_splits(op.rows, min(tiles, ceil_div(op.rows, 2))),
        distinct_splits(op.indices, tiles),
        indexing="ij",
    )
    all_of = np.stack(splits).reshape(3, -1)
    width_split, row_split, index_split = all_of[:, all_of.prod(axis=0) <= tiles]
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
    index_storage = max(min(op.indices, _MIN_INDICES_PER_TILE), spread)
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


@lru_cache(maxsize=256)
def plan_embedding(
    op: Gather, dtype: str, chip: Chip, *, goal: str, updates: bool = True
) -> EmbeddingPlan:
    """Return the split of the lookups in a table, and of its updates where they share the plan.

    `goal` says what is minimised, "memory" or "cycles".
    """
    weigh, grain_bytes, size = _cycle_goal, chip.data_path_bytes, element_bytes(dtype)
    if goal == "memory":
        weigh, grain_bytes = _memory_goal, _STORE_BYTES
    found = []
    for group_split in distinct_splits(op.groups, chip.tiles):
        splits = _all_splits(op, grain_bytes // size, chip, group_split)
        costs = splits.groups * weigh(splits, op, size, chip, updates=updates)
        best = int(np.argmin(costs))
        found.append((int(costs[best]), group_split, splits, best))
    _, _, splits, best = min(found, key=lambda option: option[:2])
    best_of = {name: int(getattr(splits, name)[best]) for name in _WEIGHED}
    return replace(splits, **best_of | {"width": min(op.width, best_of["width"])})
