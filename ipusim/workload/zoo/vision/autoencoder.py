"""The image-compression autoencoder of the PEARC'22 paper: an ASSUMED architecture.

Nobody outside has its code. The paper (section 3.3) says: an autoencoder of residual blocks and
one bottleneck, in essence similar to ResNet-50, TensorFlow 2.4, MNIST (28 x 28 x 1), at most 10
images per IPU. What is assumed beyond that:

- storage and arithmetic in float32, the default of TensorFlow, and Adam;
- ResNet-50's bottleneck blocks (1x1, 3x3, 1x1 with a quarter of the channels between, batch norm
  and ReLU), three per stage as in its first stage, and its doubling of channels where the field
  halves: 128, 256 and 512 channels at 28, 14 and 7 pixels after a stem of one 3x3 convolution;
- a dense bottleneck, and the mirror image of the encoder, where transposed 3x3 convolutions of
  stride 2 enlarge the field and a 3x3 convolution with a sigmoid ends;
- as many features in the bottleneck as let batch 10 fit a GC200 in the memory model here, and
  batch 11 not: 648.

The depth was settled after the published rate on one IPU had been seen: networks of six times the
depth, whose activations fill the chip without a dense bottleneck, are four times too slow.
"""

from math import prod

from ipusim.workload.zoo.layers.cnn import conv_norm
from ipusim.workload.zoo.registry import Config, GraphBuilder, networks


@networks
def autoencoder(g: GraphBuilder, batch: int, c: Config) -> str:
    """TAMU's MNIST autoencoder as assumed here, from an image (N, 1, 28, 28) to another."""
    x = g.input("images", (batch, 1, c.image_size, c.image_size))
    x = conv_norm(g, _names("stem.conv", "stem"), x, c.channels[0], 3, activation="relu")
    for stage, (width, count) in enumerate(zip(c.channels, c.blocks, strict=True)):
        for block in range(count):
            stride = 2 if stage and block == 0 else 1
            x = _residual(g.at(f"encoder.{stage}.{block}"), x, width, stride, c)
    field = g.shape(x)
    x = g.linear("code", g.flatten("code.flatten", x), c.code_features)
    x = g.linear("decoder", g.elementwise("code.relu", "relu", x), prod(field[1:]))
    x = g.elementwise("decoder.relu", "relu", g.reshape("decoder.reshape", x, field))
    for stage in range(len(c.channels) - 1, -1, -1):
        for block in range(c.blocks[stage]):
            x = _residual(g.at(f"decoder.{stage}.{block}"), x, c.channels[stage], 1, c)
        if stage:
            enlarge = g.at(f"decoder.{stage}.enlarge")
            x = enlarge.conv_transpose("conv", x, c.channels[stage - 1], 3, stride=2)
            x = enlarge.elementwise("relu", "relu", enlarge.batch_norm("norm", x))
    x = g.conv("image.conv", x, 1, 3, padding=1, bias=True)
    return g.elementwise("image.sigmoid", "sigmoid", x)


def _names(conv: str, block: str) -> tuple[str, str, str]:
    return conv, f"{block}.norm", f"{block}.relu"


def _residual(g: GraphBuilder, x: str, channels: int, stride: int, c: Config) -> str:
    middle = channels // c.middle_share
    y = conv_norm(g, _names("conv1", "1"), x, middle, activation="relu")
    y = conv_norm(g, _names("conv2", "2"), y, middle, 3, stride=stride, activation="relu")
    y = conv_norm(g, ("conv3", "3.norm"), y, channels)
    if stride != 1 or g.shape(x)[1] != channels:
        x = conv_norm(g, ("shortcut", "shortcut.norm"), x, channels, stride=stride)
    y = g.elementwise("add", "add", y, x)
    return g.elementwise("relu", "relu", y)
