"""MobileNetV3: inverted residual blocks found by architecture search.

Howard et al. (arXiv 1905.02244), as in torchvision: squeeze-excite is at a quarter of the expanded
channels, rounded to a multiple of 8, with a hard sigmoid gate.
"""

from functools import partial
from typing import Any

from ipusim.workload.zoo.layers import cnn
from ipusim.workload.zoo.registry import GraphBuilder, networks

CLASSES = 1000
IMAGE_SIZE = 224
STEM_CHANNELS = 16
HEAD_EXPANSION = 6
"""Channels after the last convolution, over those before it."""


@networks
def mobilenet(g: GraphBuilder, batch: int, hidden: int, blocks: tuple[list[Any], ...]) -> str:
    """From an image (N, 3, 224, 224) to class scores (N, 1000), by a layer of `hidden` units."""
    layer = partial(cnn.conv_norm, g, activation="hard_swish")
    x = g.input("images", (batch, 3, IMAGE_SIZE, IMAGE_SIZE))
    x = layer(("conv_stem", "bn1", "act1"), x, STEM_CHANNELS, 3, stride=2)
    for number, (kernel, expanded, channels, squeezes, activation, stride) in enumerate(blocks):
        x = cnn.inverted_residual(
            g.at(f"blocks.{number}"),
            x,
            channels,
            kernel,
            stride=stride,
            expanded=expanded,
            squeezed=cnn.round_channels(expanded // 4) if squeezes else 0,
            activation=activation,
            squeeze_activation="relu",
            gate="hard_sigmoid",
        )
    x = layer(("conv_last", "bn_last", "act_last"), x, HEAD_EXPANSION * g.shape(x)[1])
    return cnn.classify(g, x, CLASSES, hidden=hidden, activation="hard_swish")
