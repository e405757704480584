"""MobileNetV3: inverted residual blocks found by architecture search.

Howard et al. (arXiv 1905.02244), as in torchvision: squeeze-excite is at a quarter of the expanded
channels, rounded to a multiple of 8, with a hard sigmoid gate.
"""

from functools import partial

from ipusim.workload.zoo.layers import cnn
from ipusim.workload.zoo.registry import Config, GraphBuilder, networks


@networks
def mobilenet(g: GraphBuilder, batch: int, c: Config) -> str:
    """From an image (N, 3, 224, 224) to class scores (N, 1000), by a hidden layer."""
    layer = partial(cnn.conv_norm, g, activation="hard_swish")
    x = g.input("images", (batch, 3, c.image_size, c.image_size))
    x = layer(("conv_stem", "bn1", "act1"), x, c.stem_channels, 3, stride=2)
    for number, (kernel, expanded, channels, squeezes, activation, stride) in enumerate(c.blocks):
        widths = (expanded, cnn.round_channels(expanded // 4) if squeezes else 0, channels)
        own = g.at(f"blocks.{number}")
        x = cnn.inverted_residual(own, x, widths, kernel, stride, activation, c)
    x = layer(("conv_last", "bn_last", "act_last"), x, c.head_expansion * g.shape(x)[1])
    return cnn.classify(g, x, c.classes, hidden=c.hidden, activation="hard_swish")
