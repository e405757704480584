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

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Protocol

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ipusim.numerics.kernels.amp import PASS_DEPTH, SLICE_PASSES, padded, product
from ipusim.numerics.kernels.rounding import Rounding
from ipusim.numerics.kernels.threads import over_ranges, writable

Sizes = tuple[int, int, int]
"""Of a volume: planes, rows, columns."""

_COLUMNS = 384  # output positions worked on at a time: sums of one pass stay in the first cache


class Window(Protocol):
    """How a kernel slides over a volume; paddings may be negative (the input is cropped)."""

    stride: Sizes
    padding_lower: Sizes
    padding_upper: Sizes
    dilation: Sizes
    input_dilation: Sizes | tuple[()]
    groups: int


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


def seen(
    x: np.ndarray, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> np.ndarray:
    """Return what each place of a window sees of a field: (batch, channels, *places, *kernel)."""
    reach = tuple(step * (taps - 1) + 1 for taps, step in zip(kernel, dilation, strict=True))
    windows = sliding_window_view(x, reach, axis=tuple(range(2, x.ndim)), writeable=True)
    return windows[tuple(slice(None, None, step) for step in (1, 1, *stride, *dilation))]


def _seen(x: np.ndarray, kernel: Sequence[int], window: Window) -> np.ndarray:
    """Return what each result of a convolution sees."""
    spread = window.input_dilation or (1,) * len(kernel)
    wide = widened(x, spread, window.padding_lower, window.padding_upper)
    return seen(wide, kernel, window.stride, window.dilation)


@lru_cache(maxsize=64)
def _sum_order(channels: int, kernel: Sizes) -> np.ndarray:
    """Return channel, plane, row and column of each term of a sum, -1 where a pass is filled up."""
    # All planes that a result sees are taken for channels; so poplin may expand a dimension of the
    # kernel (lib/poplin/ConvPlan.cpp, expandDims).
    depth = channels * kernel[0]
    per_pass = min(depth, PASS_DEPTH)
    shape = (-(-depth // per_pass), *kernel[1:], per_pass)
    first, row, column, place = np.indices(shape).reshape(4, -1)
    channel = first * per_pass + place
    terms = np.array([channel % channels, channel // channels, row, column])
    terms[:, channel >= depth] = -1
    return np.pad(terms, ((0, 0), (0, padded(channel.size) - channel.size)), constant_values=-1)


def convolve(x: np.ndarray, weights: np.ndarray, window: Window, rounding: Rounding) -> np.ndarray:
    """Convolve float32 (batch, channels, *field): the partials of each plane after their last pass.

    Weights are (output channels, channels per group, *kernel), results (planes of the batch, output
    channels, rows, columns); `rounding` is that of partials.
    """
    outer, inner, *kernel = weights.shape
    reads, groups = _seen(x, kernel, window), window.groups
    batch, (planes, *plane) = len(x), reads.shape[2:5]
    channel, *taps = _sum_order(inner, tuple(kernel))
    channels = np.arange(groups)[:, None] * inner + channel
    summed = np.where(channel >= 0, weights[:, channel, *taps], np.float32(0))
    table = writable(summed.reshape(groups, outer // groups, -1))
    out = np.empty((batch, planes, outer, prod(plane)), np.float32)
    positions = planes * prod(plane)

    def work(start: int, stop: int) -> None:
        terms = reads[start:stop, channels, :, :, :, *taps].reshape(*channels.shape, -1)
        terms[:, channel < 0] = 0
        sums = product(table, terms, rounding, (0, start * positions))
        out[start:stop] = sums.reshape(outer, -1, planes, prod(plane)).transpose(1, 2, 0, 3)

    over_ranges(batch, max(1, _COLUMNS // positions), work)
    return out.reshape(-1, outer, *plane)


def mirrored(weights: np.ndarray, groups: int) -> np.ndarray:
    """Exchange input and output channels and mirror the kernel; its own inverse."""
    outer, inner, *kernel = weights.shape
    grouped = weights.reshape(groups, outer // groups, inner, *kernel).swapaxes(1, 2)
    turned = np.flip(grouped, tuple(range(3, grouped.ndim)))
    return turned.reshape(groups * inner, outer // groups, *kernel)


def weight_gradient(
    x: np.ndarray, gradient: np.ndarray, kernel: Sizes, window: Window, rounding: Rounding
) -> np.ndarray:
    """Return the gradient of the weights of a convolution, of size `kernel`."""
    batch, outer, planes, *plane = gradient.shape
    groups, positions, samples = window.groups, prod(plane), batch * planes
    reads, inner = _seen(x, kernel, window), x.shape[1] // groups
    taps = inner * prod(kernel)
    arriving = gradient.swapaxes(1, 2).reshape(samples, groups, outer // groups, positions)
    blocks = np.zeros((-(-samples // PASS_DEPTH), outer, taps), np.float32)

    def work(start: int, stop: int) -> None:
        """Add up a block of planes, `SLICE_PASSES` positions at a time."""
        sample, plane_of = divmod(np.arange(start, stop)[:, None], planes)
        for begin in range(0, positions, SLICE_PASSES):
            place = np.arange(begin, min(begin + SLICE_PASSES, positions))
            left = np.zeros((groups, outer // groups, place.size, PASS_DEPTH), np.float32)
            left[..., : stop - start] = arriving[start:stop, ..., place].transpose(1, 2, 3, 0)
            # In the order of the sums: samples of a position, then planes, channels, rows, columns.
            read = reads[sample, :, plane_of, *divmod(place, plane[1])]
            read = read.reshape(stop - start, place.size, groups, inner, *kernel)
            read = read.transpose(2, 1, 0, 4, 3, 5, 6)
            right = np.zeros((groups, place.size, PASS_DEPTH, taps), np.float32)
            right[:, :, : stop - start] = read.reshape(*read.shape[:3], taps)
            block = start // PASS_DEPTH
            depth = place.size * PASS_DEPTH
            pair = left.reshape(groups, -1, depth), right.reshape(groups, depth, taps)
            blocks[block] += product(*pair, rounding.of(block, begin)).reshape(outer, taps)

    over_ranges(samples, PASS_DEPTH, work)
    # Blocks of 16 planes and `SLICE_PASSES` positions are summed in the partials type and then
    # reduced in single precision, in the order of the batch.
    total = blocks[0]
    for block in blocks[1:]:
        total += block
    return total.reshape(outer, kernel[0], inner, *kernel[1:]).swapaxes(1, 2)
