"""BERT: encoder, and heads for question answering and pre-training.

Devlin et al. (arXiv 1810.04805), with the parameters and shapes of Hugging Face transformers
(BertModel, BertForQuestionAnswering, BertForPreTraining); query, key and value weights are stored
as one tensor (`transformer`).
"""

from collections.abc import Callable

from ipusim.errors import check_name
from ipusim.workload.zoo.layers import transformer
from ipusim.workload.zoo.registry import Config, GraphBuilder, networks

POSITIONS = 512
TOKEN_TYPES = 2
SPAN_ENDS = 2
"""Scores of a token in question answering: that the answer starts, and that it ends there."""
HEADS = ("none", "question_answering", "pretraining")

Encoder = Callable[..., str]
"""Adds all layers: builder, activations (N, T, H), shape, mask, how many; what the heads read."""


def encoder(g: GraphBuilder, x: str, shape: transformer.Shape, mask: str, *, layers: int) -> str:
    """Add the layers of BERT."""
    for layer in range(layers):
        x = transformer.post_norm_layer(g.at(f"encoder.layer.{layer}"), x, shape, mask=mask)
    return x


@networks
def bert(
    g: GraphBuilder, batch: int, c: Config, encoder: Encoder = encoder
) -> str | tuple[str, str]:
    """BERT, or with another encoder another, from token numbers (N, T) to what its head computes.

    With no `head` the tokens (N, T, H) and the pooled (N, H), of the hidden state of the first
    token and a dense layer with tanh; for question answering scores (N, 2, T) of start and end; for
    pre-training scores of the masked tokens of each item (N x masked, vocabulary) and of the next
    sentence (N x sequences, 2). All layers have one `Shape`.
    """
    transformer.check_count(
        g, "Sequence length", c.tokens, POSITIONS, "the positions that a BERT learns"
    )
    check_name("head of a BERT", c.head, HEADS)
    for what, number in (("Masked tokens", c.masked_tokens), ("Sequences", c.packed)):
        transformer.check_count(g, f"{what} per item", number, c.tokens, "the sequence length")
    shape = transformer.Shape.of(c)
    size = (batch, c.tokens)
    ids, types = (g.input(name, size, "int32") for name in ("input_ids", "token_type_ids"))
    add_mask = transformer.packed_mask if c.packed > 1 else transformer.additive_mask
    mask = add_mask(g.at("attention_mask"), g.input("attention_mask", size, "int32"))
    x = embed(g.at("embeddings"), ids, c.vocabulary, shape, types)
    x = encoder(g, x, shape, mask, layers=c.layers)
    if c.head == "question_answering":
        return g.transpose("qa_outputs.ends_first", g.linear("qa_outputs", x, SPAN_ENDS), (0, 2, 1))
    # Dense layer on the first token of each sequence; a pack has them all in one place.
    first = transformer.first_tokens(g, "pooler.first_token", x, c.packed)
    pooled = g.elementwise("pooler.tanh", "tanh", g.linear("pooler.dense", first, shape.hidden))
    if c.head == "none":
        return x, pooled
    masked = transformer.first_tokens(g, "cls.predictions.masked", x, c.masked_tokens)
    words = g.full_name("embeddings.word_embeddings.weight")
    scores = _masked_language_model(g.at("cls.predictions"), masked, words)
    return scores, g.linear("cls.seq_relationship", pooled, 2)


def embed(
    g: GraphBuilder, tokens: str, vocabulary: int, shape: transformer.Shape, types: str = ""
) -> str:
    """Add the sum of the embeddings of words, types if there are any, and places; norm, dropout."""
    hidden = shape.hidden
    positions = g.constant("position_ids", g.shape(tokens)[1:], "int32")
    parts = [g.embedding("word_embeddings", tokens, vocabulary, hidden)]
    if types:
        parts.append(g.embedding("token_type_embeddings", types, TOKEN_TYPES, hidden))
    places = g.embedding("position_embeddings", positions, POSITIONS, hidden)
    x = g.elementwise("add", "add", *parts) if types else parts[0]
    x = g.layer_norm("LayerNorm", g.elementwise("add_position", "add", x, places))
    return transformer.drop(g, "dropout", x, shape)


def _masked_language_model(g: GraphBuilder, x: str, words: str) -> str:
    """Scores of the masked tokens, which the data put first, with the word embedding's weights."""
    y = g.linear("transform", x, g.shape(x)[1])
    y = g.elementwise("transform.gelu", "gelu", y)
    y = g.layer_norm("transform.LayerNorm", y)
    y = g.matmul("decoder", y, words, transpose_b=True)
    return g.bias("decoder", y, g.shape(y)[1])
