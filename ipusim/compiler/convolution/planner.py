"""The convolution and matrix-multiply planner: the cheapest plan of an operation, or of a layer.

`plan` tries the transforms that poplibs tries (`transforms`), lists the vertex types that the
chip and the stack offer for each (`vertex_types`), and lets `kernel` find the best partition of all
of them under the temporary-memory bound. `plan_layer` does so for the passes of a layer.

Sources: poplibs ``lib/poplin/ConvPlan.cpp`` (createPlan, runPlanner; getFullyConnectedBwdPlan,
getFullyConnectedWUPlan at tag sdk/poplar/2.0.0) and ``ConvModel.cpp`` there (addBwdEstimates,
addWuEstimates).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from ipusim.compiler.convolution.kernel import kernel
from ipusim.compiler.convolution.params import ConvPass
from ipusim.compiler.convolution.record import Cost, Split, empty_works
from ipusim.compiler.convolution.rules import PlannerRules
from ipusim.compiler.convolution.transforms import Transform, problems_of, transforms_of
from ipusim.compiler.convolution.vertex_types import candidates_of, joint_types, vertex_types
from ipusim.compiler.convolution.windows import windowed_cycles
from ipusim.compiler.eras import ERA_1_0, ERA_3_3
from ipusim.compiler.tiles import Runs, ceil_div
from ipusim.compiler.vertices import METHOD_NAMES
from ipusim.machine import Chip

_REMEMBERED = 65536
"""Plans that are kept, at most; then all are dropped."""
_AT_ONCE = 4
"""Convolutions per search, which runs without the lock of the interpreter."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The chosen partition of one convolution and what it costs.

    `method` is the vertex type, `units` are the convolution units or chains that it uses,
    `partial_bytes` those of a partial sum: these are the first fields of its `VERTEX`. The
    `transform` is done to the convolution first. `planned_cycles` is the planner's own estimate,
    `cost` that of what runs. `partials` are those of the fullest tile in one serial part, which has
    `part_channels` output channels. `evaluations` counts the partitions that the search looked at.
    If not `within_memory_bound`, no plan was, and poplibs' fallback was taken. If `spreads_output`,
    the result is dilated with zeros afterwards, instead of the input. A `joint` plan has the
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
        """Elements of the result on the fullest tile: those that it reduces in all serial parts."""
        share = ceil_div(self.partials.elements, self.cost.depth)
        return Runs(share * self.split.out_serial, min(share, self.partials.length))

    @property
    def result_grouping(self) -> int:
        """Adjacent elements of the result: output channels of a vertex's convolution groups."""
        return self.conv_groups_per_group * self.out_chans_per_group

    @property
    def cut_channels(self) -> int:
        """Adjacent output channels where padding is cut off serial parts, 0 where they have none.

        Parts whose channels do not fill the vertex's groups are padded, and their result is cut.
        """
        last = self.part_channels % self.out_chans_per_group
        if self.split.out_serial == 1 or last == 0:
            return 0
        return gcd(self.out_chans_per_group, last)

    @property
    def one_by_one(self) -> bool:
        """Whether the AMP vertex for 1x1 kernels runs."""
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
        """Return the plan in one line, splits that are 1 left out.

        Splits are of groups (g), batch (b), field (f), kernel (k), input channels (i) and output
        channels (o), the latter two also serial (is, os); f and k have the number of a dimension.
        """
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
            started, search, at = _AHEAD.get()[key]
            started.result()
        else:
            search, at = _search_for([asked], chip, rules), 0
            kernel(*search[1:], False)
        found = _PLANS[key] = _found_plan(search, at, key)
    return found


@contextmanager
def planned_ahead(asked: Iterable[ConvPass], chip: Chip, rules: PlannerRules) -> Iterator[None]:
    """Within this context, two threads search for plans; `plan` waits for the one that it returns.

    A search does not hold the lock of the interpreter. It is for `_AT_ONCE` convolutions, as a
    thread has to wait for the lock between two searches.
    """
    keys = [key for one in dict.fromkeys(asked) if (key := (one, chip, rules)) not in _PLANS]
    pool, ahead = ThreadPoolExecutor(2, thread_name_prefix="ipusim-planner"), {}
    before = _AHEAD.set(ahead)
    try:
        for begin in range(0, len(keys), _AT_ONCE):
            part = keys[begin : begin + _AT_ONCE]
            search = _search_for([one for one, *_ in part], chip, rules)
            started = pool.submit(kernel, *search[1:], False)
            ahead |= {key: (started, search, at) for at, key in enumerate(part)}
        yield
    finally:
        pool.shutdown(cancel_futures=True)
        _AHEAD.reset(before)


def forget_plans() -> None:
    """Drop every remembered plan, so that the next call plans anew."""
    _PLANS.clear()


class _Search(NamedTuple):
    """Records of a search: a work for each convolution, a problem for each of its transforms.

    All transforms and vertex types of a convolution share one best cost.
    """

    transforms: list[Transform]
    problems: np.ndarray
    vertices: np.ndarray
    candidates: np.ndarray
    works: np.ndarray


_Key = tuple[ConvPass, Chip, PlannerRules]

_PLANS: dict[_Key, Plan] = {}
_Ahead = Mapping[_Key, tuple[Future[None], _Search, int]]
_AHEAD: ContextVar[_Ahead] = ContextVar("searches under way", default=MappingProxyType({}))
"""The search for a convolution under way, its records, and the index of its work there."""


def _search_for(asked: Sequence[ConvPass], chip: Chip, rules: PlannerRules) -> _Search:
    """Return the records in which a search for plans of some convolutions begins."""
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
    return _Search(transforms, problems, *candidates_of(problems, types), works)


def _found_plan(search: _Search, at: int, key: _Key, *, joint: bool = False) -> Plan:
    """Return the plan that a search has found for its convolution at an index, that of a key."""
    asked, chip, rules = key
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
    """Return the output channels of the largest serial part.

    Since SDK 3.0 parts have whole groups of channels (poplibs lib/poplin/Convolution.cpp,
    getOutChansPerSerialSplit); before, all parts have as many channels.
    """
    parts, group = int(work["split"]["out_serial"]), int(vertex["out_chans_per_group"])
    if parts > 1 and problem["era"] >= ERA_3_3:
        return ceil_div(int(work["totals"]["out_grains"]), parts) * group
    return int(problem["out_chans"]) // parts


class LayerPlans(NamedTuple):
    """Plans of the three passes of one fully connected layer, all of them joint or none.

    A joint plan keeps every weight on the tile that uses it in all passes, so that between passes
    weights are only transposed within their tiles; it is taken where it costs no more than three
    plans of their own.
    """

    forward: Plan
    data_gradient: Plan
    weight_gradient: Plan


@lru_cache(maxsize=4096)
def plan_layer(asked: ConvPass, chip: Chip, rules: PlannerRules) -> LayerPlans:
    """Return the plans of a layer, whose forward product, of kind "fc_training", is `asked` for.

    The joint plans of tag 1.0.136, which did not exchange operands, are not modelled: that era gets
    three plans, and so do operands whose elements are not of the result's size.
    """
    separate = [plan(one, chip, rules) for one in layer_passes(asked)]
    if rules.era != ERA_1_0 and asked.in_bytes == asked.out_bytes:
        bound = sum(one.planned_cycles for one in separate)
        return _joint(asked, chip, rules, bound) or LayerPlans(*separate)
    return LayerPlans(*separate)


def layer_passes(asked: ConvPass) -> tuple[ConvPass, ConvPass, ConvPass]:
    """Return the three passes of a layer, operands exchanged as in the forward one, `asked`.

    Forward multiplies m x k by k x n; `asked` has batch n, input channels k, output channels m.
    """
    forward = asked.params
    n, k, m = forward.batch, forward.in_channels, forward.out_channels
    data = forward._replace(batch=k, in_channels=n)
    weights = forward._replace(in_channels=m, out_channels=k)
    return (
        asked,
        replace(asked, kind="fc_data_gradient", params=data),
        replace(asked, kind="fc_weight_gradient", params=weights),
    )


def _joint(asked: ConvPass, chip: Chip, rules: PlannerRules, bound: int) -> LayerPlans | None:
    """Return the joint plans if one partition costs no more than `bound` cycles."""
    passes = layer_passes(asked)
    plain = [transforms_of(one, chip, rules)[0] for one in passes]
    problems = problems_of(plain)
    problems["joint"] = 1
    problems["copy_input"] = (0, 0, 1)
    problems["copy_output"] = 0
    # Only in the standard order of tiles, the forward one, do neighbours receive the same inputs.
    problems["tiles_per_bus"][1:] = 1
    works = empty_works(3, rules.temporary_bytes(chip.bytes_per_tile))
    works["best_cycles"] = bound + 1
    forward, update = joint_types(plain, passes, chip, rules)
    candidates = candidates_of(problems, [forward, (), update])
    search = _Search(plain, problems, *candidates, works)
    kernel(*search[1:], True)
    if works["best_cycles"][0] > bound:
        return None
    works["best_cycles"] = works["best_cycles"][0] // 3
    works["evaluations"] = works["evaluations"][0]
    keys = [(one, chip, rules) for one in passes]
    return LayerPlans(*(_found_plan(search, at, key, joint=True) for at, key in enumerate(keys)))
