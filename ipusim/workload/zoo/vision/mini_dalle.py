"""Mini DALL-E: a transformer learns to continue a caption by the codes of an image.

Ramesh et al. (arXiv 2102.12092) as lucidrains/DALLE-pytorch has it and Graphcore ran it (graphcore/
examples, multimodal/mini_dalle/pytorch/models, tag v3.3.0, configuration L16): a frozen VQGAN
encoder turns the image into codes on the chip; most layers attend to the caption and to one row or
column of the image.
"""

from dataclasses import dataclass

from ipusim.workload.layers import GraphBuilder
from ipusim.workload.zoo.layers.transformer import Shape, merge_heads, split_heads
from ipusim.workload.zoo.registry import network
from ipusim.workload.zoo.vision import vqgan

SIDE = vqgan.IMAGE // 2 ** (len(vqgan.MULTIPLES) - 1)
"""Codes of a row of the image."""
PATTERN = ("row", "row", "column", "row")
"""Attention of the layers, repeated; see `Config.full`."""
SOURCE = (
    "arXiv 2102.12092, graphcore/examples@v3.3.0:multimodal/mini_dalle/pytorch/models/dalle.py, "
    "transformer.py, attention.py, configs.yml L16"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What distinguishes one mini DALL-E from another.

    Heads together may be wider than `hidden`; the layers in `full` attend to everything before. A
    caption has `text` tokens of `words` numbers, one of their own for padding at each place
    included.
    """

    layers: int
    hidden: int
    heads: int
    head_size: int
    full: tuple[int, ...]
    text: int
    words: int

    @property
    def tokens(self) -> int:
        """Caption and image; a token that begins the text is added, the last code not read."""
        return self.text + SIDE * SIDE

    def shape(self, batch: int, tokens: int) -> Shape:
        """Return the sizes of the attention's heads."""
        return Shape(
            batch=batch, tokens=tokens, hidden=self.heads * self.head_size, heads=self.heads
        )


WORDS = 553 + 7635 + 4 + 80
"""Of its tokeniser (553 + 7635 + 4), and 80."""
L16 = Config(layers=16, hidden=512, heads=16, head_size=64, full=(11, 15), text=80, words=WORDS)


@network(
    family="dall-e",
    source=SOURCE,
    loss="cross_entropy",
    parameters=93_604_432,
    macs=100_458_328_064,
)
def mini_dalle_l16(g: GraphBuilder, batch: int, config: Config = L16) -> str:
    """Mini DALL-E, from captions and images to scores of all tokens."""
    hidden, tokens = config.hidden, config.tokens
    g.freeze("vae.")
    images = g.input("image", (batch, 3, vqgan.IMAGE, vqgan.IMAGE))
    codes = vqgan.encode(g, "vae", images)
    image = _image_tokens(g, codes, batch, hidden)
    x = g.concat("tokens.concat", _text_tokens(g, config, batch), image, axis=1)
    x = g.narrow("tokens.read", x, axis=1, size=tokens)
    x = g.reshape("tokens.rows", x, (batch * tokens, hidden))
    for layer in range(config.layers):
        kind = "full" if layer in config.full else PATTERN[layer % len(PATTERN)]
        x = _layer(g, f"layers.{layer}", x, config, batch, kind)
    total = config.words + vqgan.CODES
    x = g.linear("to_logits", g.layer_norm("to_logits.norm", x), total)
    apart = g.parameter("logits_mask", (tokens, total), "constant")
    x = g.reshape("to_logits.items", x, (batch, tokens, total))
    return g.elementwise("to_logits.mask", "add", x, apart)


def _image_tokens(g: GraphBuilder, codes: str, batch: int, hidden: int) -> str:
    """Add the embedding of the codes and of their row and column: (N, codes, H)."""
    table = g.parameter("image_emb.weight", (vqgan.CODES, hidden))
    x = g.reshape(
        "image_emb.square", g.gather("image_emb", table, codes), (batch, SIDE, SIDE, hidden)
    )
    rows = g.parameter("image_pos_emb.rows", (1, SIDE, 1, hidden))
    columns = g.parameter("image_pos_emb.columns", (1, 1, SIDE, hidden))
    x = g.elementwise("image_pos_emb.add_rows", "add", x, rows)
    x = g.elementwise("image_pos_emb.add_columns", "add", x, columns)
    return g.reshape("image_emb.items", x, (batch, SIDE * SIDE, hidden))


def _text_tokens(g: GraphBuilder, config: Config, batch: int) -> str:
    """Add the embedding of the caption, with the token that begins it, and of places: (N, T, H)."""
    hidden, tokens = config.hidden, config.text + 1
    ids = g.input("text", (batch, tokens), "int32")
    x = g.gather("text_emb", g.parameter("text_emb.weight", (config.words, hidden)), ids)
    places = g.parameter("text_pos_emb.weight", (tokens, hidden))
    x = g.reshape("text_emb.items", x, (batch, tokens, hidden))
    return g.elementwise("text_pos_emb.add", "add", x, places)


def _layer(g: GraphBuilder, prefix: str, x: str, config: Config, batch: int, kind: str) -> str:
    """Add attention and gated dense layers, both scaled by a learnt vector (arXiv 2103.17239)."""
    y = g.layer_norm(f"{prefix}.attention.norm", x)
    attend = _full_attention if kind == "full" else _axial_attention
    y = attend(g, f"{prefix}.attention", y, config, batch, kind)
    x = _scaled_residual(g, f"{prefix}.attention", x, y)
    y = g.linear(f"{prefix}.mlp.gated", g.layer_norm(f"{prefix}.mlp.norm", x), 8 * config.hidden)
    y, gates = g.split(f"{prefix}.mlp.split", y, (4 * config.hidden,) * 2, axis=1)
    y = g.elementwise(
        f"{prefix}.mlp.gate", "mul", y, g.elementwise(f"{prefix}.mlp.gelu", "gelu", gates)
    )
    y = g.linear(f"{prefix}.mlp.output", y, config.hidden)
    return _scaled_residual(g, f"{prefix}.mlp", x, y)


def _scaled_residual(g: GraphBuilder, prefix: str, x: str, y: str) -> str:
    scale = g.parameter(f"{prefix}.layer_scale", (g.shape(x)[-1],))
    y = g.elementwise(f"{prefix}.scale", "mul", y, scale)
    return g.elementwise(f"{prefix}.add", "add", y, x)


def _heads(
    g: GraphBuilder, prefix: str, x: str, config: Config, batch: int, tokens: int
) -> tuple[str, str, str]:
    """Add the product that makes query, key and value, without bias, and the scaling of queries."""
    shape = config.shape(batch, tokens)
    y = g.linear(f"{prefix}.qkv", x, 3 * shape.hidden, bias=False)
    parts = g.split(f"{prefix}.split", y, (shape.hidden,) * 3, axis=1)
    query, key, value = (
        split_heads(g, f"{prefix}.{name}", part, shape)
        for name, part in zip(("query", "key", "value"), parts, strict=True)
    )
    return g.elementwise(f"{prefix}.query.scale", "scale", query), key, value


def _masked_softmax(g: GraphBuilder, name: str, scores: str, mask: tuple[int, ...]) -> str:
    apart = g.parameter(f"{name}.mask", mask, "constant")
    return g.softmax(f"{name}.softmax", g.elementwise(f"{name}.masked", "add", scores, apart))


def _full_attention(
    g: GraphBuilder, prefix: str, x: str, config: Config, batch: int, kind: str
) -> str:
    """Add attention to all tokens before: rows (N x T, H) to rows."""
    tokens = config.tokens
    query, key, value = _heads(g, prefix, x, config, batch, tokens)
    scores = g.matmul(f"{prefix}.scores", query, key, transpose_b=True)
    weights = _masked_softmax(g, prefix, scores, (tokens, tokens))
    y = merge_heads(g, prefix, g.matmul(f"{prefix}.context", weights, value))
    return g.linear(f"{prefix}.output", y, config.hidden)


def _axial_attention(
    g: GraphBuilder, prefix: str, x: str, config: Config, batch: int, kind: str
) -> str:
    """Add attention of codes to the caption and their row or column, of the caption to itself.

    A token is added at the end, so that all codes are there, and taken away again.
    """
    text, codes, tokens = config.text + 1, SIDE * SIDE, config.tokens
    x = g.reshape(f"{prefix}.items", x, (batch, tokens, config.hidden))
    x = g.pad(f"{prefix}.pad", x, axis=1, size=text + codes)
    x = g.reshape(f"{prefix}.rows", x, (batch * (text + codes), config.hidden))
    query, key, value = _heads(g, prefix, x, config, batch, text + codes)
    text_query, query = g.split(f"{prefix}.query.apart", query, (text, codes), axis=2)
    text_key, key = g.split(f"{prefix}.key.apart", key, (text, codes), axis=2)
    text_value, value = g.split(f"{prefix}.value.apart", value, (text, codes), axis=2)
    scores = g.matmul(f"{prefix}.text.scores", text_query, text_key, transpose_b=True)
    weights = _masked_softmax(g, f"{prefix}.text", scores, (text, text))
    text_out = g.matmul(f"{prefix}.text.context", weights, text_value)
    query, key, value = (
        _lines(g, f"{prefix}.{name}", part, kind)
        for name, part in (("query", query), ("key", key), ("value", value))
    )
    lines = (batch, config.heads, SIDE, SIDE)
    near = g.matmul(f"{prefix}.lines.scores", query, key, transpose_b=True)
    flat = (batch, config.heads, codes, config.head_size)
    query = g.reshape(f"{prefix}.query.flat", query, flat)
    far = g.matmul(f"{prefix}.to_text.scores", query, text_key, transpose_b=True)
    far = g.reshape(f"{prefix}.to_text.lines", far, (*lines, text))
    scores = g.concat(f"{prefix}.lines.concat", far, near, axis=4)
    weights = _masked_softmax(g, f"{prefix}.lines", scores, (SIDE, text + SIDE))
    far, near = g.split(f"{prefix}.lines.apart", weights, (text, SIDE), axis=4)
    near = g.matmul(f"{prefix}.lines.context", near, value)
    far = g.reshape(f"{prefix}.to_text.flat", far, (batch, config.heads, codes, text))
    far = g.matmul(f"{prefix}.to_text.context", far, text_value)
    far = g.reshape(f"{prefix}.to_text.out", far, g.shape(near))
    y = g.elementwise(f"{prefix}.lines.add", "add", near, far)
    if kind == "column":
        y = g.transpose(f"{prefix}.lines.rows_first", y, (0, 1, 3, 2, 4))
    y = g.concat(f"{prefix}.all", text_out, g.reshape(f"{prefix}.codes", y, flat), axis=2)
    y = g.linear(f"{prefix}.output", merge_heads(g, prefix, y), config.hidden)
    y = g.reshape(f"{prefix}.output.items", y, (batch, text + codes, config.hidden))
    y = g.narrow(f"{prefix}.output.read", y, axis=1, size=tokens)
    return g.reshape(f"{prefix}.output.rows", y, (batch * tokens, config.hidden))


def _lines(g: GraphBuilder, name: str, x: str, kind: str) -> str:
    """Return (N, heads, codes, size) with the codes of each row or column together."""
    batch, heads, _, size = g.shape(x)
    y = g.reshape(f"{name}.lines", x, (batch, heads, SIDE, SIDE, size))
    return g.transpose(f"{name}.columns", y, (0, 1, 3, 2, 4)) if kind == "column" else y
