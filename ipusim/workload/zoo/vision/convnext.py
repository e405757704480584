"""ConvNeXt: convolutions of single channels in blocks that are otherwise those of a transformer.

Liu et al. (arXiv 2201.03545), as in torchvision, where channels are in front except for the norms
and the two products of a block.
"""

from ipusim.workload.zoo.registry import Config, GraphBuilder, networks


@networks
def convnext_tiny(g: GraphBuilder, batch: int, c: Config) -> str:
    """ConvNeXt-T, from an image (N, 3, 224, 224) to class scores (N, 1000)."""
    x = g.input("images", (batch, 3, c.image, c.image))
    for number, (channels, blocks) in enumerate(c.stages):
        if number:
            x = _norm(g, f"down.{number}.norm", x)
            x = g.conv(f"down.{number}", x, channels, 2, stride=2, bias=True)
        else:
            x = g.conv("stem", x, channels, c.patch, stride=c.patch, bias=True)
            x = _norm(g, "stem.norm", x)
        for block in range(blocks):
            x = _block(g.at(f"stages.{number}.{block}"), x, c)
    x = g.reshape("pool.rows", g.global_average_pool("pool", x), (batch, channels))
    return g.linear("head", g.layer_norm("norm", x), c.classes)


def _norm(g: GraphBuilder, name: str, x: str) -> str:
    """Add a layer norm over the channels of (N, C, H, W)."""
    y = g.layer_norm(name, g.transpose(f"{name}.channels_last", x, (0, 2, 3, 1)))
    return g.transpose(f"{name}.channels_first", y, (0, 3, 1, 2))


def _block(g: GraphBuilder, x: str, c: Config) -> str:
    channels = g.shape(x)[1]
    y = g.conv("conv", x, channels, c.kernel, padding=3, groups=channels, bias=True)
    y = g.layer_norm("norm", g.transpose("channels_last", y, (0, 2, 3, 1)))
    y = g.elementwise("gelu", "gelu", g.linear("grow", y, c.growth * channels))
    y = g.transpose("channels_first", g.linear("shrink", y, channels), (0, 3, 1, 2))
    scale = g.parameter("layer_scale", (channels, 1, 1))
    y = g.elementwise("scale", "mul", y, scale)
    return g.elementwise("add", "add", y, x)
