"""Residual networks for 224 x 224 images, version 1.5 (the stride is in the 3x3 convolution).

Topology of He et al., "Deep Residual Learning for Image Recognition" (arXiv 1512.03385), with
the stride moved to the 3x3 convolution and the grouped bottleneck of Xie et al., "Aggregated
Residual Transformations" (arXiv 1611.05431), as in torchvision; layer names follow torchvision.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ipusim.workload.graph import Graph
from ipusim.workload.layers import GraphBuilder
from ipusim.workload.model import Model
from ipusim.workload.zoo.layers.cnn import normalise

IMAGE_SIZE = 224
IMAGE_CHANNELS = 3
CLASSES = 1000
STAGE_CHANNELS = (64, 128, 256, 512)
BOTTLENECK_EXPANSION = 4
NORM_GROUPS = 32
"""Groups of a group norm, the default of Wu and He (arXiv 1803.08494)."""

SOURCE_V15 = "arXiv 1512.03385 with the stride in the 3x3 convolution, as in torchvision"


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """What distinguishes one residual network from another.

    ``base_width`` is the channels per group at the first stage, before the groups are counted
    (64 in a plain ResNet, 4 in a 32x4d ResNeXt). ``norm_groups`` groups are normalised per image
    instead of the batch; 0 is batch norm.
    """

    name: str
    blocks: tuple[int, int, int, int]
    bottleneck: bool
    groups: int = 1
    base_width: int = 64
    norm_groups: int = 0


def _conv_norm(
    g: GraphBuilder,
    x: str,
    prefix: str,
    number: int,
    channels: int,
    kernel: int,
    topology: Topology,
    *,
    stride: int = 1,
    groups: int = 1,
) -> str:
    y = g.conv(
        f"{prefix}.conv{number}",
        x,
        channels,
        kernel,
        stride=stride,
        padding=kernel // 2,
        groups=groups,
    )
    return normalise(g, f"{prefix}.bn{number}", y, topology.norm_groups)


def _shortcut(
    g: GraphBuilder, x: str, prefix: str, channels: int, stride: int, topology: Topology
) -> str:
    if stride == 1 and g.shape(x)[1] == channels:
        return x
    y = g.conv(f"{prefix}.downsample.0", x, channels, 1, stride=stride)
    return normalise(g, f"{prefix}.downsample.1", y, topology.norm_groups)


def _basic_block(
    g: GraphBuilder, x: str, prefix: str, channels: int, stride: int, topology: Topology
) -> str:
    y = _conv_norm(g, x, prefix, 1, channels, 3, topology, stride=stride)
    y = g.elementwise(f"{prefix}.relu1", "relu", y)
    y = _conv_norm(g, y, prefix, 2, channels, 3, topology)
    skip = _shortcut(g, x, prefix, channels, stride, topology)
    y = g.elementwise(f"{prefix}.add", "add", y, skip)
    return g.elementwise(f"{prefix}.relu2", "relu", y)


def _bottleneck_block(
    g: GraphBuilder, x: str, prefix: str, channels: int, stride: int, topology: Topology
) -> str:
    width = channels * topology.base_width // 64 * topology.groups
    y = _conv_norm(g, x, prefix, 1, width, 1, topology)
    y = g.elementwise(f"{prefix}.relu1", "relu", y)
    y = _conv_norm(g, y, prefix, 2, width, 3, topology, stride=stride, groups=topology.groups)
    y = g.elementwise(f"{prefix}.relu2", "relu", y)
    y = _conv_norm(g, y, prefix, 3, channels * BOTTLENECK_EXPANSION, 1, topology)
    skip = _shortcut(g, x, prefix, channels * BOTTLENECK_EXPANSION, stride, topology)
    y = g.elementwise(f"{prefix}.add", "add", y, skip)
    return g.elementwise(f"{prefix}.relu3", "relu", y)


def build_residual(micro_batch: int | None, *, topology: Topology) -> Graph:
    """Build the forward graph of a residual network.

    Parameters
    ----------
    micro_batch : int or None
        Images per pass; None means 1.
    topology : Topology

    Returns
    -------
    Graph
        From an image (N, 3, 224, 224) to class scores (N, 1000), 32-bit storage, normalisation
        as separate operators.
    """
    g = GraphBuilder(topology.name)
    x = g.input("images", (micro_batch or 1, IMAGE_CHANNELS, IMAGE_SIZE, IMAGE_SIZE))
    x = g.conv("conv1", x, STAGE_CHANNELS[0], 7, stride=2, padding=3)
    x = normalise(g, "bn1", x, topology.norm_groups)
    x = g.elementwise("relu", "relu", x)
    x = g.max_pool("maxpool", x, 3, stride=2, padding=1)
    for stage, (channels, blocks) in enumerate(
        zip(STAGE_CHANNELS, topology.blocks, strict=True), start=1
    ):
        for block in range(blocks):
            stride = 2 if stage > 1 and block == 0 else 1
            prefix = f"layer{stage}.{block}"
            add_block = _bottleneck_block if topology.bottleneck else _basic_block
            x = add_block(g, x, prefix, channels, stride, topology)
    x = g.global_average_pool("avgpool", x)
    x = g.flatten("flatten", x)
    return g.finish(g.linear("fc", x, CLASSES))


def residual_model(topology: Topology, family: str, source: str) -> Model:
    """Wrap a topology as a `Model`."""
    return Model(
        name=topology.name,
        family=family,
        build=partial(build_residual, topology=topology),
        source=source,
        loss="cross_entropy",
    )


def _resnet(
    name: str, blocks: tuple[int, int, int, int], bottleneck: bool, norm_groups: int = 0
) -> Model:
    topology = Topology(name=name, blocks=blocks, bottleneck=bottleneck, norm_groups=norm_groups)
    return residual_model(topology, "resnet", SOURCE_V15)


def resnet18() -> Model:
    """ResNet-18: 11,689,512 parameters, 1.81 GMAC per image."""
    return _resnet("resnet18", (2, 2, 2, 2), bottleneck=False)


def resnet34() -> Model:
    """ResNet-34: 21,797,672 parameters, 3.66 GMAC per image."""
    return _resnet("resnet34", (3, 4, 6, 3), bottleneck=False)


def resnet50() -> Model:
    """ResNet-50 v1.5: 25,557,032 parameters, 4.09 GMAC per image."""
    return _resnet("resnet50", (3, 4, 6, 3), bottleneck=True)


def resnet50_gn() -> Model:
    """ResNet-50 v1.5 with a group norm of 32 groups (arXiv 1803.08494): same parameters, MACs."""
    return _resnet("resnet50_gn", (3, 4, 6, 3), bottleneck=True, norm_groups=NORM_GROUPS)


def resnet101() -> Model:
    """ResNet-101 v1.5: 44,549,160 parameters, 7.80 GMAC per image."""
    return _resnet("resnet101", (3, 4, 23, 3), bottleneck=True)


def resnet152() -> Model:
    """ResNet-152 v1.5: 60,192,808 parameters, 11.5 GMAC per image."""
    return _resnet("resnet152", (3, 8, 36, 3), bottleneck=True)
