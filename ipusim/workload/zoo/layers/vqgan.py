"""The encoder of VQGAN: an image becomes a square of code numbers.

Esser et al. (arXiv 2012.09841), model imagenet_f16_1024 of CompVis/taming-transformers
(configs/imagenet_vqgan.yaml; taming/modules/diffusionmodules/model.py).
"""

from ipusim.workload.zoo.layers import cnn
from ipusim.workload.zoo.registry import Config, GraphBuilder

NORM_GROUPS = 32


def encode(g: GraphBuilder, images: str, c: Config) -> str:
    """Add the encoder and the search of the nearest codes: (N, 3, 256, 256) to (N x 256,)."""
    x = g.conv("conv_in", images, c.levels[0], 3, padding=1, bias=True)
    last = len(c.levels) - 1
    for level, channels in enumerate(c.levels):
        for block in range(c.level_blocks):
            x = _residual(g.at(f"down.{level}.block.{block}"), x, channels)
            if level == last:
                x = _attention(g.at(f"down.{level}.attn.{block}"), x)
        if level < last:
            # The original pads only after the image, which gives as many positions.
            name = f"down.{level}.downsample"
            x = g.conv(name, x, channels, 3, stride=2, padding=1, bias=True)
    x = _residual(g.at("mid.block_1"), x, g.shape(x)[1])
    x = _attention(g.at("mid.attn_1"), x)
    x = _residual(g.at("mid.block_2"), x, g.shape(x)[1])
    x = _swish(g, "norm_out", x)
    x = g.conv("conv_out", x, c.code_features, 3, padding=1, bias=True)
    x = g.conv("quant_conv", x, c.code_features, 1, bias=True)
    return _nearest(g.at("quantize"), x, c.codes)


def _swish(g: GraphBuilder, prefix: str, x: str) -> str:
    """Add a group norm and x times its sigmoid, as two operators."""
    y = g.group_norm(prefix, x, NORM_GROUPS)
    gate = g.elementwise(f"{prefix}.sigmoid", "sigmoid", y)
    return g.elementwise(f"{prefix}.swish", "mul", y, gate)


def _residual(g: GraphBuilder, x: str, channels: int) -> str:
    """Add a residual block of two 3x3 convolutions, with a 1x1 one where channels change."""
    y = g.conv("conv1", _swish(g, "norm1", x), channels, 3, padding=1, bias=True)
    y = g.conv("conv2", _swish(g, "norm2", y), channels, 3, padding=1, bias=True)
    if g.shape(x)[1] != channels:
        x = g.conv("nin_shortcut", x, channels, 1, bias=True)
    return g.elementwise("add", "add", x, y)


def _attention(g: GraphBuilder, x: str) -> str:
    """Add attention of every position to all others, with one head of all channels."""
    batch, channels, *field = g.shape(x)
    y = g.group_norm("norm", x, NORM_GROUPS)
    parts = ("q", "k", "v")
    query, key, value = (cnn.at_positions(g, part, y, channels, "places") for part in parts)
    query = g.transpose("q.places_first", query, (0, 2, 1))
    scores = g.matmul("scores", query, key)
    weights = g.softmax("softmax", g.elementwise("scale", "scale", scores))
    y = g.matmul("context", value, weights, transpose_b=True)
    y = g.reshape("field", y, (batch, channels, *field))
    y = g.conv("proj_out", y, channels, 1, bias=True)
    return g.elementwise("add", "add", x, y)


def _nearest(g: GraphBuilder, x: str, count: int) -> str:
    """Add the number of the nearest code of every position: |z|^2 + |e|^2 - 2 z e, smallest."""
    batch, features, *field = g.shape(x)
    rows = batch * field[0] * field[1]
    y = g.transpose("channels_last", x, (0, 2, 3, 1))
    y = g.reshape("rows", y, (rows, features))
    codes = g.parameter("embedding.weight", (count, features))
    own = g.reduce("own", "sumsquare", y, axis=1)
    lengths = g.reduce("lengths", "sumsquare", codes, axis=1)
    product = g.matmul("product", y, codes, transpose_b=True)
    distance = g.elementwise("double", "scale", product)
    distance = g.elementwise("add_own", "add", distance, g.column("own.column", own))
    distance = g.elementwise("add_lengths", "add", distance, lengths)
    nearest = g.reduce("nearest", "min", distance, axis=1)
    return g.cast("number", nearest, "int32")
