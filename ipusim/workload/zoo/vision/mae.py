"""MAE: a vision transformer sees a quarter of the patches, a small one restores the image.

He et al. (arXiv 2111.06377), as Graphcore ran it (graphcore/examples, vision/mae/pytorch/core/
models_mae.py, tag v3.1.0): tokens are chosen and put back by products with 0/1 matrices that the
host sends, and activations are spread over the chip before and after each layer.
"""

from ipusim.workload.zoo.layers.patches import embed_patches, put_first
from ipusim.workload.zoo.layers.transformer import Shape, pre_norm_layer
from ipusim.workload.zoo.registry import Config, GraphBuilder, networks


@networks
def mae_vit_base_16(g: GraphBuilder, batch: int, c: Config) -> str:
    """MAE with ViT-B/16, from an image (N, 3, 224, 224) and a choice of patches to the loss."""
    return _loss(g, batch, _decoder(g, batch, _encoder(g, batch, c), c), c)


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


def _encoder(g: GraphBuilder, batch: int, c: Config) -> str:
    """Add the encoder on the patches that it sees and the class token: (N, T, H)."""
    shape = Shape(**c.encoder)
    images = g.input("images", (batch, 3, c.image, c.image))
    x = embed_patches(g.at("patch_embed"), images, shape.hidden, c.patch)
    tokens = g.shape(x)[1]
    places = g.constant("pos_embed", (1, tokens, shape.hidden))
    x = g.elementwise("pos_embed.add", "add", x, places)
    x = _choose(g, "mask", x, g.input("keep_matrix", (batch, tokens, tokens // c.share)))
    place = g.constant("cls_token.pos_embed", (1, 1, shape.hidden))
    token = g.parameter("cls_token", (1, 1, shape.hidden))
    token = g.elementwise("cls_token.add", "add", token, place)
    x = put_first(g, "cls_token", x, token)
    return g.layer_norm("norm", _layers(g.at("blocks"), x, shape, c.encoder_layers))


def _decoder(g: GraphBuilder, batch: int, x: str, c: Config) -> str:
    """Add the decoder on all tokens, the hidden ones a learnt vector: (N, patches, pixels)."""
    shape, tokens = Shape(**c.decoder), (c.image // c.patch) ** 2
    hidden, seen = shape.hidden, tokens // c.share
    x = g.linear("decoder_embed", x, hidden)
    first = g.narrow("decoder_embed.first", x, axis=1, size=1)
    token = g.parameter("mask_token", (1, 1, hidden))
    unseen = g.expand("mask_token.expand", token, (batch, tokens - seen, hidden))
    x = g.narrow("decoder_embed.patches", x, axis=1, size=seen)
    x = g.concat("mask_token.concat", x, unseen, axis=1)
    x = _choose(g, "restore", x, g.input("restore_matrix", (batch, tokens, tokens)))
    x = g.concat("decoder_embed.concat", first, x, axis=1)
    places = g.constant("decoder_pos_embed", (1, tokens + 1, hidden))
    x = g.elementwise("decoder_pos_embed.add", "add", x, places)
    x = _layers(g.at("decoder_blocks"), x, shape, c.decoder_layers)
    x = g.linear("decoder_pred", g.layer_norm("decoder_norm", x), 3 * c.patch * c.patch)
    return g.narrow("decoder_pred.patches", x, axis=1, size=tokens)


def _loss(g: GraphBuilder, batch: int, predicted: str, c: Config) -> str:
    """Add the mean squared error on the hidden patches, each patch of the image normalised."""
    side, tokens = c.image // c.patch, g.shape(predicted)[1]
    target = g.input("target", (batch, 3, c.image, c.image))
    target = g.reshape("loss.squares", target, (batch, 3, side, c.patch, side, c.patch))
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
