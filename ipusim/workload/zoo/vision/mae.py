"""MAE: a vision transformer sees a quarter of the patches, a small one restores the image.

He et al. (arXiv 2111.06377), as Graphcore ran it (graphcore/examples, vision/mae/pytorch/core/
models_mae.py, tag v3.1.0): tokens are chosen and put back by products with 0/1 matrices that the
host sends, and activations are spread over the chip before and after each layer.
"""

from ipusim.workload.zoo.layers.patches import embed_patches, put_first
from ipusim.workload.zoo.layers.transformer import Shape, pre_norm_layer
from ipusim.workload.zoo.registry import GraphBuilder, networks

IMAGE, PATCH, CHANNELS = 224, 16, 3
ENCODER = Shape(hidden=768, heads=12, drops=())
DECODER = Shape(hidden=512, heads=16, drops=())
ENCODER_LAYERS, DECODER_LAYERS = 12, 8
PATCHES = (IMAGE // PATCH) ** 2
SEEN = PATCHES // 4
"""Patches that the encoder sees."""


@networks
def mae_vit_base_16(g: GraphBuilder, batch: int) -> str:
    """MAE with ViT-B/16, from an image (N, 3, 224, 224) and a choice of patches to the loss."""
    return _loss(g, batch, _decoder(g, batch, _encoder(g, batch)))


def _choose(g: GraphBuilder, name: str, x: str, choice: str) -> str:
    """Pick tokens of (N, T, H) by a product with a 0/1 matrix (N, T, picked)."""
    y = g.transpose(f"{name}.features_first", x, (0, 2, 1))
    return g.transpose(f"{name}.tokens_first", g.matmul(name, y, choice), (0, 2, 1))


def _layers(g: GraphBuilder, x: str, shape: Shape, count: int) -> str:
    for layer in range(count):
        x = g.copy(f"{layer}.spread_in", x)
        x = pre_norm_layer(g.at(layer), x, shape)
        x = g.copy(f"{layer}.spread_out", x)
    return x


def _encoder(g: GraphBuilder, batch: int) -> str:
    """Add the encoder on the patches that it sees and the class token: (N, T, H)."""
    hidden, tokens = ENCODER.hidden, PATCHES
    images = g.input("images", (batch, CHANNELS, IMAGE, IMAGE))
    x = embed_patches(g.at("patch_embed"), images, hidden, PATCH)
    places = g.constant("pos_embed", (1, tokens, hidden))
    x = g.elementwise("pos_embed.add", "add", x, places)
    x = _choose(g, "mask", x, g.input("keep_matrix", (batch, tokens, SEEN)))
    place = g.constant("cls_token.pos_embed", (1, 1, hidden))
    token = g.elementwise("cls_token.add", "add", g.parameter("cls_token", (1, 1, hidden)), place)
    x = put_first(g, "cls_token", x, token)
    return g.layer_norm("norm", _layers(g.at("blocks"), x, ENCODER, ENCODER_LAYERS))


def _decoder(g: GraphBuilder, batch: int, x: str) -> str:
    """Add the decoder on all tokens, the hidden ones a learnt vector: (N, patches, pixels)."""
    hidden, tokens = DECODER.hidden, PATCHES
    x = g.linear("decoder_embed", x, hidden)
    first = g.narrow("decoder_embed.first", x, axis=1, size=1)
    token = g.parameter("mask_token", (1, 1, hidden))
    unseen = g.expand("mask_token.expand", token, (batch, tokens - SEEN, hidden))
    x = g.narrow("decoder_embed.patches", x, axis=1, size=SEEN)
    x = g.concat("mask_token.concat", x, unseen, axis=1)
    x = _choose(g, "restore", x, g.input("restore_matrix", (batch, tokens, tokens)))
    x = g.concat("decoder_embed.concat", first, x, axis=1)
    places = g.constant("decoder_pos_embed", (1, tokens + 1, hidden))
    x = g.elementwise("decoder_pos_embed.add", "add", x, places)
    x = _layers(g.at("decoder_blocks"), x, DECODER, DECODER_LAYERS)
    x = g.linear("decoder_pred", g.layer_norm("decoder_norm", x), PATCH * PATCH * CHANNELS)
    return g.narrow("decoder_pred.patches", x, axis=1, size=tokens)


def _loss(g: GraphBuilder, batch: int, predicted: str) -> str:
    """Add the mean squared error on the hidden patches, each patch of the image normalised."""
    side, tokens = IMAGE // PATCH, PATCHES
    target = g.input("target", (batch, CHANNELS, IMAGE, IMAGE))
    target = g.reshape("loss.squares", target, (batch, CHANNELS, side, PATCH, side, PATCH))
    target = g.transpose("loss.patches_first", target, (0, 2, 4, 3, 5, 1))
    target = g.reshape("loss.patches", target, g.shape(predicted))
    target = g.elementwise("loss.centre", "sub", target, _mean(g, "loss.mean", target))
    square = g.elementwise("loss.pixels.square", "square", target)
    deviation = g.elementwise("loss.deviation", "sqrt", _mean(g, "loss.variance", square))
    target = g.elementwise("loss.normalise", "div", target, deviation)
    error = g.elementwise("loss.difference", "sub", predicted, target)
    error = g.reduce("loss.error", "mean", g.elementwise("loss.square", "square", error), axis=2)
    error = g.elementwise("loss.hidden", "mul", error, g.input("mask", (batch, tokens)))
    error = g.reshape("loss.all", error, (1, batch * tokens))
    return g.elementwise("loss.scale", "scale", g.reduce("loss.sum", "sum", error, axis=1))


def _mean(g: GraphBuilder, name: str, x: str) -> str:
    """Add the mean of the last axis of (N, T, F): (N, T, 1)."""
    return g.column(f"{name}.column", g.reduce(name, "mean", x, axis=2))
