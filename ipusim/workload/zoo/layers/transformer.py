"""Blocks of transformers: attention with heads, feed-forward layers, the additive mask.

Vaswani et al. (arXiv 1706.03762). Activations are (items, tokens, features); heads are taken apart
and put together by one transpose each. Query, key and value come from one product, as in ViT and
GPT-2 and as Graphcore runs BERT (graphcore/examples, nlp/bert/pytorch/bert_fused_attention.py), or
from three.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from ipusim.errors import WorkloadError, check_name
from ipusim.workload.layers import GraphBuilder

ACTIVATIONS: dict[str, dict[str, str]] = {
    "gelu": {},
    "erf_gelu": {"scale": "scale", "erf": "erf", "shift": "add", "half": "scale"},
    "quick_gelu": {"scale": "scale", "sigmoid": "sigmoid"},
    "silu": {"sigmoid": "sigmoid"},
}
"""GELU by its tanh approximation, which has a vertex, by the error function, by a sigmoid; Swish.

With each the steps to what multiplies the input, as frameworks write it.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes and settings of the layers of a transformer.

    The feed-forward layers have four times the hidden features where `feed_forward` is 0; a head
    has `head_size` features where that is not 0, otherwise an equal share of the hidden ones.

    In training elements are dropped at the places `drops`: "attention" weights, "inner" for what
    follows the activation inside the feed-forward layers, "output" at the end of each half of a
    layer. Scores are multiplied by a constant, or divided by one (`divides_scores`): PopART runs
    what is written (willow/src/popx/op/divx.cpp). With `stochastic_depth` training drops whole
    halves of a layer, for each item apart (arXiv 1603.09382). With `wide_mask` scores are widened
    to float32 for the mask and narrowed afterwards.
    """

    hidden: int
    heads: int
    feed_forward: int = 0
    drops: tuple[str, ...] = ("attention", "output")
    stochastic_depth: bool = False
    fused_query_key_value: bool = True
    attention_bias: bool = True
    activation: str = "gelu"
    wide_mask: bool = False
    divides_scores: bool = False
    head_size: int = 0

    @classmethod
    def of(cls, settings: object) -> Shape:
        """Return the shape that the settings of a network give, among others."""
        said = vars(settings)
        return cls(**{one.name: said[one.name] for one in fields(cls) if one.name in said})

    def __post_init__(self) -> None:
        check_name("activation of a transformer", self.activation, ACTIVATIONS)
        if self.hidden % self.heads:
            raise WorkloadError(
                f"Hidden size {self.hidden} of a transformer must be a multiple of its "
                f"{self.heads} heads."
            )

    @property
    def inner(self) -> int:
        """Features inside the feed-forward layers."""
        return self.feed_forward or 4 * self.hidden

    @property
    def size(self) -> int:
        """Features of a head."""
        return self.head_size or self.hidden // self.heads


def check_count(g: GraphBuilder, what: str, number: int, most: int, why: str) -> None:
    """Raise `WorkloadError` for a number of something that a network cannot have."""
    if not 1 <= number <= most:
        raise WorkloadError(
            f"{what} {number} of {g.name!r} must be at least 1 and at most {most}, {why}."
        )


def drop(g: GraphBuilder, name: str, x: str, shape: Shape, place: str = "output") -> str:
    """Add a dropout, if the network has any at such a place."""
    return g.dropout(name, x) if place in shape.drops else x


def large_where_zero(g: GraphBuilder, mask: str, *, wide: bool = False) -> str:
    """Turn a 0/1 mask into 0 where it is 1, else a large negative value, if `wide` in float32."""
    y = g.cast("cast", mask, "float32", fixed=wide)
    return g.chain(y, invert="sub", scale="scale")


def additive_mask(g: GraphBuilder, mask: str) -> str:
    """Turn a 0/1 mask (N, tokens) into 0 or a large negative value to add, (N, 1, 1, tokens)."""
    batch, tokens = g.shape(mask)
    y = large_where_zero(g, mask)
    return g.reshape("reshape", y, (batch, 1, 1, tokens))


def packed_mask(g: GraphBuilder, sequences: str) -> str:
    """Turn each token's sequence (N, T) into 0 within one, else a large negative, (N, 1, T, T)."""
    batch, tokens = g.shape(sequences)
    size = (batch, tokens, tokens)
    rows = g.expand("rows", g.reshape("column", sequences, (batch, tokens, 1)), size)
    row = g.reshape("row", sequences, (batch, 1, tokens))
    y = large_where_zero(g, g.elementwise("equal", "equal", rows, row))
    return g.reshape("reshape", y, (batch, 1, tokens, tokens))


def drop_path(g: GraphBuilder, x: str, shape: Shape) -> str:
    """Add stochastic depth to (N, T, H), if the network has any."""
    if not shape.stochastic_depth:
        return x
    # Kept items are scaled, and all are multiplied by a random 0 or 1 of their own, as in timm.
    ones = g.constant("ones", (g.shape(x)[0], 1, 1))
    y = g.elementwise("scale", "scale", x)
    return g.elementwise("mask", "mul", y, g.elementwise("draw", "dropout", ones))


def first_tokens(g: GraphBuilder, name: str, x: str, count: int = 1) -> str:
    """Add a view of the first tokens of every item of (N, T, H): (N x count, H)."""
    items, _, hidden = g.shape(x)
    y = g.narrow(name, x, axis=1, size=count)
    return g.reshape(f"{name}.rows", y, (items * count, hidden))


def activate(g: GraphBuilder, name: str, x: str, activation: str) -> str:
    """Add one of `ACTIVATIONS`, as the operators that a framework writes it with."""
    steps = ACTIVATIONS[activation]
    if not steps:
        return g.elementwise(name, activation, x)
    return g.elementwise(name, "mul", x, g.at(name).chain(x, **steps))


def query_key_value(g: GraphBuilder, x: str, shape: Shape) -> tuple[str, ...]:
    """Add the products that make query, key and value: (N, T, H) to three (N, heads, T, size)."""
    features = shape.heads * shape.size
    dense = partial(g.linear, bias=shape.attention_bias)
    if not shape.fused_query_key_value:
        return tuple(
            split_heads(g.at(part), dense(part, x, features), shape.heads)
            for part in ("query", "key", "value")
        )
    return split_together(g, dense("qkv", x, 3 * features), shape.heads)


def split_together(g: GraphBuilder, x: str, heads: int) -> tuple[str, ...]:
    """Take query, key and value and their heads apart: (N, T, 3 H) to three (N, heads, T, size)."""
    items, tokens, features = g.shape(x)
    y = g.reshape("split_heads", x, (items, tokens, 3, heads, features // (3 * heads)))
    return g.unstack("split", g.transpose("heads_first", y, (2, 0, 3, 1, 4)))


def split_heads(g: GraphBuilder, x: str, heads: int) -> str:
    """Take the heads of (N, T, H) apart: (N, heads, T, size)."""
    items, tokens, features = g.shape(x)
    y = g.reshape("split_heads", x, (items, tokens, heads, features // heads))
    return g.transpose("heads_first", y, (0, 2, 1, 3))


def merge_heads(g: GraphBuilder, x: str) -> str:
    """Put heads together again: (N, heads, T, size) to (N, T, heads x size)."""
    items, heads, tokens, size = g.shape(x)
    y = g.transpose("tokens_first", x, (0, 2, 1, 3))
    return g.reshape("merge_heads", y, (items, tokens, heads * size))


Keep = Callable[[GraphBuilder, str, str], str]
"""Keeps new keys or values, so named, for the tokens that follow; returns what is attended to."""


def attention(
    g: GraphBuilder, x: str, shape: Shape, *, mask: str | None = None, keep: Keep | None = None
) -> str:
    """Add multi-head self-attention, (N, T, H) to the same; `mask` is added to the scores."""
    query, key, value = query_key_value(g, x, shape)
    if keep is not None:
        key, value = keep(g, "key", key), keep(g, "value", value)
    scores = g.matmul("scores", query, key, transpose_b=True)
    scores = g.elementwise("scale", "div" if shape.divides_scores else "scale", scores)
    if mask is not None:
        if shape.wide_mask:
            scores = g.cast("widen", scores, "float32", fixed=True)
        scores = g.elementwise("mask", "add", scores, mask)
        if shape.wide_mask:
            scores = g.cast("narrow", scores, "float32")
    weights = drop(g, "dropout", g.softmax("softmax", scores), shape, "attention")
    y = merge_heads(g, g.matmul("context", weights, value))
    y = g.linear("output", y, shape.hidden, bias=shape.attention_bias)
    return drop(g, "output.dropout", y, shape)


def feed_forward(g: GraphBuilder, x: str, shape: Shape) -> str:
    """Add two dense layers with a GELU between them."""
    y = g.linear("intermediate", x, shape.inner)
    y = activate(g, "gelu", y, shape.activation)
    y = drop(g, "intermediate.dropout", y, shape, "inner")
    y = g.linear("output", y, shape.hidden)
    return drop(g, "output.dropout", y, shape)


def post_norm_layer(g: GraphBuilder, x: str, shape: Shape, *, mask: str | None = None) -> str:
    """Add a layer that normalises after each residual addition, as the original and BERT do."""
    for name, half in (("attention", partial(attention, mask=mask)), ("mlp", feed_forward)):
        y = half(g.at(name), x, shape)
        x = g.layer_norm(f"{name}.norm", g.elementwise(f"{name}.add", "add", y, x))
    return x


def pre_norm_layer(g: GraphBuilder, x: str, shape: Shape, **given: Any) -> str:
    """Add a layer that normalises before each half, as ViT and GPT-2 do; see `attention`."""
    for name, half in (("attention", partial(attention, **given)), ("mlp", feed_forward)):
        y = half(g.at(name), g.layer_norm(f"{name}.norm", x), shape)
        y = drop_path(g.at(f"{name}.drop_path"), y, shape)
        x = g.elementwise(f"{name}.add", "add", y, x)
    return x
