"""The convolution and matrix-multiply planner: the cheapest plan of one operation.

`plan` tries the transforms that poplibs tries (`transforms`), lists the vertex types that the
chip and the stack offer for each (`vertex_types`), and lets `kernel` find the best partition of all
of them under the temporary-memory bound.

Source: poplibs ``lib/poplin/ConvPlan.cpp`` (createPlan, runPlanner).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from math import gcd
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from ipusim.compiler.convolution.kernel import kernel
from ipusim.compiler.convolution.params import ConvPass
from ipusim.compiler.convolution.record import Cost, Split, empty_works
from ipusim.compiler.convolution.rules import PlannerRules
from ipusim.compiler.convolution.transforms import Transform, problems_of, transforms_of
from ipusim.compiler.convolution.vertex_types import candidates_of, vertex_types
from ipusim.compiler.convolution.windows import windowed_cycles
from ipusim.compiler.tiles import Runs, ceil_div
from ipusim.compiler.vertices import METHOD_NAMES
from ipusim.compiler.vertices.conv import ERA_3_3
from ipusim.machine import Chip

_REMEMBERED = 65536
"""Plans that are kept, at most; then all are dropped."""
_AT_ONCE = 4
"""Convolutions that are searched at once, without the interpreter."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The chosen partition of one convolution and what it costs.

    `method` is the vertex type, `units` are the convolution units or chains that it uses,
    `partial_bytes` those of a partial sum: these are the first fields of its `VERTEX`. The
    `transform` is done to the convolution first. `planned_cycles` is the planner's own objective,
    `cost` what runs, `partials` those of the fullest tile in one serial part, which has
    `part_channels` output channels, `evaluations` counts the partitions that the search looked at.
    Where no plan fitted the memory bound, poplibs' fallback was taken. If `spreads_output`, zeros
    are spread through the result afterwards, instead of through the input. A `joint` plan has the
    partition of all three passes of a layer.
    """

    method: str
    conv_groups_per_group: int
    in_chans_per_group: int
    out_chans_per_group: int
    units: int
    partial_bytes: int
    transform: Transform
    split: Split
    planned_cycles: int
    cost: Cost
    partials: Runs
    part_channels: int
    evaluations: int
    within_memory_bound: bool
    spreads_output: bool
    joint: bool

    @property
    def result(self) -> Runs:
        """Elements of the result on the fullest tile: its share of the sums, of all parts."""
        share = ceil_div(self.partials.elements, self.cost.depth)
        return Runs(share * self.split.out_serial, min(share, self.partials.length))

    @property
    def result_grouping(self) -> int:
        """Elements of the result that sit together: a group of channels, of groups together."""
        return self.conv_groups_per_group * self.out_chans_per_group

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


def plan(asked: ConvPass, chip: Chip, rules: PlannerRules) -> Plan:
    """Return the cheapest plan of `asked` on `chip`, the same on every machine."""
    key = asked, chip, rules
    found = _PLANS.get(key)
    if found is None:
        if len(_PLANS) >= _REMEMBERED:
            _PLANS.clear()
        if key in _AHEAD.get():
            started, at = _AHEAD.get()[key]
            search = started.result()
        else:
            search, at = searched(_search_for([asked], chip, rules)), 0
        found = _PLANS[key] = found_plan(search, at, *key)
    return found


@contextmanager
def planned_ahead(asked: Iterable[ConvPass], chip: Chip, rules: PlannerRules) -> Iterator[None]:
    """Search for plans side by side, and beside what is done with them: `plan` waits for its own.

    A search needs no interpreter. Some are made at once, as a thread waits for it between two.
    """
    keys = [key for one in dict.fromkeys(asked) if (key := (one, chip, rules)) not in _PLANS]
    pool, ahead = ThreadPoolExecutor(2, thread_name_prefix="ipusim-planner"), {}
    before = _AHEAD.set(ahead)
    try:
        for begin in range(0, len(keys), _AT_ONCE):
            part = keys[begin : begin + _AT_ONCE]
            search = pool.submit(searched, _search_for([one for one, *_ in part], chip, rules))
            ahead |= {key: (search, at) for at, key in enumerate(part)}
        yield
    finally:
        pool.shutdown(cancel_futures=True)
        _AHEAD.reset(before)


def forget_plans() -> None:
    """Drop every remembered plan, so that the next call plans anew."""
    _PLANS.clear()


class Search(NamedTuple):
    """Convolutions, a work each, with all transforms, their problems, and vertex types of these."""

    transforms: list[Transform]
    problems: np.ndarray
    vertices: np.ndarray
    candidates: np.ndarray
    works: np.ndarray


_Key = tuple[ConvPass, Chip, PlannerRules]

_PLANS: dict[_Key, Plan] = {}
_Ahead = Mapping[_Key, tuple[Future[Search], int]]
_AHEAD: ContextVar[_Ahead] = ContextVar("searches under way", default=MappingProxyType({}))
"""The search for a convolution, and which of its works it is."""


def _search_for(asked: Sequence[ConvPass], chip: Chip, rules: PlannerRules) -> Search:
    """Return what is to be searched for the plans of some convolutions."""
    works = empty_works(len(asked), rules.temporary_bytes(chip.bytes_per_tile))
    works["pruned"], works["tile_bytes"] = 1, chip.bytes_per_tile
    transforms: list[Transform] = []
    types: list[tuple[np.ndarray, ...]] = []
    for one, work in zip(asked, works, strict=True):
        work["first_problem"] = len(transforms)
        transforms += transforms_of(one, chip, rules)
        work["last_problem"] = len(transforms) - 1
        types += vertex_types(transforms[len(types) :], one, chip, rules)
    problems = problems_of(transforms)
    return Search(transforms, problems, *candidates_of(problems, types), works)


def searched(search: Search, *, joint: bool = False) -> Search:
    """Search, with one shared best cost for all transforms and vertex types of a convolution."""
    kernel(*search[1:], joint)
    return search


def found_plan(
    search: Search,
    at: int,
    asked: ConvPass,
    chip: Chip,
    rules: PlannerRules,
    *,
    joint: bool = False,
) -> Plan:
    """Return what a search has found for the convolution of one of its works."""
    work = search.works[at : at + 1]
    which, best = int(work["best_problem"][0]), int(work["best_vertex"][0])
    transform, vertex = search.transforms[which], search.vertices[best : best + 1]
    dims = transform.way.dims
    window_cycles = windowed_cycles(vertex, work, dims)
    if window_cycles is not None:
        work["cost"]["calc"] = window_cycles
    method, *of_vertex = vertex.item()[:6]
    return Plan(
        METHOD_NAMES[method],
        *of_vertex,
        transform=transform,
        split=Split.of(work["best"][0], len(dims)),
        planned_cycles=int(work["best_cycles"][0]),
        cost=Cost(*work["cost"][0].item()),
        partials=Runs(int(work["partials"][0]), int(work["run"][0])),
        part_channels=part_channels_of(search.problems[which], vertex[0], work[0]),
        evaluations=int(work["evaluations"][0]),
        within_memory_bound=bool(work["temp_limit"] == rules.temporary_bytes(chip.bytes_per_tile)),
        spreads_output=any(dim.defers_dilation for dim in asked.params.dims),
        joint=joint,
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
