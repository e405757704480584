"""Convolutions, and the two gradients of one.

A gradient of a convolution is a convolution again, and so it is planned and timed like one. With
zeros spread through an input or a kernel (dilation) and paddings that may be negative (the field
is cut there), every field comes out exactly as large as that of the tensor it belongs to, also
where a stride leaves elements of the forward input unread.

References
----------
poplibs tag sdk/poplar/2.0.0, ``lib/poplin/ConvUtil.cpp`` (getGradientParams) and
``lib/poplin/Convolution.cpp`` (getWeightUpdateParams).
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Literal

from ipusim.errors import WorkloadError
from ipusim.workload.operators import base
from ipusim.workload.operators.gradient import Backward, gradient


@dataclass(frozen=True, slots=True, kw_only=True)
class Conv(base.Attributes):
    """A convolution, or, with ``input_dilation``, a transposed one.

    Channels are totals over all groups. ``input_dilation`` spreads the input by zeros before the
    window slides (poplibs' ``inputTransform.dilation``); it is empty for ordinary convolutions.
    Paddings may be negative only when ``input_dilation`` is set or in a gradient (the input is then
    truncated). ``pass_kind`` tells a forward convolution from the two gradients of one, which are
    convolutions too (`conv_data_gradient`, `conv_weight_gradient`).
    """

    batch: base.Positive
    in_channels: base.Positive
    out_channels: base.Positive
    groups: base.Positive
    field: base.Positives
    kernel: base.Positives
    stride: base.Positives
    padding_lower: tuple[int, ...]
    padding_upper: tuple[int, ...]
    dilation: base.Positives
    input_dilation: tuple[int, ...] = ()
    pass_kind: Literal[*base.PASSES] = "forward"

    def check(self) -> None:
        """Refuse channels that groups do not divide."""
        if self.in_channels % self.groups or self.out_channels % self.groups:
            raise WorkloadError(
                f"Conv has {self.in_channels} input and {self.out_channels} output channels, "
                f"which must both be multiples of its {self.groups} groups."
            )

    @property
    def is_transposed(self) -> bool:
        """Whether zeros are inserted between input elements."""
        return any(step > 1 for step in self.input_dilation)

    @property
    def out_field(self) -> tuple[int, ...]:
        """Output size per spatial dimension, in elements."""
        field = self.field
        if self.input_dilation:
            field = tuple((n - 1) * s + 1 for n, s in zip(field, self.input_dilation, strict=True))
        return base.windowed_field(self, field, self.dilation)

    @property
    def macs(self) -> int:
        """Multiply-accumulates: per output element, or per input element when transposed.

        A gradient counts as much as its forward convolution: kernel taps times the elements of the
        incoming gradient, or of the forward input where the forward convolution is transposed (its
        input dilation is the stride of its data gradient). Where padding makes more outputs than
        there are inputs, as a transposed convolution of one position does, only inputs count: no
        vertex multiplies padding.
        """
        channels = self.in_channels * self.out_channels // self.groups
        positions, taps = self.out_field, self.kernel
        if self.pass_kind == "data_gradient":
            positions = positions if max(self.stride) > 1 else min(positions, self.field, key=prod)
        elif self.is_transposed:
            positions = self.field
            taps = self.out_field if self.pass_kind == "weight_gradient" else self.kernel
        elif self.pass_kind == "weight_gradient":
            taps = min(taps, self.field, key=prod)
        else:
            positions = min(positions, self.field, key=prod)
        return self.batch * prod(positions) * prod(taps) * channels

    @property
    def weights(self) -> int:
        """Number of weights."""
        return self.out_channels * (self.in_channels // self.groups) * prod(self.kernel)

    def sizes(self, op: base.Op) -> base.Sizes:
        """Elements of the input, the weights and the result."""
        return (
            (op.inputs[0], self.batch * self.in_channels * prod(self.field)),
            (op.inputs[1], self.weights),
            (op.outputs[0], self.batch * self.out_channels * prod(self.out_field)),
        )


@lru_cache(maxsize=1024)
def conv_data_gradient(conv: Conv) -> Conv:
    """Return the gradient of a convolution's input, of strided, grouped and transposed ones alike.

    Inputs are (incoming gradient, weights of the forward convolution), the output has the shape of
    the forward input. The kernel is read rotated by half a turn in every dimension, with input and
    output channels of each group exchanged; the incoming gradient is spread by the forward stride.
    """
    base.check_forward(conv, conv.pass_kind)
    # Of the forward sum y[o] += x[i] w[k], with o stride + k dilation - padding = i spread, the
    # gradient of x reads dy at i spread + (taps - 1 - k) dilation - lower.
    spread = _spread(conv)
    reach = _reach(conv)
    lower = tuple(r - p for r, p in zip(reach, conv.padding_lower, strict=True))
    sizes = (conv.field, spread, conv.out_field, conv.stride, reach, lower)
    upper = tuple(
        (field - 1) * step - (out - 1) * stride + taps - low
        for field, step, out, stride, taps, low in zip(*sizes, strict=True)
    )
    return replace(
        conv,
        in_channels=conv.out_channels,
        out_channels=conv.in_channels,
        field=conv.out_field,
        stride=spread,
        padding_lower=lower,
        padding_upper=upper,
        input_dilation=conv.stride if max(conv.stride) > 1 else (),
        pass_kind="data_gradient",
    )


@lru_cache(maxsize=1024)
def conv_weight_gradient(conv: Conv) -> Conv:
    """Return the gradient of a convolution's weights, of strided, grouped, transposed ones alike.

    Inputs are (activations, incoming gradient), the output has the shape of the weights. The
    activations are the input, their channels taking the part of the batch, and their batch that of
    the channels to sum over; the incoming gradient is the kernel, spread by the forward stride; the
    forward dilation is the stride.
    """
    base.check_forward(conv, conv.pass_kind)
    spread = _spread(conv)
    sizes = (_reach(conv), conv.out_field, conv.stride, conv.field, spread, conv.padding_lower)
    # What the forward windows leave unread at the upper end is not read here either.
    upper = tuple(
        reach + (out - 1) * stride - (field - 1) * step - low
        for reach, out, stride, field, step, low in zip(*sizes, strict=True)
    )
    return replace(
        conv,
        batch=conv.in_channels // conv.groups,
        in_channels=conv.batch * conv.groups,
        kernel=conv.out_field,
        stride=conv.dilation,
        padding_upper=upper,
        dilation=conv.stride,
        pass_kind="weight_gradient",
    )


@gradient.register
def _gradient(conv: Conv, back: Backward) -> None:
    data, weights = conv_data_gradient(conv), conv_weight_gradient(conv)
    back.send_operands(data, weights)


def _reach(conv: Conv) -> tuple[int, ...]:
    return tuple((taps - 1) * d for taps, d in zip(conv.kernel, conv.dilation, strict=True))


def _spread(conv: Conv) -> tuple[int, ...]:
    return conv.input_dilation or (1,) * len(conv.field)
