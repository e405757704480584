"""CLIP: a vision and a text transformer learn to give an image and its caption like vectors.

Radford et al. (arXiv 2103.00020), as Graphcore ran it (graphcore/examples, multimodal/CLIP/pytorch/
model.py and configs.yml, tag v3.3.0): the vectors of the last micro-batches are kept and compared
with as well.
"""

from ipusim.workload.zoo.layers.pairs import normalise_rows, scores_of_pairs
from ipusim.workload.zoo.layers.patches import embed_patches, put_first
from ipusim.workload.zoo.layers.transformer import Shape, first_tokens, pre_norm_layer
from ipusim.workload.zoo.registry import GraphBuilder, networks

IMAGE = 224
IMAGES = Shape(hidden=768, heads=12, drops=(), activation="quick_gelu")
TEXTS = Shape(hidden=512, heads=8, drops=(), activation="quick_gelu")
LAYERS, PATCH = 12, 32
"""Layers of both transformers; side of a patch in pixels."""
CONTEXT, VOCABULARY = 77, 49408
FEATURES = 512
"""Elements of the common vectors."""
KEPT_BATCHES = 6
"""Micro-batches whose vectors are kept to compare with."""


@networks
def clip_vit_base_32(g: GraphBuilder, batch: int) -> tuple[str, str]:
    """CLIP with ViT-B/32, from images and captions to scores of all pairs, both ways."""
    vectors = []
    for name, x in (("image", _vision(g, batch)), ("text", _text(g, batch))):
        y = normalise_rows(g.at(f"{name}.normalise"), x)
        kept = g.constant(f"{name}.queue", (KEPT_BATCHES * batch, FEATURES))
        vectors.append(g.concat(f"{name}.with_queue", y, kept, axis=0))
    return scores_of_pairs(g, "logits", tuple(vectors), "per_text")


def _vision(g: GraphBuilder, batch: int) -> str:
    images = g.input("images", (batch, 3, IMAGE, IMAGE))
    x = embed_patches(g.at("visual.conv1"), images, IMAGES.hidden, PATCH, bias=False)
    x = put_first(g, "visual.class_embedding", x)
    places = g.parameter("visual.positional_embedding", g.shape(x)[1:])
    x = g.elementwise("visual.positional_embedding.add", "add", x, places)
    x = g.layer_norm("visual.ln_pre", x)
    for layer in range(LAYERS):
        x = pre_norm_layer(g.at(f"visual.blocks.{layer}"), x, IMAGES)
    x = g.layer_norm("visual.ln_post", first_tokens(g, "visual.first", x))
    return g.linear("visual.proj", x, FEATURES, bias=False)


def _text(g: GraphBuilder, batch: int) -> str:
    hidden, tokens = TEXTS.hidden, CONTEXT
    ids = g.input("text", (batch, tokens), "int32")
    x = g.embedding("token_embedding", ids, VOCABULARY, hidden)
    places = g.parameter("positional_embedding", (tokens, hidden))
    x = g.elementwise("positional_embedding.add", "add", x, places)
    causal = g.constant("causal_mask", (1, 1, tokens, tokens))
    for layer in range(LAYERS):
        x = pre_norm_layer(g.at(f"text.blocks.{layer}"), x, TEXTS, mask=causal)
    x = g.layer_norm("ln_final", g.reshape("text.rows", x, (batch * tokens, hidden)))
    # The end of the text has the largest token number.
    x = g.gather("text.end", x, g.argmax("text.argmax", ids))
    return g.linear("text_projection", x, FEATURES, bias=False)
