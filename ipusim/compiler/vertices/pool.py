"""Cycles of the pooling vertices (MaxPooling, MaxPoolingGrad, SumPooling) on one tile.

A vertex walks over rows of outputs; each row has one work item per kernel position that
contributes, and each item runs a loop over the row for every channel vector. Sources: poplibs
lib/popnn/PoolVertices.cpp (work lists), lib/popnn/popnnCycleEstimators.cpp (tag 1.0.136) and
lib/popnn/PerformanceEstimation.hpp, getPoolingCycles (tag sdk/poplar/2.4.0).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import NamedTuple

from ipusim.compiler.tiles import ceil_div

# Unpacking a scaled pointer, twice for the list of work lists.
_UNPACK = 2


def _within(outputs: range, begin: int, end: int) -> range:
    """Return those of some outputs that lie in ``[begin, end)``, counted from `begin`."""
    first, last = (max(0, ceil_div(edge - outputs.start, outputs.step)) for edge in (begin, end))
    inside = outputs[first:last]
    return range(inside.start - begin, inside.stop - begin, inside.step)


class Reached(NamedTuple):
    """So many outputs along a dimension, and which of them each kernel position reaches."""

    outputs: int
    by_position: tuple[range, ...]

    def hits(self, output: int) -> int:
        """Return how many positions reach an output."""
        return sum([output in reached for reached in self.by_position])

    def extents(self, begin: int, end: int) -> Counter[int]:
        """Return of how many positions the reached outputs of ``[begin, end)`` extend so far."""
        inside = [_within(reached, begin, end) for reached in self.by_position]
        return Counter([each[-1] - each[0] + 1 for each in inside if each])


@dataclass(frozen=True, slots=True)
class PoolGeometry:
    """Which inputs an output sees, per spatial dimension.

    `dilation` is the spacing of the input: the forward stride in the gradient, otherwise 1;
    `padding_lower` comes before the first (dilated) input.
    """

    in_field: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding_lower: tuple[int, ...]

    def reached(self, dim: int, begin: int, end: int) -> Reached:
        """Return which outputs of ``[begin, end)`` fall on an input, counted from the first.

        Strides or dilation are 1, so those of one kernel position lie a dilation apart.
        """
        dilation, stride = self.dilation[dim], self.stride[dim]
        found = []
        for offset in range(self.kernel[dim]):
            ahead = self.padding_lower[dim] - offset
            last = (ahead + (self.in_field[dim] - 1) * dilation) // stride
            outputs = range(ceil_div(ahead, stride), last + 1, dilation)
            found.append(_within(outputs, begin, end))
        return Reached(end - begin, tuple(found))

    def input_extent(self, shares: Sequence[int]) -> int:
        """Return the input elements per plane that a block of outputs needs."""
        return prod(
            min(field, ceil_div((out - 1) * stride + kernel, dilation))
            for out, field, stride, kernel, dilation in zip(
                shares, self.in_field, self.stride, self.kernel, self.dilation, strict=True
            )
        )


@dataclass(frozen=True, slots=True)
class TileSlice:
    """The share of one tile: channel groups, batch elements and output field."""

    channel_grouping: int
    channel_groups: int
    batch: int
    field: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PoolVertex:
    """Which vertex runs (maximum or sum, forward or gradient of a maximum), and how it is timed."""

    geometry: PoolGeometry
    is_max: bool
    is_grad: bool
    vector_width: int
    workers: int
    version: str

    def loop_cycles(self, count: int) -> int:
        """Return the innermost loop over `count` outputs of one vector."""
        if self.is_grad:
            return 7 + 5 * (count - 1)
        return (4 if self.is_max else 5) + 3 * (count - 1)

    def item_cycles(self, part: TileSlice, count: int) -> int:
        """Return one work item: `count` outputs of a row for one kernel position, all channels."""
        groups = part.channel_groups
        vectors = part.channel_grouping // self.vector_width
        channel_loop = vectors * (3 + self.loop_cycles(count))
        if self.version == "2020-01":
            # Pointers are reloaded and advanced for every channel group.
            per_group = 2 + 5 + 4 + 2 + (12 if self.is_grad else 0)
            return 23 + groups * (per_group + channel_loop + 1)
        between = (6 if self.is_grad else 4) * (groups - 1)
        return 23 + between + groups * (1 + channel_loop + 1)

    def worker_cycles(self, part: TileSlice, init_vectors: int, rows: Sequence[int]) -> int:
        """Return one worker's cycles.

        It initialises `init_vectors` vectors per channel group; `rows` are the cycles of the work
        items of each row.
        """
        early = self.version == "2020-01"
        cycles = 16 if early else 17 + _UNPACK
        cycles += ((3 if early else 4) + init_vectors) * part.channel_groups
        cycles += 7 if early else 6 + _UNPACK
        if not rows:
            return cycles + 1
        pointer = 1 if self.is_max else 2
        if early:
            cycles += 3 + pointer + (8 if self.is_grad else 0) + 3
        else:
            cycles += 2 + pointer + (6 + 2 * _UNPACK if self.is_grad else 0) + 6 + 2 * _UNPACK
        return cycles + len(rows) * (17 if early else 15) + sum(rows) + 1


def _segments(
    batch: int, field: tuple[int, ...], worker: int, workers: int
) -> list[tuple[int, int, int]]:
    """Return the (outer row, begin, end) pieces of output that one worker takes."""
    width = field[-1]
    total = batch * prod(field)
    begin, end = worker * total // workers, (worker + 1) * total // workers
    pieces = []
    while begin < end:
        row, offset = divmod(begin, width)
        stop = min(end - begin, width - offset)
        pieces.append((row, offset, offset + stop))
        begin += stop
    return pieces


def pool_vertex_estimate(vertex: PoolVertex, part: TileSlice) -> int:
    """Return the estimate that the 2021 planner uses: every kernel position always contributes."""
    vectors = part.channel_grouping // vertex.vector_width
    outputs, workers = prod(part.field) * part.batch, vertex.workers
    width = part.field[-1]
    init_vectors = outputs // vectors * vectors // workers
    idle, busy = (vertex.worker_cycles(part, init_vectors, rows) for rows in ([], [0]))

    def row(count: int) -> int:
        return 15 + _row_cycles(vertex, part, count) if count else 0

    full_row, slowest = row(width), 0
    for worker in range(workers):
        begin, end = worker * outputs // workers, (worker + 1) * outputs // workers
        head = min(end, ceil_div(begin, width) * width) - begin
        tail = end - max(begin + head, end // width * width)
        cycles = (end - begin - head - tail) // width * full_row + row(head) + row(tail)
        slowest = max(slowest, busy - 15 + cycles if begin < end else idle)
    return 7 + workers * slowest + 6


def _row_cycles(vertex: PoolVertex, part: TileSlice, count: int) -> int:
    """Return the work items of `count` outputs along a row, as many as there are positions."""
    contributing = ceil_div(count, vertex.geometry.dilation[-1])
    return prod(vertex.geometry.kernel) * vertex.item_cycles(part, contributing)


def least_pool_estimate(vertex: PoolVertex, part: TileSlice) -> int:
    """Return cycles that `pool_vertex_estimate` cannot go below: its workers share them evenly."""
    rows = prod(part.field[:-1]) * part.batch
    return rows * _row_cycles(vertex, part, part.field[-1])


def pool_tile_cycles(
    vertex: PoolVertex, out_field: Sequence[int], field_split: Sequence[int], part: TileSlice
) -> int:
    """Return the cycles of the slowest tile, with the work lists it really has.

    `part` is the largest share; the field may be one smaller on some tiles. The estimator of tag
    1.0.136 multiplies the zeroing of outputs by 8 per worker and skips one channel group, which no
    vertex does; the corrected count is used for both versions.
    """
    sampled = [
        {
            vertex.geometry.reached(dim, index * size // split, (index + 1) * size // split)
            for index in _sampled(size, split)
        }
        for dim, (size, split) in enumerate(zip(out_field, field_split, strict=True))
    ]
    return max([_tile_cycles(vertex, tile, part) for tile in product(*sampled)])


def _sampled(size: int, split: int) -> set[int]:
    """Return parts among which the slowest is: both parities inside the field, large shares."""
    middle, largest = split // 2, ceil_div(size, split)
    picked = {min(split - 1, max(0, middle + step)) for step in (-1, 0, 1, 2)}
    return picked | {
        index
        for index in range(min(split, 8))
        if (index + 1) * size // split - index * size // split == largest
    }


def _tile_cycles(vertex: PoolVertex, tile: Sequence[Reached], part: TileSlice) -> int:
    """Return the cycles of a tile with such outputs along each dimension of the field."""
    # Outputs that one kernel position reaches lie so far apart in a row.
    row_stride = vertex.geometry.dilation[-1]
    workers, field = vertex.workers, tuple([along.outputs for along in tile])
    # How many kernel positions of the outer dimensions reach each row of the tile.
    outer_hits = [[along.hits(out) for out in range(along.outputs)] for along in tile[:-1]]
    per_row = [prod(counts) for counts in product(*outer_hits)] * part.batch
    # Cycles of the work items of a stretch of a row that one row of kernel positions reaches.
    known: dict[tuple[int, int], int] = {}
    vectors = part.channel_grouping // vertex.vector_width
    outputs = prod(field) * part.batch
    slowest = 0
    for worker in range(workers):
        rows = []
        for row, begin, end in _segments(part.batch, field, worker, workers):
            if (begin, end) not in known:
                known[begin, end] = sum(
                    times * vertex.item_cycles(part, ceil_div(extent, row_stride))
                    for extent, times in tile[-1].extents(begin, end).items()
                )
            items = known[begin, end] * per_row[row]
            if items:
                rows.append(items)
        cycles = vertex.worker_cycles(part, ceil_div(outputs * vectors, workers), rows)
        slowest = max(slowest, cycles)
    return 7 + workers * slowest + 6
