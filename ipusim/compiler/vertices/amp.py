"""The AMP vertices on one tile: 1x1 and n x 1, by era.

The formulas, and the numbers in amp.csv, restate poplibs ``lib/poplin/PerformanceEstimation.hpp``
(MIT). The file has a line for each era, bytes of inputs and partials, and units (16, or fewer). The
cell of a worker has its cycles for 1, 2 and 3 positions, for each further one, and before its run.
That of a supervisor has the fields of `ONE_BY_ONE`, with what a pass adds to the last, or of `NX1`,
the zeroing of partials included. "nx1 setup" has the cycles to set up a pass of the n x 1 vertex
that covers 1, 2 or more kernel rows.

Those of quarters, float8, are of poplibs' functions ...Quarter. The n x 1 vertex loads weights for
every kernel position, as it does for half; poplibs reckons with two loads a row of positions. In
poplibs that vertex loops over output channels outside input channels, here it is the other way
round, and each group is charged the cycles of the inner loop.
"""

import numpy as np

from ipusim.compiler.eras import ERA_1_0
from ipusim.compiler.vertices.conv import AMP, run_cycles, vertex_type, zero_partials_cycles
from ipusim.compiler.vertices.tables import numbers
from ipusim.kernel_cache import njit

UNIT_LOAD_CYCLES = 32 // 8
"""Cycles in which a convolution unit loads its weights: so many bytes through the 64-bit path."""


def amp_vertex(
    grouping: tuple[int, int], units: int, types: tuple[int, int], era: int, units_on_chip: int
) -> np.ndarray:
    """Return the AMP vertex of a grouping of input and output channels.

    `types` are the bytes of inputs and partials.  When the grouping leaves depth of the units
    unused, one pass covers several kernel rows.  Weights are loaded through the 64-bit path, 32
    bytes a unit; the planner of tag 1.0.136 halved the wrong operand and counted a quarter of it
    (ConvPlan.cpp, addPartialCalcCycleEstimate against poplinCycleEstimators.cpp), so what it
    chooses by and what runs differ (`UNIT_LOAD_CYCLES`).
    """
    in_per, out_per = grouping
    in_bytes, partial_bytes = types
    if in_bytes == 1:
        # Of quarters all units share a pass, whatever partials the rules name.
        units_on_chip = units
    depth = 32 // in_bytes
    if in_per != depth:
        depth = depth * units // units_on_chip
    passes, height = out_per // units, depth // in_per
    cells = numbers("amp.csv", 4)[era, *types, 16 if units == 16 or in_bytes == 1 else 8]
    first, later, (*one_by_one, per_pass), worker, nx1, setup = cells
    one_by_one[-1] += passes * per_pass
    return vertex_type(
        AMP,
        *(1, in_per, out_per, units, partial_bytes),
        peak_macs=min(units_on_chip, out_per) * (8 // in_bytes),
        filter_height=height,
        weight_load=units if era == ERA_1_0 else units * UNIT_LOAD_CYCLES,
        passes=passes,
        first=_run(first, lag=14),
        later=_run(later, lag=14),
        one_by_one=tuple(one_by_one),
        nx1=(*nx1, setup[min(height, 3) - 1], _run(worker, lag=9)),
    )


def _run(cell: tuple[int, ...], *, lag: int) -> tuple[int, ...]:
    """Return the `RUN` of a worker."""
    one, two, three, core, prologue = cell
    return prologue, one, two, 0, 3, three - 3 * core, core, lag


@njit(cache=True)
def amp_1x1_cycles(vertex: np.void, part: np.void) -> int:
    """Return the cycles of the ConvPartial1x1 (AMP) vertex on one tile.

    poplibs PerformanceEstimation.hpp, getConvPartial1x1SupervisorOuterLoopCycleEstimate. Era 2
    agrees with 128 sizes measured on a Bow IPU (data/evidence/ipu_microbench.csv).
    """
    rates, groups, later_groups = vertex.one_by_one, part.group_grains, part.in_grains - 1
    load = 6 + vertex.weight_load
    first = load + run_cycles(vertex.first, part.rows, part.row_length)
    cycles = rates.per_group + part.out_grains * (rates.per_first + vertex.passes * first)
    if later_groups > 0:
        later = load + run_cycles(vertex.later, part.rows, part.row_length)
        body = part.out_grains * (rates.per_out + vertex.passes * later)
        cycles += later_groups * (rates.per_in + body)
    return rates.fixed + rates.retained * (part.in_grains * groups - 1) + groups * cycles


@njit(cache=True)
def amp_nx1_cycles(vertex: np.void, part: np.void) -> int:
    """Return the cycles of the ConvPartialnx1 (AMP) vertex, zeroing of partials included.

    poplibs PerformanceEstimation.hpp, getConvPartialnx1Supervisor{Inner,Outer}LoopCycleEstimate.
    """
    outer = (part.kernel_outer + vertex.filter_height - 1) // vertex.filter_height
    taps = outer * (part.kernel_elements // part.kernel_outer)
    workers = taps * run_cycles(vertex.nx1.run, part.rows, part.row_length)
    return _nx1_supervisor(vertex, part, outer, taps, workers, part.rows * part.row_length)


@njit(cache=True)
def amp_nx1_window_cycles(
    vertices: np.ndarray, parts: np.ndarray, tap_rows: np.ndarray, tap_lengths: np.ndarray
) -> int:
    """Cycles of the same vertex where a kernel tap does not reach every output of the tile.

    Outputs that a tap would compute from padding only are not in its work list, so padded and tiny
    fields take less than the planner reckons with (poplibs ``lib/poplin/ConvVertices.cpp``,
    createConvPartialAmpVertex).
    """
    vertex, part = vertices[0], parts[0]
    workers = 0
    for rows in tap_rows:
        for length in tap_lengths:
            # A tap that reaches nothing still has its (empty) work lists looked at.
            empty = rows == 0 or length == 0
            workers += run_cycles(vertex.nx1.run, 1 if empty else rows, 0 if empty else length)
    taps = len(tap_rows) * len(tap_lengths)
    return _nx1_supervisor(vertex, part, len(tap_rows), taps, workers, part.positions)


@njit(cache=True)
def _nx1_supervisor(
    vertex: np.void, part: np.void, outer: int, taps: int, workers: int, zeroed: int
) -> int:
    """Cycles around those of the `workers`, one pass over all kernel positions each."""
    rates, out_groups = vertex.nx1, part.out_grains
    load = (vertex.weight_load + rates.setup) * taps
    inner = rates.per_row * outer + rates.per_tap * taps + vertex.passes * (load + workers)
    body = part.in_grains * (rates.per_loop + out_groups * (rates.per_loop + inner))
    zero = zero_partials_cycles(zeroed * vertex.out_chans_per_group, out_groups * part.group_grains)
    groups = part.group_grains * (rates.per_group + rates.per_zeroed * out_groups + body)
    return rates.fixed + groups + zero
