"""The two gradients of a convolution and of a matrix product, as operators of the same kinds.

A gradient of a convolution is a convolution again, and so it is planned and timed like one.  With
zeros spread through an input or a kernel (dilation) and paddings that may be negative (the field
is cut there), every field comes out exactly as large as that of the tensor it belongs to, also
where a stride leaves elements of the forward input unread.

References
----------
poplibs tag sdk/poplar/2.0.0, ``lib/poplin/ConvUtil.cpp`` (getGradientParams) and
``lib/poplin/Convolution.cpp`` (getWeightUpdateParams); ``lib/poplin/MatMul.cpp`` for products.
"""

from __future__ import annotations

from dataclasses import replace

from ipusim.errors import WorkloadError
from ipusim.workload.operators.attributes import Conv, MatMul

__all__ = [
    "conv_data_gradient",
    "conv_weight_gradient",
    "matmul_data_gradient",
    "matmul_weight_gradient",
]


def conv_data_gradient(conv: Conv) -> Conv:
    """Return the gradient of a convolution's input.

    Parameters
    ----------
    conv : Conv
        A forward convolution; strided, dilated, grouped and transposed ones alike.

    Returns
    -------
    Conv
        Inputs (incoming gradient, weights of the forward convolution), output in the shape of the
        forward input.  The kernel is read rotated by half a turn in every dimension, with input and
        output channels of each group exchanged; the incoming gradient is spread by the forward
        stride.

    Raises
    ------
    WorkloadError
        If `conv` is a gradient itself.
    """
    _require_forward(conv)
    # Of the forward sum y[o] += x[i] w[k], with o stride + k dilation - padding = i spread, the
    # gradient of x reads dy at i spread + (taps - 1 - k) dilation - lower.
    spread = _spread(conv)
    reach = tuple((t - 1) * d for t, d in zip(conv.kernel, conv.dilation, strict=True))
    lower = tuple(r - p for r, p in zip(reach, conv.padding_lower, strict=True))
    upper = tuple(
        (field - 1) * step - (out - 1) * stride + r - low
        for field, step, out, stride, r, low in zip(
            conv.field, spread, conv.out_field, conv.stride, reach, lower, strict=True
        )
    )
    return Conv(
        batch=conv.batch,
        in_channels=conv.out_channels,
        out_channels=conv.in_channels,
        groups=conv.groups,
        field=conv.out_field,
        kernel=conv.kernel,
        stride=spread,
        padding_lower=lower,
        padding_upper=upper,
        dilation=conv.dilation,
        input_dilation=_unless_ones(conv.stride),
        pass_kind="data_gradient",
    )


def conv_weight_gradient(conv: Conv) -> Conv:
    """Return the gradient of a convolution's weights.

    Parameters
    ----------
    conv : Conv
        A forward convolution; strided, dilated, grouped and transposed ones alike.

    Returns
    -------
    Conv
        Inputs (activations, incoming gradient), output in the shape of the weights.  The
        activations are the input, their channels taking the part of the batch, and their batch that
        of the channels to sum over; the incoming gradient is the kernel, spread by the forward
        stride; the forward dilation is the stride.

    Raises
    ------
    WorkloadError
        If `conv` is a gradient itself.
    """
    _require_forward(conv)
    spread = _spread(conv)
    # What the forward windows leave unread at the upper end is not read here either.
    upper = tuple(
        (taps - 1) * dilation + (out - 1) * stride - (field - 1) * step - low
        for taps, dilation, out, stride, field, step, low in zip(
            conv.kernel,
            conv.dilation,
            conv.out_field,
            conv.stride,
            conv.field,
            spread,
            conv.padding_lower,
            strict=True,
        )
    )
    return Conv(
        batch=conv.in_channels // conv.groups,
        in_channels=conv.batch * conv.groups,
        out_channels=conv.out_channels,
        groups=conv.groups,
        field=conv.field,
        kernel=conv.out_field,
        stride=conv.dilation,
        padding_lower=conv.padding_lower,
        padding_upper=upper,
        dilation=conv.stride,
        input_dilation=conv.input_dilation,
        pass_kind="weight_gradient",
    )


def matmul_data_gradient(product: MatMul) -> MatMul:
    """Return the gradient of A, dA = dC B^T, of C = A B.

    Parameters
    ----------
    product : MatMul
        A forward product.

    Returns
    -------
    MatMul
        Inputs (dC, B), output with the elements of A as (g, m, k).

    Raises
    ------
    WorkloadError
        If `product` is a gradient itself.
    """
    _require_forward(product)
    return replace(
        product,
        k=product.n,
        n=product.k,
        transpose_a=False,
        transpose_b=not product.transpose_b,
        pass_kind="data_gradient",
    )


def matmul_weight_gradient(product: MatMul) -> MatMul:
    """Return the gradient of B, dB = A^T dC, of C = A B.

    Parameters
    ----------
    product : MatMul
        A forward product.

    Returns
    -------
    MatMul
        Inputs (A, dC), output with the elements of B as (g, k, n).  ``weights_operand`` still says
        whether B, whose gradient this is, is a parameter.

    Raises
    ------
    WorkloadError
        If `product` is a gradient itself.
    """
    _require_forward(product)
    return replace(
        product,
        m=product.k,
        k=product.m,
        transpose_a=not product.transpose_a,
        transpose_b=False,
        pass_kind="weight_gradient",
    )


def _require_forward(payload: Conv | MatMul) -> None:
    if payload.pass_kind != "forward":
        raise WorkloadError(
            f"{type(payload).__name__} has pass_kind = {payload.pass_kind!r} and so no gradient of "
            "its own here: derive gradients from the forward operator."
        )


def _spread(conv: Conv) -> tuple[int, ...]:
    return conv.input_dilation or (1,) * len(conv.field)


def _unless_ones(steps: tuple[int, ...]) -> tuple[int, ...]:
    return steps if any(step > 1 for step in steps) else ()
