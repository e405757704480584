"""Swin transformers: attention within windows of the image, shifted in every second layer.

Liu et al. (arXiv 2103.14030), as in torchvision and timm. The variants for training are what
Graphcore ran (graphcore/examples, vision/swin/pytorch/models/swin_transformer.py, tag v3.3.0):
windows of 49 tokens are padded to 56, tensors are spread over the chip again between operators by
an operator of its own (RemapCE), and training drops whole halves of layers.
"""

from math import isqrt

from ipusim.workload.zoo.layers import transformer
from ipusim.workload.zoo.layers.patches import embed_patches
from ipusim.workload.zoo.registry import Config, GraphBuilder, networks

WINDOW = 7
TOKENS = WINDOW * WINDOW
ALIGNED = 8
"""Tokens to whose multiple Graphcore pads a window."""
PADDED_TOKENS = -(-TOKENS // ALIGNED) * ALIGNED


@networks
def swin(g: GraphBuilder, batch: int, c: Config) -> str:
    """From an image (N, 3, 224, 224) to class scores (N, 1000)."""
    side, hidden, as_run = c.image_size // c.patch, c.embed, c.as_run
    x = g.input("images", (batch, 3, c.image_size, c.image_size))
    x = embed_patches(g.at("patch_embed"), x, hidden, c.patch)
    x = g.layer_norm("patch_embed.norm", x)
    layer = 0
    for number, (depth, count) in enumerate(zip(c.depths, c.heads, strict=True)):
        if number:
            x = _merge_patches(g.at(f"merge.{number}"), x, side)
            side, hidden = side // 2, 2 * hidden
        shape = transformer.Shape(hidden=hidden, heads=count, drops=(), stochastic_depth=as_run)
        for position in range(depth):
            shifted = position % 2 == 1 and side > WINDOW
            x = _layer(g.at(f"blocks.{layer}"), x, shape, as_run=as_run, shifted=shifted)
            layer += 1
    x = g.reduce("pool", "mean", g.layer_norm("norm", x), axis=1)
    return g.linear("head", x, c.classes)


def _merge_patches(g: GraphBuilder, x: str, side: int) -> str:
    """Add a product over each square of four tokens, which halves the side and doubles features."""
    batch, _, hidden = g.shape(x)
    half = side // 2
    y = g.reshape("squares", x, (batch, half, 2, half, 2, hidden))
    y = g.transpose("gather", y, (0, 1, 3, 4, 2, 5))
    y = g.reshape("rows", y, (batch, half * half, 4 * hidden))
    y = g.layer_norm("norm", y)
    return g.linear("reduction", y, 2 * hidden, bias=False)


def _layer(
    g: GraphBuilder, x: str, shape: transformer.Shape, *, as_run: bool, shifted: bool
) -> str:
    """Add a layer: attention within windows, then two dense layers, both with a residual."""
    spread = g.copy if as_run else _as_it_lies
    x = spread("spread", x)
    y = g.layer_norm("attention.norm", x)
    if shifted:
        y = g.roll("shift", y)
    y = _window_attention(g.at("attention"), y, shape.heads, as_run=as_run, shifted=shifted)
    if shifted:
        y = g.roll("shift_back", y)
    y = spread("attention.spread", y)
    y = transformer.drop_path(g.at("attention.drop_path"), y, shape)
    x = g.elementwise("attention.add", "add", x, y)
    y = g.layer_norm("mlp.norm", x)
    y = transformer.feed_forward(g.at("mlp"), y, shape)
    y = spread("mlp.spread", y)
    y = transformer.drop_path(g.at("mlp.drop_path"), y, shape)
    return g.elementwise("mlp.add", "add", x, y)


def _as_it_lies(_name: str, x: str) -> str:
    return x


def _window_attention(g: GraphBuilder, x: str, heads: int, *, as_run: bool, shifted: bool) -> str:
    """Add attention within windows: (N, side x side, H) to the same, the last product included."""
    batch, places, hidden = g.shape(x)
    tokens, across = PADDED_TOKENS if as_run else TOKENS, isqrt(places) // WINDOW
    spread, per_image = g.copy if as_run else _as_it_lies, across**2
    windows = batch * per_image
    y = g.reshape("squares", x, (batch, across, WINDOW, across, WINDOW, hidden))
    y = g.transpose("partition", y, (0, 1, 3, 2, 4, 5))
    y = g.reshape("windows", y, (windows, TOKENS, hidden))
    if as_run:
        y = g.pad("pad", y, axis=1, size=tokens)
    y = g.linear("qkv", y, 3 * hidden)
    if as_run:
        # Zeros where the padding got the bias.
        y = g.copy("qkv.spread", y)
        padding = g.constant("qkv.mask", (tokens, 3 * hidden))
        y = g.elementwise("qkv.masked", "mul", y, padding)
    query, key, value = transformer.split_together(g, y, heads)
    query = g.elementwise("scale", "scale", query)
    scores = g.matmul("scores", query, key, transpose_b=True)
    scores = spread("scores.spread", scores)
    scores = g.elementwise("bias.add", "add", scores, _position_bias(g, heads, tokens))
    if shifted:
        # A shift brings tokens that are no neighbours into one window.
        apart = g.constant("apart", (per_image, 1, tokens, tokens))
        scores = g.reshape("images", scores, (batch, per_image, heads, tokens, tokens))
        scores = g.elementwise("mask", "add", scores, apart)
        scores = g.reshape("all_windows", scores, (windows, heads, tokens, tokens))
    if as_run:
        hidden_keys = g.constant("padded_keys", (tokens, tokens))
        scores = g.elementwise("mask_keys", "add", scores, hidden_keys)
    weights = g.softmax("softmax", scores)
    if as_run:
        kept = g.constant("kept_keys", (tokens, tokens))
        weights = g.elementwise("masked", "mul", weights, kept)
    y = transformer.merge_heads(g, g.matmul("context", weights, value))
    y = spread("output.spread", g.linear("output", y, hidden))
    if as_run:
        y = g.narrow("unpad", y, axis=1, size=TOKENS)
    y = g.reshape("whole", y, (batch, across, across, WINDOW, WINDOW, hidden))
    y = g.transpose("reverse", y, (0, 1, 3, 2, 4, 5))
    return g.reshape("image", y, (batch, places, hidden))


def _position_bias(g: GraphBuilder, heads: int, tokens: int) -> str:
    """Add the lookup of one learnt number per head and pair of tokens: (heads, T, T)."""
    table = g.parameter("bias.table", ((2 * WINDOW - 1) ** 2, heads))
    pairs = g.constant("bias.pairs", (TOKENS, TOKENS), "int32")
    y = g.transpose("bias.heads_first", g.gather("bias", table, pairs), (2, 0, 1))
    if tokens > TOKENS:
        y = g.pad("bias.pad_keys", y, axis=2, size=tokens)
        y = g.pad("bias.pad_queries", y, axis=1, size=tokens)
    return y
