"""How popnn splits a pooling operation over the tiles.

Sources: poplibs lib/popnn/PoolPlan.cpp and PoolPlan.hpp at tags 1.0.136 ("2020-01") and
sdk/poplar/2.4.0 ("2021-11"; 2.0.0 and 3.3.0 plan alike). The early planner weighs a simple formula,
the later one the vertex's own estimate, and treats batch elements as further channels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod

from ipusim.compiler.superstep import (
    ChipLike,
    Era,
    ceil_div,
    distinct_splits,
    element_bytes,
    parse_era,
    require_positive,
    vector_width,
)
from ipusim.compiler.vertices.pool import PoolGeometry, TileSlice, pool_vertex_estimate
from ipusim.errors import ConfigError, unknown_name

POOL_KINDS = ("max", "average", "sum")

# poplibs lib/popnn/PoolPlan.cpp: most grains per channel group, and how much slower a plan with
# the preferred channel grouping may be (PoolPlan.hpp: 16 halves; 8 floats, 4 where sums are cast).
_MAX_GRAINS = 8
_PREFERRED_GROUPING = {"float16": 16, "float32": 8}
_GROUPING_TOLERANCE = (4, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolParams:
    """A pooling operation.

    Attributes
    ----------
    kind : str
        "max", "average" or "sum".
    batch, channels : int
        Batch size and channels.
    field, kernel, stride : tuple of int
        Input field, window and step per spatial dimension.
    padding_lower, padding_upper : tuple of int
        Padding per spatial dimension.
    include_padding : bool
        Whether averages count padding as elements.
    """

    kind: str
    batch: int
    channels: int
    field: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding_lower: tuple[int, ...]
    padding_upper: tuple[int, ...]
    include_padding: bool = False

    def __post_init__(self) -> None:
        if self.kind not in POOL_KINDS:
            raise unknown_name("pooling", self.kind, POOL_KINDS)
        require_positive(batch=self.batch, channels=self.channels)
        sizes = {len(self.kernel), len(self.stride), len(self.padding_lower)}
        if sizes | {len(self.padding_upper)} != {len(self.field)}:
            raise ConfigError(
                f"The pooling kernel, stride and padding must have the {len(self.field)} "
                "dimensions of its field."
            )
        for label, values in (("kernel", self.kernel), ("stride", self.stride)):
            for value in values:
                require_positive(**{f"Pooling {label}": value})
        if any(size < 1 for size in self.out_field):
            raise ConfigError(
                f"A pooling window of {self.kernel} does not fit into a field of {self.field}: "
                "give a smaller kernel or more padding."
            )

    @property
    def out_field(self) -> tuple[int, ...]:
        """Output field."""
        return tuple(
            (size + lower + upper - kernel) // stride + 1
            for size, lower, upper, kernel, stride in zip(
                self.field,
                self.padding_lower,
                self.padding_upper,
                self.kernel,
                self.stride,
                strict=True,
            )
        )

    @property
    def is_global(self) -> bool:
        """Whether the window covers the whole field, without padding."""
        unpadded = not any(self.padding_lower) and not any(self.padding_upper)
        return self.kernel == self.field and unpadded

    def forward_geometry(self) -> PoolGeometry:
        """Return the geometry of the forward pass."""
        return PoolGeometry(
            self.field, self.kernel, self.stride, (1,) * len(self.field), self.padding_lower
        )

    def backward_geometry(self) -> PoolGeometry:
        """Return the geometry of the gradient: strides turn into dilation of the input."""
        lower = tuple(k - 1 - p for k, p in zip(self.kernel, self.padding_lower, strict=True))
        return PoolGeometry(self.out_field, self.kernel, (1,) * len(self.field), self.stride, lower)


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """How one pass is split.

    Attributes
    ----------
    channel_grouping : int
        Channels processed together.
    channel_split, batch_split : int
        Parts of the channel groups and of the batch.
    field_split : tuple of int
        Parts per spatial dimension.
    cost_cycles : int
        The planner's own estimate.
    """

    channel_grouping: int
    channel_split: int
    batch_split: int
    field_split: tuple[int, ...]
    cost_cycles: int


def _field_splits(out_field: Sequence[int], tiles: int) -> Iterator[tuple[int, ...]]:
    """Yield field splits that fit; of the last dimension only the finest, which costs least."""
    heads = [distinct_splits(size, tiles) for size in out_field[:-1]]
    for head in product(*heads):
        used = prod(head)
        if used <= tiles:
            yield (*head, distinct_splits(out_field[-1], tiles // used)[-1])


def _input_bytes(
    geometry: PoolGeometry, shares: Sequence[int], planes: int, size: int, extra_inputs: int
) -> int:
    """Return the bytes a tile needs for its share of the output (getBytesRequiredPerTile)."""
    extents = [
        out * stride + kernel - stride
        for out, stride, kernel in zip(shares, geometry.stride, geometry.kernel, strict=True)
    ]
    in_bytes = prod(extents) * planes * size
    if extra_inputs:
        return 2 * in_bytes + prod(shares) * planes * size
    return in_bytes


def _early_cost(
    geometry: PoolGeometry, part: TileSlice, dtype: str, detected: int, chip: ChipLike
) -> int:
    """Return the cost that PoolPlan.cpp of tag 1.0.136 minimises, in cycles."""
    outer = prod(part.field[:-1])
    vectors = ceil_div(part.channel_grouping, vector_width(dtype, chip))
    compute = outer * (10 + prod(geometry.kernel) * part.field[-1] * (3 + 2 * vectors))
    compute *= part.batch * part.channel_groups
    planes = part.batch * part.channel_groups * part.channel_grouping
    tile_bytes = prod(part.field) * planes * element_bytes(dtype)
    regroup = tile_bytes // 4 if detected != part.channel_grouping else 0
    return compute + tile_bytes // chip.exchange_bytes_per_cycle + regroup


def _late_cost(
    geometry: PoolGeometry,
    out_field: Sequence[int],
    part: TileSlice,
    kind: str,
    backward: bool,
    dtype: str,
    detected: int,
    chip: ChipLike,
) -> int:
    """Return the cost that PoolPlan.cpp of tag 2.4.0 minimises, in cycles."""
    is_max = kind == "max"
    grad = backward and is_max
    kernel_positions = prod(geometry.kernel)
    arguments = (geometry.dilation[-1], kernel_positions, vector_width(dtype, chip), chip.workers)
    compute = pool_vertex_estimate(part, *arguments, is_max=is_max, is_grad=grad)
    for dim, size in enumerate(out_field):
        if size % part.field[dim] and part.field[dim] > 1:
            field = list(part.field)
            field[dim] -= 1
            smaller = TileSlice(
                part.channel_grouping, part.channel_groups, part.batch, tuple(field)
            )
            other = pool_vertex_estimate(smaller, *arguments, is_max=is_max, is_grad=grad)
            compute = max(compute, other)
    planes = part.batch * part.channel_groups * part.channel_grouping
    tile_bytes = _input_bytes(geometry, part.field, planes, element_bytes(dtype), int(grad))
    regroup = tile_bytes // 4 if detected != part.channel_grouping else 0
    return compute + tile_bytes // chip.exchange_bytes_per_cycle + regroup


def _search(
    params: PoolParams,
    geometry: PoolGeometry,
    out_field: tuple[int, ...],
    groupings: Sequence[int],
    dtype: str,
    detected: int,
    backward: bool,
    library: str,
    chip: ChipLike,
) -> PoolPlan:
    """Return the cheapest split; the first found wins a tie."""
    # From 2020 H2 the forward pass treats batch elements as further channels.
    merge_batch = library != "2020-01" and not backward
    batch = 1 if merge_batch else params.batch
    channels = params.channels * (params.batch if merge_batch else 1)
    best: PoolPlan | None = None
    for grouping in groupings:
        groups = ceil_div(channels, grouping)
        for channel_split in distinct_splits(groups, chip.tiles):
            for batch_split in distinct_splits(batch, chip.tiles // channel_split):
                left = chip.tiles // (channel_split * batch_split)
                for field_split in _field_splits(out_field, left):
                    part = TileSlice(
                        grouping,
                        ceil_div(groups, channel_split),
                        ceil_div(batch, batch_split),
                        tuple(map(ceil_div, out_field, field_split)),
                    )
                    if library == "2020-01":
                        cost = _early_cost(geometry, part, dtype, detected, chip)
                    else:
                        cost = _late_cost(
                            geometry, out_field, part, params.kind, backward, dtype, detected, chip
                        )
                    if best is None or cost < best.cost_cycles:
                        best = PoolPlan(grouping, channel_split, batch_split, field_split, cost)
    if best is None:
        raise ConfigError(f"No pooling plan fits on {chip.tiles} tiles: give at least one tile.")
    return best


def plan_pool(
    params: PoolParams,
    dtype: str,
    chip: ChipLike,
    *,
    era: str | Era,
    backward: bool = False,
    channel_grouping: int = 16,
) -> PoolPlan:
    """Return how popnn would split one pass.

    Parameters
    ----------
    params : PoolParams
        The operation.
    dtype : str
        "float16" or "float32".
    chip : Chip
        The chip.
    era : str or Era
        Generation of poplibs; its library part decides the plan.
    backward : bool, optional
        Whether the gradient is planned.
    channel_grouping : int, optional
        Channels that sit together in memory in the pass's input.

    Returns
    -------
    PoolPlan
    """
    chip_key = (
        chip.tiles,
        chip.workers,
        chip.data_path_bytes,
        chip.exchange_bytes_per_cycle,
    )
    return _plan_cached(params, dtype, chip_key, parse_era(era).library, backward, channel_grouping)


@dataclass(frozen=True, slots=True)
class _PlanChip:
    """The chip properties a plan depends on, hashable."""

    tiles: int
    workers: int
    data_path_bytes: int
    exchange_bytes_per_cycle: int
    memcpy_bytes_per_cycle: int = 8
    max_sync_delay_cycles: int = 0


@lru_cache(maxsize=512)
def _plan_cached(
    params: PoolParams,
    dtype: str,
    chip_key: tuple[int, int, int, int],
    library: str,
    backward: bool,
    detected: int,
) -> PoolPlan:
    chip = _PlanChip(*chip_key)
    geometry = params.backward_geometry() if backward else params.forward_geometry()
    out_field = params.field if backward else params.out_field
    grain = vector_width(dtype, chip)
    channels = params.channels
    if library != "2020-01" and not backward:
        channels *= params.batch
    most = min(ceil_div(detected, grain), ceil_div(channels, grain))
    most = max(1, min(most, _MAX_GRAINS))
    groupings = [grain * count for count in range(1, most + 1)]
    fixed = (dtype, detected, backward, library, chip)
    best = _search(params, geometry, out_field, groupings, *fixed)
    preferred = _PREFERRED_GROUPING[dtype] if params.kind == "max" else 4 * grain
    if dtype == "float32" and params.kind != "max":
        preferred = 4
    if library == "2020-01" or best.channel_grouping >= preferred or channels < preferred:
        return best
    grouped = _search(params, geometry, out_field, [preferred], *fixed)
    numerator, denominator = _GROUPING_TOLERANCE
    if grouped.cost_cycles < best.cost_cycles * numerator // denominator:
        return grouped
    return best
