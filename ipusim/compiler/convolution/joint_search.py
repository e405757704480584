"""Search for the partition that serves all three passes of a fully connected layer.

The records are those of `record`, one each for forward, data gradient and weight gradient.
"""

import numpy as np

from ipusim.compiler.convolution.cost import conv_cost
from ipusim.compiler.convolution.record import EVERY, ONE, UNBOUNDED
from ipusim.compiler.convolution.search import keep_split, next_serial_split, next_split
from ipusim.compiler.convolution.totals import fill_copies, fill_grains
from ipusim.kernel_cache import njit


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
def joint_search(problems: np.ndarray, vertices: np.ndarray, works: np.ndarray) -> bool:
    """Look at every partition; keep the best, and return whether there is one.

    The first of `works` holds the limit and the best so far, and counts the evaluations.
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
                            keep_split(works[at])
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
