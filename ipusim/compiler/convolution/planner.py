"""The convolution and matrix-multiply planner: the cheapest plan of one operation.

`plan` tries the transforms that poplibs tries (`transforms`), lists the vertex types that the
chip and the stack offer for each (`vertex_types`), and lets `search.search` find the best
partition of all of them under the temporary-memory bound.

References
----------
poplibs ``lib/poplin/ConvPlan.cpp`` (createPlan, runPlanner).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ipusim.compiler.convolution import record as lay, search as cs
from ipusim.compiler.convolution.cost import conv_cost
from ipusim.compiler.convolution.params import Dim
from ipusim.compiler.convolution.shape import ConvShape, PlannerChip, PlannerRules
from ipusim.compiler.convolution.totals import fill_totals
from ipusim.compiler.convolution.transforms import defers_dilation, transformed_problems
from ipusim.compiler.convolution.vertex_types import vertex_types
from ipusim.compiler.convolution.windows import windowed_cycles
from ipusim.compiler.vertices.conv import ERA_1_0
from ipusim.machine import Chip

__all__ = ["ConvShape", "Plan", "PlannerRules", "forget_plans", "plan"]

Candidate = tuple[str, np.ndarray, np.ndarray, tuple[Dim, ...]]
"""Name of a transform, its problem vector, its vertex types and its spatial dimensions."""


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
    partial_bytes : int
        Bytes of a partial sum.
    split : tuple of int
        Partition, indexed by the S_ constants of `record`.
    planned_cycles : int
        The planner's own objective.
    cost : tuple of int
        Terms of what runs, indexed by the C_ constants of `record`.
    evaluations : int
        Partitions that the search looked at.
    within_memory_bound : bool
        False where no plan fitted the bound and poplibs' fallback was taken.
    spreads_output : bool
        Whether zeros are spread through the result afterwards, instead of through the input.
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
    spreads_output: bool

    @property
    def serial_splits(self) -> int:
        """How many times the loop over serial parts runs."""
        return self.cost[lay.C_SERIAL]

    @property
    def tiles_used(self) -> int:
        """Tiles that take part."""
        return self.cost[lay.C_TILES_USED]

    @property
    def reduction_depth(self) -> int:
        """Partials that are summed over tiles for one output."""
        return self.cost[lay.C_DEPTH]

    @property
    def temp_bytes(self) -> int:
        """Temporary bytes of the fullest tile."""
        return self.cost[lay.C_TEMP_BYTES]

    @property
    def partial_bytes_per_tile(self) -> int:
        """Bytes of the partials tensor on the fullest tile."""
        return self.cost[lay.C_PARTIAL_BYTES]

    @property
    def one_by_one(self) -> bool:
        """Whether the AMP vertex without a window runs."""
        return self.method == "AMP" and bool(self.cost[lay.C_ONE_BY_ONE])

    @property
    def codelet(self) -> str:
        """The vertex and the channel groups it is made for."""
        vertex = self.method
        if self.method == "AMP":
            vertex = "AMP 1x1" if self.one_by_one else "AMP nx1"
        groups = self.conv_groups_per_group, self.in_chans_per_group, self.out_chans_per_group
        return f"{vertex} {'x'.join(map(str, groups))}"

    def __str__(self) -> str:
        """Return the plan in one line, splits that are 1 left out."""
        names = ("g", "b", "f0", "f1", "f2", "k0", "k1", "k2", "i", "is", "o", "os")
        parts = [f"{n}{v}" for n, v in zip(names, self.split, strict=False) if v > 1]
        return f"{self.codelet} / {' '.join(parts) or 'one tile'}"


@dataclass(frozen=True, slots=True)
class Found:
    """The winner of one search: vectors as in `record`, dimensions after the transform."""

    transform: str
    problem: np.ndarray
    vertex: np.ndarray
    dims: tuple[Dim, ...]
    split: np.ndarray
    cycles: int
    evaluations: int


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

    Notes
    -----
    Where nothing fits the memory bound, stacks from 2.0 on double it until a plan fits and at
    last drop it; 1.0.136 looks for the plan with the least temporary memory (runPlanner).
    """
    return _plan(shape, PlannerChip.of(chip), rules, pruned)


def forget_plans() -> None:
    """Drop every remembered plan, so that the next call plans anew."""
    _plan.cache_clear()


@lru_cache(maxsize=65536)
def _plan(shape: ConvShape, chip: PlannerChip, rules: PlannerRules, pruned: bool) -> Plan:
    limit = rules.temporary_bytes(chip.bytes_per_tile)
    candidates = []
    for transform, problem, dims in transformed_problems(shape, chip, rules):
        candidates.append((transform, problem, vertex_types(problem, shape, chip, rules), dims))
    found = _best(candidates, limit, False, pruned)
    within = found is not None
    if found is None:
        found = _fall_back(candidates, limit, chip, rules, pruned)
    return executed_plan(found, within_memory_bound=within, spreads_output=defers_dilation(shape))


def executed_plan(
    found: Found, *, within_memory_bound: bool = True, spreads_output: bool = False
) -> Plan:
    """Return a partition as a plan, with the costs of what runs."""
    problem, vertex, split = found.problem, found.vertex, found.split
    problem[lay.EXECUTING] = 1
    totals = np.zeros(lay.TOTALS_SIZE, np.int64)
    cost = np.zeros(lay.COST_SIZE, np.int64)
    fill_totals(problem, vertex, totals)
    conv_cost(problem, vertex, totals, split, cost)
    computed = windowed_cycles(problem, vertex, totals, split, found.dims)
    if computed is not None:
        cost[lay.C_CALC] = computed
    return Plan(
        method=lay.METHOD_NAMES[vertex[lay.METHOD]],
        transform=found.transform,
        conv_groups_per_group=int(vertex[lay.CONV_GROUPS_PER_GROUP]),
        in_chans_per_group=int(vertex[lay.IN_CHANS_PER_GROUP]),
        out_chans_per_group=int(vertex[lay.OUT_CHANS_PER_GROUP]),
        units=int(vertex[lay.UNITS]),
        partial_bytes=int(vertex[lay.PARTIAL_BYTES]),
        split=tuple(int(v) for v in split),
        planned_cycles=found.cycles,
        cost=tuple(int(v) for v in cost),
        evaluations=found.evaluations,
        within_memory_bound=within_memory_bound,
        spreads_output=spreads_output,
    )


def _fall_back(
    candidates: list[Candidate],
    limit: int,
    chip: PlannerChip,
    rules: PlannerRules,
    pruned: bool,
) -> Found:
    """Find a plan where none is within `limit`; the HMAC vertex can always do it."""
    if rules.era == ERA_1_0:
        return _best(candidates, int(lay.UNBOUNDED), True, pruned)
    while limit < 2 * chip.bytes_per_tile:
        limit *= 2
        found = _best(candidates, limit, False, pruned)
        if found is not None:
            return found
    return _best(candidates, int(lay.UNBOUNDED), False, pruned)


def _best(
    candidates: list[Candidate],
    limit: int,
    minimise_memory: bool,
    pruned: bool,
) -> Found | None:
    """Search all candidates with one shared best cost; None if nothing is within `limit`."""
    best_cost = np.full(lay.COST_SIZE, lay.UNBOUNDED, np.int64)
    best_split = np.ones(lay.SPLIT_SIZE, np.int64)
    best = None
    evaluations = 0
    for serial, coarse in ((False, True), (False, False), (True, True), (True, False)):
        # Coarse rounds only find a cost to beat: without serial parts first, as these seldom pay
        # unless the memory bound asks for them.
        if coarse and (best is not None or not pruned):
            continue
        for transform, problem, vertices, dims in candidates:
            winner, count = cs.search(
                problem,
                vertices[:1] if coarse else vertices,
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
                best = (transform, problem, vertices[winner], dims)
    if best is None:
        return None
    return Found(*best, best_split, int(best_cost[lay.C_TOTAL]), evaluations)
