"""Operators that multiply and accumulate: convolutions and matrix products."""

from dataclasses import replace
from math import prod

import numpy as np

from ipusim.errors import WorkloadError
from ipusim.numerics.arithmetic import Arithmetic
from ipusim.numerics.kernels.amp import multiply, padded
from ipusim.numerics.kernels.convolution import convolve, mirrored, weight_gradient
from ipusim.numerics.operators import registry
from ipusim.numerics.program import Node
from ipusim.workload.operators.conv import Conv, conv_data_gradient
from ipusim.workload.operators.matmul import MatMul

_DIMENSIONS = 3
"""Of a field; of one or two the first are taken to have a size of 1."""

_FILL = dict.fromkeys(("field", "kernel", "stride", "dilation"), 1)
_FILL |= dict.fromkeys(("padding_lower", "padding_upper"), 0)


def _volumes(array: np.ndarray) -> np.ndarray:
    """Return (batch, channels, field) with a field of three dimensions."""
    batch, channels, *field = array.shape
    return array.reshape(batch, channels, *(1,) * (_DIMENSIONS - len(field)), *field)


def _operands(node: Node, inputs: registry.Arrays) -> tuple[np.ndarray, np.ndarray, Conv]:
    """Return input and weights of a plain convolution of volumes."""
    conv = registry.attributes_of(node, inputs)
    more = _DIMENSIONS - len(conv.field)
    if more < 0:
        raise WorkloadError(
            f"Operator {node.name!r} has {len(conv.field)} spatial dimensions, of which numerics "
            f"supports 1 to {_DIMENSIONS}."
        )
    wide = {name: (fill,) * more + getattr(conv, name) for name, fill in _FILL.items()}
    spread = conv.input_dilation and (1,) * more + conv.input_dilation
    conv = replace(conv, **wide, input_dilation=spread)
    x, weights = map(_volumes, inputs[:2])
    # A transposed convolution stores its weights as those of its data gradient.
    return x, mirrored(weights, conv.groups) if conv.input_dilation else weights, conv


def _sums(x: np.ndarray, weights: np.ndarray, conv: Conv, arithmetic: Arithmetic) -> np.ndarray:
    """Return a convolution of volumes as stored."""
    y = convolve(x, weights, conv, arithmetic.partials())
    # At least the length of a sum over channels and kernel, filled up to passes.
    depth = padded(prod(weights.shape[1:3])) * prod(weights.shape[3:])
    y = arithmetic.store_sums(y, depth)
    return np.ascontiguousarray(y.reshape(len(x), -1, *y.shape[1:]).swapaxes(1, 2))


def _conv_forward(node: Node, inputs: registry.Arrays, arithmetic: Arithmetic) -> list[np.ndarray]:
    x, weights, conv = _operands(node, inputs)
    y = _sums(x, weights, conv, arithmetic)
    if len(inputs) > 2 and inputs[2] is not None:
        y = arithmetic.store(y + inputs[2].reshape(-1, 1, 1, 1))
    return [y.reshape(*y.shape[:2], *y.shape[y.ndim - inputs[0].ndim + 2 :])]


def _conv_backward(applied: registry.Applied) -> list[np.ndarray | None]:
    node, inputs, arithmetic = applied.node, applied.inputs, applied.arithmetic
    x, weights, conv = _operands(node, inputs)
    gradient = _volumes(applied.gradients[0])
    results: list[np.ndarray | None] = [None] * len(inputs)
    if applied.wanted[0]:
        dx = _sums(gradient, mirrored(weights, conv.groups), conv_data_gradient(conv), arithmetic)
        results[0] = dx.reshape(inputs[0].shape)
    if applied.wanted[1]:
        kernel, partials = weights.shape[2:], arithmetic.partials()
        dw = weight_gradient(x, gradient, kernel, conv, partials)
        if conv.input_dilation:
            dw = mirrored(dw, conv.groups)
        results[1] = arithmetic.store(dw).reshape(inputs[1].shape)
    if len(inputs) > 2 and applied.wanted[2]:
        channels = (1, gradient.shape[1], 1, 1, 1)
        results[2] = registry.reduce_to_shape(gradient, channels, arithmetic).reshape(-1)
    return results


def matrix_product(a: np.ndarray, b: np.ndarray, arithmetic: Arithmetic) -> np.ndarray:
    """Return ``A[g] B[g]`` as stored."""
    return arithmetic.store_sums(multiply(a, b, arithmetic.partials()), a.shape[2])


def _turned(matrices: np.ndarray) -> np.ndarray:
    return matrices.swapaxes(1, 2)


def _pair(
    node: Node, inputs: registry.Arrays
) -> tuple[list[np.ndarray], list[tuple[int, ...]], tuple[bool, bool]]:
    """Return A and B of ``C = A B``, as what they are stored, and which of them transposed.

    They come as (groups or 1, m, k) and (groups or 1, k, n), their groups repeated as numpy repeats
    axes; what is stored is of the shape (*groups, rows, columns).
    """
    work: MatMul = registry.attributes_of(node, inputs)
    flips = (work.transpose_a, work.transpose_b)
    sizes = ((work.m, work.k), (work.k, work.n))
    stored = [
        (*x.shape[:-2], *(size[::-1] if flip else size))
        for x, size, flip in zip(inputs, sizes, flips, strict=False)
    ]
    stacks = []
    for x, shape, flip in zip(inputs, stored, flips, strict=False):
        if work.groups > 1 and prod(shape[:-2]) > 1:
            x = np.broadcast_to(x.reshape(shape), (*_lead(stored), *shape[-2:]))
        x = x.reshape(-1, *shape[-2:])
        stacks.append(_turned(x) if flip else x)
    return stacks, stored, flips


def _lead(shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    return np.broadcast_shapes(*(shape[:-2] for shape in shapes))


def _factor(node: Node, name: str) -> np.float32:
    return np.float32(node.attributes.get(name, 1.0))


def _forward(node: Node, inputs: registry.Arrays, arithmetic: Arithmetic) -> list[np.ndarray]:
    (a, b), stored, (flipped, _) = _pair(node, inputs)
    alpha, beta = _factor(node, "alpha"), _factor(node, "beta")
    # Vectors have no rows or columns.
    rows = inputs[0].shape[-1:] if flipped else inputs[0].shape[-2:-1]
    columns = b.shape[2:] if inputs[1].ndim > 1 else ()
    y = matrix_product(a, b, arithmetic).reshape(*_lead(stored), *rows, *columns)
    if alpha != 1:
        y = arithmetic.store(alpha * y)
    if len(inputs) > 2 and inputs[2] is not None and beta != 0:
        y = arithmetic.store(y + beta * inputs[2])
    return [y]


def _backward(applied: registry.Applied) -> list[np.ndarray | None]:
    arithmetic, gradient, inputs = applied.arithmetic, applied.gradients[0], applied.inputs
    alpha, beta = _factor(applied.node, "alpha"), _factor(applied.node, "beta")
    scaled = gradient if alpha == 1 else arithmetic.store(alpha * gradient)
    (a, b), stored, flips = _pair(applied.node, inputs)
    c = scaled.reshape(-1, a.shape[1], b.shape[2])
    results: list[np.ndarray | None] = [None] * len(inputs)
    for place, (left, right) in enumerate(((c, _turned(b)), (_turned(a), c))):
        if applied.wanted[place]:
            # That of an operand that is stored transposed is computed so.
            pair = (_turned(right), _turned(left)) if flips[place] else (left, right)
            results[place] = matrix_product(*pair, arithmetic)
    for place, shape in enumerate(stored):
        result = results[place]
        if result is not None:
            if result.size != inputs[place].size:
                full = result.reshape(*_lead(stored), *result.shape[1:])
                result = registry.reduce_to_shape(full, shape, arithmetic)
            results[place] = result.reshape(inputs[place].shape)
    if len(inputs) > 2 and applied.wanted[2]:
        share = gradient if beta == 1 else arithmetic.store(beta * gradient)
        results[2] = registry.reduce_to_shape(share, inputs[2].shape, arithmetic)
    return results


PRODUCTS = {
    **dict.fromkeys(
        ("Conv", "ConvTranspose"), registry.Operator(forward=_conv_forward, backward=_conv_backward)
    ),
    **dict.fromkeys(
        ("Product", "Gemm", "MatMul"), registry.Operator(forward=_forward, backward=_backward)
    ),
}
