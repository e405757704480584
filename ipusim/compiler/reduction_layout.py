"""Which outputs of a reduction each tile has partials of, and how these lie in its memory.

poplibs looks at the real tile mapping (lib/popops/reduction/ReductionIntrospection.cpp); here the
input is spread linearly over the tiles in memory order, and large inputs are sampled.
"""

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, pairwise
from math import prod
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from ipusim.compiler.tiles import ceil_div, pieces_of_rows
from ipusim.compiler.vertices.reduce import Region

# Elements of the input that are looked at to find the busiest tile; larger inputs are sampled.
_EXAMINED_ELEMENTS = 1 << 18
_LEAST_TILES_EXAMINED = 8
_MOST_TILES_EXAMINED = 128
_LEAST_OUTPUTS_EXAMINED = 16


@dataclass(frozen=True, slots=True, eq=False)
class InputLayout:
    """How the partials of all outputs lie on the tiles; compared by identity, as it is remembered.

    `patterns` are the distinct lists of regions that an examined tile holds. The partials of one
    output lie on at most `spread` tiles, one tile contributes to at most `columns_per_tile`
    outputs; `partial_elements` is how many partials the chip has once each tile has reduced its
    own. `repeats` says whether some tile holds several partials of one output.
    """

    patterns: tuple[tuple[Region, ...], ...]
    spread: int
    columns_per_tile: int
    partial_elements: int
    repeats: bool


class Level(NamedTuple):
    """A dimension of an input; one index of it holds `below` elements, of `outputs` outputs."""

    size: int
    reduced: bool
    below: int
    outputs: int


def collapse(shape: tuple[int, ...], dims: tuple[int, ...]) -> tuple[Level, ...]:
    """Return the dimensions, outermost first; neighbours both reduced or both kept are one."""
    wide = [(dim in dims, size) for dim, size in enumerate(shape) if size != 1]
    levels = []
    below = outputs = 1
    for flag, run in groupby(reversed(wide), key=itemgetter(0)):
        size = prod(size for _, size in run)
        levels.append(Level(size, flag, below, outputs))
        below, outputs = below * size, outputs * (1 if flag else size)
    return tuple(reversed(levels))


_Alike = tuple[int, int, int, int, int]
"""Outputs whose partials lie alike in a range of the input: (begin, end, first, runs, partials).

Each output from `begin` to before `end` has `partials` there, in `runs` without a gap, of which the
first has `first`."""


def _alike_outputs(
    begin: int, end: int, levels: tuple[Level, ...], run: int, at: int = 0
) -> list[_Alike]:
    """Return the outputs that elements `begin` to `end` of an input contribute to, in order.

    Partials of one output follow one another in runs of `run`. The first output of the input has
    the number `at`.
    """
    (_, reduced, below, outputs), inner = levels[0], levels[1:]
    if not inner:
        count = end - begin
        return [(at, at + 1, count, 1, count) if reduced else (at + begin, at + end, 1, 1, 1)]
    first, last = begin // below, (end - 1) // below
    whole = last - first - 1
    # Along the outermost dimension: what is left of the first index, whole ones, part of the last.
    stop = min(end - first * below, below)
    moved = 0 if reduced else outputs
    parts = _alike_outputs(begin % below, stop, inner, run, at + first * moved)
    if whole > 0:
        partials = below // outputs
        times, width = (whole, outputs) if reduced else (1, whole * outputs)
        low = at + (first + 1) * moved
        parts.append((low, low + width, run, times * partials // run, times * partials))
    if last > first:
        parts += _alike_outputs(0, end - last * below, inner, run, at + last * moved)
    return _merged(parts) if reduced and len(parts) > 1 else parts


def _merged(parts: list[_Alike]) -> list[_Alike]:
    """Merge parts, given in memory order, so that each output occurs once with all its runs."""
    found = []
    for begin, end in pairwise(sorted({edge for one in parts for edge in one[:2]})):
        length = runs = partials = 0
        for low, high, first, times, count in parts:
            if low <= begin < high:
                length, runs, partials = length or first, runs + times, partials + count
        if partials:
            found.append((begin, end, length, runs, partials))
    return found


def _tile_pattern(begin: int, end: int, levels: tuple[Level, ...], run: int) -> tuple[Region, ...]:
    """Group the outputs of one tile by how their partials lie in memory.

    Partials of outputs of different outer indices are no neighbours there (`isAdjacent`).
    """
    regions: list[Region] = []
    reached = None
    neighbours = next((level.size for level in reversed(levels) if not level.reduced), 1)
    for low, high, first, runs, partials in _alike_outputs(begin, end, levels, run):
        shape = (first, runs) if partials == first * runs else (partials, 1)
        for _, start, stop in pieces_of_rows(low, high, neighbours):
            width = stop - start
            # Neighbouring outputs of the same shape form one region.
            if start and low == reached and shape == regions[-1][1:]:
                width += regions.pop().columns
            regions.append(Region(width, *shape))
        reached = high
    return tuple(regions)


@lru_cache(maxsize=64)
def examine_layout(levels: tuple[Level, ...], per_tile: int, tiles: int, grain: int) -> InputLayout:
    """Look at (a sample of) the tiles of a linearly mapped input."""
    (outer, _, below, _), *inner = levels
    total = outer * below
    grains = ceil_div(total, grain)
    wanted = max(_LEAST_TILES_EXAMINED, _EXAMINED_ELEMENTS // per_tile)
    wanted = min(wanted, _MOST_TILES_EXAMINED, tiles)
    run = levels[-1].size if levels[-1].reduced else 1
    # Tiles that differ only in the index along the outermost dimension have the same pattern, and
    # so have tiles within one such index that differ only in the index of a reduced dimension.
    tile = np.arange(wanted, dtype=np.int64) * tiles // wanted
    begins = tile * grains // tiles * grain
    sizes = np.minimum((tile + 1) * grains // tiles * grain, total) - begins
    places = begins % below
    if inner and inner[0].reduced:
        places = np.where(places + sizes <= below, begins % inner[0].below, places)
    examined = Counter(zip(places.tolist(), sizes.tolist(), strict=True))
    known = {alike: _tile_pattern(alike[0], sum(alike), levels, run) for alike in examined}
    columns = {alike: sum([region.columns for region in known[alike]]) for alike in known}
    return InputLayout(
        tuple(dict.fromkeys(known.values())),
        _spread(levels, per_tile),
        max(columns.values()),
        ceil_div(sum(columns[alike] * times for alike, times in examined.items()) * tiles, wanted),
        any(region.rows > 1 for pattern in known.values() for region in pattern),
    )


def _spread(levels: tuple[Level, ...], per_tile: int) -> int:
    """Return over how many tiles the partials of one output lie, at most."""
    outputs = prod(level.size for level in levels if not level.reduced)
    partials = prod(level.size for level in levels if level.reduced)
    if outputs == 1:
        return ceil_div(partials, per_tile)
    sampled = min(outputs, max(_LEAST_OUTPUTS_EXAMINED, _EXAMINED_ELEMENTS // partials))
    rest = np.arange(sampled, dtype=np.int64) * outputs // sampled
    # The partials of an output are series of `length` elements in steps of `step`, which begin at
    # its `begins` plus each of `starts`.
    begins, starts = np.zeros_like(rest), np.zeros(1, dtype=np.int64)
    length = step = 0
    for size, flag, stride, _ in reversed(levels):
        if not flag:
            begins += rest % size * stride
            rest //= size
        elif not length:
            length, step = size, stride
        else:
            # Outer dimensions come first, so tiles are in order.
            offsets = np.arange(size, dtype=np.int64) * stride
            starts = (offsets[:, None] + starts[None, :]).ravel()
    places = begins[:, None] + starts[None, :]
    first, last = places // per_tile, (places + (length - 1) * step) // per_tile
    # Steps within a share skip no tile; longer ones put each partial of a series on another tile.
    changes = (last - first).sum(axis=1) if step <= per_tile else len(starts) * (length - 1)
    changes = changes + (first[:, 1:] != last[:, :-1]).sum(axis=1)
    return int(changes.max()) + 1
