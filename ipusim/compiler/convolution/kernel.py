"""The one kernel of the planner that Python calls: searches for plans, and what they cost.

numba links into such a kernel all that it calls and optimises that anew: two of them would hold two
copies of `conv_cost`, and take that much longer to compile and to load.
"""

import numpy as np

from ipusim.compiler.convolution.cost import conv_cost
from ipusim.compiler.convolution.record import EVERY, ONE, UNBOUNDED
from ipusim.compiler.convolution.search import next_serial_split, next_split, search_vertex
from ipusim.compiler.convolution.totals import fill_copies, fill_grains
from ipusim.compiler.eras import ERA_1_0
from ipusim.compiler.vertices.amp import UNIT_LOAD_CYCLES
from ipusim.compiler.vertices.conv import AMP, HMAC, OUTER_PRODUCT
from ipusim.kernel_cache import njit


@njit(cache=True, nogil=True)
def kernel(
    problems: np.ndarray,
    vertices: np.ndarray,
    candidates: np.ndarray,
    works: np.ndarray,
    joint: bool,
) -> None:
    """Find a plan for each of `works`, whose best cycles say whether there is any.

    A `joint` one is that of the three passes of a layer; the first of `works` holds it. Then fill
    the totals, part and cost of each as it runs, and write that into `problems` and `vertices`.
    """
    sort_candidates(problems, vertices, candidates)
    if joint:
        _joint_search(problems, vertices, candidates, works)
    else:
        for work in works:
            _search_within(problems, vertices, candidates, work)
    for work in works:
        problem, vertex = problems[work.best_problem], vertices[work.best_vertex]
        problem.executing = 1
        if vertex.method == AMP:
            vertex.weight_load = vertex.units * UNIT_LOAD_CYCLES
        work.split = work.best
        fill_grains(problem, vertex, work)
        fill_copies(problem, vertex, work)
        conv_cost(problem, vertex, work)
        fill_partials(problem, vertex, work)


@njit(cache=True)
def sort_candidates(problems: np.ndarray, vertices: np.ndarray, candidates: np.ndarray) -> None:
    """Put the candidates of each problem in order, the most promising first.

    Those with the highest padded peak rate, then with the least padding, then with the smallest
    partials (poplibs ``lib/poplin/ConvVertexType.cpp``, sortConvVertexTypeCandidates).
    """
    for problem in problems:
        in_chans, out_chans = problem.in_chans, problem.out_chans
        for last in range(problem.begin, problem.end):
            which, at = candidates[last].vertex, last
            vertex = vertices[which]
            in_per, out_per = vertex.in_chans_per_group, vertex.out_chans_per_group
            padded = -(-in_chans // in_per) * in_per * (-(-out_chans // out_per) * out_per)
            padding = (padded - in_chans * out_chans) / padded
            rank = -vertex.peak_macs * (1 - padding), padding, vertex.partial_bytes
            while at > problem.begin and rank < _rank(candidates[at - 1]):
                candidates[at] = candidates[at - 1]
                at -= 1
            one = candidates[at]
            one.vertex, (one.slowness, one.padding, one.partial_bytes) = which, rank


@njit(cache=True, inline="always")
def _rank(one: np.void) -> tuple[float, float, int]:
    return one.slowness, one.padding, one.partial_bytes


@njit(cache=True, inline="always")
def _search_within(
    problems: np.ndarray, vertices: np.ndarray, candidates: np.ndarray, work: np.void
) -> None:
    """Search within the memory bound, and beyond it if no plan fits; HMAC can always convolve.

    Stacks from 2.0 on double the bound until a plan fits and at last drop it; 1.0.136 looks for the
    plan with the least temporary memory (runPlanner).
    """
    early = problems[work.first_problem].era == ERA_1_0
    while True:
        _search(problems, vertices, candidates, work)
        if work.best_cycles < UNBOUNDED or work.temp_limit == UNBOUNDED:
            return
        last = early or work.temp_limit >= 2 * work.tile_bytes
        work.temp_limit = UNBOUNDED if last else 2 * work.temp_limit
        work.minimise_memory, work.split = early, work.best


@njit(cache=True, inline="always")
def _search(
    problems: np.ndarray, vertices: np.ndarray, candidates: np.ndarray, work: np.void
) -> None:
    """Look at the problems of a work.

    Coarse rounds only find a cost to beat before the exact search: without serial parts first, as
    these seldom pay unless the memory bound asks for them, and then of all vertices, as few may
    fit.
    """
    for serial_splits in (False, True):
        for coarse in (True, False):
            if coarse and (work.best_cycles < UNBOUNDED or not work.pruned):
                continue
            work.coarse = coarse
            for at in range(work.first_problem, work.last_problem + 1):
                problem = problems[at]
                end = problem.begin + 1 if coarse and not serial_splits else problem.end
                for which in range(problem.begin, end):
                    work.problem, work.vertex = at, candidates[which].vertex
                    search_vertex(problem, vertices[work.vertex], work, serial_splits)
            if coarse and work.best_cycles < UNBOUNDED:
                # To be found again: of plans that cost the same, the first is taken.
                if work.minimise_memory:
                    work.best_cycles += 1
                else:
                    work.best_bytes += 1


@njit(cache=True)
def fill_partials(problem: np.void, vertex: np.void, work: np.void) -> None:
    """Fill `partials` of the fullest tile and their contiguous `run` in the tensor of all partials.

    Channels of a group are innermost there, then field, batch, channel groups, and convolution
    groups (poplibs lib/poplin/Convolution.cpp, getPartialOutputShape); a run ends with the
    innermost dimension of which the tile has a part only.
    """
    totals, split = work.totals, work.split
    outer, middle, inner = split.dims[0], split.dims[1], split.dims[2]
    out_grains = -(-totals.out_grains // split.out_serial)
    rows, planes = problem.dims[0].out, problem.dims[1].out
    sizes = (totals.last_grains, planes, rows, problem.batch, out_grains, totals.group_grains)
    parts = (inner.field, middle.field, outer.field, split.batch, split.out_chans, split.group)
    work.partials = totals.field_grain * vertex.conv_groups_per_group * vertex.out_chans_per_group
    work.run, whole = work.partials, True
    for at in range(len(sizes)):
        share = -(-sizes[at] // parts[at])
        work.partials *= share
        if whole:
            work.run *= share
        whole = whole and share == sizes[at]


@njit(cache=True)
def fill_joint_splits(works: np.ndarray, serial: int, groups: int, depth: int, field: int) -> None:
    """Fill the splits of the three passes of a layer, which share one partition.

    Of forward pass, data gradient and weight gradient in turn, `depth` splits input channels, field
    and output channels; `field` splits field, input channels and field; `serial` splits output,
    output and input channels.
    """
    for at in range(3):
        works[at].split.group = groups
    forward, gradient, update = works[0].split, works[1].split, works[2].split
    forward.in_chans, forward.dims[2].field, forward.out_serial = depth, field, serial
    gradient.in_chans, gradient.dims[2].field, gradient.out_serial = field, depth, serial
    update.out_chans, update.dims[2].field, update.in_serial = depth, field, serial


@njit(cache=True, inline="always")
def _joint_search(
    problems: np.ndarray, vertices: np.ndarray, candidates: np.ndarray, works: np.ndarray
) -> None:
    """Look at all candidates for the three passes of a layer.

    The records are one each for forward, data gradient and weight gradient; the first of `works`
    holds the limit and the best so far, and counts the evaluations.

    The forward grouping of inputs is that of the weight gradient's outputs, and the forward
    grouping of outputs that of its inputs. Of the weight gradient's candidates with these groupings
    the most promising is taken, which sums in half precision where nothing is reduced afterwards
    (ConvModel.cpp, getFullyConnectedWuConvVertexType): an outer product where the forward pass has
    dot products.
    """
    updates = candidates[problems[2].begin : problems[2].end]
    for one in candidates[problems[0].begin : problems[0].end]:
        forward = vertices[one.vertex]
        in_per, out_per = forward.in_chans_per_group, forward.out_chans_per_group
        if forward.method == AMP and in_per % forward.units == 0:
            method = AMP
        elif forward.method == HMAC:
            method = OUTER_PRODUCT
        else:
            continue
        for other in updates:
            update = vertices[other.vertex]
            groupings = update.in_chans_per_group, update.out_chans_per_group
            if update.method == method and groupings == (out_per, in_per):
                for at in range(3):
                    problems[at].field_grain, works[at].vertex = in_per, one.vertex
                works[2].vertex = other.vertex
                _joint_partitions(problems, vertices, works)
                break
    for at in range(3):
        problems[at].field_grain = vertices[works[0].best_vertex].in_chans_per_group
        works[at].best_problem = at


@njit(cache=True)
def _joint_partitions(problems: np.ndarray, vertices: np.ndarray, works: np.ndarray) -> None:
    """Look at every partition for all three passes, and keep the best."""
    for at in range(3):
        vertex = vertices[works[at].vertex]
        if not fill_grains(problems[at], vertex, works[at]):
            return
        fill_copies(problems[at], vertex, works[at])
    work, totals, tiles = works[0], works[0].totals, problems[0].tiles
    serial, grains = ONE, totals.out_grains
    while serial <= grains:
        groups = ONE
        while groups <= min(totals.group_grains, tiles):
            depth = ONE
            while depth <= min(totals.in_grains, tiles // groups):
                field = ONE
                while field <= min(totals.last_grains, tiles // (groups * depth)):
                    fill_joint_splits(works, serial, groups, depth, field)
                    work.evaluations += 1
                    cycles, size = _joint_cost(problems, vertices, works)
                    if cycles < work.best_cycles or (
                        cycles == work.best_cycles and size < work.best_bytes
                    ):
                        work.best_cycles, work.best_bytes = cycles, size
                        for at in range(3):
                            works[at].best = works[at].split
                            works[at].best_vertex = works[at].vertex
                    field = next_split(totals.last_grains, field, EVERY)
                depth = next_split(totals.in_grains, depth, EVERY)
            groups = next_split(totals.group_grains, groups, EVERY)
        serial = next_serial_split(problems[0].view_out_chans, grains, serial, problems[0].era)


@njit(cache=True, inline="always")
def _joint_cost(problems: np.ndarray, vertices: np.ndarray, works: np.ndarray) -> tuple[int, int]:
    """Cycles of the three passes and the most bytes of any; unbounded if none can be the best."""
    cycles = size = 0
    for at in range(3):
        if not conv_cost(problems[at], vertices[works[at].vertex], works[at]):
            return UNBOUNDED, size
        cycles += works[at].cost.total
        size = max(size, works[at].cost.temp_bytes)
        if cycles > works[0].best_cycles or size > works[0].temp_limit:
            return UNBOUNDED, size
    return cycles, size
