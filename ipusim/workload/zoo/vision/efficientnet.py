"""EfficientNet, and the form of it that Graphcore trains.

Config of Tan and Le (arXiv 1905.11946) as timm counts it: symmetric padding, squeeze-excite at a
quarter of each block's input channels. The G16 form of Masters et al. (arXiv 2106.03640) filters
in groups of 16 channels instead of one by one, expands 4 times instead of 6, and normalises by
groups; squeeze-excite stays at a quarter of the block's input. The number of normalisation groups,
4, is that of Graphcore's recipes (graphcore/examples, configs.yml efficientnet-b4-g16-gn).
"""

from dataclasses import dataclass, replace
from math import ceil

from ipusim.workload.layers import GraphBuilder
from ipusim.workload.zoo.layers import cnn
from ipusim.workload.zoo.registry import variants

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
class Config:
    """What distinguishes one EfficientNet from another.

    ``width`` and ``depth`` scale the channels and blocks of B0. ``group_size`` 1 means depthwise,
    ``norm_groups`` 0 batch norm.
    """

    width: float
    depth: float
    expansion: int = 6
    group_size: int = 1
    norm_groups: int = 0


def build(g: GraphBuilder, batch: int, config: Config, image_size: int = 224) -> str:
    """From an image (N, 3, S, S) to class scores (N, 1000)."""
    x = backbone(g, g.input("images", (batch, 3, image_size, image_size)), config)[-1]
    settings = {"activation": "swish", "norm_groups": config.norm_groups}
    head = _scaled(HEAD_CHANNELS, config)
    x = cnn.conv_norm(g, ("conv_head", "bn2", "act2"), x, head, **settings)
    return cnn.classify(g, x, CLASSES)


def _scaled(channels: int, config: Config) -> int:
    return cnn.round_channels(channels * config.width)


def backbone(g: GraphBuilder, images: str, config: Config) -> tuple[str, ...]:
    """Add the network without its head; the results of the stages, first to last."""
    settings = {"activation": "swish", "norm_groups": config.norm_groups}
    stem = _scaled(STEM_CHANNELS, config)
    x = cnn.conv_norm(g, ("conv_stem", "bn1", "act1"), images, stem, 3, stride=2, **settings)
    results: list[str] = []
    for stage, (kernel, first_stride, channels, blocks, expands) in enumerate(STAGES):
        for number in range(ceil(blocks * config.depth)):
            before = g.shape(x)[1]
            x = cnn.inverted_residual(
                g.at(f"blocks.{stage}.{number}"),
                x,
                _scaled(channels, config),
                kernel,
                stride=first_stride if number == 0 else 1,
                expanded=before * config.expansion if expands else before,
                squeezed=int(before * SQUEEZE_RATIO),
                squeeze_activation="swish",
                gate="sigmoid",
                group_size=config.group_size,
                **settings,
            )
        results.append(x)
    return tuple(results)


G16 = Config(width=1.0, depth=1.0, expansion=4, group_size=16, norm_groups=NORM_GROUPS_G16)
B4, B7 = Config(width=1.4, depth=1.8), Config(width=2.0, depth=3.1)
B4_G16 = {"config": replace(G16, width=1.4, depth=1.8), "image_size": 380}
DEPTHWISE = {
    "efficientnet_b0": Config(width=1.0, depth=1.0),
    "efficientnet_b4": {"config": B4, "image_size": 380},
    "efficientnet_b7": {"config": B7, "image_size": 600},
}
GROUPED = {
    "efficientnet_b0_g16_gn": G16,
    "efficientnet_b4_g16_gn": B4_G16,
}
variants(build, DEPTHWISE, family="efficientnet", source=SOURCE, loss="cross_entropy")
variants(build, GROUPED, family="efficientnet", source=SOURCE_G16, loss="cross_entropy")
