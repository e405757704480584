"""GPT-2: a decoder-only transformer whose last product shares the weights of the first lookup.

Radford et al. (2019), with the parameters and shapes of Hugging Face transformers
(GPT2LMHeadModel).
"""

from ipusim.errors import WorkloadError
from ipusim.workload.zoo.layers import transformer
from ipusim.workload.zoo.registry import GraphBuilder, networks

VOCABULARY = 50257
POSITIONS, LEARNT = 1024, "the positions that GPT-2 learns"


@networks
def gpt2(
    g: GraphBuilder,
    batch: int,
    layers: int,
    hidden: int,
    heads: int,
    *,
    sequence_length: int = POSITIONS,
    argmax: bool = False,
    mask_kind: str = "float32",
    vocabulary: int = VOCABULARY,
    context: int = 0,
    decode: bool = False,
) -> str:
    """GPT-2 from token numbers (N, T) to scores (N, T, vocabulary), or to the likeliest tokens.

    With `argmax` it hands back tokens. The causal mask is made anew in each layer, in float32 or as
    the other numbers ("storage"), or it is "stored", as in Hugging Face transformers. With a
    `context` keys and values of so many tokens stay on the chip and the likeliest next token is
    handed back: of a prompt of T tokens, or with `decode` of one token that attends to all of them.
    """
    if decode and not context:
        raise WorkloadError(f"{g.name!r} decodes from a cache: give its context, 1 or more tokens.")
    if context:
        argmax, sequence_length = True, 1 if decode else min(sequence_length, context)
        transformer.check_count(g, "Context", context, POSITIONS, LEARNT)
    transformer.check_count(g, "Sequence length", sequence_length, POSITIONS, LEARNT)
    tokens = sequence_length
    wide = mask_kind == "float32"
    shape = transformer.Shape(hidden=hidden, heads=heads, wide_mask=wide)
    ids = g.input("input_ids", (batch, tokens), "int32")
    positions = g.constant("position_ids", (tokens,), "int32")
    words = g.parameter("wte.weight", (vocabulary, hidden))
    x, places = g.gather("wte", words, ids), g.embedding("wpe", positions, POSITIONS, hidden)
    x = transformer.drop(g, "drop", g.elementwise("wpe.add", "add", x, places), shape)
    cache = (
        transformer.Cache(context=context, positions=positions, decode=decode) if context else None
    )
    seen = context if decode else tokens
    stored = mask_kind == "stored"
    kind = "float32" if stored else "int32"
    causal = g.constant("causal_mask", (1, 1, tokens, seen), kind)
    for layer in range(layers):
        # Each layer makes its mask anew from the stored 0/1 triangle (optimized_gpt2_attn.py),
        # whose bytes become float32 as a Python number scales them.
        prefix = f"h.{layer}.attention.causal"
        mask = causal if stored else transformer.large_where_zero(g.at(prefix), causal, wide=wide)
        x = transformer.pre_norm_layer(g.at(f"h.{layer}"), x, shape, mask=mask, cache=cache)
    x = g.layer_norm("ln_f", x)
    if cache and tokens > 1:
        x = g.narrow("ln_f.last", x, axis=1, size=1)
    x = g.matmul("lm_head", x, words, transpose_b=True)
    return g.argmax("argmax", x) if argmax else x
