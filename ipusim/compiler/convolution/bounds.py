"""Lower bounds of a convolution's cost, as compiled kernels: what the search may skip.

The vectors are those of `record`.  Each bound restates terms of `conv_cost` for the least
work that a partly chosen split leaves to one tile.
"""

from __future__ import annotations

import numpy as np

from ipusim.compiler.convolution import record as lay
from ipusim.compiler.convolution.cost import slice_cycles
from ipusim.compiler.convolution.reduction import reduction_floor
from ipusim.compiler.convolution.tile_cycles import tile_cycles_floor
from ipusim.compiler.vertices.conv import ERA_1_0, ceil_div
from ipusim.kernel_cache import njit


@njit(cache=True)
def arithmetic_floor(problem: np.ndarray, vertex: np.ndarray, totals: np.ndarray) -> int:
    """Cycles of the multiply-accumulates alone, all tiles together."""
    method = vertex[lay.METHOD]
    last = problem[lay.DIMS] - 1
    grains = totals[lay.T_GROUP_GRAINS] * totals[lay.T_IN_GRAINS] * totals[lay.T_OUT_GRAINS]
    positions = totals[lay.T_POSITIONS]
    kernel_outer, kernel_last = problem[lay.KERNEL], problem[lay.KERNEL + last]
    kernel_elements = kernel_outer * kernel_last
    if last == 2:
        kernel_elements *= problem[lay.KERNEL + 1]
    for d in range(last + 1):
        positions //= totals[lay.T_STEP + d]
    lanes = 2 if problem[lay.IN_BYTES] == 4 else 4
    if method == lay.AMP:
        passes = vertex[lay.OUT_CHANS_PER_GROUP] // vertex[lay.UNITS]
        kernel_passes = ceil_div(kernel_outer, totals[lay.T_FILTER_HEIGHT]) * (
            kernel_elements // kernel_outer
        )
        return grains * passes * kernel_passes * positions * (16 // lanes)
    if method == lay.HMAC:
        dot = vertex[lay.IN_CHANS_PER_GROUP] // lanes + 5
        if vertex[lay.PARTIAL_BYTES] == 2:
            dot = (dot + 1) // 2
        return grains * kernel_elements * vertex[lay.OUT_CHANS_PER_GROUP] * positions * dot
    if method == lay.SLIC:
        data_passes = 1 if vertex[lay.UNITS] == 4 else 2
        sub_kernels = ceil_div(kernel_last, 4) * (kernel_elements // kernel_last)
        return grains * sub_kernels * positions * data_passes
    if method == lay.VMAC:
        return grains * kernel_elements * positions * 2
    return grains * vertex[lay.OUT_CHANS_PER_GROUP] * positions // lanes


@njit(cache=True)
def serial_floor(problem: np.ndarray, totals: np.ndarray, split: np.ndarray) -> int:
    """Cycles of copies and slices besides the arithmetic; grows with either serial split."""
    in_serial, out_serial = split[lay.S_IN_SERIAL], split[lay.S_OUT_SERIAL]
    serial = in_serial * out_serial
    copies = totals[lay.T_COPY_FLOOR] // problem[lay.TILES]
    if out_serial == 1 or not problem[lay.BROADCAST_ALLOWED]:
        copies *= serial
    if serial == 1:
        return copies
    # Weights are sliced, and outputs are written or inputs are sliced too.
    executing = problem[lay.EXECUTING] == 1
    return copies + 2 * serial * slice_cycles(0, 2, serial, problem[lay.ERA], executing)


@njit(cache=True)
def cycles_floor(
    problem: np.ndarray,
    vertex: np.ndarray,
    totals: np.ndarray,
    split: np.ndarray,
    part: np.ndarray,
) -> int:
    """Cycles that no completion of `split` can beat if a tile gets at least `part`.

    ``part[P_TILES_USED]`` and ``part[P_WEIGHT_USERS]`` are the most and the fewest possible; the
    rest is the least.
    """
    in_bytes = problem[lay.IN_BYTES]
    result_bytes = totals[lay.T_RESULT_BYTES]
    exchange = problem[lay.EXCHANGE_BYTES]
    out_split = split[lay.S_OUT]
    in_serial, out_serial = split[lay.S_IN_SERIAL], split[lay.S_OUT_SERIAL]
    serial = in_serial * out_serial
    groups = part[lay.P_GROUP_GRAINS] * vertex[lay.CONV_GROUPS_PER_GROUP]
    in_chans = part[lay.P_IN_GRAINS] * vertex[lay.IN_CHANS_PER_GROUP]
    out_chans = part[lay.P_OUT_GRAINS] * vertex[lay.OUT_CHANS_PER_GROUP]
    weights = part[lay.P_KERNEL_ELEMENTS] * groups * in_chans * out_chans
    zeros = part[lay.P_KERNEL_ZEROS] * groups * in_chans * out_chans
    inputs = part[lay.P_IN_POSITIONS] * groups * in_chans
    outputs = part[lay.P_POSITIONS] * groups * out_chans

    loop = tile_cycles_floor(problem, vertex, totals, part)
    loop += reduction_floor(problem, result_bytes, outputs, part[lay.P_DEPTH], in_serial)
    moved = zeros
    if part[lay.P_WEIGHT_USERS] > 1:
        moved += weights - weights // part[lay.P_WEIGHT_USERS]
    if problem[lay.ERA] == ERA_1_0 and not problem[lay.EXECUTING]:
        moved += zeros * groups * in_chans // problem[lay.TILES_PER_BUS]
    moved = moved * in_bytes + outputs * result_bytes
    fetched = 0
    if inputs > 0 and out_split > 1:
        fetched = (inputs - inputs // out_split) * in_bytes
        if out_split % problem[lay.TILES_PER_BUS] == 0:
            fetched //= problem[lay.TILES_PER_BUS]
    copies = totals[lay.T_COPY_FLOOR]
    if copies > 0:
        copies //= part[lay.P_TILES_USED]
    if serial == 1:
        return loop + (moved + fetched) // exchange + copies
    executing = problem[lay.EXECUTING] == 1
    held = ceil_div(totals[lay.T_WEIGHTS], part[lay.P_TILES_USED])
    loop += slice_cycles(held, in_bytes, serial, problem[lay.ERA], executing)
    held = ceil_div(totals[lay.T_INPUTS], part[lay.P_TILES_USED])
    loop += slice_cycles(held, in_bytes, in_serial, problem[lay.ERA], executing)
    written = outputs // part[lay.P_DEPTH]
    loop += slice_cycles(written, result_bytes, out_serial, problem[lay.ERA], executing)
    if problem[lay.BROADCAST_ALLOWED] and out_serial > 1:
        return (loop + moved // exchange) * serial + fetched // exchange + copies
    return (loop + (moved + fetched) // exchange + copies) * serial


@njit(cache=True)
def bytes_floor(problem: np.ndarray, vertex: np.ndarray, part: np.ndarray) -> int:
    """Temporary bytes of a tile that gets at least `part`: its operands and its partials."""
    groups = part[lay.P_GROUP_GRAINS] * vertex[lay.CONV_GROUPS_PER_GROUP]
    in_chans = part[lay.P_IN_GRAINS] * vertex[lay.IN_CHANS_PER_GROUP]
    out_chans = part[lay.P_OUT_GRAINS] * vertex[lay.OUT_CHANS_PER_GROUP]
    operands = part[lay.P_KERNEL_ELEMENTS] * in_chans * out_chans
    operands += part[lay.P_IN_POSITIONS] * in_chans
    partials = part[lay.P_POSITIONS] * out_chans
    return groups * (operands * problem[lay.IN_BYTES] + partials * vertex[lay.PARTIAL_BYTES])
