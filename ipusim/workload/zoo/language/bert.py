"""BERT: encoder, and heads for question answering and pre-training.

Devlin et al. (arXiv 1810.04805), with the parameters and shapes of Hugging Face transformers
(BertModel, BertForQuestionAnswering, BertForPreTraining); query, key and value weights are stored
as one tensor (`transformer`).
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
from ipusim.workload.zoo.layers.transformer import (
    Shape,
    additive_mask,
    drop,
    packed_mask,
    post_norm_layer,
)

VOCABULARY = 30522
POSITIONS = 512
TOKEN_TYPES = 2
SPAN_ENDS = 2
"""Scores of a token in question answering: that the answer starts, and that it ends there."""
LOSSES = {
    "none": "",
    "question_answering": "cross_entropy",
    "pretraining": "cross_entropy_accuracy",
}
"""What each head is trained with; pre-training counts the words and the pairs that are right, in
PopART, PyTorch and TensorFlow 1 (graphcore/examples v2.4.0, applications/*/bert)."""
HEADS = tuple(LOSSES)
SOURCE = "arXiv 1810.04805, as in Hugging Face transformers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """What distinguishes one BERT from another.

    Attributes
    ----------
    name : str
    layers, hidden, heads, feed_forward : int
        Encoder layers; features of a token; attention heads; features inside feed-forward layers.
    sequence_length : int
        Tokens per item, at most 512.
    head : {"none", "question_answering", "pretraining"}
        What reads the encoder. "none" ends with the pooler (hidden state of the first token and a
        dense layer with tanh).
    masked_tokens : int
        Tokens per item that the language-model head predicts in pre-training.
    vocabulary : int
    packed : int
        Sequences that an item may hold; above 1 tokens attend only to their own sequence, and each
        sequence has a first token.
    dropout, attention_dropout : bool
        Whether training drops elements at all, and attention weights among them.
    fused_query_key_value, attention_bias : bool
    activation : str
        As in `transformer.Shape`.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    feed_forward: int
    sequence_length: int
    head: str = "none"
    masked_tokens: int = 20
    vocabulary: int = VOCABULARY
    packed: int = 1
    dropout: bool = True
    attention_dropout: bool = True
    fused_query_key_value: bool = True
    attention_bias: bool = True
    activation: str = "gelu"

    def __post_init__(self) -> None:
        if not 1 <= self.sequence_length <= POSITIONS:
            raise WorkloadError(
                f"Sequence length {self.sequence_length} of {self.name!r} must be at least 1 and "
                f"at most {POSITIONS}, the positions that BERT learns."
            )
        if self.head not in HEADS:
            raise WorkloadError(
                f"Head {self.head!r} of {self.name!r} must be one of {', '.join(HEADS)}."
            )
        for what, number in (("masked tokens", self.masked_tokens), ("sequences", self.packed)):
            if not 1 <= number <= self.sequence_length:
                raise WorkloadError(
                    f"{number} {what} per item of {self.name!r} are impossible: use 1 to "
                    f"{self.sequence_length}, the sequence length."
                )


Encoder = Callable[[GraphBuilder, str, Shape, str], str]
"""Adds all layers: builder, activations (N x T, H), shape, mask; returns what the heads read."""


def encoder(g: GraphBuilder, x: str, shape: Shape, mask: str, *, layers: int) -> str:
    """Add the layers of BERT."""
    for layer in range(layers):
        x = post_norm_layer(g, f"encoder.layer.{layer}", x, shape, mask=mask)
    return x


def build(micro_batch: int | None, *, topology: Topology, layers: Encoder | None = None) -> Graph:
    """Build the forward graph from token numbers (N, T) to what the head computes.

    Parameters
    ----------
    micro_batch : int or None
        Items per pass; None means 1.
    topology : Topology
    layers : callable, optional
        Adds other layers than BERT's.

    Returns
    -------
    Graph
        Outputs: with no head the tokens (N x T, H) and the pooled (N, H); for question answering
        scores (N, 2, T) of start and end; for pre-training scores of the masked tokens
        (N x masked, vocabulary) and of the next sentence (N x sequences, 2).
    """
    g = GraphBuilder(topology.name)
    shape = Shape(
        batch=micro_batch or 1,
        tokens=topology.sequence_length,
        hidden=topology.hidden,
        heads=topology.heads,
        feed_forward=topology.feed_forward,
        dropout=topology.dropout,
        attention_dropout=topology.attention_dropout,
        fused_query_key_value=topology.fused_query_key_value,
        attention_bias=topology.attention_bias,
        activation=topology.activation,
    )
    x, mask = _embed(g, topology, shape)
    x = (layers or partial(encoder, layers=topology.layers))(g, x, shape, mask)
    if topology.head == "question_answering":
        return g.finish(_question_answering(g, x, shape))
    pooled = _pool(g, x, topology, shape)
    if topology.head == "none":
        return g.finish(x, pooled)
    masked = _masked_language_model(g, x, topology, shape)
    return g.finish(masked, g.linear("cls.seq_relationship", pooled, 2))


def _embed(g: GraphBuilder, topology: Topology, shape: Shape) -> tuple[str, str]:
    """Add the sum of three embeddings, its norm and dropout, and the attention mask."""
    size = (shape.batch, shape.tokens)
    tokens = g.input("input_ids", size, "int32")
    types = g.input("token_type_ids", size, "int32")
    add_mask = additive_mask if topology.packed == 1 else packed_mask
    mask = add_mask(g, "attention_mask", g.input("attention_mask", size, "int32"))
    positions = g.parameter("embeddings.position_ids", (shape.tokens,), "constant", "int32")
    looked_up = {}
    for name, rows, indices in (
        ("word", topology.vocabulary, tokens),
        ("token_type", TOKEN_TYPES, types),
        ("position", POSITIONS, positions),
    ):
        table = g.parameter(f"embeddings.{name}_embeddings.weight", (rows, shape.hidden))
        looked_up[name] = g.gather(f"embeddings.{name}_embeddings", table, indices)
    x = g.elementwise("embeddings.add", "add", looked_up["word"], looked_up["token_type"])
    x = g.reshape("embeddings.items", x, (*size, shape.hidden))
    x = g.elementwise("embeddings.add_position", "add", x, looked_up["position"])
    x = g.reshape("embeddings.rows", x, (shape.rows, shape.hidden))
    x = g.layer_norm("embeddings.LayerNorm", x)
    return drop(g, "embeddings.dropout", x, shape), mask


def _question_answering(g: GraphBuilder, x: str, shape: Shape) -> str:
    y = g.linear("qa_outputs", x, SPAN_ENDS)
    y = g.reshape("qa_outputs.items", y, (shape.batch, shape.tokens, SPAN_ENDS))
    return g.transpose("qa_outputs.ends_first", y, (0, 2, 1))


def _pool(g: GraphBuilder, x: str, topology: Topology, shape: Shape) -> str:
    """Dense layer on the first token of each sequence; a pack has them all in one place."""
    y = g.reshape("pooler.items", x, (shape.batch, shape.tokens, shape.hidden))
    y = g.narrow("pooler.first_token", y, axis=1, size=topology.packed)
    y = g.reshape("pooler.rows", y, (shape.batch * topology.packed, shape.hidden))
    return g.elementwise("pooler.tanh", "tanh", g.linear("pooler.dense", y, shape.hidden))


def _masked_language_model(g: GraphBuilder, x: str, topology: Topology, shape: Shape) -> str:
    """Scores of the masked tokens, which the data put first, with the word embedding's weights."""
    prefix = "cls.predictions"
    y = g.reshape(f"{prefix}.items", x, (shape.batch, shape.tokens, shape.hidden))
    y = g.narrow(f"{prefix}.masked", y, axis=1, size=topology.masked_tokens)
    y = g.reshape(f"{prefix}.rows", y, (shape.batch * topology.masked_tokens, shape.hidden))
    y = g.linear(f"{prefix}.transform", y, shape.hidden)
    y = g.elementwise(f"{prefix}.transform.gelu", "gelu", y)
    y = g.layer_norm(f"{prefix}.transform.LayerNorm", y)
    y = g.matmul(f"{prefix}.decoder", y, "embeddings.word_embeddings.weight", transpose_b=True)
    return g.bias(f"{prefix}.decoder", y, topology.vocabulary)


def bert_model(topology: Topology) -> Model:
    """Wrap a topology as a `Model`."""
    return Model(
        name=topology.name,
        family="bert",
        build=partial(build, topology=topology),
        source=SOURCE,
        loss=LOSSES[topology.head],
    )


def base(name: str, sequence_length: int, head: str, **options: Any) -> Topology:
    """Return the topology of a BERT-Base: 12 layers of 768 features.

    Further options are those of `Topology`.
    """
    return Topology(
        name=name,
        layers=12,
        hidden=768,
        heads=12,
        feed_forward=3072,
        sequence_length=sequence_length,
        head=head,
        **options,
    )


def large(name: str, sequence_length: int, head: str, **options: Any) -> Topology:
    """Return the topology of a BERT-Large: 24 layers of 1024 features.

    Further options are those of `Topology`.
    """
    return Topology(
        name=name,
        layers=24,
        hidden=1024,
        heads=16,
        feed_forward=4096,
        sequence_length=sequence_length,
        head=head,
        **options,
    )


def bert_base_squad() -> Model:
    """BERT-Base for SQuAD, 384 tokens: 108,893,186 parameters, 35.3 GMAC per sequence."""
    return bert_model(base("bert_base_squad", 384, "question_answering"))


def bert_large_squad() -> Model:
    """BERT-Large for SQuAD, 384 tokens: 334,094,338 parameters, 123 GMAC per sequence."""
    return bert_model(large("bert_large_squad", 384, "question_answering"))


MASKED_TOKENS = {128: 20, 384: 56, 512: 76}
"""Tokens to predict by sequence length, in pre-training on Wikipedia (graphcore/examples,
nlp/bert/pytorch/configs_pretraining.yml; a seventh of the tokens, at most)."""

MOST_PACKED = 3
"""Sequences per pack (``max_sequences_per_pack`` there)."""


def _pretraining(make: Callable[..., Topology], length: int, **options: Any) -> Topology:
    """Return a topology for pre-training, named after size, length and what is unusual."""
    packed = "packed_" if options.get("packed", 1) > 1 else ""
    suffix = "_attention_dropout" if options.get("attention_dropout") else ""
    return make(
        f"bert_{make.__name__}_{packed}pretraining_sl{length}{suffix}",
        length,
        "pretraining",
        masked_tokens=MASKED_TOKENS[length],
        **{"attention_dropout": False} | options,
    )


KERAS_VOCABULARY = 30400
"""As configs/squad_base_checkpoint_path.json there sets it."""

KERAS_SQUAD = (
    base(
        "bert_base_squad_sl512_keras",
        512,
        "question_answering",
        vocabulary=KERAS_VOCABULARY,
        attention_bias=False,
    ),
    base(
        "bert_base_squad_sl512_hugging_face",
        512,
        "question_answering",
        fused_query_key_value=False,
        activation="erf_gelu",
    ),
)
"""Fine-tuning in Keras (graphcore/examples nlp/bert/tensorflow2 at tag v3.0.0, and before that
applications/tensorflow2/bert at v2.4.0): texts are padded to the 512 tokens that the tokenizer
allows, since no length is given. At v3.0.0 query, key and value come from one product and
attention has no biases; at v2.4.0 the layers are those of transformers."""


MODELS: dict[str, Callable[[], Model]] = {
    topology.name: partial(bert_model, topology)
    for topology in (
        base("bert_base_squad_sl128", 128, "question_answering"),
        large("bert_large_squad_sl128", 128, "question_answering"),
        *KERAS_SQUAD,
        *(_pretraining(make, length) for make in (base, large) for length in MASKED_TOKENS),
        *(_pretraining(base, length, attention_dropout=True) for length in (128, 384)),
        *(_pretraining(large, length, packed=MOST_PACKED) for length in (128, 512)),
    )
}
"""Further ones by name: pre-training drops no attention weights unless the name says so."""
