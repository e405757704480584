"""Search for the partition that serves all three passes of a fully connected layer.

The vectors are those of `record`, one row each for forward, data gradient and weight gradient.
"""

from __future__ import annotations

import numpy as np

from ipusim.compiler.convolution import record as lay
from ipusim.compiler.convolution.cost import conv_cost
from ipusim.compiler.convolution.search import next_split
from ipusim.compiler.convolution.totals import fill_totals
from ipusim.kernel_cache import njit


@njit(cache=True)
def joint_splits(
    forward: int, groups: int, depth: int, field: int, serial: int, last: int, splits: np.ndarray
) -> None:
    """Fill the splits of the passes: what is depth forward is field backward, and so on."""
    splits[:] = 1
    splits[:, lay.S_BROADCAST] = 0
    for index in range(3):
        splits[index, lay.S_GROUP] = groups
    splits[forward, lay.S_IN] = depth
    splits[forward, lay.S_FIELD + last] = field
    splits[forward, lay.S_OUT_SERIAL] = serial
    splits[forward + 1, lay.S_IN] = field
    splits[forward + 1, lay.S_FIELD + last] = depth
    splits[forward + 1, lay.S_OUT_SERIAL] = serial
    splits[forward + 2, lay.S_OUT] = depth
    splits[forward + 2, lay.S_FIELD + last] = field
    splits[forward + 2, lay.S_IN_SERIAL] = serial


@njit(cache=True)
def joint_search(
    problems: np.ndarray,
    vertices: np.ndarray,
    temp_limit: int,
    best: np.ndarray,
    best_splits: np.ndarray,
) -> int:
    """Look at every partition; return how many."""
    totals = np.zeros((3, lay.TOTALS_SIZE), np.int64)
    cost = np.zeros(lay.COST_SIZE, np.int64)
    splits = np.ones((3, lay.SPLIT_SIZE), np.int64)
    for index in range(3):
        if not fill_totals(problems[index], vertices[index], totals[index]):
            return 0
    tiles = problems[0, lay.TILES]
    last = problems[0, lay.DIMS] - 1
    group_grains, in_grains = totals[0, lay.T_GROUP_GRAINS], totals[0, lay.T_IN_GRAINS]
    field_grains = totals[0, lay.T_LAST_GRAINS]
    zero = lay.ONE - lay.ONE
    evaluations = 0
    for serial in range(1, totals[0, lay.T_OUT_GRAINS] + 1):
        if problems[0, lay.VIEW_OUT_CHANS] % serial != 0:
            continue
        groups = lay.ONE
        while groups <= min(group_grains, tiles):
            depth = lay.ONE
            while depth <= min(in_grains, tiles // groups):
                field = lay.ONE
                while field <= min(field_grains, tiles // (groups * depth)):
                    joint_splits(zero, groups, depth, field, serial, last, splits)
                    evaluations += 1
                    cycles, size = zero, zero
                    for index in range(3):
                        if not conv_cost(
                            problems[index], vertices[index], totals[index], splits[index], cost
                        ):
                            cycles = lay.UNBOUNDED
                            break
                        cycles += cost[lay.C_TOTAL]
                        size = max(size, cost[lay.C_TEMP_BYTES])
                        if cycles > best[0] or size > temp_limit:
                            cycles = lay.UNBOUNDED
                            break
                    if cycles < best[0] or (cycles == best[0] and size < best[1]):
                        best[0], best[1] = cycles, size
                        best_splits[:] = splits
                    field = next_split(field_grains, field)
                depth = next_split(in_grains, depth)
            groups = next_split(group_grains, groups)
    return evaluations
