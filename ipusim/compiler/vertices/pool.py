"""Cycles of the pooling vertices (MaxPooling, MaxPoolingGrad, SumPooling) on one tile.

A vertex walks over rows of outputs; each row has one work item per kernel position that
contributes, and each item runs a loop over the row for every channel vector. Sources: poplibs
lib/popnn/PoolVertices.cpp (work lists), lib/popnn/popnnCycleEstimators.cpp (tag 1.0.136) and
lib/popnn/PerformanceEstimation.hpp, getPoolingCycles (tag sdk/poplar/2.4.0).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np

from ipusim.compiler.eras import ERA_1_0
from ipusim.compiler.tiles import Tile, ceil_div, pieces_of_rows

# Unpacking a scaled pointer, twice for the list of work lists.
_UNPACK = 2


@dataclass(frozen=True, slots=True)
class TileSlice:
    """The share of one tile: channel groups, batch elements and output field."""

    channel_grouping: int
    channel_groups: int
    batch: int
    field: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PoolVertex:
    """Which vertex runs (maximum or sum, forward or gradient of a maximum), and how it is timed.

    The first fields say which inputs an output sees, per spatial dimension: `dilation` is the
    spacing of the input, the forward stride in the gradient, otherwise 1; `padding_lower` comes
    before the first (dilated) input. A vector has `width` channels.
    """

    in_field: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding_lower: tuple[int, ...]
    is_max: bool
    is_grad: bool
    width: int
    tile: Tile

    def reached(self, dim: int, begin: int, end: int) -> np.ndarray:
        """Return, by kernel position and output of a range, whether they meet an input."""
        ahead = self.padding_lower[dim] - np.arange(self.kernel[dim])[:, None]
        place, dilation = np.arange(begin, end) * self.stride[dim] - ahead, self.dilation[dim]
        inside = (place >= 0) & (place < self.in_field[dim] * dilation)
        return inside & (place % dilation == 0)

    def leaves_out(self, dim: int, size: int, split: int) -> bool:
        """Whether the first or the last output of a share meets no input, if so many share a dim.

        Outputs between those that meet inputs do not count (PoolVertices.cpp, createSlices).
        """
        met = self.reached(dim, 0, size).any(axis=0)
        edges = np.arange(split + 1) * size // split
        return not (met[edges[:-1]].all() and met[edges[1:] - 1].all())

    def input_extent(self, shares: Sequence[int]) -> int:
        """Return the input elements per plane that a block of outputs needs."""
        return prod(
            min(field, ceil_div((out - 1) * stride + kernel, dilation))
            for out, field, stride, kernel, dilation in zip(
                shares, self.in_field, self.stride, self.kernel, self.dilation, strict=True
            )
        )

    def loop_cycles(self, count: int) -> int:
        """Return the cycles of the innermost loop, over `count` outputs of one channel vector."""
        if self.is_grad:
            return 7 + 5 * (count - 1)
        return (4 if self.is_max else 5) + 3 * (count - 1)

    def item_cycles(self, part: TileSlice, count: int) -> int:
        """Return the cycles of one work item: a kernel position, `count` outputs, all channels."""
        groups = part.channel_groups
        vectors = part.channel_grouping // self.width
        channel_loop = vectors * (3 + self.loop_cycles(count)) + 1
        if self.tile.era == ERA_1_0:
            # Pointers are reloaded and advanced for every channel group.
            return 23 + groups * (2 + 5 + 4 + 2 + (12 if self.is_grad else 0) + channel_loop)
        between = (6 if self.is_grad else 4) * (groups - 1)
        return 23 + between + groups * (1 + channel_loop)

    def init_cycles(self, part: TileSlice, outputs: int, worker: int) -> int:
        """Return the cycles in which a worker writes its share of the tile's first values.

        Tag 1.0.136 takes eight cycles for every vector of the tile and forgets a channel group.
        Later what is left over is found from outputs, not vectors: as the difference is unsigned,
        every worker has one more where vectors of several per output were shared out.
        """
        vectors = outputs * (part.channel_grouping // self.width)
        if self.tile.era == ERA_1_0:
            return (3 + 8 * (vectors + 1)) * (part.channel_groups - 1)
        share = vectors // self.tile.workers
        left = outputs - share * self.tile.workers
        return (4 + share + ((left < 0) | (worker < left))) * part.channel_groups

    def worker_cycles(self, init_cycles: int, rows: int, items: int) -> int:
        """Return one worker's cycles: `init_cycles`, and `items` for the work of all its rows."""
        early = self.tile.era == ERA_1_0
        cycles = 16 if early else 17 + _UNPACK
        cycles += init_cycles
        cycles += 7 if early else 6 + _UNPACK
        busy = 1 if self.is_max else 2
        if early:
            busy += 3 + (8 if self.is_grad else 0) + 3
        else:
            busy += 2 + (6 + 2 * _UNPACK if self.is_grad else 0) + 6 + 2 * _UNPACK
        return cycles + (rows > 0) * busy + rows * (17 if early else 15) + items + 1


def pool_vertex_estimate(vertex: PoolVertex, part: TileSlice) -> np.ndarray:
    """Return the estimate of the 2021 planner for arrays of shares: all taps contribute."""
    vectors = part.channel_grouping // vertex.width
    outputs, workers = prod(part.field) * part.batch, vertex.tile.workers
    width = part.field[-1]
    worker = np.arange(workers + 1).reshape(-1, *np.ndim(outputs) * [1])
    edges = worker * outputs // workers
    begin, end = edges[:-1], edges[1:]
    head = np.minimum(end, ceil_div(begin, width) * width) - begin
    tail = end - np.maximum(begin + head, end // width * width)
    whole = (end - begin - head - tail) // width
    rows = items = 0
    for times, count in ((head > 0, head), (whole, width), (tail > 0, tail)):
        rows = rows + times
        contributing = ceil_div(count, vertex.dilation[-1])
        items = items + times * vertex.item_cycles(part, contributing)
    items *= prod(vertex.kernel)
    # It takes the outputs for vectors here.
    init_cycles = vertex.init_cycles(part, outputs // vectors, worker[:-1])
    slowest = vertex.worker_cycles(init_cycles, rows, items).max(axis=0)
    return 7 + workers * slowest + 6


def pool_tile_cycles(
    vertex: PoolVertex, out_field: Sequence[int], field_split: Sequence[int], part: TileSlice
) -> int:
    """Return the cycles of the slowest tile, with the work lists it really has.

    `part` is the largest share; the field may be one smaller on some tiles.
    """
    sampled = []
    for dim, (size, split) in enumerate(zip(out_field, field_split, strict=True)):
        edges = [(at * size // split, (at + 1) * size // split) for at in _sampled(size, split)]
        found = [vertex.reached(dim, *each) for each in edges]
        # Parts that are alike once only.
        sampled.append({each.tobytes(): each for each in found}.values())
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


def _tile_cycles(vertex: PoolVertex, tile: Sequence[np.ndarray], part: TileSlice) -> int:
    """Return the cycles of a tile, given `reached` of its outputs along each field dimension."""
    *outer, last = tile
    workers, width = vertex.tile.workers, last.shape[1]
    # How many kernel positions of the outer dimensions reach each row of the tile.
    counts = product(*(along.sum(axis=0).tolist() for along in outer))
    per_row = [prod(each) for each in counts] * part.batch
    # Cycles of the work items of a stretch of a row that one row of kernel positions reaches.
    known: dict[tuple[int, int], int] = {}
    outputs = len(per_row) * width
    slowest = 0
    for worker in range(workers):
        rows = []
        begin, end = worker * outputs // workers, (worker + 1) * outputs // workers
        for row, first, stop in pieces_of_rows(begin, end, width):
            piece = first, stop
            if piece not in known:
                reached = last[:, first:stop].sum(axis=1).tolist()
                known[piece] = sum(vertex.item_cycles(part, count) for count in reached if count)
            if items := known[piece] * per_row[row]:
                rows.append(items)
        init_cycles = vertex.init_cycles(part, outputs, worker)
        slowest = max(slowest, vertex.worker_cycles(init_cycles, len(rows), sum(rows)))
    return 7 + workers * slowest + 6
