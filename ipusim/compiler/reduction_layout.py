"""How the input of a reduction, spread linearly over the tiles, meets the outputs.

poplibs looks at the real tile mapping (lib/popops/reduction/ReductionIntrospection.cpp); here the
mapping is linear in memory order, and large inputs are sampled.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np

from ipusim.compiler.tiles import ceil_div
from ipusim.compiler.vertices.reduce import Region

# Elements of the input that are looked at to find the busiest tile; larger inputs are sampled.
_EXAMINED_ELEMENTS = 1 << 18
_LEAST_TILES_EXAMINED = 8
_MOST_TILES_EXAMINED = 128
_LEAST_OUTPUTS_EXAMINED = 16


@dataclass(frozen=True, slots=True)
class InputLayout:
    """How a linearly mapped input meets the outputs.

    `patterns` are the distinct contents of the examined tiles. The partials of one output lie on at
    most `spread` tiles, one tile contributes to at most `columns_per_tile` outputs;
    `partial_elements` are those of the whole chip once each tile has reduced its own. `repeats`
    says whether some tile holds several partials of one output.
    """

    patterns: tuple[tuple[Region, ...], ...]
    spread: int
    columns_per_tile: int
    partial_elements: int
    repeats: bool


def collapse(
    shape: tuple[int, ...], dims: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[bool, ...]]:
    """Merge neighbouring dimensions that are both reduced or both kept."""
    sizes: list[int] = []
    reduced: list[bool] = []
    for dim, size in enumerate(shape):
        if size == 1:
            continue
        flag = dim in dims
        if reduced and reduced[-1] == flag:
            sizes[-1] *= size
        else:
            sizes.append(size)
            reduced.append(flag)
    return tuple(sizes), tuple(reduced)


def _columns_of(
    elements: np.ndarray, sizes: tuple[int, ...], reduced: tuple[bool, ...]
) -> np.ndarray:
    """Return the output index of each input element (arrays of int64)."""
    columns = np.zeros_like(elements)
    scale = 1
    rest = elements
    for size, flag in zip(reversed(sizes), reversed(reduced), strict=True):
        outer = rest // size
        if not flag:
            columns += (rest - outer * size) * scale  # faster than a remainder
            scale *= size
        rest = outer
    return columns


def _tile_pattern(columns: np.ndarray) -> tuple[Region, ...]:
    """Group the outputs of one tile by how their partials lie in memory."""
    change = np.flatnonzero(np.diff(columns)) + 1
    run_starts = np.concatenate(([0], change))
    run_lengths = np.diff(np.append(run_starts, len(columns)))
    run_columns = columns[run_starts]
    ids, first_run, runs = np.unique(run_columns, return_index=True, return_counts=True)
    inner = run_lengths[first_run]
    counts = np.zeros(len(ids), dtype=np.int64)
    np.add.at(counts, np.searchsorted(ids, run_columns), run_lengths)
    regular = counts == inner * runs
    inner = np.where(regular, inner, counts)
    outer = np.where(regular, runs, 1)
    # Neighbouring outputs of the same shape form one region.
    new = np.ones(len(ids), dtype=bool)
    new[1:] = (np.diff(inner) != 0) | (np.diff(outer) != 0) | (np.diff(ids) != 1)
    starts = np.flatnonzero(new)
    widths = np.diff(np.append(starts, len(ids)))
    return tuple(
        Region(int(width), int(inner[at]), int(outer[at]))
        for width, at in zip(widths, starts, strict=True)
    )


@lru_cache(maxsize=1024)
def examine_layout(
    sizes: tuple[int, ...], reduced: tuple[bool, ...], per_tile: int, tiles: int, grain: int
) -> InputLayout:
    """Look at (a sample of) the tiles of a linearly mapped input."""
    total = prod(sizes)
    grains = ceil_div(total, grain)
    wanted = max(_LEAST_TILES_EXAMINED, _EXAMINED_ELEMENTS // per_tile)
    wanted = min(wanted, _MOST_TILES_EXAMINED, tiles)
    chosen = [index * tiles // wanted for index in range(wanted)]
    # Tiles that differ only in the place along the outermost dimension have the same pattern.
    below = prod(sizes[1:])
    known: dict[tuple[int, int], tuple[Region, ...]] = {}
    patterns = []
    for tile in chosen:
        begin = tile * grains // tiles * grain
        end = min(total, (tile + 1) * grains // tiles * grain)
        alike = begin % below, end - begin
        if alike not in known:
            elements = np.arange(begin, end, dtype=np.int64)
            known[alike] = _tile_pattern(_columns_of(elements, sizes, reduced))
        patterns.append(known[alike])
    counts = [sum(region.columns for region in pattern) for pattern in patterns]
    return InputLayout(
        tuple(dict.fromkeys(patterns)),
        _spread(sizes, reduced, per_tile),
        max(counts),
        ceil_div(sum(counts) * tiles, len(chosen)),
        any(region.rows > 1 for pattern in known.values() for region in pattern),
    )


def _spread(sizes: tuple[int, ...], reduced: tuple[bool, ...], per_tile: int) -> int:
    """Return over how many tiles the partials of one output lie, at most."""
    outputs = prod(size for size, flag in zip(sizes, reduced, strict=True) if not flag)
    partials = prod(sizes) // outputs
    if outputs == 1:
        return ceil_div(partials, per_tile)
    sampled = min(outputs, max(_LEAST_OUTPUTS_EXAMINED, _EXAMINED_ELEMENTS // partials))
    rest = np.arange(sampled, dtype=np.int64) * outputs // sampled
    # Of each output: where its partials begin, series of `length` of them `step` elements apart.
    begins, starts = np.zeros_like(rest), np.zeros(1, dtype=np.int64)
    length = step = 0
    stride = 1
    for size, flag in zip(reversed(sizes), reversed(reduced), strict=True):
        if not flag:
            begins += rest % size * stride
            rest //= size
        elif not length:
            length, step = size, stride
        else:
            # Outer dimensions come first, so tiles are in order.
            offsets = np.arange(size, dtype=np.int64) * stride
            starts = (offsets[:, None] + starts[None, :]).ravel()
        stride *= size
    places = begins[:, None] + starts[None, :]
    first, last = places // per_tile, (places + (length - 1) * step) // per_tile
    # A series skips no tile, or has a tile for each.
    changes = (last - first).sum(axis=1) if step <= per_tile else len(starts) * (length - 1)
    changes = changes + (first[:, 1:] != last[:, :-1]).sum(axis=1)
    return int(changes.max()) + 1
