"""Blocks that several convolutional networks share: convolution and norm, inverted residual.

The inverted residual is that of MobileNetV2 (arXiv 1801.04381), with the squeeze-excite of
Hu et al. (arXiv 1709.01507) after the depthwise convolution as in MobileNetV3 (arXiv 1905.02244)
and EfficientNet (arXiv 1905.11946); layers are named as timm names them.
"""

from collections.abc import Sequence
from functools import partial
from math import gcd

from ipusim.workload.zoo.registry import Config, GraphBuilder


def round_channels(channels: float) -> int:
    """Round to a multiple of 8, up where rounding loses more than a tenth."""
    # The rule of the MobileNet papers' code, which EfficientNet and torchvision share.
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded


def conv_norm(
    g: GraphBuilder,
    names: Sequence[str],
    x: str,
    channels: int,
    kernel: int = 1,
    *,
    activation: str = "",
    norm_groups: int = 0,
    **settings: int,
) -> str:
    """Add a convolution without bias, a norm, and the activation if there is a third name.

    The convolution pads by half its kernel; settings are its stride and groups. The norm is a
    batch norm, or a group norm where `norm_groups` is not 0.
    """
    conv, norm, *act = names
    y = g.conv(conv, x, channels, kernel, padding=kernel // 2, **settings)
    y = g.group_norm(norm, y, norm_groups) if norm_groups else g.batch_norm(norm, y)
    return g.elementwise(act[0], activation, y) if act else y


def at_positions(g: GraphBuilder, name: str, x: str, channels: int, view: str) -> str:
    """Add a 1x1 convolution with bias, and a view of its result as (N, channels, positions)."""
    y = g.conv(name, x, channels, 1, bias=True)
    batch, _, rows, columns = g.shape(y)
    return g.reshape(f"{name}.{view}", y, (batch, channels, rows * columns))


def squeeze_excite(g: GraphBuilder, x: str, squeezed: int, c: Config) -> str:
    """Scale channels by a gate in 0..1 that two 1x1 convolutions compute from all channel means."""
    channels = g.shape(x)[1]
    y = g.global_average_pool("pool", x)
    y = g.conv("conv_reduce", y, squeezed, 1, bias=True)
    y = g.elementwise("act1", c.squeeze_activation, y)
    y = g.conv("conv_expand", y, channels, 1, bias=True)
    y = g.elementwise("gate", c.gate, y)
    return g.elementwise("scale", "mul", x, y)


def inverted_residual(
    g: GraphBuilder, x: str, widths: tuple[int, ...], kernel: int, stride: int, act: str, c: Config
) -> str:
    """Add a block: expand by a 1x1 convolution, filter, gate the channels, project by another.

    Of the widths the first lies between the 1x1 convolutions, the second inside squeeze-excite (0
    for none), the third at the end. The filter's groups have `group_size` channels, or the greatest
    common divisor with all. The expansion is left out where it would change nothing.

    A block that keeps shape and channels adds its input. Stochastic depth, off in timm unless
    asked for, is left out.
    """
    (expanded, squeezed, channels), before = widths, g.shape(x)[1]
    layer = partial(conv_norm, g, activation=act, norm_groups=c.norm_groups)
    y, number = x, 1
    if expanded != before:
        y, number = layer(("conv_pw", "bn1", "act1"), y, expanded), 2
    names = ("conv_dw", f"bn{number}", f"act{number}")
    groups = expanded // gcd(expanded, c.group_size)
    y = layer(names, y, expanded, kernel, stride=stride, groups=groups)
    if squeezed:
        y = squeeze_excite(g.at("se"), y, squeezed, c)
    y = layer(("conv_pwl", f"bn{number + 1}"), y, channels)
    if stride != 1 or before != channels:
        return y
    return g.elementwise("add", "add", y, x)


def classify(
    g: GraphBuilder, x: str, classes: int, *, hidden: int = 0, activation: str = ""
) -> str:
    """Add global average, an optional hidden dense layer, dropout and the final dense layer."""
    x = g.flatten("flatten", g.global_average_pool("global_pool", x))
    if hidden:
        x = g.elementwise("act2", activation, g.linear("conv_head", x, hidden))
    x = g.dropout("dropout", x)
    return g.linear("classifier", x, classes)
