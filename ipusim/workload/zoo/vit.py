"""Vision transformers: an image cut into patches, each a token.

Dosovitskiy et al. (arXiv 2010.11929), as in timm (vit_base_patch16_224 and relatives): a class
token, learnt positions, layers that normalise before each half, no dropout.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ipusim.workload.builder import GraphBuilder
from ipusim.workload.graph import Graph
from ipusim.workload.model import Model
from ipusim.workload.zoo.transformer import Shape, pre_norm_layer

CLASSES = 1000
PATCH = 16
SOURCE = "arXiv 2010.11929, as in timm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """What distinguishes one vision transformer from another; ``image_size`` in pixels."""

    name: str
    layers: int
    hidden: int
    heads: int
    image_size: int = 224

    @property
    def tokens(self) -> int:
        """Patches and the class token."""
        return (self.image_size // PATCH) ** 2 + 1


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
    shape = Shape(
        batch=batch,
        tokens=tokens,
        hidden=hidden,
        heads=topology.heads,
        feed_forward=4 * hidden,
        dropout=False,
    )
    x = g.input("images", (batch, 3, topology.image_size, topology.image_size))
    x = g.conv("patch_embed.proj", x, hidden, PATCH, stride=PATCH, bias=True)
    x = g.reshape("patch_embed.flatten", x, (batch, hidden, tokens - 1))
    x = g.transpose("patch_embed.tokens_first", x, (0, 2, 1))
    first = g.expand(
        "cls_token.expand", g.parameter("cls_token", (1, 1, hidden)), (batch, 1, hidden)
    )
    x = g.concat("cls_token.concat", first, x, axis=1)
    x = g.elementwise("pos_embed.add", "add", x, g.parameter("pos_embed", (1, tokens, hidden)))
    x = g.reshape("rows", x, (shape.rows, hidden))
    for layer in range(topology.layers):
        x = pre_norm_layer(g, f"blocks.{layer}", x, shape)
    x = g.reshape("norm.items", g.layer_norm("norm", x), (batch, tokens, hidden))
    x = g.reshape("head.rows", g.narrow("head.token", x, axis=1, size=1), (batch, hidden))
    return g.finish(g.linear("head", x, CLASSES))


def _model(topology: Topology) -> Model:
    return Model(
        name=topology.name,
        family="vit",
        build=partial(build, topology=topology),
        source=SOURCE,
        loss="cross_entropy",
    )


def vit_base_16(image_size: int = 224) -> Model:
    """ViT-B/16: 86,567,656 parameters, 17.6 GMAC per image of 224 pixels."""
    topology = Topology(name="vit_base_16", layers=12, hidden=768, heads=12, image_size=image_size)
    return _model(topology)


def vit_large_16(image_size: int = 224) -> Model:
    """ViT-L/16: 304,326,632 parameters, 61.6 GMAC per image of 224 pixels."""
    topology = Topology(
        name="vit_large_16", layers=24, hidden=1024, heads=16, image_size=image_size
    )
    return _model(topology)
