"""What an operation and a vertex type imply before any split, as compiled kernels.

The vectors are those of `record`.
"""

from __future__ import annotations

import numpy as np

from ipusim.compiler.convolution import record as lay
from ipusim.compiler.vertices.conv import ERA_1_0, ceil_div
from ipusim.kernel_cache import njit


@njit(cache=True)
def fill_totals(problem: np.ndarray, vertex: np.ndarray, totals: np.ndarray) -> bool:
    """Fill `totals`; False where the vertex cannot do the operation, however it is split."""
    dims = problem[lay.DIMS]
    last = dims - 1
    totals[lay.T_GROUP_GRAINS] = ceil_div(problem[lay.GROUPS], vertex[lay.CONV_GROUPS_PER_GROUP])
    totals[lay.T_IN_GRAINS] = ceil_div(problem[lay.IN_CHANS], vertex[lay.IN_CHANS_PER_GROUP])
    totals[lay.T_OUT_GRAINS] = ceil_div(problem[lay.OUT_CHANS], vertex[lay.OUT_CHANS_PER_GROUP])
    grain = _field_grain(problem, vertex)
    totals[lay.T_FIELD_GRAIN] = grain
    totals[lay.T_LAST_GRAINS] = ceil_div(problem[lay.OUT_FIELD + last], grain)
    totals[lay.T_RESULT_BYTES] = min(problem[lay.INTER_TILE_BYTES], vertex[lay.PARTIAL_BYTES])
    totals[lay.T_FILTER_HEIGHT] = _filter_height(problem, vertex)
    totals[lay.T_ONE_BY_ONE] = (
        vertex[lay.METHOD] == lay.AMP and totals[lay.T_FILTER_HEIGHT] == 1 and _one_by_one(problem)
    )

    positions = problem[lay.BATCH] * totals[lay.T_LAST_GRAINS] * grain
    in_positions = problem[lay.BATCH]
    needed_positions = problem[lay.BATCH]
    kernel_elements = 1
    totals[lay.T_STEPS] = 1
    totals[lay.T_PLAIN_INPUTS] = 1
    for d in range(dims):
        kernel_elements *= problem[lay.KERNEL + d]
        in_positions *= problem[lay.IN_FIELD + d]
        if d < last:
            positions *= problem[lay.OUT_FIELD + d]
        if problem[lay.TRANSFORMED + d] or vertex[lay.METHOD] == lay.SLIC:
            # The SLIC vertex reads spread inputs with their zeros.
            totals[lay.T_STEP + d] = 1
        if problem[lay.TRANSFORMED + d]:
            needed_positions *= problem[lay.OUT_FIELD + d]
        else:
            stride, dilation = problem[lay.STRIDE + d], problem[lay.IN_DILATION + d]
            if vertex[lay.METHOD] != lay.SLIC:
                totals[lay.T_STEP + d] = dilation // _gcd(dilation, stride)
            totals[lay.T_STEPS] *= totals[lay.T_STEP + d]
            needed_positions *= problem[lay.WHOLE_IN + d]
            cropped = problem[lay.WHOLE_IN + d] < problem[lay.OUT_FIELD + d]
            if cropped or stride < dilation:
                totals[lay.T_PLAIN_INPUTS] = 0
    groups = totals[lay.T_GROUP_GRAINS] * vertex[lay.CONV_GROUPS_PER_GROUP]
    in_chans = totals[lay.T_IN_GRAINS] * vertex[lay.IN_CHANS_PER_GROUP]
    out_chans = totals[lay.T_OUT_GRAINS] * vertex[lay.OUT_CHANS_PER_GROUP]
    totals[lay.T_POSITIONS] = positions
    totals[lay.T_WEIGHTS] = groups * in_chans * out_chans * kernel_elements
    totals[lay.T_INPUTS] = groups * in_chans * in_positions
    _fill_copies(
        problem,
        vertex,
        totals,
        groups * in_chans * needed_positions,
        groups * out_chans * positions,
    )
    return _possible(problem, vertex)


@njit(cache=True)
def _gcd(a: int, b: int) -> int:
    while b:
        a, b = b, a % b
    return a


@njit(cache=True)
def _field_grain(problem: np.ndarray, vertex: np.ndarray) -> int:
    """Grain of the innermost field dimension (ConvPlan.cpp createPlan, from tag 1.2.0 on)."""
    if problem[lay.FIELD_GRAIN] > 0:
        return problem[lay.FIELD_GRAIN]
    width = problem[lay.OUT_FIELD + problem[lay.DIMS] - 1]
    odd = vertex[lay.OUT_CHANS_PER_GROUP] % 2 == 1
    if problem[lay.ERA] != ERA_1_0 and problem[lay.OUT_BYTES] == 2 and odd and width % 2 == 0:
        return 2
    return 1


@njit(cache=True)
def _filter_height(problem: np.ndarray, vertex: np.ndarray) -> int:
    """Kernel rows that one AMP pass covers when the input grouping leaves depth unused."""
    if vertex[lay.METHOD] != lay.AMP:
        return 1
    depth = problem[lay.WEIGHTS_PER_UNIT]
    if vertex[lay.IN_CHANS_PER_GROUP] != depth:
        depth = depth * vertex[lay.UNITS] // problem[lay.UNITS_ON_CHIP]
    return depth // vertex[lay.IN_CHANS_PER_GROUP]


@njit(cache=True)
def _one_by_one(problem: np.ndarray) -> bool:
    """Whether the 1x1 AMP vertex can run, once a tile has one kernel element.

    Later planners want the batch and all field dimensions but the innermost flattened away.
    """
    dims = problem[lay.DIMS]
    for d in range(dims):
        if not problem[lay.TRANSFORMED + d] and (
            not problem[lay.COVERED + d] or problem[lay.STRIDE + d] != problem[lay.IN_DILATION + d]
        ):
            return False
    if problem[lay.ERA] == ERA_1_0:
        return True
    for d in range(dims - 1):
        if problem[lay.IN_FIELD + d] != 1:
            return False
    return problem[lay.BATCH] == 1


@njit(cache=True)
def _possible(problem: np.ndarray, vertex: np.ndarray) -> bool:
    """Whether strides and dilations suit the vertex (ConvModel.cpp, addMethodConstraints)."""
    if vertex[lay.METHOD] == lay.SLIC:
        return problem[lay.SLIC_ALLOWED] == 1
    if vertex[lay.METHOD] == lay.OUTER_PRODUCT:
        return problem[lay.OUTER_ALLOWED] == 1
    return True


@njit(cache=True)
def _fill_copies(
    problem: np.ndarray, vertex: np.ndarray, totals: np.ndarray, inputs: int, outputs: int
) -> None:
    """Fill what is rearranged between the neighbours' layout and the plan's.

    References
    ----------
    poplibs ConvModel.cpp, addTransformCycleEstimate: five cycles for every three or four chunks.
    """
    in_per, out_per = vertex[lay.IN_CHANS_PER_GROUP], vertex[lay.OUT_CHANS_PER_GROUP]
    if problem[lay.ERA] == ERA_1_0:
        pad_in = problem[lay.ORIGINAL_IN_CHANS] % in_per != 0
        pad_out = problem[lay.ORIGINAL_OUT_CHANS] % out_per != 0
    else:
        pad_in = problem[lay.IN_CHANS] % in_per != 0
        pad_out = problem[lay.OUT_CHANS] % out_per != 0
    in_bytes, out_bytes = problem[lay.IN_BYTES], problem[lay.OUT_BYTES]
    exchange, memcpy = problem[lay.EXCHANGE_BYTES], problem[lay.MEMCPY_BYTES]
    copied_in = inputs if problem[lay.COPY_INPUT] or pad_in else 0
    copied_weights = totals[lay.T_WEIGHTS] if problem[lay.COPY_WEIGHTS] or pad_in or pad_out else 0
    granularity = 2 if in_bytes == 4 else 4
    whole = (problem[lay.IN_CHANS] * problem[lay.OUT_CHANS]) % granularity == 0
    rate = min(memcpy, out_bytes) * (4 if whole else 3)
    totals[lay.T_COPY_IN] = copied_in
    totals[lay.T_COPY_WEIGHTS] = copied_weights
    totals[lay.T_COPY_RATE] = rate

    moved_out = bool(problem[lay.COPY_OUTPUT]) or pad_out
    regrouped = (not problem[lay.FULLY_CONNECTED]) and out_per != problem[lay.WEIGHTS_PER_UNIT]
    granularity = 2 if out_bytes == 4 else 4
    factor = 4 if problem[lay.OUT_CHANS] % granularity == 0 else 3
    chunk = out_bytes if moved_out else out_per * out_bytes
    out_rate = min(memcpy, chunk) * factor
    totals[lay.T_COPY_OUT] = outputs if moved_out or regrouped else 0
    totals[lay.T_MOVE_OUT] = moved_out
    totals[lay.T_COPY_OUT_RATE] = out_rate

    # Training forward passes reckon with the transpose of the weights in the backward pass, whose
    # blocks are small unless whole conv units' worth of output channels sit together.
    regroup = problem[lay.REGROUP_WEIGHTS] and out_per % problem[lay.WEIGHTS_PER_UNIT] != 0
    apart = regroup and copied_weights == 0 and not problem[lay.EXECUTING]
    totals[lay.T_REGROUP_WEIGHTS] = totals[lay.T_WEIGHTS] if apart else 0
    totals[lay.T_REGROUP_RATE] = min(memcpy, out_per * out_bytes) * factor

    before = (copied_in + copied_weights) * out_bytes
    after = totals[lay.T_COPY_OUT] * out_bytes
    totals[lay.T_COPY_FLOOR] = before // exchange + before * 5 // rate + after * 5 // out_rate
    if moved_out:
        totals[lay.T_COPY_FLOOR] += after // exchange
