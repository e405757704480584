"""Blocks of networks for speech: convolutions along time, gates, attention between sequences.

Activations are (items x steps, features) matrices, as in `transformer`. A convolution along time
reads them as (items, features, steps): on the IPU a change of the order of axes is a view, and the
convolution rearranges what it receives.
"""

from __future__ import annotations

from dataclasses import dataclass

from ipusim.workload.layers import GraphBuilder
from ipusim.workload.zoo.layers.transformer import merge_heads


def conv_along_time(
    g: GraphBuilder,
    name: str,
    x: str,
    batch: int,
    out_features: int,
    kernel: int,
    *,
    causal: bool = False,
    **settings: int,
) -> str:
    """Add a 1-D convolution of rows (N x T, C), with bias by default: (N x T', out features).

    The result has as many steps as the input over the stride; `causal` reads nothing later than
    the step it computes. Settings are those of `GraphBuilder.conv1d`.
    """
    rows, features = g.shape(x)
    reach = (kernel - 1) * settings.get("dilation", 1)
    padding = (reach, 0) if causal else (reach // 2, reach - reach // 2)
    y = g.reshape(f"{name}.columns", x, (batch, features, rows // batch))
    settings = {"padding": padding, "bias": True} | settings
    y = g.conv1d(name, y, out_features, kernel, **settings)
    return g.reshape(f"{name}.rows", y, (batch * g.shape(y)[2], out_features))


def gated(g: GraphBuilder, name: str, x: str) -> str:
    """Multiply the first half of the features by the sigmoid of the second (GLU)."""
    half = g.shape(x)[1] // 2
    values, gates = g.split(f"{name}.halves", x, (half, half), axis=1)
    return g.elementwise(name, "mul", values, g.elementwise(f"{name}.gate", "sigmoid", gates))


def swish(g: GraphBuilder, name: str, x: str) -> str:
    """Multiply by the sigmoid, in the two operators that PyTorch code writes it with."""
    return g.elementwise(name, "mul", x, g.elementwise(f"{name}.sigmoid", "sigmoid", x))


def gather_lengths(g: GraphBuilder, name: str, x: str, batch: int, frames: int) -> str:
    """Repeat each row (N x T, C) for as many frames as its symbol lasts: (N x frames, C).

    Which row each frame repeats is taken as known; the durations behind it cost little.
    """
    rows = g.parameter(f"{name}.rows", (batch * frames,), role="constant", dtype="int32")
    return g.gather(name, x, rows)


def multiply_lengths(g: GraphBuilder, name: str, x: str, batch: int, frames: int, ends: str) -> str:
    """Repeat rows as `gather_lengths` does, by the product with a matrix of zeros and ones.

    `ends` (N, T) are the frames at which symbols end; each frame is compared with where every
    symbol starts and ends.
    """
    rows, features = g.shape(x)
    steps = rows // batch
    size = (batch, frames, steps)
    row = g.reshape(f"{name}.row", ends, (batch, 1, steps))
    number = g.parameter(f"{name}.numbers", (frames, 1), role="constant")
    before = g.expand(f"{name}.expand", row, size)
    started = g.elementwise(f"{name}.started", "less_or_equal", before, number)
    lasting = g.elementwise(f"{name}.lasting", "greater", before, number)
    chosen = g.cast(
        f"{name}.chosen", g.elementwise(f"{name}.both", "and", started, lasting), "float32"
    )
    y = g.reshape(f"{name}.items", x, (batch, steps, features))
    return g.reshape(f"{name}.rows", g.matmul(name, chosen, y), (batch * frames, features))


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Sizes of an attention between two sequences for one micro-batch.

    With `shared_projection` keys and values come from products with the same weights; with
    `shifts_positions` positions are those of every distance, shifted into place for each query.
    """

    batch: int
    queries: int
    keys: int
    hidden: int
    heads: int
    shared_projection: bool = False
    dropout: bool = False
    bias: bool = True
    shifts_positions: bool = False

    @property
    def size(self) -> int:
        """Features of a head."""
        return self.hidden // self.heads


def attention_between(
    g: GraphBuilder,
    prefix: str,
    query: str,
    memory: str,
    shape: Attention,
    *,
    mask: str,
    positions: str | None = None,
) -> str:
    """Add attention of rows `query` (N x queries, H) over rows `memory` (N x keys, H), projected.

    Scores and weights are multiplied by the 0/1 `mask`, which broadcasts to (N, heads, queries,
    keys), and a large negative value is added where it is 0. With encodings of `positions` (keys,
    H) each query also multiplies their projection, and one learnt vector per head is added to it
    for the keys and one for the positions (Transformer-XL, arXiv 1901.02860, without the relative
    shift).
    """
    q = g.linear(f"{prefix}.query", query, shape.hidden, bias=shape.bias)
    k = g.linear(f"{prefix}.key", memory, shape.hidden, bias=shape.bias)
    if shape.shared_projection:
        v = g.matmul(f"{prefix}.value", memory, f"{prefix}.key.weight", transpose_b=True)
        if shape.bias:
            v = g.elementwise(f"{prefix}.value.bias_add", "add", v, f"{prefix}.key.bias")
    else:
        v = g.linear(f"{prefix}.value", memory, shape.hidden, bias=shape.bias)
    k = _heads(g, f"{prefix}.key", k, shape)
    v = _heads(g, f"{prefix}.value", v, shape)
    if positions is None:
        q = _heads(g, f"{prefix}.query", q, shape)
        scores = g.matmul(f"{prefix}.scores", q, k, transpose_b=True)
    else:
        scores = _scores_with_positions(g, prefix, q, k, positions, shape)
    scores = g.elementwise(f"{prefix}.scale", "scale", scores)
    scores = g.elementwise(f"{prefix}.mask", "mul", scores, mask)
    scores = g.elementwise(f"{prefix}.mask_away", "add", scores, mask)
    weights = g.softmax(f"{prefix}.softmax", scores)
    weights = g.elementwise(f"{prefix}.mask_weights", "mul", weights, mask)
    if shape.dropout:
        weights = g.elementwise(f"{prefix}.dropout", "dropout", weights)
    y = merge_heads(g, prefix, g.matmul(f"{prefix}.context", weights, v))
    return g.linear(f"{prefix}.output", y, shape.hidden, bias=shape.bias)


def _heads(g: GraphBuilder, name: str, x: str, shape: Attention, *, batch: int = 0) -> str:
    """Take the heads of rows apart: (N, heads, T, size)."""
    batch = batch or shape.batch
    steps = g.shape(x)[0] // batch
    y = g.reshape(f"{name}.heads", x, (batch, steps, shape.heads, shape.size))
    return g.transpose(f"{name}.heads_first", y, (0, 2, 1, 3))


def _scores_with_positions(
    g: GraphBuilder, prefix: str, query: str, key: str, positions: str, shape: Attention
) -> str:
    """Return the scores of keys and of positions, each with its own vector added to queries."""
    biased = {}
    for part in ("key", "position"):
        vector = g.parameter(f"{prefix}.{part}_bias", (shape.hidden,))
        y = g.elementwise(f"{prefix}.add_{part}_bias", "add", query, vector)
        biased[part] = _heads(g, f"{prefix}.query_for_{part}", y, shape)
    p = g.linear(f"{prefix}.position", positions, shape.hidden, bias=False)
    p = _heads(g, f"{prefix}.position", p, shape, batch=1)
    p = g.expand(f"{prefix}.position.repeat", p, (shape.batch, *g.shape(p)[1:]))
    scores = g.matmul(f"{prefix}.scores", biased["key"], key, transpose_b=True)
    more = g.matmul(f"{prefix}.position_scores", biased["position"], p, transpose_b=True)
    if shape.shifts_positions:
        # One column of zeros more, read as rows one shorter, cut to the keys.
        items, heads, queries, reach = g.shape(more)
        zeros = g.parameter(f"{prefix}.zeros", (items, heads, queries, 1), role="constant")
        more = g.concat(f"{prefix}.shift", zeros, more, axis=3)
        more = g.reshape(f"{prefix}.skew", more, (items, heads, reach + 1, queries))
        more = g.narrow(f"{prefix}.drop_row", more, axis=2, size=reach)
        more = g.reshape(f"{prefix}.unskew", more, (items, heads, queries, reach))
        more = g.narrow(f"{prefix}.cut", more, axis=3, size=shape.keys)
    return g.elementwise(f"{prefix}.add_positions", "add", scores, more)


def smoothed_cross_entropy(g: GraphBuilder, prefix: str, scores: str, targets: str) -> str:
    """Add the divergence of scores (N x L, V) from smoothed targets (N, L): (N x L,).

    As the applications write it: one-hot targets are scaled and shifted, and their logarithm is
    compared with that of the softmax.
    """
    rows, classes = g.shape(scores)
    numbers = g.parameter(f"{prefix}.classes", (classes,), role="constant", dtype="int32")
    wide = g.expand(f"{prefix}.expand", numbers, (rows, classes))
    column = g.reshape(f"{prefix}.column", targets, (rows, 1))
    y = g.cast(
        f"{prefix}.one_hot", g.elementwise(f"{prefix}.equal", "equal", wide, column), "float32"
    )
    y = g.elementwise(f"{prefix}.smooth", "add", g.elementwise(f"{prefix}.scale", "scale", y))
    probabilities = g.softmax(f"{prefix}.log_softmax", scores, log=True)
    difference = g.elementwise(
        f"{prefix}.difference", "sub", probabilities, g.elementwise(f"{prefix}.log", "log", y)
    )
    product = g.elementwise(f"{prefix}.weigh", "mul", difference, y)
    present = g.parameter(f"{prefix}.present", (rows, 1), role="constant")
    product = g.elementwise(f"{prefix}.mask", "mul", product, present)
    return g.reduce(f"{prefix}.sum", "sum", product, axis=1)
