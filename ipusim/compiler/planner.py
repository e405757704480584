"""The convolution and matrix-multiply planner: transforms, vertex types, and the cheapest plan.

`plan` tries the transforms that poplibs tries (operand swap, kernel dimensions folded into input
channels, batch and field flattened into one dimension, narrow groups combined), lists the vertex
types that the chip and the stack offer for each, and lets `conv_search.search` find the best
partition of all of them under the temporary-memory bound.

References
----------
poplibs ``lib/poplin/ConvPlan.cpp`` (createPlan, runPlanner) and ``ConvVertexType.cpp``.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ipusim.compiler import conv_search as cs
from ipusim.compiler.conv_vertices import ERA_1_0, ERA_2_4
from ipusim.errors import ConfigError
from ipusim.machine import Chip

_MAX_DIMS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvShape:
    """One convolution, or a matrix product seen as one; channels are per group.

    Attributes
    ----------
    kind : str
        "conv"; "matmul" for a product on its own; "fully_connected" for a layer whose weights
        are laid out for it.
    groups, batch, in_channels, out_channels : int
        For C[g, m, n] = A[g, m, k] B[g, k, n]: groups g, batch n, in_channels k, out_channels m
        (poplibs swaps the operands of products: MatMul.cpp).
    field, kernel, stride, padding_lower, padding_upper, in_dilation, kernel_dilation : tuple of int
        One entry per spatial dimension; a matrix product has one dimension of size 1.
    in_bytes, out_bytes : int
        Bytes of an input (and weight) element and of an output element.
    """

    kind: str
    groups: int
    batch: int
    in_channels: int
    out_channels: int
    field: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding_lower: tuple[int, ...]
    padding_upper: tuple[int, ...]
    in_dilation: tuple[int, ...]
    kernel_dilation: tuple[int, ...]
    in_bytes: int
    out_bytes: int

    def __post_init__(self) -> None:
        if not 1 <= len(self.field) <= _MAX_DIMS:
            raise ConfigError(
                f"A convolution over {len(self.field)} spatial dimensions cannot be planned: "
                f"use 1 to {_MAX_DIMS}."
            )

    @classmethod
    def matmul(
        cls, groups: int, m: int, k: int, n: int, *, dtype_bytes: int, kind: str = "matmul"
    ) -> ConvShape:
        """Return the shape of C[g, m, n] = A[g, m, k] B[g, k, n]."""
        one, zero = (1,), (0,)
        return cls(
            kind=kind,
            groups=groups,
            batch=n,
            in_channels=k,
            out_channels=m,
            field=one,
            kernel=one,
            stride=one,
            padding_lower=zero,
            padding_upper=zero,
            in_dilation=one,
            kernel_dilation=one,
            in_bytes=dtype_bytes,
            out_bytes=dtype_bytes,
        )

    @property
    def out_field(self) -> tuple[int, ...]:
        """Output extent per spatial dimension."""
        return tuple(
            ((size - 1) * dilation + 1 + low + high - ((kernel - 1) * spread + 1)) // stride + 1
            for size, dilation, low, high, kernel, spread, stride in zip(
                self.field,
                self.in_dilation,
                self.padding_lower,
                self.padding_upper,
                self.kernel,
                self.kernel_dilation,
                self.stride,
                strict=True,
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerRules:
    """What one software stack's planner does.

    Attributes
    ----------
    era : int
        Generation of the vertex formulas and planner rules (`conv_vertices`).
    partials_bytes : int
        Bytes of a partial sum, 2 or 4, in the vertex and between tiles.
    available_memory_proportion : float
        Share of tile memory that one operation's temporaries may take, 0 < p <= 1.
    """

    era: int
    partials_bytes: int
    available_memory_proportion: float

    def __post_init__(self) -> None:
        if self.partials_bytes not in (2, 4):
            raise ConfigError(
                f"Partials of {self.partials_bytes} bytes do not exist: use half (2) or float (4)."
            )
        if not 0 < self.available_memory_proportion <= 1:
            raise ConfigError(
                f"The available memory proportion {self.available_memory_proportion} is outside "
                "its range: use more than 0 and at most 1."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The chosen partition of one convolution and what it costs.

    Attributes
    ----------
    method : str
        Vertex type: AMP, SLIC, HMAC, VMAC or OUTER_PRODUCT.
    transform : str
        Transforms before the split, "none" if there are none.
    conv_groups_per_group, in_chans_per_group, out_chans_per_group, units : int
        Grouping of the vertex, and the convolution units or chains that it uses.
    split : tuple of int
        Partition, indexed by the S_ constants of `conv_search`.
    planned_cycles : int
        The planner's own objective.
    cost : tuple of int
        Terms of what runs, indexed by the C_ constants of `conv_search`.
    evaluations : int
        Partitions that the search looked at.
    within_memory_bound : bool
        False where no plan fitted the bound and poplibs' fallback was taken.
    """

    method: str
    transform: str
    conv_groups_per_group: int
    in_chans_per_group: int
    out_chans_per_group: int
    units: int
    partial_bytes: int
    split: tuple[int, ...]
    planned_cycles: int
    cost: tuple[int, ...]
    evaluations: int
    within_memory_bound: bool

    @property
    def serial_splits(self) -> int:
        """How many times the loop over serial parts runs."""
        return self.cost[cs.C_SERIAL]

    @property
    def tiles_used(self) -> int:
        """Tiles that take part."""
        return self.cost[cs.C_TILES_USED]

    @property
    def reduction_depth(self) -> int:
        """Partials that are summed over tiles for one output."""
        return self.cost[cs.C_DEPTH]

    @property
    def temp_bytes(self) -> int:
        """Temporary bytes of the fullest tile."""
        return self.cost[cs.C_TEMP_BYTES]

    @property
    def partial_bytes_per_tile(self) -> int:
        """Bytes of the partials tensor on the fullest tile."""
        return self.cost[cs.C_PARTIAL_BYTES]

    def describe(self) -> str:
        """Return the plan in one line, splits that are 1 left out."""
        names = ("g", "b", "f0", "f1", "f2", "k0", "k1", "k2", "i", "is", "o", "os")
        parts = [f"{n}{v}" for n, v in zip(names, self.split, strict=False) if v > 1]
        grouping = (
            f"{self.conv_groups_per_group}x{self.in_chans_per_group}x{self.out_chans_per_group}"
        )
        vertex = self.method
        if self.method == "AMP":
            vertex = "AMP 1x1" if self.cost[cs.C_ONE_BY_ONE] else "AMP nx1"
        return f"{vertex} {grouping} / {' '.join(parts) or 'one tile'}"


def plan(shape: ConvShape, chip: Chip, rules: PlannerRules, *, pruned: bool = True) -> Plan:
    """Return the cheapest plan of `shape` on `chip`.

    Parameters
    ----------
    shape : ConvShape
    chip : Chip
    rules : PlannerRules
    pruned : bool
        False evaluates every partition (slow; for tests).

    Returns
    -------
    Plan
        Equal arguments give equal plans on every machine.

    Raises
    ------
    ConfigError
        If no vertex can do the work.

    Notes
    -----
    Where nothing fits the memory bound, stacks from 2.0 on double it until a plan fits and at
    last drop it; 1.0.136 looks for the plan with the least temporary memory (runPlanner).
    """
    return _plan(shape, _ChipKey.of(chip), rules, pruned)


def forget_plans() -> None:
    """Forget the plans remembered so far, for measuring."""
    _plan.cache_clear()


@dataclass(frozen=True, slots=True)
class _ChipKey:
    """The chip's values that a plan depends on, hashable for the cache."""

    mark: int
    tiles: int
    bytes_per_tile: int
    memory_element_bytes: int
    half_half_units: int
    half_float_units: int
    float_float_units: int
    exchange_bytes: int
    tiles_per_bus: int
    memcpy_bytes: int

    @classmethod
    def of(cls, chip: Chip) -> _ChipKey:
        return cls(
            chip.mark,
            chip.tiles,
            chip.bytes_per_tile,
            chip.memory_element_bytes,
            chip.half_half_conv_units,
            chip.half_float_conv_units,
            chip.float_float_conv_units,
            chip.exchange_bytes_per_cycle,
            chip.tiles_per_exchange_bus,
            chip.memcpy_bytes_per_cycle,
        )

    def units(self, in_bytes: int, partial_bytes: int) -> int:
        if in_bytes == 4:
            return self.float_float_units
        return self.half_half_units if partial_bytes == 2 else self.half_float_units

    @property
    def single_input_bytes(self) -> int:
        """Largest partials for the contiguous reduce vertex (ConvReducePlan.hpp).

        The partials, rounded up to memory elements, must stay below a sixteenth of the memory.
        """
        element = self.memory_element_bytes
        return (math.ceil(self.bytes_per_tile / 16 / element) - 1) * element


@lru_cache(maxsize=65536)
def _plan(shape: ConvShape, chip: _ChipKey, rules: PlannerRules, pruned: bool) -> Plan:
    limit = int(chip.bytes_per_tile * rules.available_memory_proportion)
    candidates = []
    for transform, problem in _problems(shape, chip, rules):
        vertices = _vertices(problem, shape, chip, rules)
        if len(vertices):
            candidates.append((transform, problem, vertices))
    found = None
    if pruned:
        # Serial splits only save memory: the same parallel split without them is never slower.
        # So where the best plan without them, whatever its memory, fits, it is the best of all.
        found = _best(candidates, int(cs.UNBOUNDED), False, True, serial=False)
        if found is not None and found.temp_bytes > limit:
            found = None
    if found is None:
        found = _best(candidates, limit, False, pruned)
    within = found is not None
    if found is None and rules.era == ERA_1_0:
        found = _best(candidates, int(cs.UNBOUNDED), True, pruned)
    while found is None and limit < 2 * chip.bytes_per_tile:
        limit *= 2
        found = _best(candidates, limit, False, pruned)
    if found is None:
        found = _best(candidates, int(cs.UNBOUNDED), False, pruned)
    if found is None:
        raise ConfigError(
            f"No vertex can compute {shape}: use float16 or float32 data and at least one channel."
        )
    problem, vertex = found.problem, found.vertex
    problem[cs.EXECUTING] = 1
    cost = np.zeros(cs.COST_SIZE, np.int64)
    cs.conv_cost(problem, vertex, found.split, cost)
    return Plan(
        method=cs.METHOD_NAMES[vertex[cs.METHOD]],
        transform=found.transform,
        conv_groups_per_group=int(vertex[cs.CONV_GROUPS_PER_GROUP]),
        in_chans_per_group=int(vertex[cs.IN_CHANS_PER_GROUP]),
        out_chans_per_group=int(vertex[cs.OUT_CHANS_PER_GROUP]),
        units=int(vertex[cs.UNITS]),
        partial_bytes=int(vertex[cs.PARTIAL_BYTES]),
        split=tuple(int(v) for v in found.split),
        planned_cycles=found.cycles,
        cost=tuple(int(v) for v in cost),
        evaluations=found.evaluations,
        within_memory_bound=within,
    )


@dataclass(frozen=True, slots=True)
class _Found:
    """The winner of one search."""

    transform: str
    problem: np.ndarray
    vertex: np.ndarray
    split: np.ndarray
    cycles: int
    temp_bytes: int
    evaluations: int


def _best(
    candidates: list[tuple[str, np.ndarray, np.ndarray]],
    limit: int,
    minimise_memory: bool,
    pruned: bool,
    *,
    serial: bool = True,
) -> _Found | None:
    """Search all candidates with one shared best cost; None if nothing is within `limit`."""
    best_cost = np.full(cs.COST_SIZE, cs.UNBOUNDED, np.int64)
    best_split = np.ones(cs.SPLIT_SIZE, np.int64)
    best = None
    evaluations = 0
    for coarse in (True, False) if pruned else (False,):
        for transform, problem, vertices in candidates:
            winner, count = cs.search(
                problem,
                vertices,
                limit,
                minimise_memory,
                pruned,
                serial,
                coarse,
                best_cost,
                best_split,
            )
            evaluations += count
            if winner >= 0:
                best = (transform, problem, vertices[winner])
    if best is None:
        return None
    cycles, temp_bytes = int(best_cost[cs.C_TOTAL]), int(best_cost[cs.C_TEMP_BYTES])
    return _Found(*best, best_split, cycles, temp_bytes, evaluations)


def _problems(shape: ConvShape, chip: _ChipKey, rules: PlannerRules):
    """Yield (transform name, problem vector) for every transform worth trying, best first."""
    product = shape.kind != "conv"
    if product:
        yield "none", _problem(shape, chip, rules, copy_all=False, expand=())
        yield "swap", _problem(_swapped(shape), chip, rules, copy_all=True, expand=())
        return
    dims = range(len(shape.field))
    foldable = [
        d
        for d in dims
        if shape.field[d] >= shape.kernel[d]
        and (
            shape.kernel[d] > 1
            or shape.stride[d] > 1
            or shape.in_dilation[d] > 1
            or shape.padding_lower[d]
            or shape.padding_upper[d]
        )
    ]
    for count in range(len(foldable) + 1):
        for expand in itertools.combinations(foldable, count):
            name = "expand " + "".join(str(d) for d in expand) if expand else "none"
            yield name, _problem(shape, chip, rules, copy_all=False, expand=expand)
    combine = _combine_factors(shape)
    for factor in combine:
        merged = _with(
            shape,
            groups=math.ceil(shape.groups / factor),
            in_channels=shape.in_channels * factor,
            out_channels=shape.out_channels * factor,
        )
        yield (
            f"combine {factor}",
            _problem(merged, chip, rules, copy_all=rules.era != ERA_1_0, expand=()),
        )
    if _pointwise(shape):
        # Operands swapped and the field flattened into output channels: the transposed product.
        positions = shape.batch * math.prod(shape.field)
        transposed = _with(
            shape,
            kind="matmul",
            batch=shape.out_channels,
            out_channels=positions,
            field=(1,),
            kernel=(1,),
            stride=(1,),
            padding_lower=(0,),
            padding_upper=(0,),
            in_dilation=(1,),
            kernel_dilation=(1,),
        )
        yield "swap", _problem(transposed, chip, rules, copy_all=True, expand=())


def _with(shape: ConvShape, **changes) -> ConvShape:
    values = {name: getattr(shape, name) for name in ConvShape.__dataclass_fields__}
    return ConvShape(**(values | changes))


def _swapped(shape: ConvShape) -> ConvShape:
    return _with(shape, batch=shape.out_channels, out_channels=shape.batch)


def _pointwise(shape: ConvShape) -> bool:
    return all(
        k == s == i == 1 and low == high == 0
        for k, s, i, low, high in zip(
            shape.kernel,
            shape.stride,
            shape.in_dilation,
            shape.padding_lower,
            shape.padding_upper,
            strict=True,
        )
    )


def _combine_factors(shape: ConvShape) -> list[int]:
    """Factors by which narrow groups are merged (getCombineConvGroupCandidates)."""
    narrow = (1,) if shape.in_bytes == 4 else (1, 2)
    if shape.groups == 1 or shape.in_channels not in narrow:
        return []
    load, most = (2, 8) if shape.in_bytes == 4 else (4, 16)
    factors = []
    factor = load // shape.in_channels
    while factor <= most // shape.in_channels:
        factors.append(factor)
        factor *= 2
    return factors


def _problem(
    shape: ConvShape,
    chip: _ChipKey,
    rules: PlannerRules,
    *,
    copy_all: bool,
    expand: tuple[int, ...],
) -> np.ndarray:
    """Build the problem vector: dimensions expanded, then batch and free dimensions flattened."""
    lead = max(0, 2 - len(shape.field))
    out = [1] * lead + list(shape.out_field)
    kernel = [1] * lead + list(shape.kernel)
    field = [1] * lead + list(shape.field)
    stride = [1] * lead + list(shape.stride)
    dilation = [1] * lead + list(shape.in_dilation)
    spread = [1] * lead + list(shape.kernel_dilation)
    low = [0] * lead + list(shape.padding_lower)
    high = [0] * lead + list(shape.padding_upper)
    in_channels = shape.in_channels
    batch = shape.batch
    transformed = [False] * len(out)
    for d in expand:
        d += lead
        in_channels *= kernel[d]
        field[d] = out[d]
        kernel[d] = stride[d] = dilation[d] = spread[d] = 1
        low[d] = high[d] = 0
        transformed[d] = True
    flat = [
        d
        for d in range(len(out))
        if kernel[d] == stride[d] == dilation[d] == 1 and low[d] == high[d] == 0
    ]
    if flat:
        inner = flat[-1]
        for d in flat[:-1]:
            out[inner] *= out[d]
            field[inner] *= field[d]
            out[d] = field[d] = 1
        out[inner] *= batch
        field[inner] *= batch
        batch = 1
        for d in flat:
            transformed[d] = True
    problem = np.zeros(cs.PROBLEM_SIZE, np.int64)
    problem[cs.GROUPS] = shape.groups
    problem[cs.BATCH] = batch
    problem[cs.IN_CHANS] = in_channels
    problem[cs.OUT_CHANS] = shape.out_channels
    problem[cs.DIMS] = len(out)
    for d in range(len(out)):
        reach = (out[d] - 1) * stride[d] + (kernel[d] - 1) * spread[d] - low[d]
        problem[cs.OUT_FIELD + d] = out[d]
        problem[cs.KERNEL + d] = kernel[d]
        problem[cs.WHOLE_IN + d] = min(field[d] - 1, reach // dilation[d]) + 1
        problem[cs.STRIDE + d] = stride[d]
        problem[cs.IN_DILATION + d] = dilation[d]
        problem[cs.KERNEL_DILATION + d] = spread[d]
        problem[cs.TRANSFORMED + d] = transformed[d]
        problem[cs.PADDED + d] = bool(low[d] or high[d])
        problem[cs.PADDING + d] = low[d] + high[d]
        problem[cs.IN_FIELD + d] = field[d]
    problem[cs.IN_BYTES] = shape.in_bytes
    problem[cs.OUT_BYTES] = shape.out_bytes
    problem[cs.INTER_TILE_BYTES] = rules.partials_bytes
    problem[cs.FULLY_CONNECTED] = shape.kind.startswith("fc_")
    problem[cs.COPY_INPUT] = copy_all or bool(expand)
    problem[cs.COPY_WEIGHTS] = copy_all or bool(expand)
    problem[cs.COPY_OUTPUT] = copy_all
    problem[cs.ERA] = rules.era
    problem[cs.TILES] = chip.tiles
    problem[cs.EXCHANGE_BYTES] = chip.exchange_bytes
    problem[cs.TILES_PER_BUS] = chip.tiles_per_bus
    problem[cs.MEMCPY_BYTES] = chip.memcpy_bytes
    problem[cs.IN_SERIAL_ALLOWED] = rules.era != ERA_1_0
    problem[cs.VIEW_OUT_CHANS] = shape.out_channels
    problem[cs.VIEW_IN_CHANS] = shape.in_channels
    problem[cs.BROADCAST_ALLOWED] = rules.era >= ERA_2_4
    problem[cs.SINGLE_INPUT_BYTES] = -1 if rules.era == ERA_1_0 else chip.single_input_bytes
    problem[cs.WEIGHTS_PER_UNIT] = 16 if shape.in_bytes == 2 else 8
    problem[cs.UNITS_ON_CHIP] = chip.units(shape.in_bytes, rules.partials_bytes)
    problem[cs.ORIGINAL_IN_CHANS] = shape.in_channels
    problem[cs.ORIGINAL_OUT_CHANS] = shape.out_channels
    return problem


def _vertices(
    problem: np.ndarray, shape: ConvShape, chip: _ChipKey, rules: PlannerRules
) -> np.ndarray:
    """List the vertex types as rows of `conv_search`, most promising first.

    Notes
    -----
    Order: padded peak rate, then padding, then partial size (sortConvVertexTypeCandidates).
    SLIC needs half data and is off for fully connected layers; VMAC half data; both exist from
    stack 1.2 on, so not in era 0 (ConvVertexType.cpp; ConvPlan.cpp of 1.0.136).
    """
    in_bytes = shape.in_bytes
    partials = 4 if in_bytes == 4 else rules.partials_bytes
    in_chans, out_chans = int(problem[cs.IN_CHANS]), int(problem[cs.OUT_CHANS])
    kernel_elements = math.prod(int(problem[cs.KERNEL + d]) for d in range(int(problem[cs.DIMS])))
    rows: list[tuple[int, ...]] = []
    modern = rules.era != ERA_1_0
    depth = 16 if in_bytes == 2 else 8
    if (
        modern
        and shape.out_bytes < partials
        and in_chans <= depth
        and kernel_elements == 1
        and in_bytes == 2
    ):
        # No reduction follows, so the vertex may accumulate in the output's narrower type.
        rows += [
            row
            for row in _amp_rows(in_bytes, 2, chip, rules, shape)
            if math.ceil(in_chans / row[2]) * row[2] == depth
        ]
    rows += _amp_rows(in_bytes, partials, chip, rules, shape)
    if modern and in_bytes == 2 and not shape.kind.startswith("fc_"):
        rows += _slic_rows(partials, chip, rules)
    rows += _hmac_rows(in_bytes, partials, in_chans, chip, modern)
    if modern and in_bytes == 2 and (partials == 4 or rules.era >= ERA_2_4):
        groupings = (4,) if partials == 4 else (4, 8, 16)
        rows += [(cs.VMAC, g, 1, 1, 0, partials) for g in groupings]
    narrow_result = in_bytes < partials
    if not narrow_result or (modern and in_chans == 1 and kernel_elements == 1):
        rows.append((cs.OUTER_PRODUCT, 1, 1, 8 // in_bytes, 0, in_bytes))

    def promise(item: tuple[int, tuple[int, ...]]) -> tuple[float, float, int, int]:
        index, row = item
        padded = math.ceil(in_chans / row[2]) * row[2] * math.ceil(out_chans / row[3]) * row[3]
        padding = (padded - in_chans * out_chans) / padded
        return (-_peak_macs(row, in_bytes, chip) * (1 - padding), padding, row[5], index)

    ordered = [row for _, row in sorted(enumerate(rows), key=promise)]
    return np.array(list(dict.fromkeys(ordered)), np.int64).reshape(-1, cs.VERTEX_SIZE)


def _peak_macs(row: tuple[int, ...], in_bytes: int, chip: _ChipKey) -> int:
    """Multiply-accumulates per cycle and tile at best (getMaxMACsPerCyclePerTile)."""
    lanes = 8 // in_bytes
    if row[0] == cs.AMP:
        return min(chip.units(in_bytes, row[5]), row[3]) * lanes
    if row[0] == cs.SLIC:
        return min(lanes, row[2]) * 4 * 2
    return lanes


def _amp_rows(in_bytes: int, partials: int, chip: _ChipKey, rules: PlannerRules, shape: ConvShape):
    depth = 16 if in_bytes == 2 else 8
    aligned = 8 // in_bytes
    units_on_chip = chip.units(in_bytes, partials)
    rows = []
    if rules.era == ERA_1_0:
        unit_counts = [units_on_chip]
        out_groupings = [units_on_chip, depth]
    else:
        unit_counts = [units_on_chip]
        out_groupings = [units_on_chip, depth]
        if units_on_chip == 16:
            unit_counts.append(8)
            out_groupings.append(8)
    for units in unit_counts:
        for in_per in range(depth, 0, -1):
            if depth % in_per or in_per % aligned:
                continue
            used_depth = depth * units // units_on_chip
            for out_per in out_groupings:
                if out_per % units:
                    continue
                if rules.era != ERA_1_0 and out_per not in (units, used_depth):
                    continue
                if in_per != depth and used_depth % in_per:
                    continue
                if shape.kind == "fc_inference" and out_per != units:
                    continue
                rows.append((cs.AMP, 1, in_per, out_per, units, partials))
    return rows


def _slic_rows(partials: int, chip: _ChipKey, rules: PlannerRules):
    units = chip.units(2, partials)
    chains = [2]
    if partials == 2 and units == 16:
        chains = [4, 2]
    groupings = [(1, 4), (2, 2), (4, 1)]
    if rules.era >= ERA_2_4 and partials == 2 and units == 16:
        groupings += [(8, 1), (16, 1)]
    return [(cs.SLIC, g, c, c, chain, partials) for chain in chains for g, c in groupings]


def _hmac_rows(in_bytes: int, partials: int, in_chans: int, chip: _ChipKey, modern: bool):
    grain = 2 if in_bytes == 2 else 1
    rounded = math.ceil(in_chans / grain) * grain
    out_per = 2 if (modern and partials == 2) else 1
    rows = []
    groups_before = 0
    for in_per in range(grain, rounded + 1, grain):
        groups = math.ceil(rounded / in_per)
        if groups != groups_before:
            rows.append((cs.HMAC, 1, in_per, out_per, 0, partials))
        groups_before = groups
    return rows
