"""GPT-2: a decoder-only transformer whose last product shares the weights of the first lookup.

Radford et al. (2019), with the parameters and shapes of Hugging Face transformers
(GPT2LMHeadModel).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from ipusim.errors import WorkloadError
from ipusim.workload.graph import Graph
from ipusim.workload.layers import GraphBuilder
from ipusim.workload.model import Model
from ipusim.workload.zoo.layers.transformer import Shape, drop, large_where_zero, pre_norm_layer

VOCABULARY = 50257
POSITIONS = 1024
SOURCE = "Radford et al. 2019, as in Hugging Face transformers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """What distinguishes one GPT-2 from another.

    ``sequence_length`` in tokens, at most 1024; with ``argmax`` the result is the likeliest token
    at each position instead of all scores; with ``wide_mask`` the causal mask is float32.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    sequence_length: int = POSITIONS
    argmax: bool = False
    wide_mask: bool = True
    vocabulary: int = VOCABULARY

    def __post_init__(self) -> None:
        if not 1 <= self.sequence_length <= POSITIONS:
            raise WorkloadError(
                f"Sequence length {self.sequence_length} of {self.name!r} must be at least 1 and "
                f"at most {POSITIONS}, the positions that GPT-2 learns."
            )


def build(micro_batch: int | None, *, topology: Topology) -> Graph:
    """Build the forward graph from token numbers (N, T) to scores (N, T, vocabulary) or tokens.

    Parameters
    ----------
    micro_batch : int or None
        Sequences per pass; None means 1.
    topology : Topology
    """
    g = GraphBuilder(topology.name)
    batch, tokens, hidden = micro_batch or 1, topology.sequence_length, topology.hidden
    shape = Shape(
        batch=batch,
        tokens=tokens,
        hidden=hidden,
        heads=topology.heads,
        feed_forward=4 * hidden,
        wide_mask=topology.wide_mask,
    )
    ids = g.input("input_ids", (batch, tokens), "int32")
    positions = g.parameter("position_ids", (tokens,), "constant", "int32")
    words = g.parameter("wte.weight", (topology.vocabulary, hidden))
    x = g.reshape("wte.items", g.gather("wte", words, ids), (batch, tokens, hidden))
    places = g.gather("wpe", g.parameter("wpe.weight", (POSITIONS, hidden)), positions)
    x = g.reshape("wpe.rows", g.elementwise("wpe.add", "add", x, places), (shape.rows, hidden))
    x = drop(g, "drop", x, shape)
    causal = g.parameter("causal_mask", (1, 1, tokens, tokens), "constant", "int32")
    for layer in range(topology.layers):
        # Each layer makes its mask anew from the stored 0/1 triangle (optimized_gpt2_attn.py),
        # whose bytes become float32 as a Python number scales them.
        prefix = f"h.{layer}.attention.causal"
        mask = large_where_zero(g, prefix, causal, wide=topology.wide_mask)
        x = pre_norm_layer(g, f"h.{layer}", x, shape, mask=mask)
    x = g.matmul("lm_head", g.layer_norm("ln_f", x), words, transpose_b=True)
    x = g.reshape("lm_head.items", x, (batch, tokens, topology.vocabulary))
    return g.finish(g.argmax("argmax", x) if topology.argmax else x)


def _model(topology: Topology) -> Model:
    return Model(
        name=topology.name,
        family="gpt2",
        build=partial(build, topology=topology),
        source=SOURCE,
        loss="" if topology.argmax else "cross_entropy_accuracy",
    )


_SIZES = {"small": (12, 768, 12), "medium": (24, 1024, 16), "large": (36, 1280, 20)}
"""Layers, features and heads."""

PADDED_VOCABULARY = 50272
"""A multiple of 32, as Graphcore runs it (graphcore/examples, nlp/gpt2/pytorch/config)."""


def _sized(size: str, sequence_length: int, *, name: str = "", **options: Any) -> Model:
    """Return a model; further options are those of `Topology`."""
    layers, hidden, heads = _SIZES[size]
    topology = Topology(
        name=name or f"gpt2_{size}",
        layers=layers,
        hidden=hidden,
        heads=heads,
        sequence_length=sequence_length,
        **options,
    )
    return _model(topology)


def gpt2_small(sequence_length: int = POSITIONS) -> Model:
    """GPT-2 small: 124,439,808 parameters, 146 GMAC per sequence of 1024 tokens."""
    return _sized("small", sequence_length)


def gpt2_medium(sequence_length: int = POSITIONS) -> Model:
    """GPT-2 medium: 354,823,168 parameters, 413 GMAC per sequence of 1024 tokens."""
    return _sized("medium", sequence_length)


def gpt2_large(sequence_length: int = POSITIONS) -> Model:
    """GPT-2 large: 774,030,080 parameters, 887 GMAC per sequence of 1024 tokens."""
    return _sized("large", sequence_length)


def _padded(size: str, sequence_length: int, **options: bool) -> tuple[str, partial[Model]]:
    """Return name and maker of a model with the padded vocabulary."""
    name = f"gpt2_{size}_padded_sl{sequence_length}{'_argmax' if options.get('argmax') else ''}"
    padded = {"name": name, "vocabulary": PADDED_VOCABULARY, **options}
    return name, partial(_sized, size, sequence_length, **padded)


MODELS: dict[str, Callable[[], Model]] = dict(
    (
        _padded("medium", 128, wide_mask=False),
        _padded("large", 512),
        *(_padded(size, POSITIONS) for size in _SIZES),
        *(_padded(size, POSITIONS, argmax=True) for size in _SIZES),
    )
)
"""Those with a padded vocabulary by name, some of which hand back tokens instead of scores.

PopTorch promotes operands as PyTorch does from SDK 3.0 on (poptorch/source/ImplicitCasting.cpp);
the one with 128 tokens is of SDK 2.3, which narrowed the float32 operand of two by default."""
