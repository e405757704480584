"""EfficientNet, and the form of it that Graphcore trains.

Topology of Tan and Le (arXiv 1905.11946) as timm counts it: symmetric padding, squeeze-excite at a
quarter of each block's input channels. The G16 form of Masters et al. (arXiv 2106.03640) filters
in groups of 16 channels instead of one by one, expands 4 times instead of 6, and normalises by
groups; squeeze-excite stays at a quarter of the block's input. The number of normalisation groups,
4, is that of Graphcore's recipes (graphcore/examples, configs.yml efficientnet-b4-g16-gn).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import ceil

from ipusim.workload.graph import Graph
from ipusim.workload.layers import GraphBuilder
from ipusim.workload.model import Model
from ipusim.workload.zoo.layers.cnn import (
    InvertedResidual,
    classify,
    inverted_residual,
    normalise,
    round_channels,
)

CLASSES = 1000
STEM_CHANNELS, HEAD_CHANNELS = 32, 1280
SQUEEZE_RATIO = 0.25
NORM_GROUPS_G16 = 4
SOURCE = "arXiv 1905.11946, as in timm"
SOURCE_G16 = "arXiv 2106.03640 (group size 16, expansion 4), group norm of 4 groups"

# Kernel, stride of the first block, channels, blocks, whether the blocks expand; before scaling.
STAGES = (
    (3, 1, 16, 1, False),
    (3, 2, 24, 2, True),
    (5, 2, 40, 2, True),
    (3, 2, 80, 3, True),
    (5, 1, 112, 3, True),
    (5, 2, 192, 4, True),
    (3, 1, 320, 1, True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """What distinguishes one EfficientNet from another.

    ``width`` and ``depth`` scale the channels and blocks of B0; ``image_size`` is in pixels.
    ``group_size`` 1 means depthwise, ``norm_groups`` 0 batch norm.
    """

    name: str
    width: float
    depth: float
    image_size: int
    expansion: int = 6
    group_size: int = 1
    norm_groups: int = 0


def build(micro_batch: int | None, *, topology: Topology) -> Graph:
    """Build the forward graph from an image (N, 3, S, S) to class scores (N, 1000).

    Parameters
    ----------
    micro_batch : int or None
        Images per pass; None means 1.
    topology : Topology
    """
    g = GraphBuilder(topology.name)
    size = topology.image_size
    x = backbone(g, g.input("images", (micro_batch or 1, 3, size, size)), topology)[-1]
    x = g.conv("conv_head", x, _scaled(HEAD_CHANNELS, topology), 1)
    x = normalise(g, "bn2", x, topology.norm_groups)
    x = g.elementwise("act2", "swish", x)
    return g.finish(classify(g, x, CLASSES))


def _scaled(channels: int, topology: Topology) -> int:
    return round_channels(channels * topology.width)


def backbone(g: GraphBuilder, images: str, topology: Topology) -> tuple[str, ...]:
    """Add the network without its head; the results of the stages, first to last."""
    x = g.conv("conv_stem", images, _scaled(STEM_CHANNELS, topology), 3, stride=2, padding=1)
    x = normalise(g, "bn1", x, topology.norm_groups)
    x = g.elementwise("act1", "swish", x)
    results: list[str] = []
    for stage, (kernel, first_stride, channels, blocks, expands) in enumerate(STAGES):
        for number in range(ceil(blocks * topology.depth)):
            before = g.shape(x)[1]
            block = InvertedResidual(
                kernel=kernel,
                stride=first_stride if number == 0 else 1,
                expanded=before * topology.expansion if expands else before,
                channels=_scaled(channels, topology),
                squeezed=int(before * SQUEEZE_RATIO),
                activation="swish",
                squeeze_activation="swish",
                gate="sigmoid",
                group_size=topology.group_size,
                norm_groups=topology.norm_groups,
            )
            x = inverted_residual(g, f"blocks.{stage}.{number}", x, block)
        results.append(x)
    return tuple(results)


def _model(topology: Topology, source: str = SOURCE) -> Model:
    return Model(
        name=topology.name,
        family="efficientnet",
        build=partial(build, topology=topology),
        source=source,
        loss="cross_entropy",
    )


def _g16(name: str, width: float, depth: float, image_size: int) -> Model:
    topology = Topology(
        name=name,
        width=width,
        depth=depth,
        image_size=image_size,
        expansion=4,
        group_size=16,
        norm_groups=NORM_GROUPS_G16,
    )
    return _model(topology, SOURCE_G16)


def efficientnet_b0(image_size: int = 224) -> Model:
    """EfficientNet-B0: 5,288,548 parameters, 0.386 GMAC per image of 224 pixels."""
    return _model(Topology(name="efficientnet_b0", width=1.0, depth=1.0, image_size=image_size))


def efficientnet_b4(image_size: int = 380) -> Model:
    """EfficientNet-B4: 19,341,616 parameters, 4.39 GMAC per image of 380 pixels."""
    return _model(Topology(name="efficientnet_b4", width=1.4, depth=1.8, image_size=image_size))


def efficientnet_b7(image_size: int = 600) -> Model:
    """EfficientNet-B7: 66,347,960 parameters, 37.7 GMAC per image of 600 pixels."""
    return _model(Topology(name="efficientnet_b7", width=2.0, depth=3.1, image_size=image_size))


def efficientnet_b0_g16_gn(image_size: int = 224) -> Model:
    """EfficientNet-B0 in G16 form: 5,913,796 parameters, 0.635 GMAC per image of 224 pixels."""
    return _g16("efficientnet_b0_g16_gn", 1.0, 1.0, image_size)


def efficientnet_b4_g16_gn(image_size: int = 380) -> Model:
    """EfficientNet-B4 in G16 form: 19,324,712 parameters, 6.06 GMAC per image of 380 pixels."""
    return _g16("efficientnet_b4_g16_gn", 1.4, 1.8, image_size)
