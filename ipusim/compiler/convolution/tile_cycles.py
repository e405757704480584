"""Compute cycles of the slowest tile, by vertex type, as compiled kernels.

The records are those of `record`.
"""

import numpy as np

from ipusim.compiler.vertices.amp import amp_1x1_cycles, amp_nx1_cycles
from ipusim.compiler.vertices.conv import AMP, HMAC, SLIC, VMAC, WORKERS
from ipusim.compiler.vertices.mac import (
    hmac_cycles,
    outer_product_cycles,
    slic_cycles,
    vmac_cycles,
)
from ipusim.kernel_cache import njit


@njit(cache=True)
def tile_cycles(problem: np.void, vertex: np.void, work: np.void) -> int:
    """Compute cycles of a tile that gets `work.part`, -1 where the vertex cannot do the work."""
    part, method = work.part, vertex.method
    if method == AMP:
        if work.totals.one_by_one and part.kernel_elements == 1:
            return amp_1x1_cycles(vertex, part)
        return amp_nx1_cycles(vertex, part)
    if method == HMAC:
        return hmac_cycles(vertex, part)
    kernel_last = problem.dims[2].kernel
    if method == VMAC:
        return vmac_cycles(vertex, part, kernel_last) if part.out_grains == 1 else -1
    if part.in_grains != 1:
        return -1
    if method == SLIC:
        return slic_cycles(vertex, part, kernel_last) if part.out_grains == 1 else -1
    if part.rows != 1 or part.kernel_elements != 1:
        return -1
    return outer_product_cycles(vertex, part)


@njit(cache=True, inline="always")
def tile_cycles_floor(problem: np.void, vertex: np.void, work: np.void) -> int:
    """Cycles that no tile with at least the part's positions can beat, however they form rows.

    One long row is the cheapest form.  More positions can be faster than fewer only up to the
    run length at which a worker enters its fast loop: below that a single position is the floor.
    """
    part, totals = work.part, work.totals
    positions = part.positions
    part.rows, part.batch = 1, problem.batch
    part.row_length = -(-positions // totals.steps)
    if totals.one_by_one:
        if part.row_length < 3 * WORKERS:
            part.row_length = 1
    elif vertex.method == SLIC:
        if part.row_length < 6 * WORKERS:
            part.row_length = 1
    elif vertex.method == VMAC:
        # Shares that differ between workers are never cheaper than the equal part of them.
        part.positions = max(1, positions // WORKERS * WORKERS)
        part.batch = min(problem.batch, part.positions)
    cycles = tile_cycles(problem, vertex, work)
    part.positions = positions
    return cycles
