"""The AMP vertices on one tile: 1x1 and n x 1, by era as in `vertices.conv`.

The formulas restate poplibs ``lib/poplin/PerformanceEstimation.hpp`` (MIT).
"""

import numpy as np

from ipusim.compiler.vertices.conv import (
    AMP,
    ERA_1_0,
    ERA_2_0,
    ERA_2_4,
    ERA_3_3,
    WORKERS,
    run_cycles,
    run_of,
    vertex_type,
    zero_partials_cycles,
    zero_partials_fixed,
)
from ipusim.kernel_cache import njit


def amp_vertex(
    grouping: tuple[int, int], units: int, types: tuple[int, int], era: int, units_on_chip: int
) -> np.ndarray:
    """Return the AMP vertex of a grouping of input and output channels.

    `types` are the bytes of inputs and partials.  When the grouping leaves depth of the units
    unused, one pass covers several kernel rows.  Weights are loaded through the 64-bit path, 32
    bytes a unit; the planner of tag 1.0.136 halved the wrong operand and counted a quarter of it
    (ConvPlan.cpp, addPartialCalcCycleEstimate against poplinCycleEstimators.cpp), so what it
    chooses by and what runs differ (`executed_load`).
    """
    in_per, out_per = grouping
    in_bytes, partial_bytes = types
    if in_bytes == 1:
        return _amp_of_float8(in_per, units)
    float_input, float_partials = in_bytes == 4, partial_bytes == 4
    depth = 8 if float_input else 16
    if in_per != depth:
        depth = depth * units // units_on_chip
    passes = out_per // units
    height = depth // in_per
    return vertex_type(
        AMP,
        *(1, in_per, out_per, units, partial_bytes),
        peak_macs=min(units_on_chip, out_per) * (8 // in_bytes),
        filter_height=height,
        weight_load=units if era == ERA_1_0 else executed_load(units),
        passes=passes,
        first=_one_by_one_run(True, float_input, float_partials, units, era),
        later=_one_by_one_run(False, float_input, float_partials, units, era),
        one_by_one=_one_by_one(float_input, float_partials, units, era, passes),
        nx1=_nx1(height, float_input, float_partials, units, era),
    )


def _amp_of_float8(in_per: int, units: int) -> np.ndarray:
    """Return the AMP vertex of float8 operands and half partials, of poplibs' functions ...Quarter.

    The n x 1 vertex loads weights for every kernel position, as it does for half; poplibs reckons
    with two loads a row of positions.  It loops over output before input channels, the other way
    round than here: what a group costs is that of the inner loop.
    """
    return vertex_type(
        AMP,
        *(1, in_per, units, units, 2),
        peak_macs=units * 8,
        filter_height=32 // in_per,
        weight_load=executed_load(units),
        passes=1,
        first=run_of((13, 18, 22), 4, prologue=17, lag=14),
        later=run_of((18, 23, 27), 4, prologue=17, lag=14),
        one_by_one=(46, 0, 2 * WORKERS + 9, 0, 17 * WORKERS, 26 * WORKERS + 15),
        nx1=(
            *(83, 5 * WORKERS + 7, 0, 8 * WORKERS + 13, 7 * WORKERS + 8, 13 * WORKERS + 8, 0),
            run_of((34, 39, 43), 4, prologue=18, lag=9),
        ),
    )


def executed_load(units: int) -> int:
    """Return the cycles to load one set of AMP weights."""
    return units * 32 // 8


def _shared_path(float_input: bool, float_partials: bool, units: int) -> bool:
    return float_partials or (not float_input and units == 16)


def _one_by_one_run(
    zeroing: bool, float_input: bool, float_partials: bool, units: int, era: int
) -> tuple[int, ...]:
    """Worker of the 1x1 vertex; only era 0 allows more than one row a worker."""
    core, lag = 8 if float_input else 4, 14
    if era == ERA_1_0:
        per_zero = 8 if float_input else (4 if float_partials else 2)
        fixed = (50, 50, 50) if float_input else (41, 42, 43)
        extra = 0 if (float_partials or float_input) else 2
    elif float_input or not _shared_path(float_input, float_partials, units):
        per_zero = 8 if (float_input and units == 16) else (4 if float_partials else 2)
        fixed = (47, 46, 46) if float_input else (39, 40, 41)
        extra = 0
    else:
        savings = 10 if era == ERA_2_0 else 7
        per_pass = (1 if zeroing else 2) * (2 if era == ERA_2_0 else 1)
        one, two, three = (count + per_pass - savings for count in (31, 40, 36))
        return run_of((one, two, three), core, lag=lag)
    extra += 2 if zeroing else 0
    one, two, three = (count + extra for count in fixed)
    return run_of((one, two, three), core, each=per_zero if zeroing else 0, lag=lag)


def _one_by_one(
    float_input: bool, float_partials: bool, units: int, era: int, passes: int
) -> tuple[int, ...]:
    """Supervisor of the 1x1 vertex, see `amp_1x1_cycles`."""
    if era == ERA_1_0:
        return 50, 0, 11 + 10, 13, 18, 18
    shared = _shared_path(float_input, float_partials, units)
    save_all = save_inputs = 0
    if shared and not float_input:
        save_all, save_inputs = (10, 2) if era == ERA_2_0 else (7, 3)
    path = 1 if shared and era != ERA_2_0 else 0
    # The first pass over the input channels takes a cycle more.
    first = 19 - path + passes
    fixed = 50 + WORKERS * save_all
    return fixed, WORKERS * save_inputs, 12 + path + 11, 16 - path, 19, first


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


def _nx1(
    height: int, float_input: bool, float_partials: bool, units: int, era: int
) -> tuple[object, ...]:
    """Supervisor and workers of the n x 1 vertex, see `amp_nx1_cycles`."""
    core = 8 if float_input else 4
    narrow = not float_input and units == (8 if float_partials else 16)
    one, two, three = (33, 44, 45) if float_input else (29, 33, 34)
    if era == ERA_1_0:
        one, two, three = one + 1, two + 1, three + 1
    else:
        shift = {ERA_2_0: -6, ERA_2_4: 7 - 4, ERA_3_3: 3 - 9}[era]
        two += 1 if (era >= ERA_2_4 and narrow) else 0
        one, two, three = one + shift, two + shift, three + shift
    prologue = {ERA_1_0: 19, ERA_2_0: 17, ERA_2_4: 15, ERA_3_3: 17}[era]
    run = run_of((one, two, three), core, prologue=prologue + (not float_partials), lag=9)
    setup = {1: 15, 2: 46}.get(height, 60)
    if era == ERA_1_0:
        return 95 + zero_partials_fixed(era), 16, 0, 23, 15, 20, setup, run
    overhead = 109 if era == ERA_3_3 else 103
    retained = {ERA_2_0: 6, ERA_2_4: 4, ERA_3_3: 9}[era]
    fixed = overhead + WORKERS * (retained + (9 if float_partials else 10))
    # Loops over groups to zero: 17 a block, 6 between blocks and between groups, 1 at each end.
    return fixed - 6 + 1, 16 - 6 + 1 + 6, 17 + 6, 14, 14, 12, setup + 3, run


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
