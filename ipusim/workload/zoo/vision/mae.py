"""MAE: a vision transformer sees a quarter of the patches, a small one restores the image.

He et al. (arXiv 2111.06377), as Graphcore ran it (graphcore/examples, vision/mae/pytorch/core/
models_mae.py, tag v3.1.0): tokens are chosen and put back by products with 0/1 matrices that the
host sends, and activations are spread over the chip before and after each layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ipusim.workload.graph import Graph
from ipusim.workload.layers import GraphBuilder
from ipusim.workload.model import Model
from ipusim.workload.zoo.layers.transformer import Shape, pre_norm_layer
from ipusim.workload.zoo.vision.vit import embed_patches, put_first

IMAGE, PATCH, CHANNELS = 224, 16, 3
SOURCE = "arXiv 2111.06377, graphcore/examples@v3.1.0:vision/mae/pytorch/core/models_mae.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """What distinguishes one masked autoencoder from another.

    Attributes
    ----------
    name : str
    layers, hidden, heads : int
        Of the encoder.
    decoder_layers, decoder_hidden, decoder_heads : int
        Of the decoder.
    kept : float
        Share of the patches that the encoder sees.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    decoder_layers: int = 8
    decoder_hidden: int = 512
    decoder_heads: int = 16
    kept: float = 0.25

    @property
    def patches(self) -> int:
        """Patches of an image."""
        return (IMAGE // PATCH) ** 2

    @property
    def seen(self) -> int:
        """Patches that the encoder sees."""
        return int(self.patches * self.kept)


def _shape(batch: int, tokens: int, hidden: int, heads: int) -> Shape:
    return Shape(
        batch=batch,
        tokens=tokens,
        hidden=hidden,
        heads=heads,
        feed_forward=4 * hidden,
        dropout=False,
    )


def build(micro_batch: int | None, *, topology: Topology) -> Graph:
    """Build the forward graph from an image (N, 3, 224, 224) and a choice of patches to the loss.

    Parameters
    ----------
    micro_batch : int or None
        Images per pass; None means 1.
    topology : Topology
    """
    g = GraphBuilder(topology.name)
    batch = micro_batch or 1
    x = _encoder(g, topology, batch)
    x = _decoder(g, topology, batch, x)
    return g.finish(_loss(g, topology, batch, x))


def _choose(g: GraphBuilder, name: str, x: str, choice: str) -> str:
    """Pick tokens of (N, T, H) by a product with a 0/1 matrix (N, T, picked)."""
    y = g.transpose(f"{name}.features_first", x, (0, 2, 1))
    return g.transpose(f"{name}.tokens_first", g.matmul(name, y, choice), (0, 2, 1))


def _layers(g: GraphBuilder, prefix: str, x: str, shape: Shape, count: int) -> str:
    for layer in range(count):
        x = g.copy(f"{prefix}.{layer}.spread_in", x)
        x = pre_norm_layer(g, f"{prefix}.{layer}", x, shape)
        x = g.copy(f"{prefix}.{layer}.spread_out", x)
    return x


def _encoder(g: GraphBuilder, topology: Topology, batch: int) -> str:
    """Add the encoder on the patches that it sees and the class token: (N x T, H)."""
    hidden, tokens = topology.hidden, topology.patches
    images = g.input("images", (batch, CHANNELS, IMAGE, IMAGE))
    x = embed_patches(g, "patch_embed", images, hidden, PATCH)
    places = g.parameter("pos_embed", (1, tokens, hidden), "constant")
    x = g.elementwise("pos_embed.add", "add", x, places)
    x = _choose(g, "mask", x, g.input("keep_matrix", (batch, tokens, topology.seen)))
    place = g.parameter("cls_token.pos_embed", (1, 1, hidden), "constant")
    token = g.elementwise("cls_token.add", "add", g.parameter("cls_token", (1, 1, hidden)), place)
    x = put_first(g, "cls_token", token, x)
    shape = _shape(batch, topology.seen + 1, hidden, topology.heads)
    x = g.reshape("rows", x, (shape.rows, hidden))
    return g.layer_norm("norm", _layers(g, "blocks", x, shape, topology.layers))


def _decoder(g: GraphBuilder, topology: Topology, batch: int, x: str) -> str:
    """Add the decoder on all tokens, the hidden ones a learnt vector: (N, patches, pixels)."""
    hidden, tokens, seen = topology.decoder_hidden, topology.patches, topology.seen
    x = g.linear("decoder_embed", x, hidden)
    x = g.reshape("decoder_embed.items", x, (batch, seen + 1, hidden))
    first = g.narrow("decoder_embed.first", x, axis=1, size=1)
    hidden_tokens = g.expand(
        "mask_token.expand",
        g.parameter("mask_token", (1, 1, hidden)),
        (batch, tokens - seen, hidden),
    )
    x = g.narrow("decoder_embed.patches", x, axis=1, size=seen)
    x = g.concat("mask_token.concat", x, hidden_tokens, axis=1)
    x = _choose(g, "restore", x, g.input("restore_matrix", (batch, tokens, tokens)))
    x = g.concat("decoder_embed.concat", first, x, axis=1)
    places = g.parameter("decoder_pos_embed", (1, tokens + 1, hidden), "constant")
    shape = _shape(batch, tokens + 1, hidden, topology.decoder_heads)
    x = g.elementwise("decoder_pos_embed.add", "add", x, places)
    x = g.reshape("decoder_rows", x, (shape.rows, hidden))
    x = _layers(g, "decoder_blocks", x, shape, topology.decoder_layers)
    pixels = PATCH * PATCH * CHANNELS
    x = g.linear("decoder_pred", g.layer_norm("decoder_norm", x), pixels)
    x = g.reshape("decoder_pred.items", x, (batch, tokens + 1, pixels))
    return g.narrow("decoder_pred.patches", x, axis=1, size=tokens)


def _loss(g: GraphBuilder, topology: Topology, batch: int, predicted: str) -> str:
    """Add the mean squared error on the hidden patches, each patch of the image normalised."""
    side, tokens = IMAGE // PATCH, topology.patches
    target = g.input("target", (batch, CHANNELS, IMAGE, IMAGE))
    target = g.reshape("loss.squares", target, (batch, CHANNELS, side, PATCH, side, PATCH))
    target = g.transpose("loss.patches_first", target, (0, 2, 4, 3, 5, 1))
    target = g.reshape("loss.patches", target, g.shape(predicted))
    target = g.elementwise("loss.centre", "sub", target, _column(g, "loss.mean", "mean", target))
    square = g.elementwise("loss.pixels.square", "square", target)
    deviation = g.elementwise("loss.deviation", "sqrt", _column(g, "loss.variance", "mean", square))
    target = g.elementwise("loss.normalise", "div", target, deviation)
    error = g.elementwise("loss.difference", "sub", predicted, target)
    error = g.reduce("loss.error", "mean", g.elementwise("loss.square", "square", error), axis=2)
    error = g.elementwise("loss.hidden", "mul", error, g.input("mask", (batch, tokens)))
    error = g.reshape("loss.all", error, (1, batch * tokens))
    return g.elementwise("loss.scale", "scale", g.reduce("loss.sum", "sum", error, axis=1))


def _column(g: GraphBuilder, name: str, function: str, x: str) -> str:
    """Reduce the last axis of (N, T, F) to one value: (N, T, 1)."""
    y = g.reduce(name, function, x, axis=2)
    return g.reshape(f"{name}.column", y, (*g.shape(y), 1))


def mae_vit_base_16() -> Model:
    """MAE with ViT-B/16: 111.9 million parameters, fixed positions among them."""
    topology = Topology(name="mae_vit_base_16", layers=12, hidden=768, heads=12)
    return Model(
        name=topology.name,
        family="mae",
        build=partial(build, topology=topology),
        source=SOURCE,
        loss="identity",
        repeated_inputs=("target",),
    )
