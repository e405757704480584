"""Totals that follow from an operation and a vertex type before any split; compiled kernels."""

import numpy as np

from ipusim.compiler.eras import ERA_1_0, ERA_2_4
from ipusim.compiler.vertices.conv import AMP, HMAC, OUTER_PRODUCT, SLIC, VMAC, WORKERS
from ipusim.kernel_cache import njit


@njit(cache=True)
def fill_grains(problem: np.void, vertex: np.void, work: np.void) -> bool:
    """Fill the totals but for the copies; False where the vertex cannot do the operation.

    Whether strides and dilations suit the vertex: ConvModel.cpp, addMethodConstraints.  Grain of
    the innermost dimension: ConvPlan.cpp createPlan, from tag 1.2.0 on.
    """
    totals, method = work.totals, vertex.method
    if method == SLIC and not problem.slic_allowed:
        return False
    if method == OUTER_PRODUCT and not problem.outer_allowed:
        return False
    totals.group_grains = -(-problem.groups // vertex.conv_groups_per_group)
    totals.in_grains = -(-problem.in_chans // vertex.in_chans_per_group)
    totals.out_grains = -(-problem.out_chans // vertex.out_chans_per_group)
    width, grain = problem.dims[2].out, max(1, problem.field_grain)
    late_half = problem.era != ERA_1_0 and problem.out_bytes == 2
    odd = vertex.out_chans_per_group % 2 == 1
    if problem.field_grain == 0 and late_half and odd and width % 2 == 0:
        grain = 2
    totals.field_grain = grain
    totals.last_grains = -(-width // grain)
    totals.result_bytes = min(problem.inter_tile_bytes, vertex.partial_bytes)
    # The 1x1 vertex can run, once a tile has one kernel element.
    totals.one_by_one = problem.one_by_one and method == AMP and vertex.filter_height == 1

    positions = problem.batch
    kernel_elements = steps = plain = 1
    for d in range(3):
        dim, step = problem.dims[d], 1
        kernel_elements *= dim.kernel
        if d < 2:
            positions *= dim.out
        if not dim.transformed:
            # The SLIC vertex reads spread inputs with their zeros.
            if method != SLIC:
                step = dim.step
            steps *= step
            if dim.whole_in < dim.out or dim.stride < dim.in_dilation:
                plain = 0
        totals.step[d] = step
    positions *= totals.last_grains * grain
    totals.steps, totals.positions, totals.plain_inputs = steps, positions, plain
    totals.arithmetic = _arithmetic_floor(problem, vertex, work, kernel_elements)
    return True


@njit(cache=True, inline="always")
def _arithmetic_floor(problem: np.void, vertex: np.void, work: np.void, taps: int) -> int:
    """Cycles of the multiply-accumulates, and to start them, all tiles together."""
    totals, method = work.totals, vertex.method
    positions = totals.positions // totals.steps
    grains = totals.group_grains * totals.in_grains * totals.out_grains
    each = grains * positions
    lanes = 8 // problem.in_bytes
    if method == AMP:
        outer = problem.dims[0].kernel
        rows = -(-outer // vertex.filter_height) * (taps // outer)
        # Some tile loads each block of weights, and its workers run.
        started = vertex.weight_load
        if not totals.one_by_one:
            started += vertex.nx1.setup + WORKERS * vertex.nx1.run.prologue
        return grains * vertex.passes * rows * (started + positions * (16 // lanes))
    if method == HMAC:
        rates = vertex.hmac_one_by_one
        started = WORKERS * (rates.worker + rates.per_row)
        return grains * taps * (started + positions * rates.per_position)
    if method == SLIC:
        last = problem.dims[2].kernel
        data_passes = 1 if vertex.units == 4 else 2
        return each * -(-last // 4) * (taps // last) * data_passes
    if method == VMAC:
        return each * taps * 2
    return each * vertex.out_chans_per_group // lanes


@njit(cache=True)
def fill_copies(problem: np.void, vertex: np.void, work: np.void) -> None:
    """Fill the elements and rates of rearrangements between a plan's layout and its neighbours'.

    Five cycles for every three or four chunks (poplibs ConvModel.cpp, addTransformCycleEstimate).
    """
    totals = work.totals
    in_per, out_per = vertex.in_chans_per_group, vertex.out_chans_per_group
    in_positions = needed = problem.batch
    kernel_elements = 1
    for d in range(3):
        dim = problem.dims[d]
        kernel_elements *= dim.kernel
        in_positions *= dim.in_field
        needed *= dim.out if dim.transformed else dim.whole_in
    groups = totals.group_grains * vertex.conv_groups_per_group
    in_chans = groups * totals.in_grains * in_per
    out_chans = totals.out_grains * out_per
    totals.weights = in_chans * out_chans * kernel_elements
    totals.inputs = in_chans * in_positions
    inputs, outputs = in_chans * needed, groups * out_chans * totals.positions

    pad_in, pad_out = problem.in_chans % in_per != 0, problem.out_chans % out_per != 0
    if problem.era == ERA_1_0:
        pad_in = problem.original_in_chans % in_per != 0
        pad_out = problem.original_out_chans % out_per != 0
    out_bytes, memcpy = problem.out_bytes, problem.memcpy_bytes
    totals.copy_in = inputs if problem.copy_input or pad_in else 0
    copies_weights = problem.copy_weights or pad_in or pad_out
    totals.copy_weights = totals.weights if copies_weights else 0
    whole = (problem.in_chans * problem.out_chans) % (8 // problem.in_bytes) == 0
    totals.copy_rate = min(memcpy, out_bytes) * (4 if whole else 3)

    moved_out = problem.copy_output or pad_out
    regrouped = not problem.fully_connected and out_per != problem.weights_per_unit
    factor = 4 if problem.out_chans % (8 // out_bytes) == 0 else 3
    chunk = out_per * out_bytes
    totals.regroup_rate = min(memcpy, chunk) * factor
    totals.copy_out_rate = min(memcpy, out_bytes if moved_out else chunk) * factor
    totals.copy_out = outputs if moved_out or regrouped else 0
    totals.move_out = 1 if moved_out else 0

    # Training forward passes reckon with the transpose of the weights in the backward pass, whose
    # blocks are small unless output channel groups are multiples of the weights of a conv unit.
    small = problem.regroup_weights and out_per % problem.weights_per_unit != 0
    apart = small and not copies_weights and not problem.executing
    totals.regroup_weights = totals.weights if apart else 0

    # Planners before 2.4 copy inputs and weights at once.
    totals.in_copied = totals.copy_in + (0 if problem.era >= ERA_2_4 else totals.copy_weights)
    others = max(totals.copy_weights, totals.copy_out, totals.regroup_weights)
    totals.most_copied = max(totals.in_copied, others)

    before = (totals.copy_in + totals.copy_weights) * out_bytes
    after = totals.copy_out * out_bytes
    floor = before // problem.exchange_bytes + before * 5 // totals.copy_rate
    floor += after * 5 // totals.copy_out_rate
    if moved_out:
        floor += after // problem.exchange_bytes
    totals.copy_floor = floor
