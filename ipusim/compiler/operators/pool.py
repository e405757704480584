"""Pooling: how popnn splits a pass over the tiles, and its supersteps.

Sources: poplibs lib/popnn/PoolPlan.cpp and PoolPlan.hpp (the split), lib/popnn/Pooling.cpp (what is
done) and lib/popnn/PoolVertices.cpp (which vertex runs where), at tags 1.0.136 and
sdk/poplar/2.4.0 (2.0.0 and 3.3.0 plan alike). The early planner weighs a simple formula,
the later one the vertex's own estimate, and treats batch elements as further channels.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import gcd, prod
from typing import NamedTuple, Self

import numpy as np

from ipusim.compiler.emitter import Emitter, Placed, TensorLayout
from ipusim.compiler.eras import ERA_1_0, ERA_2_4
from ipusim.compiler.state import Lowering, lowers
from ipusim.compiler.tiles import (
    Tile,
    ceil_div,
    copy_cycles,
    distinct_splits,
    element_bytes,
    rearranged_copy_cycles,
    vector_width,
)
from ipusim.compiler.vertices.pool import (
    PoolVertex,
    TileSlice,
    pool_tile_cycles,
    pool_vertex_estimate,
)
from ipusim.machine import Chip
from ipusim.workload.graph import Pool

# poplibs lib/popnn/PoolPlan.cpp: most grains per channel group, and how much slower a plan with
# the preferred channel grouping may be (PoolPlan.hpp: four floats where sums are cast to halves).
_MAX_GRAINS = 8
_PREFERRED_GROUPING = {
    ("max", "float16"): 16,
    ("max", "float32"): 8,
    ("average", "float16"): 16,
    ("average", "float32"): 4,
}
_GROUPING_TOLERANCE = (4, 3)


@dataclass(frozen=True)
class PoolPass:
    """One pass of a pooling operation as it is planned.

    ``grouping`` are the channels that sit together in memory in the pass's input, ``era`` that
    of the stack.
    """

    op: Pool
    dtype: str
    grouping: int
    era: int

    @property
    def is_max(self) -> bool:
        """Whether the maximum is taken, not the average."""
        return self.op.kind == "max"

    @property
    def is_grad(self) -> bool:
        """Whether the vertex of a maximum's gradient runs, which reads three tensors."""
        return self.op.backward and self.is_max

    def gathered(self, group: int) -> Self:
        """Return the pass with dimensions merged, as it is planned from 2020 H2 on.

        Forward, batch elements become channels. Where windows do not overlap and fill the field,
        all rows of windows become one row; if `group` divides the channels, so many stay, and the
        other groups become positions of that row (Pooling.cpp, gatherDimsTransformIn).
        """
        op = self.op
        if op.backward or self.era == ERA_1_0:
            return self
        channels, field, grouping = op.channels * op.batch, list(op.field), self.grouping
        spread = op.padded or max(op.dilation, default=1) > 1
        windows = zip(field, op.kernel, op.stride, strict=True)
        if not spread and all(step >= taps and not n % step for n, taps, step in windows):
            if len(field) > 1:
                field[-2:] = op.stride[-2], field[-2] // op.stride[-2] * field[-1]
            if channels % group == 0:
                field[-1] *= channels // group
                channels, grouping = group, gcd(grouping, group)
        gathered = replace(op, batch=1, channels=channels, field=tuple(field))
        return replace(self, op=gathered, grouping=grouping)

    @cached_property
    def out_field(self) -> tuple[int, ...]:
        """Field that the pass writes."""
        return self.op.field if self.op.backward else self.op.out_field

    def vertex(self, tile: Tile) -> PoolVertex:
        """Return the vertex that runs; in a gradient strides turn into dilation of the input."""
        op, ones = self.op, (1,) * len(self.op.field)
        sees = op.field, op.kernel, op.stride, ones, op.padding_lower
        if op.backward:
            lower = tuple(k - 1 - p for k, p in zip(op.kernel, op.padding_lower, strict=True))
            sees = op.out_field, op.kernel, ones, op.stride, lower
        return PoolVertex(*sees, self.is_max, self.is_grad, tile.width(self.dtype), tile)

    def part(self, split: Sequence[int]) -> TileSlice:
        """Return the largest share of a tile in a split, as `PoolPlan` has it."""
        grouping, channel_parts, batch_parts, *field_parts = split
        groups = ceil_div(self.op.channels, grouping)
        return TileSlice(
            grouping,
            ceil_div(groups, channel_parts),
            ceil_div(self.op.batch, batch_parts),
            tuple(map(ceil_div, self.out_field, field_parts)),
        )


class PoolPlan(NamedTuple):
    """How a pass is split, its dimensions merged as popnn merges them.

    A `split` has the channels that are processed together, then the parts of channel groups, batch
    and field. The cost is the planner's own estimate.
    """

    asked: PoolPass
    split: tuple[int, ...]
    cost_cycles: int

    @property
    def part(self) -> TileSlice:
        """The largest share of a tile."""
        return self.asked.part(self.split)


def _splits(asked: PoolPass, grouping: int, tiles: int) -> np.ndarray:
    """Return the splits into at most `tiles` parts, of the last dimension the cheapest."""
    *outer, last = asked.out_field
    found, parts = np.full((1, 1), grouping), np.ones(1, dtype=int)
    for size in (ceil_div(asked.op.channels, grouping), asked.op.batch, *outer):
        counts = np.array(distinct_splits(size, tiles))
        at, chosen = np.nonzero(parts[:, None] * counts <= tiles)
        found = np.column_stack((found[at], counts[chosen]))
        parts = parts[at] * counts[chosen]
    finest = ceil_div(last, np.minimum(last, tiles // parts))
    return np.column_stack((found, ceil_div(last, finest)))


def _moved(asked: PoolPass, part: TileSlice, chip: Chip, elements: int) -> int:
    """Return the planner's cycles to send and regroup `elements` of each plane of a tile."""
    planes = part.batch * part.channel_groups * part.channel_grouping
    tile_bytes = elements * planes * element_bytes(asked.dtype)
    regroup = tile_bytes // 4 * (asked.grouping != part.channel_grouping)
    return tile_bytes // chip.exchange_bytes_per_cycle + regroup


def _early_cost(asked: PoolPass, part: TileSlice, chip: Chip) -> int:
    """Return the cost that PoolPlan.cpp of tag 1.0.136 minimises, in cycles."""
    vectors = ceil_div(part.channel_grouping, vector_width(asked.dtype, chip))
    window = prod(asked.op.kernel)
    row = 10 + window * part.field[-1] * (3 + 2 * vectors)
    compute = prod(part.field[:-1]) * row * part.batch * part.channel_groups
    return compute + _moved(asked, part, chip, prod(part.field))


def _late_cost(asked: PoolPass, part: TileSlice, chip: Chip, *, of_largest: bool = False) -> int:
    """Return the cost that PoolPlan.cpp of tag 2.4.0 minimises, in cycles.

    The bytes that move are those of getBytesRequiredPerTile. The cost `of_largest`, of the largest
    share alone, is no more than that.
    """
    vertex, field = asked.vertex(Tile(chip, ERA_2_4)), part.field
    shares = [np.stack(field)]
    others = () if of_largest else zip(asked.out_field, field, strict=True)
    for dim, (extent, share) in enumerate(others):
        # Where shares differ, that of the others is one smaller.
        shares.append(shares[0].copy())
        shares[-1][dim] -= (extent % share > 0) & (share > 1)
    # Reckoned at once: of few splits, the calls take longer than the numbers.
    alike = replace(part, field=tuple(np.stack(shares, axis=1)))
    compute = pool_vertex_estimate(vertex, alike).max(axis=0)
    windows = zip(field, vertex.stride, vertex.kernel, strict=True)
    elements = prod(out * step + taps - step for out, step, taps in windows)
    if asked.is_grad:
        elements = 2 * elements + prod(field)
    return compute + _moved(asked, part, chip, elements)


def _in_solver_order(
    asked: PoolPass, groupings: Sequence[int], splits: np.ndarray, chip: Chip
) -> np.ndarray:
    """Return the splits that may cost least, in the order in which the later planner tries them.

    Its solver (lib/popsolver/Model.cpp, minimize) counts up the shares of a tile, in the outermost
    loop that with the fewest values.
    """
    least = _late_cost(asked, asked.part(splits.T), chip, of_largest=True)
    one = asked.part(splits[least.argmin()])
    splits = splits[least <= _late_cost(asked, one, chip)]
    parts = asked.part(splits.T)
    shares = (parts.channel_grouping, parts.channel_groups, parts.batch, *parts.field)
    values = [groupings[-1] - groupings[0], ceil_div(asked.op.channels, groupings[0]) - 1]
    values += [size - 1 for size in (asked.op.batch, *asked.out_field)]
    nested = sorted(zip(values, range(len(shares)), shares, strict=True), reverse=True)
    return splits[np.lexsort([share for *_, share in nested])]


def _search(asked: PoolPass, groupings: Sequence[int], chip: Chip) -> PoolPlan:
    """Return the cheapest split; the first found wins a tie. The early planner counts splits up."""
    cost = _early_cost
    splits = np.concatenate([_splits(asked, grouping, chip.tiles) for grouping in groupings])
    if asked.era != ERA_1_0:
        cost, splits = _late_cost, _in_solver_order(asked, groupings, splits, chip)
    # Formulas hold for a number and for an array of them.
    costs = cost(asked, asked.part(splits.T), chip)
    best = costs.argmin()
    return PoolPlan(asked, tuple(splits[best].tolist()), int(costs[best]))


@lru_cache(maxsize=512)
def plan_pool(asked: PoolPass, chip: Chip) -> PoolPlan:
    """Return how one pass is split."""
    grain = vector_width(asked.dtype, chip)
    finest = asked.gathered(grain)
    channels = finest.op.channels
    most = min(ceil_div(finest.grouping, grain), ceil_div(channels, grain))
    most = max(1, min(most, _MAX_GRAINS))
    best = _search(finest, [grain * count for count in range(1, most + 1)], chip)
    preferred = _PREFERRED_GROUPING[asked.op.kind, asked.dtype]
    grouped = asked.gathered(preferred)
    few = grouped.op.channels < preferred
    if asked.era == ERA_1_0 or best.split[0] >= preferred or few:
        return best
    wider = _search(grouped, [preferred], chip)
    numerator, denominator = _GROUPING_TOLERANCE
    return wider if wider.cost_cycles < best.cost_cycles * numerator // denominator else best


@lowers(Pool)
def pool(m: Lowering, op: Pool, *inputs: Placed) -> TensorLayout:
    """Lower a pass; a gradient is copied into the layout of the pool's result before it is used."""
    layout = inputs[-1 if op.backward else 0].layout
    acts = inputs[1].layout.grouping if op.backward and op.kind == "max" else None
    return TensorLayout(grouping=pool_pass(m, op, m.dtype, layout.grouping, acts))


def pool_pass(m: Emitter, op: Pool, dtype: str, grouping: int, acts: int | None = None) -> int:
    """Run one pass on a tensor with a grouping of channels; return the grouping of the result.

    The gradient of a maximum also reads the input of the forward pass, whose grouping is `acts`.

    A window that covers the field is a reduction (Pooling.cpp, substPoolingWithReduction), and the
    gradient of its average a broadcast (substPoolingGradientWithBroadcast). Gradients of averages
    are scaled by the elements of each window first: a number for each output, which meets all
    channels (scaleGradient), but where the window covers the field as many as the gradient has.
    """
    whole_field = op.kernel == op.field and not op.padded
    average = op.kind == "average"
    block = grouping if op.channels % grouping == 0 else 1
    if whole_field and not op.backward:
        shape = (op.channels // block, op.batch, prod(op.field), block)
        stages = [*m.reduction("add" if average else "max", Placed(shape, dtype), 2)]
        if average and stages:
            # The last vertices also scale, by a float32 of one tile (poolImpl, ReduceParams).
            at = max(at for at, stage in enumerate(stages) if stage.vertex == "popops::Reduce")
            last, scale = stages[at], element_bytes("float32")
            stages[at] = last._replace(received=last.received + scale, temp=last.temp + scale)
        for stage in stages:
            m.run(stage)
        return grouping
    if average and op.backward:
        pooled = Placed((op.batch * op.channels // block * prod(op.out_field), block), dtype)
        name = "scale gradient by window"
        if block > 1 and not whole_field:
            m.by_row("mul", pooled, name)
        else:
            m.binary("mul", pooled, name, received=m.tile_bytes(pooled))
        if whole_field:
            # One gradient per channel is copied to the whole field it was averaged over.
            field = Placed((op.batch * op.channels * prod(op.field),), dtype)
            values = min(op.batch * op.channels, m.share(field)) * element_bytes(dtype)
            copied = copy_cycles(m.tile_bytes(field), m.chip)
            m.copy("broadcast gradient", values, cycles=copied)
            return grouping
    result = _pool(m, PoolPass(op, dtype, grouping, m.era), acts)
    if average and op.padded and not op.include_padding and not op.backward:
        # Windows over padding have fewer elements, so each output is scaled on its own
        # (SelectiveScaling, which the estimators charge 10 cycles per worker).
        m.emit("scale by window", "popnn::SelectiveScaling", 10 * m.chip.workers)
    return result


def _pool(m: Emitter, asked: PoolPass, acts: int | None) -> int:
    """Run the planned vertex, each input rearranged by itself; return the result's grouping."""
    op, chip, plan = asked.op, m.chip, plan_pool(asked, m.chip)
    part, vertex = plan.part, plan.asked.vertex(m.tile)
    out_field, field_split = plan.asked.out_field, plan.split[3:]
    cycles = pool_tile_cycles(vertex, out_field, field_split, part)
    size = element_bytes(asked.dtype)
    planes = part.batch * part.channel_groups * part.channel_grouping
    in_bytes = vertex.input_extent(part.field) * planes * size
    out_bytes = prod(part.field) * planes * size
    windows = [(in_bytes, asked.grouping)]
    if asked.is_grad:
        # The gradient lies like the forward result, which is read too; of the forward input, the
        # elements at the places of this pass's outputs are.
        windows += [*windows, (out_bytes, acts or asked.grouping)]
    received = sum(each for each, _ in windows)
    copied = sum(
        rearranged_copy_cycles(each, gcd(grouping, part.channel_grouping) * size, chip)
        for each, grouping in windows
        if grouping != part.channel_grouping
    )
    if asked.is_grad:
        # The incoming gradient is first copied into the layout of the pooled output.
        pooled = ceil_div(op.batch * op.channels * prod(op.out_field), chip.tiles)
        m.copy("rearrange gradient", pooled * size)
    dims = enumerate(zip(out_field, field_split, strict=True))
    if m.era >= ERA_2_4 and any(vertex.leaves_out(dim, *each) for dim, each in dims):
        # The vertices write no output that is left out, so all are zeroed first (zeroRequired).
        m.fill(Placed((out_bytes // size,), asked.dtype, TensorLayout(tiles=1)))
    kind = ("MaxPoolingGrad" if asked.is_grad else "MaxPooling") if asked.is_max else "SumPooling"
    name = f"{op.kind} pool" + (" gradient" if op.backward else "")
    m.emit(name, f"popnn::{kind}", cycles, received=received, copy=copied)
    return part.channel_grouping
