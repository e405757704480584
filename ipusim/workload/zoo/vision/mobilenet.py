"""MobileNetV3: inverted residual blocks found by architecture search.

Tables 1 and 2 of Howard et al. (arXiv 1905.02244), as in torchvision: squeeze-excite at a quarter
of the expanded channels, rounded to a multiple of 8, with a hard sigmoid gate.
"""

from functools import partial

from ipusim.workload.layers import GraphBuilder
from ipusim.workload.zoo.layers import cnn
from ipusim.workload.zoo.registry import variants

CLASSES = 1000
IMAGE_SIZE = 224
STEM_CHANNELS = 16
HEAD_EXPANSION = 6
"""Channels after the last convolution, over those before it."""
SOURCE = "arXiv 1905.02244, as in torchvision"

Row = tuple[int, int, int, bool, str, int]
"""Kernel, expanded channels, channels, squeeze-excite, activation, stride of a block."""

LARGE = (
    (3, 16, 16, False, "relu", 1),
    (3, 64, 24, False, "relu", 2),
    (3, 72, 24, False, "relu", 1),
    (5, 72, 40, True, "relu", 2),
    (5, 120, 40, True, "relu", 1),
    (5, 120, 40, True, "relu", 1),
    (3, 240, 80, False, "hard_swish", 2),
    (3, 200, 80, False, "hard_swish", 1),
    (3, 184, 80, False, "hard_swish", 1),
    (3, 184, 80, False, "hard_swish", 1),
    (3, 480, 112, True, "hard_swish", 1),
    (3, 672, 112, True, "hard_swish", 1),
    (5, 672, 160, True, "hard_swish", 2),
    (5, 960, 160, True, "hard_swish", 1),
    (5, 960, 160, True, "hard_swish", 1),
)
SMALL = (
    (3, 16, 16, True, "relu", 2),
    (3, 72, 24, False, "relu", 2),
    (3, 88, 24, False, "relu", 1),
    (5, 96, 40, True, "hard_swish", 2),
    (5, 240, 40, True, "hard_swish", 1),
    (5, 240, 40, True, "hard_swish", 1),
    (5, 120, 48, True, "hard_swish", 1),
    (5, 144, 48, True, "hard_swish", 1),
    (5, 288, 96, True, "hard_swish", 2),
    (5, 576, 96, True, "hard_swish", 1),
    (5, 576, 96, True, "hard_swish", 1),
)


def build(g: GraphBuilder, batch: int, rows: tuple[Row, ...], hidden: int) -> str:
    """From an image (N, 3, 224, 224) to class scores (N, 1000), given blocks and hidden units."""
    layer = partial(cnn.conv_norm, g, activation="hard_swish")
    x = g.input("images", (batch, 3, IMAGE_SIZE, IMAGE_SIZE))
    x = layer(("conv_stem", "bn1", "act1"), x, STEM_CHANNELS, 3, stride=2)
    for number, (kernel, expanded, channels, gated, activation, stride) in enumerate(rows):
        x = cnn.inverted_residual(
            g.at(f"blocks.{number}"),
            x,
            channels,
            kernel,
            stride=stride,
            expanded=expanded,
            squeezed=cnn.round_channels(expanded // 4) if gated else 0,
            activation=activation,
            squeeze_activation="relu",
            gate="hard_sigmoid",
        )
    x = layer(("conv_last", "bn_last", "act_last"), x, HEAD_EXPANSION * g.shape(x)[1])
    return cnn.classify(g, x, CLASSES, hidden=hidden, activation="hard_swish")


NETWORKS = {
    "mobilenet_v3_small": (SMALL, 1024),
    "mobilenet_v3_large": (LARGE, 1280),
}
variants(
    build, NETWORKS, ("rows", "hidden"), family="mobilenet", source=SOURCE, loss="cross_entropy"
)
