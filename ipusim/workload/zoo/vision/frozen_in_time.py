"""Frozen in Time: a video and a text transformer learn to give a clip and its caption like vectors.

Bain et al. (arXiv 2104.00650), as Graphcore ran it (graphcore/examples, multimodal/frozen_in_time/
pytorch/modeling, tag v3.3.0): attention over time, then over space, each with the class token
apart; DistilBERT (arXiv 1910.01108) reads the caption.
"""

from ipusim.workload.zoo.language import bert
from ipusim.workload.zoo.layers import transformer
from ipusim.workload.zoo.layers.pairs import normalise_rows, scores_of_pairs
from ipusim.workload.zoo.layers.patches import embed_patches, put_first
from ipusim.workload.zoo.registry import Config, GraphBuilder, networks


@networks
def frozen_in_time_1_frame(g: GraphBuilder, batch: int, c: Config) -> tuple[str, str]:
    """Frozen in Time, from captions and clips to scores of all pairs, both ways."""
    text, video = _text(g, batch, c), _video(g, batch, c)
    text = normalise_rows(g.at("text.normalise"), text)
    video = normalise_rows(g.at("video.normalise"), video)
    return scores_of_pairs(g, "similarity", (text, video), "per_clip")


def _text(g: GraphBuilder, batch: int, c: Config) -> str:
    """Add DistilBERT and the projection of its first token: (N, features)."""
    shape, size = transformer.Shape(**c.texts), (batch, c.tokens)
    ids = g.input("input_ids", size, "int32")
    mask = transformer.additive_mask(
        g.at("attention_mask"), g.input("attention_mask", size, "int32")
    )
    x = bert.embed(g.at("text"), ids, c.vocabulary, shape)
    for layer in range(c.text_layers):
        x = transformer.post_norm_layer(g.at(f"text.layer.{layer}"), x, shape, mask=mask)
    x = g.elementwise("txt_proj.relu", "relu", transformer.first_tokens(g, "text.first", x))
    return g.linear("txt_proj", x, c.features)


def _video(g: GraphBuilder, batch: int, c: Config) -> str:
    """Add the space-time transformer and the projection of its class token: (N, features)."""
    shape, places = transformer.Shape(**c.clips), (c.image // c.patch) ** 2
    clips = g.input("video", (batch * c.frames, 3, c.image, c.image))
    x = embed_patches(g.at("video.patch_embed"), clips, shape.hidden, c.patch)
    x = g.reshape("video.clips", x, (batch, c.frames * places, shape.hidden))
    x = put_first(g, "video.cls_token", x)
    learnt = _positions(g.at("video"), shape.hidden, places, c)
    x = g.elementwise("video.positions.add", "add", x, learnt)
    for layer in range(c.layers):
        x = _layer(g.at(f"video.blocks.{layer}"), x, shape, places)
    x = transformer.first_tokens(g, "video.first", g.layer_norm("video.norm", x))
    return g.linear("vid_proj", x, c.features)


def _positions(g: GraphBuilder, hidden: int, patches: int, c: Config) -> str:
    """Add the sum of learnt places within a frame and learnt numbers of the frame."""
    frames = c.learnt_frames
    places = g.parameter("pos_embed", (1, patches + 1, hidden))
    first = g.narrow("pos_embed.first", places, axis=1, size=1)
    rest = g.narrow("pos_embed.patches", places, axis=1, size=patches)
    times = g.parameter("temporal_embed", (frames, 1, hidden))
    rest = g.expand("pos_embed.frames", rest, (frames, patches, hidden))
    rest = g.elementwise("temporal_embed.add", "add", rest, times)
    rest = g.reshape("positions", rest, (1, frames * patches, hidden))
    rest = g.concat("positions.concat", first, rest, axis=1)
    return g.narrow("positions.used", rest, axis=1, size=c.frames * patches + 1)


def _layer(g: GraphBuilder, x: str, shape: transformer.Shape, places: int) -> str:
    """Add a space-time layer, whose residual of the attention over space is the layer's input."""
    y = g.layer_norm("time.norm", x)
    y = _divided_attention(g.at("time"), y, shape, places, over_time=True)
    y = g.elementwise("time.add", "add", x, y)
    y = g.layer_norm("space.norm", y)
    y = _divided_attention(g.at("space"), y, shape, places, over_time=False)
    x = g.elementwise("space.add", "add", x, y)
    y = transformer.feed_forward(g.at("mlp"), g.layer_norm("mlp.norm", x), shape)
    return g.elementwise("mlp.add", "add", x, y)


def _divided_attention(
    g: GraphBuilder, x: str, shape: transformer.Shape, places: int, *, over_time: bool
) -> str:
    """Add attention of patches to the class token and their own place or frame, of that to all."""
    query, key, value = transformer.query_key_value(g, x, shape)
    query = g.elementwise("scale", "scale", query)
    sizes = (1, g.shape(x)[1] - 1)
    first_query, query = g.split("query.apart", query, sizes, axis=2)
    first_key, keys = g.split("key.apart", key, sizes, axis=2)
    first_value, values = g.split("value.apart", value, sizes, axis=2)
    first = _attend(g.at("first"), first_query, key, value)
    query = _grouped(g.at("query"), query, places, over_time=over_time)
    keys = _grouped(g.at("key"), keys, places, over_time=over_time, first=first_key)
    values = _grouped(g.at("value"), values, places, over_time=over_time, first=first_value)
    y = _attend(g.at("groups"), query, keys, values)
    if over_time:
        y = g.transpose("frames_first", y, (0, 1, 3, 2, 4))
    y = g.reshape("patches", y, (*g.shape(value)[:2], sizes[1], shape.size))
    y = transformer.merge_heads(g, g.concat("concat", first, y, axis=2))
    return g.linear("output", y, shape.hidden)


def _grouped(g: GraphBuilder, x: str, places: int, *, over_time: bool, first: str = "") -> str:
    """Return (N, heads, patches, size) as (N, heads, groups, patches of a group, size).

    With the class token as `first`, it is put before the patches of each group.
    """
    batch, heads, patches, size = g.shape(x)
    name = "places" if over_time else "frames"
    y = g.reshape(name, x, (batch, heads, patches // places, places, size))
    if over_time:
        y = g.transpose("places_first", y, (0, 1, 3, 2, 4))
    if not first:
        return y
    first = g.reshape("first", first, (batch, heads, 1, 1, size))
    first = g.expand("repeat", first, (*g.shape(y)[:3], 1, size))
    return g.concat("with_first", first, y, axis=3)


def _attend(g: GraphBuilder, query: str, key: str, value: str) -> str:
    scores = g.matmul("scores", query, key, transpose_b=True)
    return g.matmul("context", g.softmax("softmax", scores), value)
