"""Residual networks for 224 x 224 images, version 1.5 (the stride is in the 3x3 convolution).

Config of He et al., "Deep Residual Learning for Image Recognition" (arXiv 1512.03385), with
the stride moved to the 3x3 convolution and the grouped bottleneck of Xie et al., "Aggregated
Residual Transformations" (arXiv 1611.05431), as in torchvision; layer names follow torchvision.
"""

from dataclasses import dataclass, replace
from functools import partial

from ipusim.workload.layers import GraphBuilder
from ipusim.workload.zoo.layers.cnn import conv_norm
from ipusim.workload.zoo.registry import variants

IMAGE_SIZE = 224
IMAGE_CHANNELS = 3
CLASSES = 1000
STAGE_CHANNELS = (64, 128, 256, 512)
BOTTLENECK_EXPANSION = 4
NORM_GROUPS = 32
"""Groups of a group norm, the default of Wu and He (arXiv 1803.08494)."""

SOURCE_V15 = "arXiv 1512.03385 with the stride in the 3x3 convolution, as in torchvision"
SOURCE_RESNEXT = "arXiv 1611.05431, as in timm and torchvision"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What distinguishes one residual network from another.

    ``base_width`` is the channels per group at the first stage, before the groups are counted
    (64 in a plain ResNet, 4 in a 32x4d ResNeXt). ``norm_groups`` groups are normalised per image
    instead of the batch; 0 is batch norm.
    """

    blocks: tuple[int, int, int, int]
    bottleneck: bool = True
    groups: int = 1
    base_width: int = 64
    norm_groups: int = 0


def _block(g: GraphBuilder, x: str, channels: int, stride: int, config: Config) -> str:
    """Add two or three convolutions with norm and ReLU, and the input before the last ReLU."""
    # Of each convolution: channels, kernel, stride, groups.
    layers = ((channels, 3, stride, 1), (channels, 3, 1, 1))
    if config.bottleneck:
        width = channels * config.base_width // 64 * config.groups
        channels *= BOTTLENECK_EXPANSION
        layers = ((width, 1, 1, 1), (width, 3, stride, config.groups), (channels, 1, 1, 1))
    layer = partial(conv_norm, g, activation="relu", norm_groups=config.norm_groups)
    y = x
    for number, (features, kernel, step, groups) in enumerate(layers, start=1):
        names = [f"conv{number}", f"bn{number}", f"relu{number}"]
        if number == len(layers):
            names.pop()  # the last ReLU follows the sum
        y = layer(names, y, features, kernel, stride=step, groups=groups)
    if stride != 1 or g.shape(x)[1] != channels:
        x = layer(("downsample.0", "downsample.1"), x, channels, stride=stride)
    y = g.elementwise("add", "add", y, x)
    return g.elementwise(f"relu{len(layers)}", "relu", y)


def residual(g: GraphBuilder, batch: int, config: Config) -> str:
    """From an image (N, 3, 224, 224) to class scores (N, 1000)."""
    x = g.input("images", (batch, IMAGE_CHANNELS, IMAGE_SIZE, IMAGE_SIZE))
    settings = {"activation": "relu", "norm_groups": config.norm_groups}
    x = conv_norm(g, ("conv1", "bn1", "relu"), x, STAGE_CHANNELS[0], 7, stride=2, **settings)
    x = g.max_pool("maxpool", x, 3, stride=2, padding=1)
    for stage, channels in enumerate(STAGE_CHANNELS):
        for block in range(config.blocks[stage]):
            stride = 2 if stage and block == 0 else 1
            x = _block(g.at(f"layer{stage + 1}.{block}"), x, channels, stride, config)
    x = g.flatten("flatten", g.global_average_pool("avgpool", x))
    return g.linear("fc", x, CLASSES)


RESNET_50, RESNET_101 = Config(blocks=(3, 4, 6, 3)), Config(blocks=(3, 4, 23, 3))
RESNEXT_101 = replace(RESNET_101, groups=32, base_width=4)
RESNEXT_101_GN = replace(RESNEXT_101, norm_groups=NORM_GROUPS)
RESNETS = {
    "resnet18": Config(blocks=(2, 2, 2, 2), bottleneck=False),
    "resnet34": Config(blocks=(3, 4, 6, 3), bottleneck=False),
    "resnet50": RESNET_50,
    # arXiv 1803.08494
    "resnet50_gn": replace(RESNET_50, norm_groups=NORM_GROUPS),
    "resnet101": RESNET_101,
    "resnet152": Config(blocks=(3, 8, 36, 3)),
}
RESNEXTS = {
    "resnext50_32x4d": replace(RESNEXT_101, blocks=(3, 4, 6, 3)),
    # Cadene's pretrainedmodels port, which Qwant measured, is the same.
    "resnext101_32x4d": RESNEXT_101,
    # As in Graphcore's recipe resnext101_16ipus.
    "resnext101_32x4d_gn": RESNEXT_101_GN,
    "resnext101_32x8d": replace(RESNEXT_101, base_width=8),
}
variants(residual, RESNETS, family="resnet", source=SOURCE_V15, loss="cross_entropy")
variants(residual, RESNEXTS, family="resnext", source=SOURCE_RESNEXT, loss="cross_entropy")
