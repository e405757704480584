"""MobileNetV3: inverted residual blocks found by architecture search.

Tables 1 and 2 of Howard et al. (arXiv 1905.02244) are in data/models; as in torchvision
squeeze-excite is at a quarter of the expanded channels, rounded to a multiple of 8, with a hard
sigmoid gate.
"""

from dataclasses import dataclass
from functools import partial

from ipusim.files import read
from ipusim.workload.layers import GraphBuilder
from ipusim.workload.zoo.layers import cnn
from ipusim.workload.zoo.registry import networks

CLASSES = 1000
IMAGE_SIZE = 224
STEM_CHANNELS = 16
HEAD_EXPANSION = 6
"""Channels after the last convolution, over those before it."""
FILE = "models/mobilenet_v3.csv"


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A block of one of the networks, in the order of its table."""

    network: str
    kernel: int
    expanded: int  # channels between the 1x1 convolutions
    channels: int
    squeezes: bool
    activation: str
    stride: int


@networks
def mobilenet(g: GraphBuilder, batch: int, size: str, hidden: int) -> str:
    """From an image (N, 3, 224, 224) to class scores (N, 1000), given size and hidden units."""
    layer = partial(cnn.conv_norm, g, activation="hard_swish")
    x = g.input("images", (batch, 3, IMAGE_SIZE, IMAGE_SIZE))
    x = layer(("conv_stem", "bn1", "act1"), x, STEM_CHANNELS, 3, stride=2)
    blocks = [block for block in read(Block, FILE) if block.network == size]
    for number, block in enumerate(blocks):
        x = cnn.inverted_residual(
            g.at(f"blocks.{number}"),
            x,
            block.channels,
            block.kernel,
            stride=block.stride,
            expanded=block.expanded,
            squeezed=cnn.round_channels(block.expanded // 4) if block.squeezes else 0,
            activation=block.activation,
            squeeze_activation="relu",
            gate="hard_sigmoid",
        )
    x = layer(("conv_last", "bn_last", "act_last"), x, HEAD_EXPANSION * g.shape(x)[1])
    return cnn.classify(g, x, CLASSES, hidden=hidden, activation="hard_swish")
