"""GPT-2: a decoder-only transformer whose last product shares the weights of the first lookup.

Radford et al. (2019), with the parameters and shapes of Hugging Face transformers
(GPT2LMHeadModel).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ipusim.errors import WorkloadError
from ipusim.workload.builder import GraphBuilder
from ipusim.workload.graph import Graph
from ipusim.workload.model import Model
from ipusim.workload.zoo.transformer import Shape, drop, pre_norm_layer

VOCABULARY = 50257
POSITIONS = 1024
SOURCE = "Radford et al. 2019, as in Hugging Face transformers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """What distinguishes one GPT-2 from another; ``sequence_length`` in tokens, at most 1024."""

    name: str
    layers: int
    hidden: int
    heads: int
    sequence_length: int = POSITIONS

    def __post_init__(self) -> None:
        if not 1 <= self.sequence_length <= POSITIONS:
            raise WorkloadError(
                f"Sequence length {self.sequence_length} of {self.name!r} must be at least 1 and "
                f"at most {POSITIONS}, the positions that GPT-2 learns."
            )


def build(micro_batch: int | None, *, topology: Topology) -> Graph:
    """Build the forward graph from token numbers (N, T) to scores (N, T, vocabulary).

    Parameters
    ----------
    micro_batch : int or None
        Sequences per pass; None means 1.
    topology : Topology
    """
    g = GraphBuilder(topology.name)
    batch, tokens, hidden = micro_batch or 1, topology.sequence_length, topology.hidden
    shape = Shape(
        batch=batch, tokens=tokens, hidden=hidden, heads=topology.heads, feed_forward=4 * hidden
    )
    ids = g.input("input_ids", (batch, tokens), "int32")
    positions = g.parameter("position_ids", (tokens,), "constant", "int32")
    words = g.parameter("wte.weight", (VOCABULARY, hidden))
    places = g.gather("wpe", g.parameter("wpe.weight", (POSITIONS, hidden)), positions)
    x = g.reshape("wte.items", g.gather("wte", words, ids), (batch, tokens, hidden))
    x = g.reshape("wpe.rows", g.elementwise("wpe.add", "add", x, places), (shape.rows, hidden))
    x = drop(g, "drop", x, shape)
    causal = g.parameter("causal_mask", (1, 1, tokens, tokens), "constant")
    for layer in range(topology.layers):
        x = pre_norm_layer(g, f"h.{layer}", x, shape, mask=causal)
    x = g.matmul("lm_head", g.layer_norm("ln_f", x), words, transpose_b=True)
    return g.finish(g.reshape("lm_head.items", x, (batch, tokens, VOCABULARY)))


def _model(topology: Topology) -> Model:
    return Model(
        name=topology.name,
        family="gpt2",
        build=partial(build, topology=topology),
        source=SOURCE,
        loss="cross_entropy",
    )


def _topology(size: str, layers: int, hidden: int, heads: int, sequence_length: int) -> Topology:
    """Return a topology, named after its length where that is not the longest."""
    suffix = "" if sequence_length == POSITIONS else f"_sl{sequence_length}"
    return Topology(
        name=f"gpt2_{size}{suffix}",
        layers=layers,
        hidden=hidden,
        heads=heads,
        sequence_length=sequence_length,
    )


def gpt2_small(sequence_length: int = POSITIONS) -> Model:
    """GPT-2 small: 124,439,808 parameters, 146 GMAC per sequence of 1024 tokens."""
    return _model(_topology("small", 12, 768, 12, sequence_length))


def gpt2_medium(sequence_length: int = POSITIONS) -> Model:
    """GPT-2 medium: 354,823,168 parameters, 413 GMAC per sequence of 1024 tokens."""
    return _model(_topology("medium", 24, 1024, 16, sequence_length))


def gpt2_large(sequence_length: int = POSITIONS) -> Model:
    """GPT-2 large: 774,030,080 parameters, 887 GMAC per sequence of 1024 tokens."""
    return _model(_topology("large", 36, 1280, 20, sequence_length))


MODELS: dict[str, Callable[[], Model]] = {
    "gpt2_medium_sl128": partial(gpt2_medium, 128),
    "gpt2_large_sl512": partial(gpt2_large, 512),
}
"""Shorter ones by name."""
