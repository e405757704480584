"""Mini DALL-E: a transformer learns to continue a caption by the codes of an image.

Ramesh et al. (arXiv 2102.12092) as lucidrains/DALLE-pytorch has it and Graphcore ran it (graphcore/
examples, multimodal/mini_dalle/pytorch/models, tag v3.3.0, configuration L16): a frozen VQGAN
encoder turns the image into codes on the chip; most layers attend to the caption and to one row or
column of the image.
"""

from math import isqrt

from ipusim.workload.zoo.layers import vqgan
from ipusim.workload.zoo.layers.transformer import merge_heads, split_heads
from ipusim.workload.zoo.registry import Config, GraphBuilder, networks


@networks
def mini_dalle_l16(g: GraphBuilder, batch: int, c: Config) -> str:
    """Mini DALL-E, from captions and images to scores of all tokens."""
    g.freeze("vae.")
    images = g.input("image", (batch, 3, c.image_size, c.image_size))
    codes = vqgan.encode(g.at("vae"), images, c)
    image = _image_tokens(g, codes, batch, c)
    x = g.concat("tokens.concat", _text_tokens(g, batch, c), image, axis=1)
    # A token that begins the text was added; the last code is not read.
    x = g.narrow("tokens.read", x, axis=1, size=c.text + _side(c) ** 2)
    for layer in range(c.layers):
        kind = "full" if layer in c.full else c.pattern[layer % len(c.pattern)]
        x = _layer(g.at(f"layers.{layer}"), x, kind, c)
    total = c.words + c.codes
    x = g.linear("to_logits", g.layer_norm("to_logits.norm", x), total)
    return _fill(g, "to_logits.mask", x)


def _side(c: Config) -> int:
    """Return the codes of a row of the image."""
    return c.image_size // 2 ** (len(c.levels) - 1)


def _image_tokens(g: GraphBuilder, codes: str, batch: int, c: Config) -> str:
    """Add the embedding of the codes and of their row and column: (N, codes, H)."""
    side, hidden = _side(c), c.hidden
    x = g.embedding("image_emb", codes, c.codes, hidden)
    x = g.reshape("image_emb.square", x, (batch, side, side, hidden))
    rows = g.parameter("image_pos_emb.rows", (1, side, 1, hidden))
    columns = g.parameter("image_pos_emb.columns", (1, 1, side, hidden))
    x = g.elementwise("image_pos_emb.add_rows", "add", x, rows)
    x = g.elementwise("image_pos_emb.add_columns", "add", x, columns)
    return g.reshape("image_emb.items", x, (batch, side * side, hidden))


def _text_tokens(g: GraphBuilder, batch: int, c: Config) -> str:
    """Add the embedding of the caption, with the token that begins it, and of places: (N, T, H)."""
    tokens = c.text + 1
    ids = g.input("text", (batch, tokens), "int32")
    x = g.embedding("text_emb", ids, c.words, c.hidden)
    places = g.parameter("text_pos_emb.weight", (tokens, c.hidden))
    return g.elementwise("text_pos_emb.add", "add", x, places)


def _layer(g: GraphBuilder, x: str, kind: str, c: Config) -> str:
    """Add attention and gated dense layers, both scaled by a learnt vector (arXiv 2103.17239)."""
    y = g.layer_norm("attention.norm", x)
    own = g.at("attention")
    if kind == "full":
        y = own.linear("output", merge_heads(own, _attend(own, *_heads(own, y, c))), c.hidden)
    else:
        y = _axial_attention(own, y, kind, c)
    x = _scaled_residual(own, x, y)
    y = g.linear("mlp.gated", g.layer_norm("mlp.norm", x), 8 * c.hidden)
    y, gates = g.split("mlp.split", y, 2, axis=2)
    y = g.elementwise("mlp.gate", "mul", y, g.elementwise("mlp.gelu", "gelu", gates))
    y = g.linear("mlp.output", y, c.hidden)
    return _scaled_residual(g.at("mlp"), x, y)


def _scaled_residual(g: GraphBuilder, x: str, y: str) -> str:
    scale = g.parameter("layer_scale", (g.shape(x)[-1],))
    y = g.elementwise("scale", "mul", y, scale)
    return g.elementwise("add", "add", y, x)


def _heads(g: GraphBuilder, x: str, c: Config) -> tuple[str, str, str]:
    """Add the product that makes query, key and value, without bias, and the scaling of queries."""
    y = g.linear("qkv", x, 3 * c.heads * c.head_size, bias=False)
    parts = g.split("split", y, 3, axis=2)
    query, key, value = (
        split_heads(g.at(name), part, c.heads)
        for name, part in zip(("query", "key", "value"), parts, strict=True)
    )
    return g.elementwise("query.scale", "scale", query), key, value


def _masked_softmax(g: GraphBuilder, scores: str) -> str:
    return g.softmax("softmax", _fill(g, "masked", scores))


def _fill(g: GraphBuilder, name: str, x: str) -> str:
    """Fill x at fixed places.

    PopTorch makes a Where of masked_fill, which in the gradient is one again (graphcore/poptorch@
    sdk/poptorch/3.3.0:poptorch/source/popart_canonicalization/AtenHandlers.gen.cpp,
    maskedFillHandler; the same at 2.4.0). What repeats the condition for each item is left out.
    """
    return g.elementwise(name, "select", x)


def _attend(g: GraphBuilder, query: str, key: str, value: str) -> str:
    """Add attention of every token to those before it, by a mask."""
    scores = g.matmul("scores", query, key, transpose_b=True)
    weights = _masked_softmax(g, scores)
    return g.matmul("context", weights, value)


def _axial_attention(g: GraphBuilder, x: str, kind: str, c: Config) -> str:
    """Add attention of codes to the caption and their row or column, of the caption to itself."""
    batch, text, side = g.shape(x)[0], c.text + 1, _side(c)
    codes = side * side
    # A token is added at the end, so that all codes are there, and taken away again.
    query, key, value = _heads(g, g.pad("pad", x, axis=1, size=text + codes), c)
    parts = {"query": query, "key": key, "value": value}
    apart = {name: g.split(f"{name}.apart", x, (text, codes), axis=2) for name, x in parts.items()}
    text_query, text_key, text_value = (text for text, _ in apart.values())
    text_out = _attend(g.at("text"), text_query, text_key, text_value)
    query, key, value = (_lines(g.at(name), image, kind) for name, (_, image) in apart.items())
    near = g.matmul("lines.scores", query, key, transpose_b=True)
    flat = (batch, c.heads, codes, c.head_size)
    query = g.reshape("query.flat", query, flat)
    far = g.matmul("to_text.scores", query, text_key, transpose_b=True)
    far = g.reshape("to_text.lines", far, (batch, c.heads, side, side, text))
    scores = g.concat("lines.concat", far, near, axis=4)
    weights = _masked_softmax(g.at("lines"), scores)
    far, near = g.split("lines.apart", weights, (text, side), axis=4)
    near = g.matmul("lines.context", near, value)
    far = g.reshape("to_text.flat", far, (batch, c.heads, codes, text))
    far = g.matmul("to_text.context", far, text_value)
    far = g.reshape("to_text.out", far, g.shape(near))
    y = g.elementwise("lines.add", "add", near, far)
    if kind == "column":
        y = g.transpose("lines.rows_first", y, (0, 1, 3, 2, 4))
    y = g.concat("all", text_out, g.reshape("codes", y, flat), axis=2)
    y = g.linear("output", merge_heads(g, y), c.hidden)
    return g.narrow("output.read", y, axis=1, size=c.text + codes)


def _lines(g: GraphBuilder, x: str, kind: str) -> str:
    """Return (N, heads, codes, size) with the codes of each row or column together."""
    batch, heads, codes, size = g.shape(x)
    y = g.reshape("lines", x, (batch, heads, isqrt(codes), isqrt(codes), size))
    return g.transpose("columns", y, (0, 1, 3, 2, 4)) if kind == "column" else y
