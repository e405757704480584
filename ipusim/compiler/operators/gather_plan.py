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

from ipusim.compiler.tiles import (
    ChipLike,
    ceil_div,
    distinct_splits,
    element_bytes,
    require_positive,
)
from ipusim.workload.graph import Gather

GOALS = ("memory", "cycles")
INDEX_BYTES = 4
_MIN_INDICES_PER_TILE = 32
_STORE_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingPlan:
    """A split of lookups and updates: by elements of a row, rows of the table, indices and groups.

    `width`, `rows`, `indices` and `groups` are the largest part of each on one tile.
    """

    width_split: int
    row_split: int
    index_split: int
    width: int
    rows: int
    indices: int
    group_split: int = 1
    groups: int = 1

    @property
    def tiles(self) -> int:
        """Tiles that take part."""
        return self.group_split * self.width_split * self.row_split * self.index_split


@dataclass(frozen=True, slots=True)
class _Splits:
    """All splits that fit, as arrays (int64), and the parts that they leave."""

    width_split: np.ndarray
    row_split: np.ndarray
    index_split: np.ndarray
    grains: np.ndarray
    rows: np.ndarray
    indices: np.ndarray
    grain_elements: int


def _ceil(numerator: np.ndarray, denominator: np.ndarray | int) -> np.ndarray:
    return -(-numerator // denominator)


def _all_splits(rows: int, grains: int, indices: int, tiles: int, grain_elements: int) -> _Splits:
    """List every split of rows, grains of a row and indices over at most `tiles` tiles."""
    found = []
    index_splits = np.array(distinct_splits(indices, tiles), dtype=np.int64)
    row_splits = distinct_splits(rows, min(tiles, ceil_div(rows, 2)))
    for width_split in distinct_splits(grains, tiles):
        for row_split in row_splits:
            most = tiles // (width_split * row_split)
            if not most:
                break
            fitting = index_splits[index_splits <= most]
            columns = np.empty((3, len(fitting)), dtype=np.int64)
            columns[0], columns[1], columns[2] = width_split, row_split, fitting
            found.append(columns)
    width_split, row_split, index_split = np.concatenate(found, axis=1)
    return _Splits(
        width_split,
        row_split,
        index_split,
        _ceil(np.full_like(width_split, grains), width_split),
        _ceil(np.full_like(row_split, rows), row_split),
        _ceil(np.full_like(index_split, indices), index_split),
        grain_elements,
    )


def _memory_goal(
    splits: _Splits, indices: int, size: int, tiles: int, *, updates: bool
) -> np.ndarray:
    """Bytes of a tile that the plan of tag sdk/poplar/2.0.0 minimises."""
    grain_bytes = splits.grain_elements * size
    table = splits.grains * splits.rows
    rows_split, indices_split = splits.row_split > 1, splits.index_split > 1
    second = _ceil(splits.indices, splits.row_split)
    output = second * splits.grains * grain_bytes
    index_storage = max(min(indices, _MIN_INDICES_PER_TILE), ceil_div(indices, tiles))
    index_code = _ceil(splits.indices, index_storage)
    code = 4 * (indices_split * splits.index_split + 2 * index_code + rows_split * splits.row_split)
    first_output = rows_split * splits.indices * splits.grains * grain_bytes
    temporary = np.maximum(
        indices_split * table * grain_bytes + first_output + splits.indices * INDEX_BYTES,
        first_output
        + rows_split * splits.row_split * second * splits.grains * grain_bytes
        + second * INDEX_BYTES,
    )
    if updates:
        wide = element_bytes("float32")
        elements = splits.grains * splits.grain_elements
        cast = (size != wide) * second * splits.grains * wide
        updated = rows_split * splits.indices * elements * wide
        partials = indices_split * splits.rows * elements * wide
        update = np.maximum(
            np.maximum(cast + updated, updated + partials + splits.indices * INDEX_BYTES),
            indices_split * partials * 2,
        )
        temporary = np.maximum(temporary, update)
        code = code + 4 * (index_code + indices_split * splits.index_split)
    storage = _ceil(table, splits.index_split) * grain_bytes
    kept = storage + output + index_storage * INDEX_BYTES + code
    return 10 * kept + temporary


def _cycle_goal(
    splits: _Splits, rows: int, grains: int, size: int, tiles: int, chip: ChipLike, *, updates: bool
) -> np.ndarray:
    """Cycles that the plan of tag sdk/poplar/2.4.0 minimises; indices are taken as uniform."""
    grain_bytes = splits.grain_elements * size
    workers, rate = chip.workers, chip.exchange_bytes_per_cycle
    elements = splits.grains * splits.grain_elements
    table_bytes = splits.grains * splits.rows * grain_bytes
    # A table that is not spread evenly is taken to be brought into place first.
    uneven = table_bytes - ceil_div(rows * grains, tiles) * grain_bytes
    rows_split, indices_split = splits.row_split > 1, splits.index_split > 1

    def sliced(width: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        per_worker = _ceil(offsets, workers)
        hits = _ceil(per_worker * splits.rows, rows)
        per_vector, vector = 2, (2 if size == 2 else max(1, chip.data_path_bytes // size))
        copied = 19 + per_vector * _ceil(width, vector)
        return workers * (19 + hits * copied + (per_worker - hits) * 8)

    second = _ceil(splits.indices, splits.row_split)
    total = _ceil(np.maximum(indices_split * table_bytes, uneven), rate)
    total = total + sliced(elements, splits.indices)
    total = total + rows_split * (
        _ceil(splits.row_split * second * splits.grains * grain_bytes, rate)
        + sliced(splits.grains, second)
    )
    if not updates:
        return total
    per_worker = _ceil(splits.rows, workers)
    hits = _ceil(splits.indices * per_worker, rows)
    per_row = (11 if size == 4 else 13) + 3 * (elements * size // _STORE_BYTES - 1)
    partials = splits.rows * elements
    reduced = _ceil(partials, splits.index_split)
    vectors = _ceil(_ceil(reduced, 2), workers)
    stored = _ceil(splits.grains * splits.rows, splits.index_split) * splits.grain_elements
    total = total + 2 * _ceil(uneven, rate)
    total = total + rows_split * _ceil(splits.indices * elements * size, rate)
    total = total + workers * (37 + per_row * hits + 5 * (splits.indices - hits))
    return total + indices_split * (
        workers * (26 + _ceil(_ceil(partials, 2), workers))
        + _ceil(splits.index_split * reduced * 4, rate)
        + workers * (24 + vectors * (6 + splits.index_split))
        + workers * (19 + 2 * _ceil(_ceil(stored, 2), workers))
    )


@lru_cache(maxsize=256)
def _plan(op: Gather, size: int, chip: ChipLike, goal: str, updates: bool) -> EmbeddingPlan:
    grain_bytes = _STORE_BYTES if goal == "memory" else chip.data_path_bytes
    grain_elements = max(1, grain_bytes // size)
    grains = ceil_div(op.width, grain_elements)
    found = []
    for group_split in distinct_splits(op.groups, chip.tiles):
        tiles, per_tile = chip.tiles // group_split, ceil_div(op.groups, group_split)
        splits = _all_splits(op.rows, grains, op.indices, tiles, grain_elements)
        if goal == "memory":
            costs = _memory_goal(splits, op.indices, size, tiles, updates=updates)
        else:
            costs = _cycle_goal(splits, op.rows, grains, size, tiles, chip, updates=updates)
        best = int(np.argmin(costs))
        found.append((per_tile * int(costs[best]), group_split, per_tile, splits, best))
    _, group_split, per_tile, splits, best = min(found, key=lambda option: option[:2])
    return EmbeddingPlan(
        group_split=group_split,
        groups=per_tile,
        width_split=int(splits.width_split[best]),
        row_split=int(splits.row_split[best]),
        index_split=int(splits.index_split[best]),
        width=min(op.width, int(splits.grains[best]) * grain_elements),
        rows=int(splits.rows[best]),
        indices=int(splits.indices[best]),
    )


def plan_embedding(
    op: Gather, dtype: str, chip: ChipLike, *, goal: str, updates: bool = True
) -> EmbeddingPlan:
    """Return the split of the lookups in a table, and of its updates where they share the plan.

    `goal` says what is minimised, "memory" or "cycles".
    """
    require_positive(rows=op.rows, width=op.width, indices=op.indices)
    # Lookups and updates of one table share the plan.
    table = replace(op, function="lookup", hottest=0)
    return _plan(table, element_bytes(dtype), chip, goal, updates)
