"""CLIP: a vision and a text transformer learn to give an image and its caption like vectors.

Radford et al. (arXiv 2103.00020), as Graphcore ran it (graphcore/examples, multimodal/CLIP/pytorch/
model.py and configs.yml, tag v3.3.0): the vectors of the last micro-batches are kept and compared
with as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ipusim.workload.graph import Graph
from ipusim.workload.layers import GraphBuilder
from ipusim.workload.model import Model
from ipusim.workload.zoo.layers.transformer import Shape, pre_norm_layer
from ipusim.workload.zoo.vision.dino import normalise_rows
from ipusim.workload.zoo.vision.vit import embed_patches, first_token, put_first

IMAGE = 224
SOURCE = "arXiv 2103.00020, graphcore/examples@v3.3.0:multimodal/CLIP/pytorch/model.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """What distinguishes one CLIP from another.

    Attributes
    ----------
    name : str
    layers, hidden, heads, patch : int
        Of the vision transformer.
    text_layers, text_hidden, text_heads, context, vocabulary : int
        Of the text transformer.
    features : int
        Elements of the common vectors.
    kept_batches : int
        Micro-batches whose vectors are kept to compare with.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    patch: int
    text_layers: int
    text_hidden: int
    text_heads: int
    features: int
    context: int = 77
    vocabulary: int = 49408
    kept_batches: int = 6


def _shape(batch: int, tokens: int, hidden: int, heads: int) -> Shape:
    return Shape(
        batch=batch,
        tokens=tokens,
        hidden=hidden,
        heads=heads,
        feed_forward=4 * hidden,
        dropout=False,
        activation="quick_gelu",
    )


def build(micro_batch: int | None, *, topology: Topology) -> Graph:
    """Build the forward graph from images and captions to scores of all pairs, both ways.

    Parameters
    ----------
    micro_batch : int or None
        Pairs per pass; None means 1.
    topology : Topology
    """
    g = GraphBuilder(topology.name)
    batch = micro_batch or 1
    image = _vision(g, topology, batch)
    text = _text(g, topology, batch)
    vectors = []
    for name, x in (("image", image), ("text", text)):
        y = normalise_rows(g, f"{name}.normalise", x)
        kept = g.parameter(
            f"{name}.queue", (topology.kept_batches * batch, topology.features), "constant"
        )
        vectors.append(g.concat(f"{name}.with_queue", y, kept, axis=0))
    scores = g.matmul("logits", *vectors, transpose_b=True)
    scale = g.elementwise("logit_scale.exp", "exp", g.parameter("logit_scale", (1, 1)))
    scores = g.elementwise("logits.scale", "mul", scores, scale)
    return g.finish(scores, g.transpose("logits.per_text", scores, (1, 0)))


def _vision(g: GraphBuilder, topology: Topology, batch: int) -> str:
    hidden = topology.hidden
    images = g.input("images", (batch, 3, IMAGE, IMAGE))
    x = embed_patches(g, "visual.conv1", images, hidden, topology.patch, bias=False)
    token = g.parameter("visual.class_embedding", (1, 1, hidden))
    x = put_first(g, "visual.class_embedding", token, x)
    shape = _shape(batch, g.shape(x)[1], hidden, topology.heads)
    places = g.parameter("visual.positional_embedding", (shape.tokens, hidden))
    x = g.elementwise("visual.positional_embedding.add", "add", x, places)
    x = g.layer_norm("visual.ln_pre", g.reshape("visual.rows", x, (shape.rows, hidden)))
    for layer in range(topology.layers):
        x = pre_norm_layer(g, f"visual.blocks.{layer}", x, shape)
    x = g.layer_norm("visual.ln_post", first_token(g, "visual.first", x, batch))
    return g.linear("visual.proj", x, topology.features, bias=False)


def _text(g: GraphBuilder, topology: Topology, batch: int) -> str:
    hidden, tokens = topology.text_hidden, topology.context
    shape = _shape(batch, tokens, hidden, topology.text_heads)
    ids = g.input("text", (batch, tokens), "int32")
    words = g.parameter("token_embedding.weight", (topology.vocabulary, hidden))
    x = g.reshape(
        "token_embedding.items", g.gather("token_embedding", words, ids), (batch, tokens, hidden)
    )
    places = g.parameter("positional_embedding", (tokens, hidden))
    x = g.elementwise("positional_embedding.add", "add", x, places)
    x = g.reshape("text.rows", x, (shape.rows, hidden))
    causal = g.parameter("causal_mask", (1, 1, tokens, tokens), "constant")
    for layer in range(topology.text_layers):
        x = pre_norm_layer(g, f"text.blocks.{layer}", x, shape, mask=causal)
    x = g.layer_norm("ln_final", x)
    # The end of the text has the largest token number.
    x = g.gather("text.end", x, g.argmax("text.argmax", ids))
    return g.linear("text_projection", x, topology.features, bias=False)


def clip_vit_base_32() -> Model:
    """CLIP with ViT-B/32: 151,277,313 parameters, 7.4 GMAC per pair."""
    topology = Topology(
        name="clip_vit_base_32",
        layers=12,
        hidden=768,
        heads=12,
        patch=32,
        text_layers=12,
        text_hidden=512,
        text_heads=8,
        features=512,
    )
    return Model(
        name=topology.name,
        family="clip",
        build=partial(build, topology=topology),
        source=SOURCE,
        loss="cross_entropy",
    )
