"""The one kernel of the planner that Python calls: a search, a joint search, or what a plan costs.

numba links into such a kernel all that it calls and optimises that anew: three of them would hold
three copies of `conv_cost`, and take that much longer to compile and to load.
"""

import numpy as np

from ipusim.compiler.convolution.cost import conv_cost
from ipusim.compiler.convolution.record import EVERY, ONE, UNBOUNDED
from ipusim.compiler.convolution.search import next_serial_split, next_split, search_vertex
from ipusim.compiler.convolution.totals import fill_copies, fill_grains
from ipusim.kernel_cache import njit

SEARCH, JOINT_SEARCH, EXECUTE = range(3)

NO_SPANS = np.zeros((0, 2), np.int64)


@njit(cache=True, nogil=True)
def kernel(
    task: int, problems: np.ndarray, vertices: np.ndarray, spans: np.ndarray, works: np.ndarray
) -> bool:
    """Return whether a plan can be executed, or a joint one was found within the limit.

    To `EXECUTE` is to fill totals, part and cost of the partition at hand, of the first of each. A
    `JOINT_SEARCH` finds one partition for the three passes of a layer; the first of `works` holds
    it. A `SEARCH` finds one for each of `works`, whose best cycles say whether there is any.
    """
    if task == EXECUTE:
        fill_grains(problems[0], vertices[0], works[0])
        fill_copies(problems[0], vertices[0], works[0])
        return conv_cost(problems[0], vertices[0], works[0])
    if task == JOINT_SEARCH:
        return _joint_search(problems, vertices, works)
    for one in range(len(works)):
        _search(problems, vertices, spans, works[one])
    return True


@njit(cache=True, inline="always")
def _search(problems: np.ndarray, vertices: np.ndarray, spans: np.ndarray, work: np.void) -> None:
    """Look at the problems of a work.

    `spans` says where the vertices of each problem begin and end. Coarse rounds only find a cost to
    beat before the exact search: without serial parts first, as these seldom pay unless the memory
    bound asks for them, and then of all vertices, as few may fit.
    """
    for serial_splits in (False, True):
        for coarse in (True, False):
            if coarse and (work.best_cycles < UNBOUNDED or not work.pruned):
                continue
            work.coarse = coarse
            for at in range(work.first_problem, work.last_problem + 1):
                begin, end = spans[at]
                if coarse and not serial_splits:
                    end = begin + 1
                for which in range(begin, end):
                    work.problem, work.vertex = at, which
                    search_vertex(problems[at], vertices[which], work, serial_splits)


@njit(cache=True)
def fill_joint_splits(works: np.ndarray, serial: int, groups: int, depth: int, field: int) -> None:
    """Fill the splits of the passes: what is depth forward is field backward, and so on."""
    for at in range(3):
        works[at].split.group = groups
    forward, gradient, update = works[0].split, works[1].split, works[2].split
    forward.in_chans, forward.dims[2].field, forward.out_serial = depth, field, serial
    gradient.in_chans, gradient.dims[2].field, gradient.out_serial = field, depth, serial
    update.out_chans, update.dims[2].field, update.in_serial = depth, field, serial


@njit(cache=True, inline="always")
def _joint_search(problems: np.ndarray, vertices: np.ndarray, works: np.ndarray) -> bool:
    """Look at every partition for all three passes; keep the best, and return whether there is one.

    The records are one each for forward, data gradient and weight gradient; the first of `works`
    holds the limit and the best so far, and counts the evaluations.
    """
    for at in range(3):
        if not fill_grains(problems[at], vertices[at], works[at]):
            return False
        fill_copies(problems[at], vertices[at], works[at])
    found = False
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
                        found = True
                        for at in range(3):
                            works[at].best = works[at].split
                    field = next_split(totals.last_grains, field, EVERY)
                depth = next_split(totals.in_grains, depth, EVERY)
            groups = next_split(totals.group_grains, groups, EVERY)
        serial = next_serial_split(problems[0].view_out_chans, grains, serial, problems[0].era)
    return found


@njit(cache=True, inline="always")
def _joint_cost(problems: np.ndarray, vertices: np.ndarray, works: np.ndarray) -> tuple[int, int]:
    """Cycles of the three passes and the most bytes of any; unbounded if none can be the best."""
    cycles = size = 0
    for at in range(3):
        if not conv_cost(problems[at], vertices[at], works[at]):
            return UNBOUNDED, size
        cycles += works[at].cost.total
        size = max(size, works[at].cost.temp_bytes)
        if cycles > works[0].best_cycles or size > works[0].temp_limit:
            return UNBOUNDED, size
    return cycles, size
