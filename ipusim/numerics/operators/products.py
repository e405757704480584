"""Operators that multiply and accumulate: convolutions, matrix products, per-channel bias."""

from math import prod

import numpy as np

from ipusim.errors import WorkloadError
from ipusim.numerics.arithmetic import Arithmetic
from ipusim.numerics.kernels.amp import padded
from ipusim.numerics.kernels.convolution import (
    Window,
    convolve,
    data_gradient,
    mirrored,
    two_dimensional,
    weight_gradient,
)
from ipusim.numerics.kernels.matmul import multiply
from ipusim.numerics.operators.registry import Applied, Arrays, Operator, reduce_to_shape
from ipusim.numerics.program import Node


def _flat(array: np.ndarray, label: str) -> np.ndarray:
    """Return (batch, channels, field) with a two-dimensional field."""
    return array.reshape(*array.shape[:2], *two_dimensional(array.shape[2:], 1, label))


def _padding(node: Node, x: np.ndarray, weights: np.ndarray) -> tuple[tuple[int, ...], ...]:
    """Return lower and upper padding of an ONNX convolution, ``auto_pad`` resolved."""
    rank = x.ndim - 2
    mode = node.attributes.get("auto_pad", "NOTSET")
    if mode == "NOTSET":
        pads = tuple(node.attributes.get("pads", (0,) * 2 * rank))
        return pads[:rank], pads[rank:]
    if mode == "VALID":
        return (0,) * rank, (0,) * rank
    strides = node.attributes.get("strides", (1,) * rank)
    dilations = node.attributes.get("dilations", (1,) * rank)
    lower, upper = [], []
    for axis in range(rank):
        size, hop, taps = x.shape[2 + axis], strides[axis], weights.shape[2 + axis]
        out = -(-size // hop)
        total = max(0, (out - 1) * hop + dilations[axis] * (taps - 1) + 1 - size)
        low = total // 2 if mode == "SAME_UPPER" else total - total // 2
        lower.append(low)
        upper.append(total - low)
    return tuple(lower), tuple(upper)


def _conv_window(node: Node, x: np.ndarray, weights: np.ndarray) -> Window:
    rank = x.ndim - 2
    given = node.attributes
    lower, upper = _padding(node, x, weights)
    label = f"Operator {node.name!r}"
    return Window(
        stride=two_dimensional(tuple(given.get("strides", (1,) * rank)), 1, label),
        padding_lower=two_dimensional(lower, 0, label),
        padding_upper=two_dimensional(upper, 0, label),
        dilation=two_dimensional(tuple(given.get("dilations", (1,) * rank)), 1, label),
        groups=given.get("group", 1),
    )


def _transposed_window(node: Node, x: np.ndarray, weights: np.ndarray) -> Window:
    """Return the window of the equivalent convolution of the input spread by zeros."""
    rank = x.ndim - 2
    given = node.attributes
    if given.get("auto_pad", "NOTSET") != "NOTSET" or "output_shape" in given:
        raise WorkloadError(
            f"Operator {node.name!r} of type 'ConvTranspose' derives its padding from its output; "
            "export it with explicit pads."
        )
    stride = tuple(given.get("strides", (1,) * rank))
    dilation = tuple(given.get("dilations", (1,) * rank))
    pads = tuple(given.get("pads", (0,) * 2 * rank))
    extra = tuple(given.get("output_padding", (0,) * rank))
    reach = [step * (taps - 1) for step, taps in zip(dilation, weights.shape[2:], strict=True)]
    lower = tuple(span - pad for span, pad in zip(reach, pads[:rank], strict=True))
    upper = tuple(
        span - pad + more for span, pad, more in zip(reach, pads[rank:], extra, strict=True)
    )
    label = f"Operator {node.name!r}"
    return Window(
        padding_lower=two_dimensional(lower, 0, label),
        padding_upper=two_dimensional(upper, 0, label),
        dilation=two_dimensional(dilation, 1, label),
        input_dilation=two_dimensional(stride, 1, label),
        groups=given.get("group", 1),
    )


def _operands(node: Node, inputs: Arrays) -> tuple[np.ndarray, np.ndarray, Window]:
    """Return input and weights of a plain convolution with a two-dimensional field."""
    label = f"Operator {node.name!r}"
    x, weights = inputs[0], inputs[1]
    if node.op == "Conv":
        return _flat(x, label), _flat(weights, label), _conv_window(node, x, weights)
    window = _transposed_window(node, x, weights)
    return _flat(x, label), mirrored(_flat(weights, label), window.groups), window


def _sum_depth(channels: int, weights: np.ndarray) -> int:
    """Return at least the length of a sum over channels and kernel, filled up to passes."""
    return padded(channels) * prod(weights.shape[2:])


def _conv_forward(node: Node, inputs: Arrays, arithmetic: Arithmetic) -> list[np.ndarray]:
    x, weights, window = _operands(node, inputs)
    y = convolve(x, weights, window, arithmetic.partials_mode, arithmetic.next_key())
    y = arithmetic.store_sums(y, _sum_depth(weights.shape[1], weights))
    if len(inputs) > 2 and inputs[2] is not None:
        y = arithmetic.store(y + inputs[2].reshape(-1, 1, 1))
    rank = inputs[0].ndim - 2
    return [y.reshape(*y.shape[:2], *y.shape[4 - rank :])]


def _conv_backward(applied: Applied) -> list[np.ndarray | None]:
    node, inputs, arithmetic = applied.node, applied.inputs, applied.arithmetic
    x, weights, window = _operands(node, inputs)
    gradient = _flat(applied.gradients[0], node.name)
    mode = arithmetic.partials_mode
    results: list[np.ndarray | None] = [None] * len(inputs)
    if applied.wanted[0]:
        field = (x.shape[2], x.shape[3])
        dx = data_gradient(gradient, weights, field, window, mode, arithmetic.next_key())
        depth = _sum_depth(weights.shape[0] // window.groups, weights)
        results[0] = arithmetic.store_sums(dx, depth).reshape(inputs[0].shape)
    if applied.wanted[1]:
        kernel = (weights.shape[2], weights.shape[3])
        dw = weight_gradient(x, gradient, kernel, window, mode, arithmetic.next_key())
        if node.op == "ConvTranspose":
            dw = mirrored(dw, window.groups)
        results[1] = arithmetic.store(dw).reshape(inputs[1].shape)
    if len(inputs) > 2 and applied.wanted[2]:
        results[2] = reduce_to_shape(gradient, (1, gradient.shape[1], 1, 1), arithmetic).reshape(-1)
    return results


def _bias_shape(node: Node, x: np.ndarray) -> tuple[int, ...]:
    axis = node.attributes["axis"] % x.ndim
    return tuple(size if place == axis else 1 for place, size in enumerate(x.shape))


def _bias_forward(node: Node, inputs: Arrays, arithmetic: Arithmetic) -> list[np.ndarray]:
    x, bias = inputs
    return [arithmetic.store(x + bias.reshape(_bias_shape(node, x)))]


def _bias_backward(applied: Applied) -> list[np.ndarray | None]:
    x, bias = applied.inputs
    gradient = applied.gradients[0]
    shape = _bias_shape(applied.node, x)
    summed = reduce_to_shape(gradient, shape, applied.arithmetic) if applied.wanted[1] else None
    return [gradient, None if summed is None else summed.reshape(bias.shape)]


def _product(
    a: np.ndarray, b: np.ndarray, arithmetic: Arithmetic, *, flip_a: bool, flip_b: bool
) -> np.ndarray:
    mode, key = arithmetic.partials_mode, arithmetic.next_key()
    depth = a.shape[1] if flip_a else a.shape[2]
    return arithmetic.store_sums(multiply(a, b, mode, key, flip_a=flip_a, flip_b=flip_b), depth)


def _product_gradients(
    a: np.ndarray,
    b: np.ndarray,
    gradient: np.ndarray,
    arithmetic: Arithmetic,
    wanted: tuple[bool, bool],
    *,
    flip_a: bool,
    flip_b: bool,
) -> list[np.ndarray | None]:
    """Return the gradients of both operands of ``C = A B``, each as stored."""
    results: list[np.ndarray | None] = [None, None]
    if wanted[0]:
        if flip_a:
            results[0] = _product(b, gradient, arithmetic, flip_a=flip_b, flip_b=True)
        else:
            results[0] = _product(gradient, b, arithmetic, flip_a=False, flip_b=not flip_b)
    if wanted[1]:
        if flip_b:
            results[1] = _product(gradient, a, arithmetic, flip_a=True, flip_b=flip_a)
        else:
            results[1] = _product(a, gradient, arithmetic, flip_a=not flip_a, flip_b=False)
    return results


def _grouped(node: Node, inputs: Arrays) -> tuple[np.ndarray, np.ndarray, bool, bool]:
    given = node.attributes
    groups, m, k, n = (given[name] for name in ("groups", "m", "k", "n"))
    flip_a, flip_b = given["flip_a"], given["flip_b"]
    a = inputs[0].reshape(groups, *((k, m) if flip_a else (m, k)))
    b = inputs[1].reshape(-1, *((n, k) if flip_b else (k, n)))
    return a, b, flip_a, flip_b


def _grouped_forward(node: Node, inputs: Arrays, arithmetic: Arithmetic) -> list[np.ndarray]:
    a, b, flip_a, flip_b = _grouped(node, inputs)
    y = _product(a, b, arithmetic, flip_a=flip_a, flip_b=flip_b)
    return [y.reshape(node.attributes["shape"])]


def _grouped_backward(applied: Applied) -> list[np.ndarray | None]:
    a, b, flip_a, flip_b = _grouped(applied.node, applied.inputs)
    given = applied.node.attributes
    gradient = applied.gradients[0].reshape(given["groups"], given["m"], given["n"])
    results = _product_gradients(
        a,
        b,
        gradient,
        applied.arithmetic,
        (applied.wanted[0], applied.wanted[1]),
        flip_a=flip_a,
        flip_b=flip_b,
    )
    if results[1] is not None and b.shape[0] != results[1].shape[0]:
        results[1] = reduce_to_shape(results[1], b.shape, applied.arithmetic)
    return [
        None if result is None else result.reshape(operand.shape)
        for result, operand in zip(results, applied.inputs, strict=True)
    ]


def _gemm_settings(node: Node) -> tuple[np.float32, np.float32, dict[str, bool]]:
    """Return alpha and beta, and which operands are stored transposed."""
    given = node.attributes
    flips = {"flip_a": bool(given.get("transA", 0)), "flip_b": bool(given.get("transB", 0))}
    return np.float32(given.get("alpha", 1.0)), np.float32(given.get("beta", 1.0)), flips


def _gemm_forward(node: Node, inputs: Arrays, arithmetic: Arithmetic) -> list[np.ndarray]:
    alpha, beta, flips = _gemm_settings(node)
    y = _product(inputs[0][None], inputs[1][None], arithmetic, **flips)[0]
    if alpha != 1:
        y = arithmetic.store(alpha * y)
    if len(inputs) > 2 and inputs[2] is not None and beta != 0:
        y = arithmetic.store(y + beta * inputs[2])
    return [y]


def _gemm_backward(applied: Applied) -> list[np.ndarray | None]:
    arithmetic, gradient = applied.arithmetic, applied.gradients[0]
    alpha, beta, flips = _gemm_settings(applied.node)
    scaled = gradient if alpha == 1 else arithmetic.store(alpha * gradient)
    results = _product_gradients(
        applied.inputs[0][None],
        applied.inputs[1][None],
        scaled[None],
        arithmetic,
        (applied.wanted[0], applied.wanted[1]),
        **flips,
    )
    flat = [None if result is None else result[0] for result in results]
    if len(applied.inputs) > 2:
        wanted = applied.wanted[2]
        share = gradient if beta == 1 else arithmetic.store(beta * gradient)
        shape = applied.inputs[2].shape if wanted else ()
        flat.append(reduce_to_shape(share, shape, arithmetic) if wanted else None)
    return flat


def _broadcast_operands(inputs: Arrays) -> tuple[np.ndarray, np.ndarray, tuple[int, ...]]:
    """Return both operands of an ONNX MatMul as (groups or 1, ., .), and the leading shape."""
    a, b = inputs
    a = a[None, :] if a.ndim == 1 else a
    b = b[:, None] if b.ndim == 1 else b
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    if prod(b.shape[:-2]) == 1:
        return a.reshape(1, -1, a.shape[-1]), b.reshape(1, *b.shape[-2:]), lead
    pair = [
        x.reshape(1, *x.shape[-2:])
        if prod(x.shape[:-2]) == 1
        else np.broadcast_to(x, (*lead, *x.shape[-2:])).reshape(-1, *x.shape[-2:])
        for x in (a, b)
    ]
    return pair[0], pair[1], lead


def _result_shape(inputs: Arrays, lead: tuple[int, ...]) -> tuple[int, ...]:
    a, b = inputs
    rows = () if a.ndim == 1 else (a.shape[-2],)
    columns = () if b.ndim == 1 else (b.shape[-1],)
    return (*lead, *rows, *columns)


def _matmul_forward(node: Node, inputs: Arrays, arithmetic: Arithmetic) -> list[np.ndarray]:
    a, b, lead = _broadcast_operands(inputs)
    y = _product(a, b, arithmetic, flip_a=False, flip_b=False)
    return [y.reshape(_result_shape(inputs, lead))]


def _matmul_backward(applied: Applied) -> list[np.ndarray | None]:
    a, b, lead = _broadcast_operands(applied.inputs)
    groups = max(a.shape[0], b.shape[0])
    gradient = applied.gradients[0].reshape(groups, a.shape[1], b.shape[2])
    wanted = (applied.wanted[0], applied.wanted[1])
    results = _product_gradients(
        a, b, gradient, applied.arithmetic, wanted, flip_a=False, flip_b=False
    )
    shaped: list[np.ndarray | None] = []
    for result, operand in zip(results, applied.inputs, strict=True):
        if result is None:
            shaped.append(None)
            continue
        if result.size != operand.size:
            full = result.reshape(*lead, *result.shape[1:])
            wide = operand.reshape((1,) * max(0, 2 - operand.ndim) + operand.shape)
            result = reduce_to_shape(full, wide.shape, applied.arithmetic)
        shaped.append(result.reshape(operand.shape))
    return shaped


PRODUCTS = {
    "Conv": Operator(forward=_conv_forward, backward=_conv_backward),
    "ConvTranspose": Operator(forward=_conv_forward, backward=_conv_backward),
    "BiasAdd": Operator(forward=_bias_forward, backward=_bias_backward),
    "Product": Operator(forward=_grouped_forward, backward=_grouped_backward),
    "Gemm": Operator(forward=_gemm_forward, backward=_gemm_backward),
    "MatMul": Operator(forward=_matmul_forward, backward=_matmul_backward),
}
