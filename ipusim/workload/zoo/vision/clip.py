"""CLIP: a vision and a text transformer learn to give an image and its caption like vectors.

Radford et al. (arXiv 2103.00020), as Graphcore ran it (graphcore/examples, multimodal/CLIP/pytorch/
model.py and configs.yml, tag v3.3.0): the vectors of the last micro-batches are kept and compared
with as well.
"""

from ipusim.workload.zoo.layers.pairs import normalise_rows, scores_of_pairs
from ipusim.workload.zoo.layers.patches import embed_patches, put_first
from ipusim.workload.zoo.layers.transformer import Shape, first_tokens, pre_norm_layer
from ipusim.workload.zoo.registry import Config, GraphBuilder, networks


@networks
def clip_vit_base_32(g: GraphBuilder, batch: int, c: Config) -> tuple[str, str]:
    """CLIP with ViT-B/32, from images and captions to scores of all pairs, both ways."""
    vectors = []
    for name, x in (("image", _vision(g, batch, c)), ("text", _text(g, batch, c))):
        y = normalise_rows(g.at(f"{name}.normalise"), x)
        kept = g.constant(f"{name}.queue", (c.kept_batches * batch, c.features))
        vectors.append(g.concat(f"{name}.with_queue", y, kept, axis=0))
    return scores_of_pairs(g, "logits", tuple(vectors), "per_text")


def _vision(g: GraphBuilder, batch: int, c: Config) -> str:
    shape = Shape(**c.images)
    images = g.input("images", (batch, 3, c.image, c.image))
    x = embed_patches(g.at("visual.conv1"), images, shape.hidden, c.patch, bias=False)
    x = put_first(g, "visual.class_embedding", x)
    places = g.parameter("visual.positional_embedding", g.shape(x)[1:])
    x = g.elementwise("visual.positional_embedding.add", "add", x, places)
    x = g.layer_norm("visual.ln_pre", x)
    for layer in range(c.layers):
        x = pre_norm_layer(g.at(f"visual.blocks.{layer}"), x, shape)
    x = g.layer_norm("visual.ln_post", first_tokens(g, "visual.first", x))
    return g.linear("visual.proj", x, c.features, bias=False)


def _text(g: GraphBuilder, batch: int, c: Config) -> str:
    shape, tokens = Shape(**c.texts), c.context
    ids = g.input("text", (batch, tokens), "int32")
    x = g.embedding("token_embedding", ids, c.vocabulary, shape.hidden)
    places = g.parameter("positional_embedding", (tokens, shape.hidden))
    x = g.elementwise("positional_embedding.add", "add", x, places)
    causal = g.constant("causal_mask", (1, 1, tokens, tokens))
    for layer in range(c.layers):
        x = pre_norm_layer(g.at(f"text.blocks.{layer}"), x, shape, mask=causal)
    x = g.layer_norm("ln_final", g.reshape("text.rows", x, (batch * tokens, shape.hidden)))
    # The end of the text has the largest token number.
    x = g.gather("text.end", x, g.argmax("text.argmax", ids))
    return g.linear("text_projection", x, c.features, bias=False)
