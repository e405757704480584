"""Residual networks for 224 x 224 images, version 1.5 (the stride is in the 3x3 convolution).

Config of He et al., "Deep Residual Learning for Image Recognition" (arXiv 1512.03385), with
the stride moved to the 3x3 convolution and the grouped bottleneck of Xie et al., "Aggregated
Residual Transformations" (arXiv 1611.05431), as in torchvision; layer names follow torchvision.
"""

from functools import partial

from ipusim.workload.zoo.layers.cnn import conv_norm
from ipusim.workload.zoo.registry import Config, GraphBuilder, networks


def _block(g: GraphBuilder, x: str, channels: int, stride: int, c: Config) -> str:
    """Add two or three convolutions with norm and ReLU, and the input before the last ReLU."""
    # Of each convolution: channels, kernel, stride, groups.
    layers = ((channels, 3, stride, 1), (channels, 3, 1, 1))
    if c.bottleneck:
        width = channels * c.base_width // 64 * c.groups
        channels *= c.expansion
        layers = ((width, 1, 1, 1), (width, 3, stride, c.groups), (channels, 1, 1, 1))
    layer = partial(conv_norm, g, activation="relu", norm_groups=c.norm_groups)
    y = x
    for number, (features, kernel, step, split) in enumerate(layers, start=1):
        names = [f"conv{number}", f"bn{number}", f"relu{number}"]
        if number == len(layers):
            names.pop()  # the last ReLU follows the sum
        y = layer(names, y, features, kernel, stride=step, groups=split)
    if stride != 1 or g.shape(x)[1] != channels:
        x = layer(("downsample.0", "downsample.1"), x, channels, stride=stride)
    y = g.elementwise("add", "add", y, x)
    return g.elementwise(f"relu{len(layers)}", "relu", y)


@networks
def residual(g: GraphBuilder, batch: int, c: Config) -> str:
    """From an image (N, 3, 224, 224) to class scores (N, 1000)."""
    x = g.input("images", (batch, 3, c.image_size, c.image_size))
    settings = {"activation": "relu", "norm_groups": c.norm_groups}
    x = conv_norm(g, ("conv1", "bn1", "relu"), x, c.channels[0], 7, stride=2, **settings)
    x = g.max_pool("maxpool", x, 3, stride=2, padding=1)
    for stage, channels in enumerate(c.channels):
        for block in range(c.blocks[stage]):
            stride = 2 if stage and block == 0 else 1
            x = _block(g.at(f"layer{stage + 1}.{block}"), x, channels, stride, c)
    x = g.flatten("flatten", g.global_average_pool("avgpool", x))
    return g.linear("fc", x, c.classes)
