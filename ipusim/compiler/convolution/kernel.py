"""The one kernel of the planner that Python calls: a search, a joint search, or what a plan costs.

numba links into such a kernel all that it calls and optimises that anew: three of them would hold
three copies of `conv_cost`, and take that much longer to compile and to load.

The records are those of `record`.
"""

import numpy as np

from ipusim.compiler.convolution.cost import conv_cost
from ipusim.compiler.convolution.joint_search import joint_search
from ipusim.compiler.convolution.search import search_vertex
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
        return joint_search(problems, vertices, works)
    for one in range(len(works)):
        _search(problems, vertices, spans, works[one])
    return True


@njit(cache=True, inline="always")
def _search(problems: np.ndarray, vertices: np.ndarray, spans: np.ndarray, work: np.void) -> None:
    """Look at the problems of a work, and keep which of them and which vertex are the best.

    `spans` says where the vertices of each problem begin and end. Coarse rounds only find a cost to
    beat before the exact search: without serial parts first, as these seldom pay unless the memory
    bound asks for them, and then of all vertices, as few may fit.
    """
    found = False
    for serial_splits in (False, True):
        for coarse in (True, False):
            if coarse and (found or not work.pruned):
                continue
            for at in range(work.first_problem, work.last_problem + 1):
                begin, end = spans[at]
                if coarse and not serial_splits:
                    end = begin + 1
                for which in range(begin, end):
                    if search_vertex(problems[at], vertices[which], work, serial_splits, coarse):
                        work.best_problem, work.best_vertex, found = at, which, True
