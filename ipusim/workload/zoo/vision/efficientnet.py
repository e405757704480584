"""EfficientNet, and the form of it that Graphcore trains.

Config of Tan and Le (arXiv 1905.11946) as timm counts it: symmetric padding, squeeze-excite at a
quarter of each block's input channels. The G16 form of Masters et al. (arXiv 2106.03640) filters
in groups of 16 channels instead of one by one, expands 4 times instead of 6, and normalises by
groups; squeeze-excite stays at a quarter of the block's input. The number of normalisation groups,
4, is that of Graphcore's recipes (graphcore/examples, configs.yml efficientnet-b4-g16-gn).
"""

from math import ceil

from ipusim.workload.zoo.layers import cnn
from ipusim.workload.zoo.registry import Config, GraphBuilder, networks

STEM_CHANNELS, HEAD_CHANNELS, SQUEEZE_SHARE = 32, 1280, 4

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


@networks
def efficientnet(g: GraphBuilder, batch: int, c: Config) -> str:
    """From an image (N, 3, S, S) to class scores (N, 1000)."""
    x = backbone(g, g.input("images", (batch, 3, c.image_size, c.image_size)), c)[-1]
    head = cnn.round_channels(HEAD_CHANNELS * c.width)
    settings = {"activation": "swish", "norm_groups": c.norm_groups}
    x = cnn.conv_norm(g, ("conv_head", "bn2", "act2"), x, head, **settings)
    return cnn.classify(g, x, c.classes)


def backbone(g: GraphBuilder, images: str, c: Config) -> tuple[str, ...]:
    """Add the network without its head; the results of the stages, first to last."""
    settings = {"activation": "swish", "norm_groups": c.norm_groups}
    stem = cnn.round_channels(STEM_CHANNELS * c.width)
    x = cnn.conv_norm(g, ("conv_stem", "bn1", "act1"), images, stem, 3, stride=2, **settings)
    results: list[str] = []
    for stage, (kernel, first_stride, channels, blocks, expands) in enumerate(STAGES):
        for number in range(ceil(blocks * c.depth)):
            before, stride = g.shape(x)[1], 1 if number else first_stride
            expanded, squeezed = before * (c.expansion if expands else 1), before // SQUEEZE_SHARE
            widths = (expanded, squeezed, cnn.round_channels(channels * c.width))
            own = g.at(f"blocks.{stage}.{number}")
            x = cnn.inverted_residual(own, x, widths, kernel, stride, "swish", c)
        results.append(x)
    return tuple(results)
