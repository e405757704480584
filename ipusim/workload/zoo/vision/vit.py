"""Vision transformers: an image cut into patches, each a token.

Dosovitskiy et al. (arXiv 2010.11929), as in timm (vit_base_patch16_224 and relatives): a class
token, learnt positions, layers that normalise before each half, no dropout. The variants for
training are what Graphcore ran (graphcore/examples, vision/vit/pytorch, tag v3.3.0): query, key and
value from products of their own, dropout, and in pre-training mixed images and one more layer.
"""

from ipusim.workload.zoo.layers.patches import embed_patches, put_first
from ipusim.workload.zoo.layers.transformer import Shape, drop, first_tokens, pre_norm_layer
from ipusim.workload.zoo.registry import Config, GraphBuilder, networks

PATCH = 16


def embed_tokens(g: GraphBuilder, images: str, hidden: int, image_size: int) -> str:
    """Add the patches of images, the class token and positions learnt for images of one size."""
    x = put_first(g, "cls_token", embed_patches(g.at("patch_embed"), images, hidden, PATCH))
    tokens, learnt = g.shape(x)[1], (image_size // PATCH) ** 2 + 1
    places = g.parameter("pos_embed", (1, learnt, hidden))
    if tokens != learnt:
        # Bicubic resampling of the learnt square, where images have fewer: fixed weights.
        square = g.reshape("pos_embed.square", places, (learnt, hidden))
        weights = g.constant("pos_embed.bicubic", (tokens, learnt))
        places = g.matmul("pos_embed.resample", weights, square)
    return g.elementwise("pos_embed.add", "add", x, places)


def mix_images(g: GraphBuilder, images: str) -> str:
    """Mix each image with the one before it in the batch, by a share that the host sends."""
    batch = g.shape(images)[0]
    share = g.reshape("column", g.input("share", (batch, 1)), (batch, 1, 1, 1))
    own = g.elementwise("own", "mul", images, share)
    others = g.roll("roll", images)
    rest = g.elementwise("rest", "sub", share)
    return g.elementwise("add", "add", own, g.elementwise("others", "mul", others, rest))


@networks
def vit(g: GraphBuilder, batch: int, c: Config) -> str:
    """Vision transformer, from an image (N, 3, S, S) to class scores (N, 1000)."""
    shape = Shape.of(c)
    images = g.input("images", (batch, 3, c.image_size, c.image_size))
    if c.mixup:
        images = mix_images(g.at("mixup"), images)
    x = embed_tokens(g, images, shape.hidden, c.image_size)
    x = drop(g, "pos_embed.dropout", x, shape)
    for number in range(c.layers):
        x = pre_norm_layer(g.at(f"blocks.{number}"), x, shape)
    x = first_tokens(g, "head.token", g.layer_norm("norm", x))
    if c.representation:
        x = g.linear("representation", x, shape.hidden)
        x = g.elementwise("representation.tanh", "tanh", x)
    return g.linear("head", x, c.classes)
