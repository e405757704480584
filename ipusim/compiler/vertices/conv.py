"""Cycle estimates of the convolution vertices, one tile, as compiled integer functions.

Every formula restates poplibs ``lib/poplin/PerformanceEstimation.hpp`` (MIT).  The file changed
with the SDK, so each function takes the *era* of its constants:

====  =====================  =====================================
era   poplibs tag            used for
====  =====================  =====================================
0     1.0.136 (2020-01)      SDK 1.0, the C2 card of Qwant's report
1     sdk/poplar/2.0.0       the IPUModel snapshot of 2021-03
2     sdk/poplar/2.4.0       the published Classic rows
3     sdk/poplar/3.3.0       the published Bow rows
====  =====================  =====================================

All arguments and results are integers.  A tile has six worker contexts that issue in turn, so a
worker's instruction count is multiplied by six to give tile cycles.
"""

from __future__ import annotations

from ipusim.kernel_cache import njit

ERA_1_0 = 0
ERA_2_0 = 1
ERA_2_4 = 2
ERA_3_3 = 3

WORKERS = 6


@njit(cache=True, inline="always")
def ceil_div(numerator: int, denominator: int) -> int:
    """Round the quotient of two non-negative integers up."""
    return (numerator + denominator - 1) // denominator


# How many workers get distinct shares of the rows, by the number of rows modulo six.
_DISTINCT = (1, 6, 3, 2, 3, 6)


@njit(cache=True, inline="always")
def distinct_workers(rows: int) -> range:
    """Workers whose shares of `rows` equal rows cover every share that occurs.

    Shares repeat where a worker starts at the start of a row.  Of one row the first worker gets
    the shortest share and the last worker the longest.
    """
    return range(0, WORKERS, WORKERS - 1) if rows == 1 else range(0, _DISTINCT[rows % WORKERS], 1)


@njit(cache=True, inline="always")
def worker_share(rows: int, row_length: int, worker: int) -> tuple[int, int, int]:
    """Split one worker's run of positions at the ends of rows.

    Workers get equal runs of the ``rows * row_length`` positions
    (poplibs partitionConvPartialByWorker).

    Returns
    -------
    head, whole_rows, tail : int
        Positions up to the end of the first row, number of whole rows, positions of the last.
    """
    total = rows * row_length
    begin, end = worker * total // WORKERS, (worker + 1) * total // WORKERS
    if rows == 1:
        return end - begin, 0, 0
    first_row, last_row = begin // row_length, end // row_length
    if first_row == last_row:
        return end - begin, 0, 0
    head = (first_row + 1) * row_length - begin
    return head, last_row - first_row - 1, end - last_row * row_length


@njit(cache=True)
def zero_partials_cycles(elements: int, groups: int, era: int) -> int:
    """Clear `groups` blocks of `elements` float partials (getZeroSupervisorVertexCycleEstimate)."""
    vectors = ceil_div(ceil_div(elements, WORKERS), 2)
    if era == ERA_1_0:
        return (vectors + 5) * groups * WORKERS + 12
    return (vectors + 5) * groups * WORKERS


@njit(cache=True)
def _one_by_one_worker(
    elements: int, zeroing: bool, float_input: bool, float_partials: bool, units: int, era: int
) -> int:
    """Worker cycles of the 1x1 AMP vertex for a run of `elements` positions, at least one."""
    core = 8 if float_input else 4
    if era == ERA_1_0:
        per_zero = 8 if float_input else (4 if float_partials else 2)
        extra = 0 if (float_partials or float_input) else 2
        zero = 2 + per_zero * elements if zeroing else 0
        if float_input:
            return 50 + zero + max(elements - 3, 0) * core
        fixed = 41 if elements == 1 else (42 if elements == 2 else 43)
        return fixed + zero + extra + max(elements - 3, 0) * core
    shared_path = float_partials or ((not float_input) and units == 16)
    savings = 0
    if (not float_input) and shared_path:
        savings = 10 if era == ERA_2_0 else 7
    if float_input or not shared_path:
        per_zero = 8 if (float_input and units == 16) else (4 if float_partials else 2)
        zero = 2 + per_zero * elements if zeroing else 0
        if float_input:
            fixed = 47 if elements == 1 else 46
        else:
            fixed = 39 if elements == 1 else (40 if elements == 2 else 41)
        return fixed + zero + max(elements - 3, 0) * core - savings
    pass_cost = 1 if zeroing else 2
    if era == ERA_2_0:
        pass_cost *= 2
    if elements == 1:
        return 31 + pass_cost - savings
    if elements == 2:
        return 40 + pass_cost - savings
    return 36 + pass_cost + (elements - 3) * core - savings


@njit(cache=True)
def _one_by_one_inner(
    rows: int,
    row_length: int,
    zeroing: bool,
    float_input: bool,
    float_partials: bool,
    units: int,
    era: int,
) -> int:
    """Slowest worker of one pass; only era 0 allows more than one row a worker."""
    slowest = 0
    fastest = 1 << 60
    whole_row = _one_by_one_worker(row_length, zeroing, float_input, float_partials, units, era)
    for worker in distinct_workers(rows):
        head, whole_rows, tail = worker_share(rows, row_length, worker)
        cycles = whole_rows * whole_row
        for elements in (head, tail):
            if elements > 0:
                cycles += _one_by_one_worker(
                    elements, zeroing, float_input, float_partials, units, era
                )
        slowest = max(slowest, WORKERS * cycles)
        fastest = min(fastest, WORKERS * cycles)
    return max(slowest, fastest + 14)


@njit(cache=True)
def amp_1x1_cycles(
    rows: int,
    row_length: int,
    conv_groups: int,
    in_groups: int,
    out_groups: int,
    out_chans_per_group: int,
    weight_load: int,
    float_input: bool,
    float_partials: bool,
    units: int,
    era: int,
) -> int:
    """Cycles of the ConvPartial1x1 (AMP) vertex on one tile.

    References
    ----------
    poplibs PerformanceEstimation.hpp, getConvPartial1x1SupervisorOuterLoopCycleEstimate.
    Era 2 agrees with 128 sizes measured on a Bow IPU (data/evidence/ipu_microbench.csv).
    """
    passes = ceil_div(out_chans_per_group, units)
    first = _one_by_one_inner(rows, row_length, True, float_input, float_partials, units, era)
    later = 0
    if in_groups > 1:
        later = _one_by_one_inner(rows, row_length, False, float_input, float_partials, units, era)
    if era == ERA_1_0:
        return 50 + conv_groups * (
            11
            + (in_groups - 1) * (13 + out_groups * (18 + passes * (6 + weight_load + later)))
            + (10 + out_groups * (18 + passes * (6 + weight_load + first)))
        )
    shared_path = 1 if (float_partials or ((not float_input) and units == 16)) else 0
    save_all = 0
    save_inputs = 0
    if (not float_input) and shared_path == 1:
        save_all = 10 if era == ERA_2_0 else 7
        save_inputs = 2 if era == ERA_2_0 else 3
    if era == ERA_2_0:
        shared_path = 0
    return (
        50
        + WORKERS * (save_all + save_inputs * (in_groups * conv_groups - 1))
        + conv_groups
        * (
            12
            + shared_path
            + (in_groups - 1)
            * (16 - shared_path + out_groups * (19 + passes * (6 + weight_load + later)))
            + (11 + out_groups * (19 - shared_path + passes * (7 + weight_load + first)))
        )
    )
