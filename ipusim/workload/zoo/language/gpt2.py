"""GPT-2: a decoder-only transformer whose last product shares the weights of the first lookup.

Radford et al. (2019), with the parameters and shapes of Hugging Face transformers
(GPT2LMHeadModel).
"""

from functools import partial

from ipusim.errors import WorkloadError
from ipusim.workload.zoo.layers import transformer
from ipusim.workload.zoo.registry import Config, GraphBuilder, networks

POSITIONS, LEARNT = 1024, "the positions that GPT-2 learns"


@networks
def gpt2(g: GraphBuilder, batch: int, c: Config) -> str:
    """GPT-2 from token numbers (N, T) to scores (N, T, vocabulary), or to the likeliest tokens."""
    context, decode, hidden, tokens = c.context, c.decode, c.hidden, c.sequence_length
    if decode and not context:
        raise WorkloadError(f"{g.name!r} decodes from a cache: give its context, 1 or more tokens.")
    if context:
        tokens = 1 if decode else min(tokens, context)
        transformer.check_count(g, "Context", context, POSITIONS, LEARNT)
    transformer.check_count(g, "Sequence length", tokens, POSITIONS, LEARNT)
    wide = c.mask_kind == "float32"
    shape = transformer.Shape(hidden=hidden, heads=c.heads, wide_mask=wide)
    ids = g.input("input_ids", (batch, tokens), "int32")
    positions = g.constant("position_ids", (tokens,), "int32")
    words = g.parameter("wte.weight", (c.vocabulary, hidden))
    x, places = g.gather("wte", words, ids), g.embedding("wpe", positions, POSITIONS, hidden)
    x = transformer.drop(g, "drop", g.elementwise("wpe.add", "add", x, places), shape)
    keep = partial(_kept, positions=positions, c=c) if context else None
    seen = context if decode else tokens
    stored = c.mask_kind == "stored"
    kind = "float32" if stored else "int32"
    causal = g.constant("causal_mask", (1, 1, tokens, seen), kind)
    for layer in range(c.layers):
        # Each layer makes its mask anew from the stored 0/1 triangle (optimized_gpt2_attn.py),
        # whose bytes become float32 as a Python number scales them.
        prefix = f"h.{layer}.attention.causal"
        mask = causal if stored else transformer.large_where_zero(g.at(prefix), causal, wide=wide)
        x = transformer.pre_norm_layer(g.at(f"h.{layer}"), x, shape, mask=mask, keep=keep)
    x = g.layer_norm("ln_f", x)
    if context and tokens > 1:
        x = g.narrow("ln_f.last", x, axis=1, size=1)
    x = g.matmul("lm_head", x, words, transpose_b=True)
    return g.argmax("argmax", x) if c.argmax or context else x


def _kept(g: GraphBuilder, name: str, new: str, positions: str, c: Config) -> str:
    """Write keys or values (N, heads, T, size) into the cache; a first pass attends to its own."""
    batch, heads, _, size = g.shape(new)
    # One slice per token (popops::dynamicUpdate); the cache is assumed to lie as the products read
    # it.
    stored = g.parameter(f"{name}.cache", (batch, heads, c.context, size), "state")
    g.write_slices(f"{name}.write", stored, new, positions, axis=2)
    return stored if c.decode else new
