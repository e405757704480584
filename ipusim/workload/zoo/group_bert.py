"""GroupBERT: BERT whose layers have a convolution module and grouped feed-forward modules.

Chelombiev et al. (arXiv 2106.05822), with the shapes of the recipe (graphcore/examples tag
v3.0.0, nlp/bert/tensorflow1, modeling.py, GroupBertModel): four modules a layer, each normalised
before and added to its input; a layer norm after the depth-wise-like convolution, where the paper
has a batch norm; no dropout.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ipusim.workload.builder import GraphBuilder
from ipusim.workload.graph import Conv
from ipusim.workload.model import Model
from ipusim.workload.zoo import bert
from ipusim.workload.zoo.transformer import Shape, attention

FEED_FORWARD_GROUPS = 4
CONV_GROUP_SIZE = 16
CONV_KERNEL = 7
SOURCE = "arXiv 2106.05822, as in graphcore/examples"

Module = Callable[[GraphBuilder, str, str, Shape], str]
"""Adds one module: builder, prefix, activations, shape."""


@dataclass(frozen=True, slots=True)
class _Tokens:
    """A grouped convolution along the tokens: channels per group and taps."""

    groups: int
    kernel: int

    def add(self, g: GraphBuilder, name: str, x: str, out_channels: int, shape: Shape) -> str:
        """Add it to activations (N x T, C), which are channels innermost as the IPU wants them."""
        channels = g.shape(x)[1]
        params = Conv(
            batch=shape.batch,
            in_channels=channels,
            out_channels=out_channels,
            groups=self.groups,
            field=(shape.tokens,),
            kernel=(self.kernel,),
            stride=(1,),
            padding_lower=((self.kernel - 1) // 2,),
            padding_upper=(self.kernel // 2,),
            dilation=(1,),
        )
        size = (out_channels, channels // self.groups, self.kernel)
        weight = g.parameter(f"{name}.weight", size)
        return g.apply(name, params, (x, weight), (shape.rows, out_channels))


def convolution(g: GraphBuilder, prefix: str, x: str, shape: Shape) -> str:
    """Add a gated linear unit, a grouped convolution over neighbouring tokens, and a dense layer.

    The convolution has groups of 16 channels and 7 taps, then a layer norm and a swish.
    """
    values = g.linear(f"{prefix}.glu.values", x, shape.hidden)
    gates = g.elementwise(
        f"{prefix}.glu.sigmoid", "sigmoid", g.linear(f"{prefix}.glu.gates", x, shape.hidden)
    )
    y = g.elementwise(f"{prefix}.glu.gate", "mul", values, gates)
    filtered = _Tokens(shape.hidden // CONV_GROUP_SIZE, CONV_KERNEL)
    y = filtered.add(g, f"{prefix}.conv", y, shape.hidden, shape)
    y = g.elementwise(f"{prefix}.swish", "swish", g.layer_norm(f"{prefix}.norm", y))
    return g.linear(f"{prefix}.output", y, shape.hidden)


def grouped_feed_forward(g: GraphBuilder, prefix: str, x: str, shape: Shape) -> str:
    """Add a dense layer with GELU, a grouped product back, and a dense layer that mixes groups."""
    y = g.linear(f"{prefix}.intermediate", x, shape.feed_forward)
    y = g.elementwise(f"{prefix}.gelu", "gelu", y)
    # The recipe runs the grouped product as a convolution of one tap.
    y = _Tokens(FEED_FORWARD_GROUPS, 1).add(g, f"{prefix}.grouped", y, shape.hidden, shape)
    y = g.bias(f"{prefix}.grouped", y, shape.hidden)
    return g.linear(f"{prefix}.mixer", y, shape.hidden)


def encoder(g: GraphBuilder, x: str, shape: Shape, mask: str, *, layers: int) -> str:
    """Add the layers of GroupBERT and the norm after the last."""

    def attend(g: GraphBuilder, prefix: str, x: str, shape: Shape) -> str:
        return attention(g, prefix, x, shape, mask=mask)

    modules: tuple[tuple[str, Module], ...] = (
        ("convolution", convolution),
        ("feed_forward_1", grouped_feed_forward),
        ("attention", attend),
        ("feed_forward_2", grouped_feed_forward),
    )
    for layer in range(layers):
        for name, add in modules:
            prefix = f"encoder.layer.{layer}.{name}"
            y = add(g, prefix, g.layer_norm(f"{prefix}.prenorm", x), shape)
            x = g.elementwise(f"{prefix}.add", "add", y, x)
    return g.layer_norm("encoder.norm", x)


def group_bert_base(sequence_length: int) -> Model:
    """GroupBERT Base for pre-training on sequences of 128, 384 or 512 tokens."""
    topology = bert.base(
        f"group_bert_base_pretraining_sl{sequence_length}",
        sequence_length,
        "pretraining",
        masked_tokens=bert.MASKED_TOKENS[sequence_length],
        dropout=False,
    )
    return Model(
        name=topology.name,
        family="group-bert",
        build=partial(
            bert.build, topology=topology, layers=partial(encoder, layers=topology.layers)
        ),
        source=SOURCE,
        loss="cross_entropy",
    )


MODELS: dict[str, Callable[[], Model]] = {
    f"group_bert_base_pretraining_sl{length}": partial(group_bert_base, length)
    for length in (128, 384)
}
"""Every one by name."""
