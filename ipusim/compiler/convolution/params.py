"""A convolution as the planner sees it: operands cut, dilated, flipped and padded, outputs cut too.

The two gradients of a convolution, and the operations that poplibs makes of one convolution before
it splits it, need more than strides and paddings: the kernel may be padded like the input, and the
output may be cut before its stride or padded after it.

Sources: poplibs tag sdk/poplar/2.0.0, ``lib/poplin/ConvParams.cpp`` (canonicalize),
``ConvPlan.cpp`` (swapOperands) and ``ConvModel.cpp`` (expandDim, calculateFlattenedParams,
canDeferDilation).
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Self

import numpy as np

from ipusim.errors import ConfigError
from ipusim.workload.graph import Conv, MatMul

KINDS = (
    *("conv", "conv_forward", "conv_data_gradient", "conv_weight_gradient", "matmul"),
    *("fc_inference", "fc_training", "fc_data_gradient", "fc_weight_gradient"),
)
_MAX_DIMS = 3


class Operand(NamedTuple):
    """One spatial dimension of the input or the kernel, with its changes in their order.

    Of `size` elements in memory some are cut at the ends, zeros are put between the others
    (`dilation`), the result may be reversed (`flip`), and zeros are put around it (`pad_low`,
    `pad_high`), which `flip` does not exchange.
    """

    size: int
    cut_low: int = 0
    cut_high: int = 0
    dilation: int = 1
    pad_low: int = 0
    pad_high: int = 0
    flip: bool = False

    def mirrored(self) -> Self:
        """Return the operand reversed, its padding included."""
        return self._replace(flip=not self.flip, pad_low=self.pad_high, pad_high=self.pad_low)

    @property
    def kept(self) -> int:
        """Elements that are not cut."""
        return self.size - self.cut_low - self.cut_high

    @property
    def extent(self) -> int:
        """Size after all changes."""
        return (self.kept - 1) * self.dilation + 1 + self.pad_low + self.pad_high

    @property
    def ends(self) -> tuple[int, int]:
        """The least and the greatest index of a kept element after all changes."""
        return self.pad_low, self.pad_low + (self.kept - 1) * self.dilation

    def places(self) -> np.ndarray:
        """Index of every kept element, in memory order, after all changes."""
        least, most = self.ends
        places = np.arange(least, most + 1, self.dilation)
        return places[::-1] if self.flip else places


class Dim(NamedTuple):
    """One spatial dimension of a convolution: input, kernel, and what becomes of the output.

    The output is cut, then every ``stride``-th element is taken, then zeros are put around.
    """

    data: Operand
    kernel: Operand
    cut_low: int = 0
    cut_high: int = 0
    stride: int = 1
    pad_low: int = 0
    pad_high: int = 0

    @property
    def slides(self) -> int:
        """Positions of the kernel in the input."""
        return self.data.extent - self.kernel.extent + 1

    @property
    def out(self) -> int:
        """Output size."""
        computed = (self.slides - self.cut_low - self.cut_high - 1) // self.stride + 1
        return computed + self.pad_low + self.pad_high

    @property
    def free(self) -> bool:
        """Whether output i reads input i alone, so that dimensions can be joined."""
        return self == Dim(Operand(self.data.size), self.kernel) and self.kernel.extent == 1

    @property
    def defers_dilation(self) -> bool:
        """Whether zeros are spread through the output, not the input (getDilatePostConvDims)."""
        return (
            self.data.dilation != 1
            and not (self.data.pad_low or self.data.pad_high or self.cut_low or self.cut_high)
            and self.stride == 1
            and self.kernel.extent == 1
        )

    def without_dilation(self) -> Self:
        """Return the convolution that is left if the zeros are spread through its output."""
        return self._replace(data=self.data._replace(dilation=1), pad_low=0, pad_high=0)


@lru_cache(maxsize=4096)
def swapped(dim: Dim) -> Dim:
    """Return a dimension with input and kernel exchanged."""
    extra, data = dim.data.extent - dim.kernel.extent, dim.kernel.mirrored()
    data = data._replace(pad_low=data.pad_low + extra, pad_high=data.pad_high + extra)
    return canonical(dim._replace(data=data, kernel=dim.data.mirrored()))


@lru_cache(maxsize=4096)
def uses(dim: Dim) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int], bool]:
    """Return the ranges of inputs, taps and outputs in use; whether each tap reaches each output.

    A tap reaches an output for which it meets an input, not a zero. The ranges are (begin, end) of
    what meets at all. For each tap, the outputs that it reaches are an arithmetic progression.
    """
    (least, most), taps = dim.data.ends, dim.kernel.places()
    stride, spread = dim.stride, dim.data.dilation
    computed = dim.out - dim.pad_low - dim.pad_high
    # For output o a tap reads the input at begin + o stride, which is an element or a zero.
    begin = dim.cut_low + taps
    low = np.maximum(0, -((begin - least) // stride))
    high = np.minimum(computed - 1, (most - begin) // stride)
    common = math.gcd(stride, spread)
    period = spread // common
    inverse = pow(stride // common, -1, period) if period > 1 else 0
    wanted = (least - begin) // common * inverse % period
    first = low + (wanted - low) % period
    met = ((least - begin) % common == 0) & (first <= high)
    if not met.any():
        return (0, 0), (0, 0), (0, 0), False
    last = high - (high - first) % period
    counts = np.where(met, (last - first) // period + 1, 0)
    ends = np.stack([begin + first * stride, begin + last * stride])[:, met]
    read = np.sort(most - ends if dim.data.flip else ends - least, axis=None)
    inputs = read[[0, -1]] // spread + dim.data.cut_low
    used = np.flatnonzero(met) + dim.kernel.cut_low
    covered = len(used) == dim.kernel.size and bool((counts == dim.out).all())
    return (
        (int(inputs[0]), int(inputs[1]) + 1),
        (int(used[0]), int(used[-1]) + 1),
        (int(first[met].min()) + dim.pad_low, int(last[met].max()) + 1 + dim.pad_low),
        covered,
    )


@lru_cache(maxsize=4096)
def canonical(dim: Dim) -> Dim:
    """Return the dimension in a form without anything that does not change the result.

    Outputs that nothing reaches become padding, inputs and taps that reach nothing are cut, and
    paddings that are cut away again vanish.
    """
    outputs = uses(dim)[2]
    if outputs[0] == outputs[1]:
        return dim  # all padding: there is nothing to keep
    low, high = outputs[0], dim.out - outputs[1]
    if low > dim.pad_low:
        dim = dim._replace(cut_low=dim.cut_low + (low - dim.pad_low) * dim.stride, pad_low=low)
    if high > dim.pad_high:
        dim = dim._replace(
            cut_high=dim.cut_high + (high - dim.pad_high) * dim.stride, pad_high=high
        )
    left = dim.slides - dim.cut_low - dim.cut_high
    unread = (left - 1) % dim.stride
    dim = dim._replace(
        cut_high=dim.cut_high + unread, stride=1 if left - unread == 1 else dim.stride
    )
    dim = dim._replace(data=_cut(dim.data, *uses(dim)[0]))
    dim = dim._replace(kernel=_cut(dim.kernel, *uses(dim)[1]))
    dim = _trim_low(dim)
    dim = _mirrored(_trim_low(_mirrored(dim)))
    return dim._replace(data=_settled(dim.data), kernel=_settled(dim.kernel))


def _cut(operand: Operand, begin: int, end: int) -> Operand:
    """Cut the elements outside [begin, end) and pad with zeros in their place."""
    low = max(0, begin - operand.cut_low)
    high = max(0, operand.size - end - operand.cut_high)
    first, last = (high, low) if operand.flip else (low, high)
    return operand._replace(
        cut_low=operand.cut_low + low,
        cut_high=operand.cut_high + high,
        pad_low=operand.pad_low + first * operand.dilation,
        pad_high=operand.pad_high + last * operand.dilation,
    )


def _trim_low(dim: Dim) -> Dim:
    """Drop padding at the lower end that both operands have, or whose outputs are cut away."""
    data, kernel = dim.data, dim.kernel
    both = min(data.pad_low, kernel.pad_low, kernel.extent - 1)
    lost = min(data.pad_low - both, dim.cut_low, dim.slides - 1)
    return dim._replace(
        data=data._replace(pad_low=data.pad_low - both - lost),
        kernel=kernel._replace(pad_low=kernel.pad_low - both),
        cut_low=dim.cut_low - lost,
    )


def _mirrored(dim: Dim) -> Dim:
    """Mirror a dimension, so that lower ends become upper ends."""
    ends = dim.cut_high, dim.cut_low, dim.stride, dim.pad_high, dim.pad_low
    return Dim(dim.data.mirrored(), dim.kernel.mirrored(), *ends)


def _settled(operand: Operand) -> Operand:
    """Reset dilation and flip of an operand that has one element left."""
    return operand if operand.kept > 1 else operand._replace(dilation=1, flip=False)


class ConvParams(NamedTuple):
    """A convolution: channels per group, and two or three spatial dimensions."""

    groups: int
    batch: int
    in_channels: int
    out_channels: int
    dims: tuple[Dim, ...]

    @classmethod
    def of(cls, op: Conv | MatMul) -> Self:
        """Return an operator as parameters, of two spatial dimensions at least.

        C[g, m, n] = A[g, m, k] B[g, k, n] has batch n, input channels k and output channels m
        (poplibs swaps the operands of products: MatMul.cpp).
        """
        if isinstance(op, MatMul):
            return cls(op.groups, op.n, op.k, op.m, (Dim(Operand(1), Operand(1)),) * 2)
        if len(op.field) > _MAX_DIMS:
            raise ConfigError(
                f"A convolution over {len(op.field)} spatial dimensions cannot be planned: "
                f"use 1 to {_MAX_DIMS}."
            )
        if min(op.out_field) < 1:
            raise ConfigError(
                f"The kernel {op.kernel} is larger than the padded field {op.field}: "
                "use more padding or a smaller kernel."
            )
        dims = _dims_of(
            *(op.field, op.kernel, op.stride, op.padding_lower, op.padding_upper, op.dilation),
            op.input_dilation or (1,) * len(op.field),
        )
        channels = op.in_channels // op.groups, op.out_channels // op.groups
        return cls(op.groups, op.batch, *channels, dims)

    def swapped(self) -> Self:
        """Return the same result with input and kernel, batch and output channels exchanged."""
        dims = tuple(swapped(dim) for dim in self.dims)
        return ConvParams(self.groups, self.out_channels, self.in_channels, self.batch, dims)

    def without_dilation(self) -> Self:
        """Return the convolution before zeros are spread through its output, where that can be."""
        dims = (dim.without_dilation() if dim.defers_dilation else dim for dim in self.dims)
        return ConvParams(self.groups, self.batch, self.in_channels, self.out_channels, tuple(dims))

    def expanded(self, dims: tuple[int, ...]) -> Self:
        """Return the convolution with kernels of some dimensions moved into the input channels."""
        taps = math.prod(self.dims[d].kernel.kept for d in dims)
        new = tuple(
            Dim(Operand(dim.out), Operand(1)) if d in dims else dim
            for d, dim in enumerate(self.dims)
        )
        return ConvParams(self.groups, self.batch, self.in_channels * taps, self.out_channels, new)

    def outputs_flattened(self, dims: tuple[int, ...]) -> Self:
        """Return the convolution with output fields of some dimensions moved into the channels."""
        if not dims:
            return self
        params = self.swapped().expanded(dims)
        positions = math.prod(params.dims[d].data.size for d in dims)
        new = tuple(
            Dim(Operand(1), Operand(1)) if d in dims else dim for d, dim in enumerate(params.dims)
        )
        return params._replace(batch=params.batch * positions, dims=new).swapped()

    def flattened(self) -> tuple[Self, tuple[int, ...]]:
        """Join batch and free dimensions in the last free one; return also which are free."""
        free = tuple(d for d, dim in enumerate(self.dims) if dim.free)
        if not free:
            return self, ()
        positions = self.batch * math.prod(self.dims[d].data.size for d in free)
        new = tuple(
            Dim(Operand(positions if d == free[-1] else 1), Operand(1)) if d in free else dim
            for d, dim in enumerate(self.dims)
        )
        return ConvParams(self.groups, 1, self.in_channels, self.out_channels, new), free


@lru_cache(maxsize=1024)
def _dims_of(*of_conv: tuple[int, ...]) -> tuple[Dim, ...]:
    """Return the dimensions of a `Conv`, two at least, from its fields in their order."""
    dims = [Dim(Operand(1), Operand(1))] * max(0, 2 - len(of_conv[0]))
    for size, taps, stride, low, high, dilation, spread in zip(*of_conv, strict=True):
        data = Operand(size, dilation=spread, pad_low=max(0, low), pad_high=max(0, high))
        kernel = Operand(taps, dilation=dilation)
        # A negative padding cuts the output before its stride, the same as cutting the input.
        dims.append(canonical(Dim(data, kernel, max(0, -low), max(0, -high), stride)))
    return tuple(dims)


@dataclass(frozen=True, slots=True)
class ConvPass:
    """What is planned: a convolution or product, and which pass of a layer it is.

    The kind is "conv" at inference, "conv_forward" in training, and its two gradients; "matmul" for
    a product on its own; "fc_inference", "fc_training" and its two gradients for a layer whose
    weights are laid out for it. Inputs and weights have elements of `in_bytes`, outputs of
    `out_bytes`.
    """

    kind: str
    params: ConvParams
    in_bytes: int
    out_bytes: int

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"The kind {self.kind!r} is not one of {', '.join(KINDS)}: use one.")
        if self.in_bytes not in (1, 2, 4) or self.out_bytes not in (2, 4):
            raise ConfigError(
                f"Elements of {self.in_bytes} and {self.out_bytes} bytes cannot be convolved: "
                "use float16 (2) or float32 (4), or float8 (1) as operands."
            )

    @classmethod
    def of(cls, kind: str, op: Conv | MatMul, dtype_bytes: int, operand_bytes: int = 0) -> Self:
        """Return a pass whose operands have elements of the result's size, or of another."""
        return cls(kind, ConvParams.of(op), operand_bytes or dtype_bytes, dtype_bytes)
