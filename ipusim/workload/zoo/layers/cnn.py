"""Blocks that several convolutional networks share: norms, squeeze-excite, inverted residual.

The inverted residual is that of MobileNetV2 (arXiv 1801.04381), with the squeeze-excite of
Hu et al. (arXiv 1709.01507) after the depthwise convolution as in MobileNetV3 (arXiv 1905.02244)
and EfficientNet (arXiv 1905.11946); layers are named as timm names them.
"""

from dataclasses import dataclass
from math import gcd

from ipusim.workload.layers import GraphBuilder


def round_channels(channels: float, divisor: int = 8) -> int:
    """Round to a multiple of the divisor, up where rounding loses more than a tenth.

    The rule of the MobileNet papers' code, which EfficientNet and torchvision share.
    """
    rounded = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * channels else rounded


def normalise(g: GraphBuilder, name: str, x: str, norm_groups: int) -> str:
    """Add a batch norm, or a group norm where `norm_groups` is not 0."""
    return g.group_norm(name, x, norm_groups) if norm_groups else g.batch_norm(name, x)


def at_positions(g: GraphBuilder, name: str, x: str, channels: int, view: str) -> str:
    """Add a 1x1 convolution with bias, and a view of its result as (N, channels, positions)."""
    y = g.conv(name, x, channels, 1, bias=True)
    batch, _, rows, columns = g.shape(y)
    return g.reshape(f"{name}.{view}", y, (batch, channels, rows * columns))


def squeeze_excite(g: GraphBuilder, x: str, squeezed: int, activation: str, gate: str) -> str:
    """Scale channels by a gate in 0..1 that two 1x1 convolutions compute from all channel means."""
    channels = g.shape(x)[1]
    y = g.global_average_pool("pool", x)
    y = g.conv("conv_reduce", y, squeezed, 1, bias=True)
    y = g.elementwise("act1", activation, y)
    y = g.conv("conv_expand", y, channels, 1, bias=True)
    y = g.elementwise("gate", gate, y)
    return g.elementwise("scale", "mul", x, y)


@dataclass(frozen=True, slots=True, kw_only=True)
class InvertedResidual:
    """One block: expand by a 1x1 convolution, filter, gate the channels, project by another.

    `expanded` channels lie between the 1x1 convolutions, `channels` after them, `squeezed` inside
    squeeze-excite (0 for none). `group_size` is the channels per group of the filter, 1 for
    depthwise; the greatest common divisor with the channels where it does not divide them.
    `norm_groups` is 0 for batch norm.
    """

    kernel: int
    stride: int
    expanded: int
    channels: int
    squeezed: int
    activation: str
    squeeze_activation: str
    gate: str
    group_size: int = 1
    norm_groups: int = 0


def inverted_residual(g: GraphBuilder, x: str, block: InvertedResidual) -> str:
    """Add an inverted residual block; the expansion is left out where it would change nothing.

    A block that keeps shape and channels adds its input. Stochastic depth, off in timm unless
    asked for, is left out.
    """
    before = g.shape(x)[1]
    layers = iter(range(1, 4))
    y = x

    def settle(y: str, activation: str | None) -> str:
        number = next(layers)
        y = normalise(g, f"bn{number}", y, block.norm_groups)
        return g.elementwise(f"act{number}", activation, y) if activation else y

    if block.expanded != before:
        y = settle(g.conv("conv_pw", y, block.expanded, 1), block.activation)
    y = g.conv(
        "conv_dw",
        y,
        block.expanded,
        block.kernel,
        stride=block.stride,
        padding=block.kernel // 2,
        groups=block.expanded // gcd(block.expanded, block.group_size),
    )
    y = settle(y, block.activation)
    if block.squeezed:
        y = squeeze_excite(g.at("se"), y, block.squeezed, block.squeeze_activation, block.gate)
    y = settle(g.conv("conv_pwl", y, block.channels, 1), None)
    if block.stride != 1 or before != block.channels:
        return y
    return g.elementwise("add", "add", y, x)


def classify(
    g: GraphBuilder, x: str, classes: int, *, hidden: int = 0, activation: str = ""
) -> str:
    """Add global average, an optional hidden dense layer, dropout and the final dense layer."""
    x = g.flatten("flatten", g.global_average_pool("global_pool", x))
    if hidden:
        x = g.elementwise("act2", activation, g.linear("conv_head", x, hidden))
    x = g.elementwise("dropout", "dropout", x)
    return g.linear("classifier", x, classes)
