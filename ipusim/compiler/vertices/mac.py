"""The multiply-accumulate, SLIC and outer product vertices on one tile, by era.

The formulas restate poplibs ``lib/poplin/PerformanceEstimation.hpp`` (MIT).
"""

import numpy as np

from ipusim.compiler.eras import ERA_2_0
from ipusim.compiler.vertices.conv import (
    DISTINCT_SHARES,
    HMAC,
    OUTER_PRODUCT,
    SLIC,
    VMAC,
    WORKERS,
    run_cycles,
    vertex_type,
    zero_partials_cycles,
)
from ipusim.compiler.vertices.tables import numbers
from ipusim.kernel_cache import njit


def hmac_vertices(
    in_per: np.ndarray, out_per: int, in_bytes: int, partial_bytes: int, era: int
) -> np.ndarray:
    """Return the HMAC vertices of some groupings of input channels.

    hmac.csv has cells by era and bytes of inputs and partials. "outputs": the divisor of the output
    channels, and what is added to them before. "even dot", a dot product of whole vectors: fixed
    cycles, and channels per cycle. "odd dot", any other: fixed cycles, and cycles of so many
    channels at most (getDenseDotProductCycles). "supervisor and worker": cycles of the supervisor,
    of a worker, of a row with several outputs, of a row with one, and around the dot product of the
    latter. "with one tap": the same of the vertex for one tap; where there is one, it writes the
    first sums if it has one output channel, instead of accumulating them on zeros.
    """
    several, even, odd, *rates = numbers("hmac.csv", 3)[era, in_bytes, partial_bytes]
    alike = rates[0] == rates[1]
    outputs = (out_per + several[1]) // several[0]
    scattered = odd[0] + odd[1] * (in_per // np.gcd(in_per, odd[2]))
    whole = in_per % (8 // in_bytes) == 0
    dot = np.where(whole, even[0] + in_per // even[1], scattered)
    grouping = (1, in_per, out_per, 0, partial_bytes, 8 // in_bytes)
    vertices = vertex_type(HMAC, *grouping, filter_height=1)
    for name, (fixed, worker, *row, around) in zip(("hmac", "hmac_one_by_one"), rates, strict=True):
        of = vertices[name]
        of["fixed"], of["worker"], of["per_row"] = fixed, worker, row[outputs == 1]
        of["per_position"] = (around if outputs == 1 else 7) + outputs * dot
        of["accumulates"] = alike or name == "hmac" or out_per > 1
    return vertices


@njit(cache=True)
def hmac_cycles(vertex: np.void, part: np.void, pointwise: int) -> int:
    """Return the cycles of the horizontal MAC vertex on one tile, zeroing of partials included.

    The vertex for one tap runs where the convolution is `pointwise`. poplibs
    PerformanceEstimation.hpp, estimateConvPartialHorizontalMacInnerLoopCycles and
    getConvPartialHorizontalMacSupervisorOuterLoopCycleEstimate; ConvModel.cpp, tag
    sdk/poplar/3.3.0, canUseHorizontalMac1x1Vertex and usesNonZeroing1x1Implementaton.
    """
    rates = vertex.hmac
    if pointwise and part.kernel_elements == 1:
        rates = vertex.hmac_one_by_one
    split = DISTINCT_SHARES[part.rows % WORKERS]
    parts = -(-part.rows * split // WORKERS)
    worker = parts // split * (rates.per_row + part.row_length * rates.per_position)
    rest = parts % split
    if rest > 0:
        share = rest * (part.row_length + split - 1) // split
        worker += rates.per_row + share * rates.per_position
    inner = WORKERS * (part.kernel_elements * (rates.worker + worker) + 16)
    blocks = part.out_grains * part.group_grains
    zeroed = part.rows * part.row_length * vertex.out_chans_per_group
    body = part.in_grains * (15 + part.out_grains * (10 + inner))
    cycles = rates.fixed + part.group_grains * (23 + body)
    if rates.accumulates or part.in_grains > 1:
        cycles += zero_partials_cycles(zeroed, blocks)
    return cycles


_SUB_KERNELS = {1: 56, 2: 131, 4: 119, 8: 276, 16: 536}
"""Cycles around a sub-kernel of so many groups of convolutions, mostly to load its weights."""


def slic_vertex(
    grouping: tuple[int, int], chains: int, partial_bytes: int, stride: int, era: int
) -> np.ndarray:
    """Return the SLIC 1x4 vertex (half inputs) for groups of convolution groups and channels.

    slic.csv has, by bytes of partials and chains, the `RUN` of a worker that zeroes the partials
    and of one that does not, without a stride and with one; then cycles of the supervisor: fixed,
    for each group, for each sub-kernel of up to four groups besides, and of a merge. More than four
    groups run in strides of four.
    """
    conv_groups, chans = grouping
    *runs, (fixed, per_group, more, merge) = numbers("slic.csv", 2)[partial_bytes, chains]
    first, later = runs[2:] if stride > 1 else runs[:2]
    per_sub = _SUB_KERNELS[conv_groups]
    if conv_groups > 4:
        per_group += 8
        first, later = ((prologue + 4, *run) for prologue, *run in (first, later))
    else:
        per_sub += more - (era == ERA_2_0)
    return vertex_type(
        SLIC,
        *(conv_groups, chans, chans, chains, partial_bytes, chans * 4 * 2),
        filter_height=1,
        first=first,
        later=later,
        slic=(fixed, per_group, per_sub, max(1, conv_groups // 4), merge),
    )


@njit(cache=True)
def slic_cycles(vertex: np.void, part: np.void, kernel_last: int) -> int:
    """Return the cycles of the SLIC vertex, for kernels whose rows are `kernel_last` long.

    The narrow chains merge their halves at the end (poplibs PerformanceEstimation.hpp,
    getConvPartialSlicSupervisor*CycleEstimate).
    """
    rates, groups = vertex.slic, part.group_grains
    sub_kernels = -(-kernel_last // 4) * (part.kernel_elements // kernel_last)
    first = run_cycles(vertex.first, part.rows, part.row_length)
    first += rates.merge * (1 + part.rows * part.row_length)
    if sub_kernels > 1:
        later = run_cycles(vertex.later, part.rows, part.row_length)
        first += (sub_kernels - 1) * rates.passes * later
    return rates.fixed + groups * (rates.per_group + first) + sub_kernels * rates.per_sub_kernel


def vmac_vertex(conv_groups: int, partial_bytes: int, era: int) -> np.ndarray:
    """Return the vertical MAC vertex (depthwise, half inputs); its `VMAC_RATES` are in vmac.csv."""
    rates = numbers("vmac.csv", 3)[era, partial_bytes, conv_groups]
    grouping = (conv_groups, 1, 1, 0, partial_bytes, 4)
    return vertex_type(VMAC, *grouping, filter_height=1, vmac=tuple(rate for (rate,) in rates))


@njit(cache=True)
def vmac_cycles(vertex: np.void, part: np.void, kernel_last: int) -> int:
    """Return the cycles of the vertical MAC vertex, for kernels whose rows are `kernel_last` long.

    poplibs PerformanceEstimation.hpp, estimateConvPartialVerticalMacInnerLoopCycles and
    getConvPartialVerticalMacSupervisorOuterLoopCycleEstimate.
    """
    rates, height = vertex.vmac, part.kernel_elements // kernel_last
    split = DISTINCT_SHARES[part.positions % WORKERS]
    parts = -(-part.positions * split // WORKERS)
    whole, rest = height * (parts // split), height * (parts % split)
    inner = rates.start + whole * (rates.per_row + rates.per_tap * (kernel_last - 1))
    inner += rest * (rates.per_row + rates.per_tap * (-(-kernel_last // split) - 1))
    outputs = part.positions // part.batch
    zero = 4 + -(-outputs // rates.zero_vector)
    reduce = rates.reduce + rates.per_worker * -(-outputs // WORKERS) // rates.divisor
    inner = part.in_grains * (24 + WORKERS * inner)
    return rates.fixed + (zero + 32 + inner + reduce) * part.group_grains


def outer_product_vertex(chans: int, partial_bytes: int, is_float: bool) -> np.ndarray:
    """Return the outer product vertex (getOuterProductCycleEstimate)."""
    if is_float:
        rates = (11, 6 + (chans - 6) // 2 if chans >= 6 and chans % 2 == 0 else 10 + chans * 2)
    else:
        unrolled = chans >= 12 and chans % 4 == 0
        rates = (10, 6 + (chans - 12) // 4 if unrolled else 10 + chans * 5 // 2)
    grouping = (1, 1, chans, 0, partial_bytes, chans)
    return vertex_type(OUTER_PRODUCT, *grouping, filter_height=1, outer=rates)


@njit(cache=True)
def outer_product_cycles(vertex: np.void, part: np.void) -> int:
    """Cycles of the outer product vertex on one tile."""
    rates, groups = vertex.outer, part.out_grains * part.group_grains
    per_worker = -(-part.row_length // WORKERS)
    return WORKERS * (25 + groups * (rates.per_group + per_worker * rates.per_position))
