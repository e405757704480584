"""Conformer: speech to text by layers of attention and convolution, with an attending decoder.

Gulati et al. (arXiv 2005.08100), as Graphcore trained it: the small one of release 2.4
(graphcore/examples@v2.4.0, applications/pytorch/conformer) with a shift of relative positions and
no bias in attention, the medium one of WeNet (v3.3.0, speech/conformer/pytorch) with neither, and
a CTC loss beside that of the decoder. Layer norms stand where the paper has batch norms.
"""

from functools import partial
from math import prod

from ipusim.workload.zoo.layers.speech import conv_along_time, gated
from ipusim.workload.zoo.layers.transformer import activate, merge_heads, split_heads
from ipusim.workload.zoo.registry import Config, GraphBuilder, networks


def _attention(
    g: GraphBuilder, query: str, memory: str, c: Config, *, mask: str, positions: str = ""
) -> str:
    """Add attention of `query` (N, queries, H) over `memory` (N, keys, H), projected.

    Keys and values come from products with the same weights.
    Scores and weights are multiplied by the 0/1 `mask`, which broadcasts to (N, heads, queries,
    keys), and a large negative value is added where it is 0. With encodings of `positions` (keys,
    H) each query also multiplies their projection, and one learnt vector per head is added to it
    for the keys and one for the positions (Transformer-XL, arXiv 1901.02860, without the relative
    shift).
    """
    dense, heads = partial(g.linear, bias=c.attention_bias), c.heads
    q = dense("query", query, c.hidden)
    k = dense("key", memory, c.hidden)
    v = g.matmul("value", memory, g.full_name("key.weight"), transpose_b=True)
    if c.attention_bias:
        v = g.elementwise("value.bias_add", "add", v, g.full_name("key.bias"))
    k = split_heads(g.at("key"), k, heads)
    v = split_heads(g.at("value"), v, heads)
    if positions:
        scores = _scores_with_positions(g, q, k, positions, c)
    else:
        q = split_heads(g.at("query"), q, heads)
        scores = g.matmul("scores", q, k, transpose_b=True)
    # graphcore/examples@v3.3.0:speech/conformer/pytorch/src/layers/attention.py divides.
    scores = g.elementwise("scale", "div", scores)
    scores = g.elementwise("mask", "mul", scores, mask)
    scores = g.elementwise("mask_away", "add", scores, mask)
    weights = g.softmax("softmax", scores)
    weights = g.elementwise("mask_weights", "mul", weights, mask)
    if c.attention_dropout:
        weights = g.dropout("dropout", weights)
    y = merge_heads(g, g.matmul("context", weights, v))
    return dense("output", y, c.hidden)


def _scores_with_positions(g: GraphBuilder, query: str, key: str, positions: str, c: Config) -> str:
    """Return the scores of keys and of positions, each with its own vector added to queries."""
    biased = {}
    for part in ("key", "position"):
        vector = g.parameter(f"{part}_bias", (c.hidden,))
        y = g.elementwise(f"add_{part}_bias", "add", query, vector)
        biased[part] = split_heads(g.at(f"query_for_{part}"), y, c.heads)
    p = g.linear("position", positions, c.hidden, bias=False)
    p = split_heads(g.at("position"), p, c.heads)
    p = g.expand("position.repeat", p, (g.shape(key)[0], *g.shape(p)[1:]))
    scores = g.matmul("scores", biased["key"], key, transpose_b=True)
    more = g.matmul("position_scores", biased["position"], p, transpose_b=True)
    if c.shifts_positions:
        # One column of zeros more, read as rows one shorter, cut to the keys.
        items, heads, queries, reach = g.shape(more)
        zeros = g.constant("zeros", (items, heads, queries, 1))
        more = g.concat("shift", zeros, more, axis=3)
        more = g.reshape("skew", more, (items, heads, reach + 1, queries))
        more = g.narrow("drop_row", more, axis=2, size=reach)
        more = g.reshape("unskew", more, (items, heads, queries, reach))
        more = g.narrow("cut", more, axis=3, size=g.shape(key)[2])
    return g.elementwise("add_positions", "add", scores, more)


def _feed_forward(g: GraphBuilder, x: str, features: int, *, encoding: bool) -> str:
    """Add norm, two dense layers and the residual: in the encoder half of it, with Swish."""
    y = g.linear("up", g.layer_norm("norm", x), features)
    y = activate(g, "act", y, "silu") if encoding else g.elementwise("act", "relu", y)
    y = g.linear("down", g.dropout("inner_dropout", y), g.shape(x)[2])
    y = g.dropout("dropout", y)
    if encoding:
        y = g.elementwise("half", "scale", y)
    return g.elementwise("add", "add", x, y)


def _convolve(g: GraphBuilder, x: str, c: Config) -> str:
    """Add norm, gate, depthwise convolution along time, and the residual."""
    hidden = c.hidden
    y = g.layer_norm("norm_in", x)
    y = conv_along_time(g, "pointwise1", y, 2 * hidden, 1, bias=False)
    y = gated(g, "glu", y)
    y = conv_along_time(g, "depthwise", y, hidden, c.kernel, groups=hidden, bias=False)
    y = activate(g, "act", g.layer_norm("norm", y), "silu")
    y = conv_along_time(g, "pointwise2", y, hidden, 1, bias=False)
    return g.elementwise("add", "add", x, g.dropout("dropout", y))


def _encode(g: GraphBuilder, x: str, mask: str, c: Config) -> str:
    """Add the encoder: (N, steps, H) to the same."""
    _, steps, hidden = g.shape(x)
    reach = 2 * steps - 1 if c.shifts_positions else steps
    positions = g.constant("encoder.positions", (1, reach, hidden))
    for layer in range(c.layers):
        block = g.at(f"encoder.{layer}")
        x = _feed_forward(block.at("macaron"), x, c.feed_forward, encoding=True)
        own = block.at("attention")
        y = own.layer_norm("norm", x)
        y = _attention(own, y, y, c, mask=mask, positions=positions)
        x = own.elementwise("add", "add", x, own.dropout("output_dropout", y))
        x = _convolve(block.at("conv"), x, c)
        x = _feed_forward(block.at("mlp"), x, c.feed_forward, encoding=True)
        x = block.layer_norm("norm", x)
    return g.layer_norm("encoder.norm", x)


def _decode(g: GraphBuilder, tokens: str, memory: str, memory_mask: str, c: Config) -> str:
    """Add the decoder: tokens (N, L) to scores (N, L, vocabulary)."""
    (batch, length), hidden = g.shape(tokens), c.hidden
    table = g.parameter("table", (c.vocabulary, hidden))
    x = g.elementwise("scale", "scale", g.gather("embed", table, tokens))
    positions = g.constant("positions", (length, hidden))
    x = g.dropout("dropout", g.elementwise("add_positions", "add", x, positions))
    causal = g.constant("mask", (batch, 1, length, length))
    for layer in range(c.decoder_layers):
        block = g.at(str(layer))
        for name, source, mask in (("self", "", causal), ("source", memory, memory_mask)):
            own = block.at(name)
            y = own.layer_norm("norm", x)
            y = _attention(own, y, source or y, c, mask=mask)
            x = own.elementwise("add", "add", x, own.dropout("out_dropout", y))
        x = _feed_forward(block.at("mlp"), x, c.decoder_feed_forward, encoding=False)
    return g.linear("output", g.layer_norm("norm", x), c.vocabulary)


def _smoothed_cross_entropy(g: GraphBuilder, scores: str, targets: str) -> str:
    """Add the divergence of scores (N, L, V) from smoothed targets (N, L): (N x L,)."""
    rows, classes = prod(g.shape(targets)), g.shape(scores)[2]
    scores = g.reshape("rows", scores, (rows, classes))
    numbers = g.constant("classes", (classes,), "int32")
    wide = g.expand("expand", numbers, (rows, classes))
    column = g.reshape("column", targets, (rows, 1))
    # As the applications write it: one-hot targets are scaled and shifted, and their logarithm is
    # compared with that of the softmax.
    y = g.cast("one_hot", g.elementwise("equal", "equal", wide, column), "float32")
    y = g.chain(y, scale="scale", smooth="add")
    probabilities = g.softmax("log_softmax", scores, log=True)
    difference = g.elementwise("difference", "sub", probabilities, g.elementwise("log", "log", y))
    product = g.elementwise("weigh", "mul", difference, y)
    present = g.constant("present", (rows, 1))
    product = g.elementwise("mask", "mul", product, present)
    return g.reduce("sum", "sum", product, axis=1)


@networks
def conformer(g: GraphBuilder, batch: int, c: Config) -> tuple[str, ...]:
    """Conformer, from frames (N, T, 80) and tokens (N, L) to the losses."""
    x = g.input("features", (batch, c.frames, c.mels))
    tokens = g.input("tokens", (batch, c.tokens), "int32")
    targets = g.input("targets", (batch, c.tokens), "int32")
    for function in ("sub", "mul"):
        statistics = g.constant(f"normalise.{function}.by", (c.mels,))
        x = g.elementwise(f"normalise.{function}", function, x, statistics)
    x = g.reshape("subsample.image", x, (batch, 1, c.frames, c.mels))
    for layer in (1, 2):
        x = g.conv(f"subsample.conv{layer}", x, c.subsampling, 3, stride=2, bias=True)
        x = g.elementwise(f"subsample.act{layer}", "relu", x)
    _, channels, steps, bands = g.shape(x)
    x = g.transpose("subsample.steps_first", x, (0, 2, 1, 3))
    x = g.reshape("subsample.rows", x, (batch, steps, channels * bands))
    x = g.linear("subsample.output", x, c.hidden)
    x = g.dropout("subsample.dropout", g.elementwise("subsample.scale", "scale", x))
    mask = g.constant("encoder.mask", (batch, 1, 1, steps))
    memory = _encode(g, x, mask, c)
    losses = []
    if c.ctc:
        scores = g.linear("ctc.output", memory, c.vocabulary)
        probabilities = g.softmax("ctc.log_softmax", scores, log=True)
        losses.append(g.alignment_loss("ctc", probabilities, targets, kind="ctc", steps=steps))
    scores = _decode(g.at("decoder"), tokens, memory, mask, c)
    losses.insert(0, _smoothed_cross_entropy(g.at("loss"), scores, targets))
    return tuple(losses)
