"""The convolution and matrix-multiply planner: the cheapest plan of one operation.

`plan` tries the transforms that poplibs tries (`transforms`), lists the vertex types that the
chip and the stack offer for each (`vertex_types`), and lets `search.search` find the best
partition of all of them under the temporary-memory bound.

References
----------
poplibs ``lib/poplin/ConvPlan.cpp`` (createPlan, runPlanner).
"""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import lru_cache
from math import gcd, prod

import numpy as np

from ipusim.compiler.convolution.kernel import EXECUTE, NO_SPANS, SEARCH, kernel
from ipusim.compiler.convolution.params import ConvPass
from ipusim.compiler.convolution.record import UNBOUNDED, Cost, Split, empty_works
from ipusim.compiler.convolution.rules import PlannerChip, PlannerRules
from ipusim.compiler.convolution.transforms import (
    Transform,
    defers_dilation,
    transformed_problems,
)
from ipusim.compiler.convolution.vertex_types import each_once, vertex_types
from ipusim.compiler.convolution.windows import windowed_cycles
from ipusim.compiler.tiles import Runs, ceil_div
from ipusim.compiler.vertices import METHOD_NAMES
from ipusim.compiler.vertices.amp import executed_load
from ipusim.compiler.vertices.conv import AMP, ERA_1_0, ERA_3_3
from ipusim.machine import Chip

__all__ = ["ConvPass", "Plan", "PlannerRules", "forget_plans", "plan"]

Candidates = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Problems of all transforms, all their vertex types, and where those of each begin and end."""

Winner = tuple[int, int, np.ndarray]
"""Numbers of the problem and of the vertex type, and the work of the search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The chosen partition of one convolution and what it costs.

    `method` is the vertex type, `units` are the convolution units or chains that it uses,
    `partial_bytes` those of a partial sum; `planned_cycles` is the planner's own objective, `cost`
    what runs, `partials` those of the fullest tile in one serial part, which has `part_channels`
    output channels, `evaluations` counts the partitions that the search looked at. Where no plan
    fitted the memory bound, poplibs' fallback was taken. If `spreads_output`, zeros are spread
    through the result afterwards, instead of through the input.
    """

    method: str
    transform: str
    conv_groups_per_group: int
    in_chans_per_group: int
    out_chans_per_group: int
    units: int
    partial_bytes: int
    split: Split
    planned_cycles: int
    cost: Cost
    partials: Runs
    part_channels: int
    evaluations: int
    within_memory_bound: bool
    spreads_output: bool

    @property
    def serial_splits(self) -> int:
        """How many times the loop over serial parts runs."""
        return self.cost.serial

    @property
    def tiles_used(self) -> int:
        """Tiles that take part."""
        return self.cost.tiles_used

    @property
    def reduction_depth(self) -> int:
        """Partials that are summed over tiles for one output."""
        return self.cost.depth

    @property
    def result(self) -> Runs:
        """Elements of the result on the fullest tile: its share of the sums, of all parts."""
        share = ceil_div(self.partials.elements, self.reduction_depth)
        return Runs(share * self.split.out_serial, min(share, self.partials.length))

    @property
    def cut_channels(self) -> int:
        """Output channels that sit together where serial parts are cut, 0 where none is.

        Parts whose channels do not fill the vertex's groups are padded, and their result is cut.
        """
        last = self.part_channels % self.out_chans_per_group
        if self.split.out_serial == 1 or last == 0:
            return 0
        return gcd(self.out_chans_per_group, last)

    @property
    def temp_bytes(self) -> int:
        """Temporary bytes of the fullest tile."""
        return self.cost.temp_bytes

    @property
    def partial_bytes_per_tile(self) -> int:
        """Bytes of the partials tensor on the fullest tile."""
        return self.cost.partial_bytes

    @property
    def one_by_one(self) -> bool:
        """Whether the AMP vertex without a window runs."""
        return self.method == "AMP" and bool(self.cost.one_by_one)

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
        split = self.split
        parts = {"g": split.group, "b": split.batch}
        parts |= {f"f{d}": count for d, count in enumerate(split.field)}
        parts |= {f"k{d}": count for d, count in enumerate(split.kernel)}
        parts |= {"i": split.in_chans, "is": split.in_serial}
        parts |= {"o": split.out_chans, "os": split.out_serial}
        shown = [f"{name}{count}" for name, count in parts.items() if count > 1]
        return f"{self.codelet} / {' '.join(shown) or 'one tile'}"


def plan(asked: ConvPass, chip: Chip, rules: PlannerRules, *, pruned: bool = True) -> Plan:
    """Return the cheapest plan of `asked` on `chip`, the same on every machine.

    Unless `pruned`, every partition is evaluated (slow; for tests). Where nothing fits the memory
    bound, stacks from 2.0 on double it until a plan fits and at last drop it; 1.0.136 looks for the
    plan with the least temporary memory (runPlanner).
    """
    return _plan(asked, PlannerChip.of(chip), rules, pruned)


def plan_ahead(asked: Iterable[ConvPass], chip: Chip, rules: PlannerRules) -> None:
    """Plan convolutions side by side, for `plan` to return; errors are left to it, too.

    A search needs no interpreter, and takes half of the time of a plan: two threads are enough.
    """
    pool = ThreadPoolExecutor(2, thread_name_prefix="ipusim-planner")
    try:
        wait([pool.submit(plan, one, chip, rules) for one in dict.fromkeys(asked)])
    finally:
        pool.shutdown(cancel_futures=True)


def forget_plans() -> None:
    """Drop every remembered plan, so that the next call plans anew."""
    _plan.cache_clear()


@lru_cache(maxsize=65536)
def _plan(asked: ConvPass, chip: PlannerChip, rules: PlannerRules, pruned: bool) -> Plan:
    limit = rules.temporary_bytes(chip.bytes_per_tile)
    transforms, problems = transformed_problems(asked, chip, rules)
    vertices, spans = each_once(vertex_types(problems, asked, chip, rules))
    candidates = problems, vertices, spans
    found = _best(candidates, limit, False, pruned)
    within = found is not None
    if found is None:
        found = _fall_back(candidates, limit, chip, rules, pruned)
    at, vertex, work = found
    return executed_plan(
        transforms[at],
        problems[at : at + 1],
        vertices[vertex : vertex + 1],
        work,
        within_memory_bound=within,
        spreads_output=defers_dilation(asked),
    )


def executed_plan(
    transform: Transform,
    problem: np.ndarray,
    vertex: np.ndarray,
    work: np.ndarray,
    *,
    within_memory_bound: bool = True,
    spreads_output: bool = False,
) -> Plan:
    """Return the best partition of a search as a plan, with the costs of what runs.

    What runs is written into `problem`, `vertex` and `work`.
    """
    problem["executing"] = 1
    if vertex["method"] == AMP:
        vertex["weight_load"] = executed_load(vertex["units"])
    work["split"] = work["best"]
    kernel(EXECUTE, problem, vertex, NO_SPANS, work)
    window_cycles = windowed_cycles(vertex, work, transform.dims)
    if window_cycles is not None:
        work["cost"]["calc"] = window_cycles
    method, conv_groups, in_chans, out_chans, units, partial_bytes, *_ = vertex.item()
    return Plan(
        method=METHOD_NAMES[method],
        transform=transform.name,
        conv_groups_per_group=conv_groups,
        in_chans_per_group=in_chans,
        out_chans_per_group=out_chans,
        units=units,
        partial_bytes=partial_bytes,
        split=Split.of(work["best"][0], len(transform.dims)),
        planned_cycles=int(work["best_cycles"][0]),
        cost=Cost(*work["cost"][0].item()),
        partials=partials_of(problem, vertex, work),
        part_channels=part_channels_of(problem[0], vertex[0], work[0]),
        evaluations=int(work["evaluations"][0]),
        within_memory_bound=within_memory_bound,
        spreads_output=spreads_output,
    )


def part_channels_of(problem: np.void, vertex: np.void, work: np.void) -> int:
    """Return the output channels of a serial part, the largest.

    Since SDK 3.0 parts have whole groups of channels (poplibs lib/poplin/Convolution.cpp,
    getOutChansPerSerialSplit); before, all parts have as many channels.
    """
    parts, group = int(work["split"]["out_serial"]), int(vertex["out_chans_per_group"])
    if parts > 1 and problem["era"] >= ERA_3_3:
        return ceil_div(int(work["totals"]["out_grains"]), parts) * group
    return int(problem["out_chans"]) // parts


def partials_of(problem: np.ndarray, vertex: np.ndarray, work: np.ndarray) -> Runs:
    """Return how the partials of the fullest tile lie in their tensor, which all tiles share.

    Channels that sit together are innermost, then field, batch, groups of channels, and groups
    (poplibs lib/poplin/Convolution.cpp, getPartialOutputShape); a run ends with the innermost
    dimension of which the tile has a part only.
    """
    whole, totals, split = problem[0], work[0]["totals"], work[0]["split"]
    groups, out_grains = totals["group_grains"], ceil_div(totals["out_grains"], split["out_serial"])
    sizes = [groups, out_grains, whole["batch"], *whole["dims"]["out"][:2], totals["last_grains"]]
    parts = [split["group"], split["out_chans"], split["batch"], *split["dims"]["field"]]
    shares = [int(ceil_div(size, part)) for size, part in zip(sizes, parts, strict=True)]
    together = int(totals["field_grain"])
    together *= int(vertex[0]["conv_groups_per_group"] * vertex[0]["out_chans_per_group"])
    length = together
    for size, share in zip(reversed(sizes), reversed(shares), strict=True):
        length *= share
        if share < size:
            break
    return Runs(together * prod(shares), length)


def _fall_back(
    candidates: Candidates, limit: int, chip: PlannerChip, rules: PlannerRules, pruned: bool
) -> Winner:
    """Find a plan where none is within `limit`; the HMAC vertex can always do it."""
    if rules.era == ERA_1_0:
        return _best(candidates, UNBOUNDED, True, pruned)
    while limit < 2 * chip.bytes_per_tile:
        limit *= 2
        found = _best(candidates, limit, False, pruned)
        if found is not None:
            return found
    return _best(candidates, UNBOUNDED, False, pruned)


def _best(candidates: Candidates, limit: int, minimise_memory: bool, pruned: bool) -> Winner | None:
    """Search all candidates with one shared best cost; None if nothing is within `limit`."""
    work = empty_works(1, limit)
    work["minimise_memory"], work["pruned"] = minimise_memory, pruned
    if not kernel(SEARCH, *candidates, work):
        return None
    return int(work["best_problem"][0]), int(work["best_vertex"][0]), work
