"""Vision transformers: an image cut into patches, each a token.

Dosovitskiy et al. (arXiv 2010.11929), as in timm (vit_base_patch16_224 and relatives): a class
token, learnt positions, layers that normalise before each half, no dropout. The variants for
training are what Graphcore ran (graphcore/examples, vision/vit/pytorch, tag v3.3.0): query, key and
value from products of their own, dropout, and in pre-training mixed images and one more layer.
"""

from dataclasses import dataclass, replace

from ipusim.workload.layers import GraphBuilder
from ipusim.workload.zoo.layers.transformer import Shape, drop, first_tokens, pre_norm_layer
from ipusim.workload.zoo.registry import variants

CLASSES = 1000
IMAGE, PATCH = 224, 16
SOURCE = "arXiv 2010.11929, as in timm"
AS_RUN = "graphcore/examples@v3.3.0:vision/vit/pytorch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What distinguishes one vision transformer from another.

    With dropout in `shape` the sum of patches and positions drops too. A `representation` is a
    dense layer with tanh before the classifier; `mixup` mixes each image with its neighbour in the
    batch (arXiv 1710.09412).
    """

    layers: int
    shape: Shape
    representation: bool = False
    mixup: bool = False


def embed_patches(
    g: GraphBuilder, images: str, hidden: int, patch: int, *, bias: bool = True
) -> str:
    """Add the product of each patch of (N, 3, S, S) with one kernel: (N, patches, hidden)."""
    y = g.conv("proj", images, hidden, patch, stride=patch, bias=bias)
    batch, _, *field = g.shape(y)
    y = g.reshape("flatten", y, (batch, hidden, field[0] * field[1]))
    return g.transpose("tokens_first", y, (0, 2, 1))


def put_first(g: GraphBuilder, name: str, x: str, token: str = "") -> str:
    """Put one token (1, 1, H), by default a learnt one, before those of every item (N, T, H)."""
    batch, _, hidden = g.shape(x)
    token = token or g.parameter(name, (1, 1, hidden))
    first = g.expand(f"{name}.expand", token, (batch, 1, hidden))
    return g.concat(f"{name}.concat", first, x, axis=1)


def mix_images(g: GraphBuilder, images: str) -> str:
    """Mix each image with the one before it in the batch, by a share that the host sends."""
    batch = g.shape(images)[0]
    share = g.reshape("mixup.column", g.input("mixup.share", (batch, 1)), (batch, 1, 1, 1))
    own = g.elementwise("mixup.own", "mul", images, share)
    others = g.roll("mixup.roll", images)
    rest = g.elementwise("mixup.rest", "sub", share)
    return g.elementwise(
        "mixup.add", "add", own, g.elementwise("mixup.others", "mul", others, rest)
    )


def build(g: GraphBuilder, batch: int, config: Config, image_size: int = IMAGE) -> str:
    """Vision transformer, from an image (N, 3, S, S) to class scores (N, 1000)."""
    hidden, tokens = config.shape.hidden, (image_size // PATCH) ** 2 + 1
    shape = config.shape.on(batch, tokens)
    images = g.input("images", (batch, 3, image_size, image_size))
    if config.mixup:
        images = mix_images(g, images)
    x = embed_patches(g.at("patch_embed"), images, hidden, PATCH)
    x = put_first(g, "cls_token", x)
    x = g.elementwise("pos_embed.add", "add", x, g.parameter("pos_embed", (1, tokens, hidden)))
    x = drop(g, "pos_embed.dropout", g.reshape("rows", x, (shape.rows, hidden)), shape)
    for layer in range(config.layers):
        x = pre_norm_layer(g.at(f"blocks.{layer}"), x, shape)
    x = first_tokens(g.at("head"), g.layer_norm("norm", x), batch)
    if config.representation:
        x = g.elementwise("representation.tanh", "tanh", g.linear("representation", x, hidden))
    return g.linear("head", x, CLASSES)


BASE = Config(layers=12, shape=Shape(hidden=768, heads=12, dropout=False))
LARGE = Config(layers=24, shape=Shape(hidden=1024, heads=16, dropout=False))
APART = replace(BASE.shape, dropout=True, fused_query_key_value=False)
"""Layers of ViT-B/16 with dropout; query, key and value from products of their own."""
PRETRAINING = Config(
    layers=12, shape=replace(APART, inner_dropout=True), representation=True, mixup=True
)
"""As Graphcore pre-trains it: one layer more, dropout, mixed images."""
FINETUNING = Config(layers=12, shape=replace(APART, attention_dropout=False))
"""As Graphcore fine-tunes it: the model of Hugging Face with dropout."""
PRETRAINED = {"source": f"{AS_RUN}/models/modules.py, configs.yml b16_in1k_pretrain_lamb"}
FINETUNED = {"source": f"{AS_RUN}/models/pipeline_model.py, configs.yml b16_imagenet1k"}
NETWORKS = (
    ("vit_base_16", BASE, 86_567_656, 17_563_828_224),
    ("vit_large_16", LARGE, 304_326_632, 61_554_712_576),
    ("vit_base_16_pretraining", PRETRAINING, 87_158_248, 17_564_418_048, PRETRAINED),
    ("vit_base_16_finetuning", FINETUNING, 86_567_656, 17_563_828_224, FINETUNED),
)
variants(build, NETWORKS, family="vit", source=SOURCE, loss="cross_entropy")
