"""GroupBERT: BERT whose layers have a convolution module and grouped feed-forward modules.

Chelombiev et al. (arXiv 2106.05822), with the shapes of the recipe (graphcore/examples tag
v3.0.0, nlp/bert/tensorflow1, modeling.py, GroupBertModel): four modules a layer, each normalised
before and added to its input; a layer norm after the depth-wise-like convolution, where the paper
has a batch norm; no dropout.
"""

from collections.abc import Callable
from functools import partial

from ipusim.workload.zoo.language import bert
from ipusim.workload.zoo.layers.speech import conv_along_time
from ipusim.workload.zoo.layers.transformer import Shape, attention
from ipusim.workload.zoo.registry import Config, GraphBuilder, networks

FEED_FORWARD_GROUPS, CONV_GROUP_SIZE, CONV_KERNEL = 4, 16, 7

Module = Callable[[GraphBuilder, str, Shape], str]
"""Adds one module: builder, activations, shape."""


def convolution(g: GraphBuilder, x: str, shape: Shape) -> str:
    """Add a gated linear unit, a convolution (7 taps, groups of 16), norm, swish, a dense layer."""
    values = g.linear("glu.values", x, shape.hidden)
    gates = g.elementwise("glu.sigmoid", "sigmoid", g.linear("glu.gates", x, shape.hidden))
    y = g.elementwise("glu.gate", "mul", values, gates)
    settings = {"groups": shape.hidden // CONV_GROUP_SIZE, "bias": False}
    y = conv_along_time(g, "conv", y, shape.hidden, CONV_KERNEL, **settings)
    y = g.elementwise("swish", "swish", g.layer_norm("norm", y))
    return g.linear("output", y, shape.hidden)


def grouped_feed_forward(g: GraphBuilder, x: str, shape: Shape) -> str:
    """Add a dense layer with GELU, a grouped product back, and a dense layer that mixes groups."""
    y = g.linear("intermediate", x, shape.inner)
    y = g.elementwise("gelu", "gelu", y)
    # The recipe runs the grouped product as a convolution of one tap.
    y = conv_along_time(g, "grouped", y, shape.hidden, 1, groups=FEED_FORWARD_GROUPS)
    return g.linear("mixer", y, shape.hidden)


def encoder(g: GraphBuilder, x: str, shape: Shape, mask: str, *, layers: int) -> str:
    """Add the layers of GroupBERT and the norm after the last."""
    modules: tuple[tuple[str, Module], ...] = (
        ("convolution", convolution),
        ("feed_forward_1", grouped_feed_forward),
        ("attention", partial(attention, mask=mask)),
        ("feed_forward_2", grouped_feed_forward),
    )
    for layer in range(layers):
        for name, add in modules:
            module = g.at(f"encoder.layer.{layer}.{name}")
            y = add(module, module.layer_norm("prenorm", x), shape)
            x = module.elementwise("add", "add", y, x)
    return g.layer_norm("encoder.norm", x)


@networks
def group_bert(g: GraphBuilder, batch: int, c: Config) -> str | tuple[str, str]:
    """GroupBERT: a BERT with these layers."""
    return bert.bert(g, batch, c, encoder)
