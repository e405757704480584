"""Softmax, normalisation and pooling, with their gradients where training needs them."""

from collections.abc import Callable, Iterator
from functools import reduce

import numpy as np

from ipusim.numerics.arithmetic import Arithmetic
from ipusim.numerics.kernels.convolution import seen, widened
from ipusim.numerics.kernels.rounding import Rounding
from ipusim.numerics.kernels.softmax import softmax, softmax_gradient
from ipusim.numerics.operators.registry import (
    Applied,
    Arrays,
    Operator,
    attributes_of,
    reduce_to_shape,
)
from ipusim.numerics.program import Node
from ipusim.workload.onnx.operators.products import PER_ELEMENT_AXIS_OPSET
from ipusim.workload.operators.pool import Pool

_F = np.float32


def _along_rows(
    node: Node, function: Callable[..., np.ndarray], rounding: Rounding, *arrays: np.ndarray
) -> list[np.ndarray]:
    """Apply a function of rows along the axis of a softmax: arrays of one shape to one of it."""
    shape = arrays[0].shape
    modern = not 0 < node.opset < PER_ELEMENT_AXIS_OPSET
    axis = node.attributes.get("axis", -1 if modern else 1) % len(shape)
    if not modern:
        arrays, axis = [x.reshape(int(np.prod(shape[:axis])), -1) for x in arrays], -1
    moved = [np.moveaxis(x, axis, -1) for x in arrays]
    rows = function(*(x.reshape(-1, x.shape[-1]) for x in moved), rounding)
    back = np.moveaxis(rows.reshape(moved[0].shape), -1, axis)
    return [np.ascontiguousarray(back).reshape(shape)]


def _softmax_forward(node: Node, inputs: Arrays, arithmetic: Arithmetic) -> list[np.ndarray]:
    return _along_rows(node, softmax, arithmetic.storage(), inputs[0])


def _softmax_backward(applied: Applied) -> list[np.ndarray | None]:
    pair, rounding = (applied.outputs[0], applied.gradients[0]), applied.arithmetic.storage()
    return _along_rows(applied.node, softmax_gradient, rounding, *pair)


def _channel_vector(vector: np.ndarray, x: np.ndarray) -> np.ndarray:
    return vector.reshape(1, -1, *(1,) * (x.ndim - 2))


def _batch_norm_factors(
    node: Node, inputs: Arrays, arithmetic: Arithmetic
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return multiplicand, addend and inverse deviation per channel."""
    scale, shift, mean, variance = (np.asarray(v, np.float32) for v in inputs[1:5])
    epsilon = _F(node.attributes.get("epsilon", 1e-5))
    # ``lib/popnn/BatchNorm.cpp``, ``lib/poplin/Norms.cpp``: inverted in single precision, both
    # vectors stored in the type of the data.
    inverse = _F(1) / np.sqrt(variance + epsilon)
    multiplicand = arithmetic.store(scale * inverse)
    addend = arithmetic.store(shift - mean * multiplicand)
    return multiplicand, addend, inverse


def _batch_norm_forward(node: Node, inputs: Arrays, arithmetic: Arithmetic) -> list[np.ndarray]:
    x = inputs[0]
    multiplicand, addend, _ = _batch_norm_factors(node, inputs, arithmetic)
    scaled = arithmetic.store(x * _channel_vector(multiplicand, x))
    return [arithmetic.store(scaled + _channel_vector(addend, x))]


def _batch_norm_backward(applied: Applied) -> list[np.ndarray | None]:
    x, arithmetic = applied.inputs[0], applied.arithmetic
    gradient = applied.gradients[0]
    multiplicand, _, inverse = _batch_norm_factors(applied.node, applied.inputs, arithmetic)
    shape = _channel_vector(multiplicand, x).shape
    mean = _channel_vector(np.asarray(applied.inputs[3], np.float32), x)
    whitened = arithmetic.store((x - mean) * _channel_vector(inverse, x))
    return [
        arithmetic.store(gradient * _channel_vector(multiplicand, x)),
        reduce_to_shape(arithmetic.store(gradient * whitened), shape, arithmetic).reshape(-1),
        reduce_to_shape(gradient, shape, arithmetic).reshape(-1),
        None,
        None,
    ]


class _Taps:
    """The shifted views of a padded input, one per kernel position."""

    def __init__(self, node: Node, inputs: Arrays) -> None:
        pool: Pool = attributes_of(node, inputs)
        self.pool = pool
        self.pads = tuple(zip(pool.padding_lower, pool.padding_upper, strict=True))
        # What rounding up adds beyond the stated padding is never counted.
        given, rank = node.attributes, len(pool.field)
        self.counted = pool.padding_upper
        if given.get("ceil_mode", 0) and not given.get("auto_pad", "").startswith("SAME"):
            self.counted = given.get("pads", (0,) * 2 * rank)[rank:]

    def padded(self, x: np.ndarray, fill: float) -> np.ndarray:
        return np.pad(x, ((0, 0), (0, 0), *self.pads), constant_values=fill)

    def views(self, array: np.ndarray) -> Iterator[np.ndarray]:
        pool = self.pool
        dilation = pool.dilation or (1,) * len(pool.field)
        reads = seen(array, pool.kernel, pool.stride, dilation)
        return (reads[(..., *place)] for place in np.ndindex(*pool.kernel))

    def cropped(self, array: np.ndarray) -> np.ndarray:
        ends = (tuple(-size for size in side) for side in zip(*self.pads, strict=True))
        return widened(array, (1,) * len(self.pads), *ends)

    def divisor(self, x: np.ndarray) -> np.ndarray:
        """Return the number of elements that each average counts."""
        counts = float(self.pool.include_padding)
        padded = self.padded(np.ones((1, 1, *x.shape[2:]), np.float32), counts)
        for axis, (_, upper) in enumerate(self.pads, start=2):
            beyond = padded.shape[axis] - (upper - min(upper, self.counted[axis - 2]))
            np.moveaxis(padded, axis, 0)[beyond:] = 0
        return sum(self.views(padded), np.zeros((1, 1, *self.pool.out_field), np.float32))


def _pool_forward(node: Node, inputs: Arrays, arithmetic: Arithmetic) -> list[np.ndarray]:
    x, taps = inputs[0], _Taps(node, inputs)
    least = -np.inf if taps.pool.kind == "max" else 0.0
    start = np.full((*x.shape[:2], *taps.pool.out_field), least, np.float32)
    views = taps.views(taps.padded(x, least))
    if taps.pool.kind == "max":
        return [reduce(np.maximum, views, start)]
    return [arithmetic.store(sum(views, start) / taps.divisor(x))]


def _pool_backward(applied: Applied) -> list[np.ndarray | None]:
    x, y = applied.inputs[0], applied.outputs[0]
    gradient, arithmetic = applied.gradients[0], applied.arithmetic
    taps = _Taps(applied.node, applied.inputs)
    if taps.pool.kind == "max":
        padded = taps.padded(x, -np.inf)
        result = np.zeros_like(padded)
        # Among equal maxima the first takes the gradient.
        left = np.ones(y.shape, bool)
        for view, target in zip(taps.views(padded), taps.views(result), strict=True):
            chosen = left & (view == y)
            target += np.where(chosen, gradient, _F(0))
            left &= ~chosen
    else:
        result = np.zeros_like(taps.padded(x, 0))
        share = gradient / taps.divisor(x)
        for target in taps.views(result):
            target += share
    return [arithmetic.store(taps.cropped(result))]


_POOL = Operator(forward=_pool_forward, backward=_pool_backward)

WINDOWED = {
    "Softmax": Operator(forward=_softmax_forward, backward=_softmax_backward),
    "BatchNormalization": Operator(forward=_batch_norm_forward, backward=_batch_norm_backward),
    **dict.fromkeys(("MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool"), _POOL),
}
