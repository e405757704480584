"""Vision transformers: an image cut into patches, each a token.

Dosovitskiy et al. (arXiv 2010.11929), as in timm (vit_base_patch16_224 and relatives): a class
token, learnt positions, layers that normalise before each half, no dropout. The variants for
training are what Graphcore ran (graphcore/examples, vision/vit/pytorch, tag v3.3.0): query, key and
value from products of their own, dropout, and in pre-training mixed images and one more layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ipusim.workload.graph import Graph
from ipusim.workload.layers import GraphBuilder
from ipusim.workload.model import Model
from ipusim.workload.zoo.layers.transformer import Shape, drop, pre_norm_layer

CLASSES = 1000
PATCH = 16
SOURCE = "arXiv 2010.11929, as in timm"
AS_RUN = "graphcore/examples@v3.3.0:vision/vit/pytorch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """What distinguishes one vision transformer from another.

    Attributes
    ----------
    name : str
    layers, hidden, heads : int
    image_size, patch : int
        Side of the image and of a patch, in pixels.
    dropout, attention_dropout, inner_dropout, fused_query_key_value : bool
        As in `transformer.Shape`; with dropout the sum of patches and positions drops too.
    representation : bool
        Whether a dense layer with tanh comes before the classifier.
    mixup : bool
        Whether each image is mixed with its neighbour in the batch (arXiv 1710.09412).
    """

    name: str
    layers: int
    hidden: int
    heads: int
    image_size: int = 224
    patch: int = PATCH
    dropout: bool = False
    attention_dropout: bool = False
    inner_dropout: bool = False
    fused_query_key_value: bool = True
    representation: bool = False
    mixup: bool = False

    @property
    def tokens(self) -> int:
        """Patches and the class token."""
        return (self.image_size // self.patch) ** 2 + 1

    def shape(self, batch: int, tokens: int | None = None) -> Shape:
        """Return the sizes of the layers for a batch, by default on all tokens."""
        return Shape(
            batch=batch,
            tokens=tokens or self.tokens,
            hidden=self.hidden,
            heads=self.heads,
            feed_forward=4 * self.hidden,
            dropout=self.dropout,
            attention_dropout=self.attention_dropout,
            inner_dropout=self.inner_dropout,
            fused_query_key_value=self.fused_query_key_value,
        )


def embed_patches(
    g: GraphBuilder, name: str, images: str, hidden: int, patch: int, *, bias: bool = True
) -> str:
    """Add the product of each patch of (N, 3, S, S) with one kernel: (N, patches, hidden)."""
    y = g.conv(f"{name}.proj", images, hidden, patch, stride=patch, bias=bias)
    batch, _, *field = g.shape(y)
    y = g.reshape(f"{name}.flatten", y, (batch, hidden, field[0] * field[1]))
    return g.transpose(f"{name}.tokens_first", y, (0, 2, 1))


def put_first(g: GraphBuilder, name: str, token: str, x: str) -> str:
    """Put one learnt token (1, 1, H) before those of every item (N, T, H)."""
    batch, _, hidden = g.shape(x)
    first = g.expand(f"{name}.expand", token, (batch, 1, hidden))
    return g.concat(f"{name}.concat", first, x, axis=1)


def first_token(g: GraphBuilder, prefix: str, x: str, batch: int) -> str:
    """Add a view of the first token of every item of rows (N x T, H): (N, H)."""
    rows, hidden = g.shape(x)
    y = g.reshape(f"{prefix}.items", x, (batch, rows // batch, hidden))
    y = g.narrow(f"{prefix}.token", y, axis=1, size=1)
    return g.reshape(f"{prefix}.rows", y, (batch, hidden))


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


def build(micro_batch: int | None, *, topology: Topology) -> Graph:
    """Build the forward graph from an image (N, 3, S, S) to class scores (N, 1000).

    Parameters
    ----------
    micro_batch : int or None
        Images per pass; None means 1.
    topology : Topology
    """
    g = GraphBuilder(topology.name)
    batch, hidden, tokens = micro_batch or 1, topology.hidden, topology.tokens
    shape = topology.shape(batch)
    images = g.input("images", (batch, 3, topology.image_size, topology.image_size))
    if topology.mixup:
        images = mix_images(g, images)
    x = embed_patches(g, "patch_embed", images, hidden, topology.patch)
    x = put_first(g, "cls_token", g.parameter("cls_token", (1, 1, hidden)), x)
    x = g.elementwise("pos_embed.add", "add", x, g.parameter("pos_embed", (1, tokens, hidden)))
    x = drop(g, "pos_embed.dropout", g.reshape("rows", x, (shape.rows, hidden)), shape)
    for layer in range(topology.layers):
        x = pre_norm_layer(g, f"blocks.{layer}", x, shape)
    x = first_token(g, "head", g.layer_norm("norm", x), batch)
    if topology.representation:
        x = g.elementwise("representation.tanh", "tanh", g.linear("representation", x, hidden))
    return g.finish(g.linear("head", x, CLASSES))


def _model(topology: Topology, source: str = SOURCE) -> Model:
    return Model(
        name=topology.name,
        family="vit",
        build=partial(build, topology=topology),
        source=source,
        loss="cross_entropy",
    )


def vit_base_16(image_size: int = 224) -> Model:
    """ViT-B/16: 86,567,656 parameters, 17.6 GMAC per image of 224 pixels."""
    topology = Topology(name="vit_base_16", layers=12, hidden=768, heads=12, image_size=image_size)
    return _model(topology)


def vit_base_16_pretraining() -> Model:
    """ViT-B/16 as Graphcore pre-trains it: one layer more, dropout, mixed images."""
    topology = Topology(
        name="vit_base_16_pretraining",
        layers=12,
        hidden=768,
        heads=12,
        dropout=True,
        attention_dropout=True,
        inner_dropout=True,
        fused_query_key_value=False,
        representation=True,
        mixup=True,
    )
    return _model(topology, f"{AS_RUN}/models/modules.py, configs.yml b16_in1k_pretrain_lamb")


def vit_base_16_finetuning() -> Model:
    """ViT-B/16 as Graphcore fine-tunes it: the model of Hugging Face with dropout."""
    topology = Topology(
        name="vit_base_16_finetuning",
        layers=12,
        hidden=768,
        heads=12,
        dropout=True,
        fused_query_key_value=False,
    )
    return _model(topology, f"{AS_RUN}/models/pipeline_model.py, configs.yml b16_imagenet1k")


def vit_large_16(image_size: int = 224) -> Model:
    """ViT-L/16: 304,326,632 parameters, 61.6 GMAC per image of 224 pixels."""
    topology = Topology(
        name="vit_large_16", layers=24, hidden=1024, heads=16, image_size=image_size
    )
    return _model(topology)
