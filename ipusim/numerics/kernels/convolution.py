"""Convolutions and their two gradients as passes of the accumulating matrix product.

Order of accumulation, as in the n x 1 vertex (poplibs ``lib/poplin/codelets/ConvPartialnx1.cpp``,
sdk/poplar/2.4.0): groups of 16 input channels outside, kernel positions inside, one pass and one
rounding each (that file's portable form rounds every product; the unit is the one of the 1 x 1
vertex, whose portable form sums a pass in a float first [inferred]). With fewer than 16 input
channels per group, the kernel is folded into the channels and the sum is cut into passes of 16, as
the planner does for narrow inputs. A data gradient is a convolution of the gradient with the
mirrored kernel; a weight gradient takes samples of the batch as the inputs of a pass and output
positions as its kernel (``lib/poplin/ConvPlan.cpp``, weight-update pass).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np

from ipusim.kernel_cache import njit
from ipusim.numerics.kernels.amp import BEGIN, PASS_DEPTH, SLICE_PASSES, accumulate, padded, product
from ipusim.numerics.kernels.rounding import Rounding, random_bits
from ipusim.numerics.kernels.threads import over_ranges, writable

Pair = tuple[int, int]

_COLUMNS = 384  # output positions worked on at a time: sums of one pass stay in the first cache


class Window(NamedTuple):
    """How a two-dimensional kernel slides; paddings may be negative (the input is cropped)."""

    stride: Pair = (1, 1)
    padding_lower: Pair = (0, 0)
    padding_upper: Pair = (0, 0)
    dilation: Pair = (1, 1)
    input_dilation: Pair = (1, 1)
    groups: int = 1


def widened(
    x: np.ndarray, dilation: Sequence[int], lower: Sequence[int], upper: Sequence[int]
) -> np.ndarray:
    """Put zeros between the elements along the last axes and around them; below 0 ends are cut."""
    lead = x.ndim - len(dilation)
    if max(dilation) > 1:
        field = [(size - 1) * step + 1 for size, step in zip(x.shape[lead:], dilation, strict=True)]
        wide = np.zeros((*x.shape[:lead], *field), np.float32)
        wide[(..., *(slice(None, None, step) for step in dilation))] = x
        x = wide
    ends = list(zip(lower, upper, strict=True))
    if max(*lower, *upper) > 0:
        pads = [(max(0, low), max(0, high)) for low, high in ends]
        x = np.pad(x, [(0, 0)] * lead + pads)
    sizes = zip(ends, x.shape[lead:], strict=True)
    kept = (slice(max(0, -low), size - max(0, -high)) for (low, high), size in sizes)
    return writable(x[(..., *kept)])


@lru_cache(maxsize=64)
def _sum_order(channels: int, kernel: Pair) -> np.ndarray:
    """Return (channel, row, column) of each term of a sum, -1 where a pass is filled up."""
    per_pass = PASS_DEPTH if channels >= PASS_DEPTH else channels
    terms: list[Pair | tuple[int, int, int]] = []
    for first in range(0, channels, per_pass):
        for row in range(kernel[0]):
            for column in range(kernel[1]):
                block = [(first + i, row, column) for i in range(per_pass)]
                terms += [term if term[0] < channels else (-1, 0, 0) for term in block]
    terms += [(-1, 0, 0)] * (padded(len(terms)) - len(terms))
    return np.array(terms, np.int64)


def _in_order(weights: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Return the weights as (output channel, term of the sum), zero where nothing is summed."""
    channel, row, column = order.T
    table = weights[:, np.maximum(channel, 0), row, column]
    return np.ascontiguousarray(np.where(channel >= 0, table, np.float32(0)))


class _Walk(NamedTuple):
    """How a kernel meets its input: terms of a sum, strides and dilations, result, groups."""

    order: np.ndarray
    step: tuple[int, int, int, int]
    field: Pair
    groups: int


@njit(cache=True, nogil=True, allocates=True)
def _convolve_range(x, table, walk, rounding, out, start, stop):
    order, step, (rows, columns), groups = walk
    positions = rows * columns
    terms = order.shape[0]
    width = (stop - start) * positions
    per_group, in_group = table.shape[0] // groups, x.shape[1] // groups
    patches = np.zeros((terms, width), np.float32)
    result = np.empty((per_group, width), np.float32)
    for group in range(groups):
        for term in range(terms):
            channel, kernel_row, kernel_column = order[term]
            if channel < 0:
                continue
            channel += group * in_group
            place = 0
            first_column = kernel_column * step[3]
            for sample in range(start, stop):
                for i in range(rows):
                    line = x[sample, channel, i * step[0] + kernel_row * step[2], first_column:]
                    target = patches[term, place : place + columns]
                    if step[1] == 1:
                        for j in range(columns):
                            target[j] = line[j]
                    else:
                        for j in range(columns):
                            target[j] = line[j * step[1]]
                    place += columns
        first = group * per_group
        weights = table[first : first + per_group]
        product(weights, patches, result, rounding, (first, start * positions))
        for channel in range(per_group):
            place = 0
            for sample in range(start, stop):
                # A row assigned whole would compile the words of an error about its shape.
                for j in range(positions):
                    out[sample, first + channel, j] = result[channel, place + j]
                place += positions


def convolve(x: np.ndarray, weights: np.ndarray, window: Window, rounding: Rounding) -> np.ndarray:
    """Convolve float32 (batch, channels, rows, columns): the partials after their last pass.

    Weights are (output channels, channels per group, kernel rows, kernel columns); `rounding` is
    that of partials.
    """
    kernel = (weights.shape[2], weights.shape[3])
    spread = widened(x, window.input_dilation, window.padding_lower, window.padding_upper)
    sizes = zip(spread.shape[2:], kernel, window.stride, window.dilation, strict=True)
    field = tuple((size - step * (taps - 1) - 1) // hop + 1 for size, taps, hop, step in sizes)
    order = _sum_order(weights.shape[1], kernel)
    positions = prod(field)
    out = np.empty((x.shape[0], weights.shape[0], positions), np.float32)
    lines = field
    if kernel == (1, 1) and window.stride == (1, 1):
        spread, lines = spread.reshape(*x.shape[:2], 1, positions), (1, positions)
    table, chunk = _in_order(weights, order), max(1, _COLUMNS // positions)
    walk = _Walk(order, (*window.stride, *window.dilation), lines, window.groups)
    over_ranges(x.shape[0], chunk, _convolve_range, spread, table, walk, rounding, out)
    return out.reshape(x.shape[0], weights.shape[0], *field)


def mirrored(weights: np.ndarray, groups: int) -> np.ndarray:
    """Exchange input and output channels and mirror the kernel; its own inverse."""
    outer, inner, *kernel = weights.shape
    grouped = weights.reshape(groups, outer // groups, inner, *kernel).swapaxes(1, 2)
    turned = np.flip(grouped, tuple(range(3, grouped.ndim)))
    return turned.reshape(groups * inner, outer // groups, *kernel)


@njit(cache=True, nogil=True, allocates=True)
def _weight_range(x, gradient, reads, rounding, partial, start, stop):
    """Add up one block of samples; `partial` is (block, output channel, weights of a channel).

    `x` is (batch, group, elements); an output position reads its elements at ``corner + taps``,
    of which `reads` holds all.
    """
    (taps, corners), (mode, key, salt) = reads, rounding
    positions, groups = corners.size, x.shape[1]
    per_group = gradient.shape[1] // groups
    block = start // PASS_DEPTH
    left = np.zeros((per_group, SLICE_PASSES * PASS_DEPTH), np.float32)
    right = np.zeros((SLICE_PASSES * PASS_DEPTH, taps.size), np.float32)
    sums = np.empty((per_group, taps.size), np.float32)
    for group in range(groups):
        first = group * per_group
        target = partial[block, first : first + per_group]
        target[:] = 0
        for begin in range(0, positions, SLICE_PASSES):
            end = min(begin + SLICE_PASSES, positions)
            for sample in range(start, stop):
                place = sample - start
                for position in range(begin, end):
                    source = x[sample, group, corners[position] :]
                    line = right[place]
                    for at in range(taps.size):
                        line[at] = source[taps[at]]
                    place += PASS_DEPTH
                for channel in range(per_group):
                    source = gradient[sample, first + channel, begin:end]
                    line = left[channel, sample - start :]
                    for position in range(end - begin):
                        line[position * PASS_DEPTH] = source[position]
            sums[:] = 0
            slice_key = random_bits(np.uint32(block), key, salt)
            slice_salt = random_bits(np.uint32(begin), salt, key)
            depth = (end - begin) * PASS_DEPTH
            of_slice = Rounding(mode, slice_key, slice_salt)
            accumulate(left, right, sums, of_slice, (first, BEGIN), BEGIN, depth)
            target += sums


def weight_gradient(
    x: np.ndarray, gradient: np.ndarray, kernel: Pair, window: Window, rounding: Rounding
) -> np.ndarray:
    """Return the gradient of the weights of a convolution, of size `kernel`."""
    batch, out_channels = gradient.shape[:2]
    in_group = x.shape[1] // window.groups
    blocks = -(-batch // PASS_DEPTH)
    partial = np.empty((blocks, out_channels, in_group * prod(kernel)), np.float32)
    spread = widened(x, window.input_dilation, window.padding_lower, window.padding_upper)
    width = spread.shape[3]
    down, across = (
        np.arange(size) * hop for size, hop in zip(gradient.shape[2:], window.stride, strict=True)
    )
    channel, row, column = np.indices((in_group, *kernel))
    taps = (channel * spread.shape[2] + row * window.dilation[0]) * width
    taps += column * window.dilation[1]
    corners = (down[:, None] * width + across).reshape(-1)
    reads = taps.reshape(-1).astype(np.uint32), corners
    arriving = writable(gradient.reshape(batch, out_channels, -1))
    whole = spread.reshape(batch, window.groups, -1)
    over_ranges(batch, PASS_DEPTH, _weight_range, whole, arriving, reads, rounding, partial)
    # Blocks of 16 samples and `SLICE_PASSES` positions are summed in the partials type and then
    # reduced in single precision, in the order of the batch.
    total = partial[0]
    for block in partial[1:]:
        total += block
    return total.reshape(out_channels, in_group, *kernel)
