"""BERT: encoder, and heads for question answering and pre-training.

Devlin et al. (arXiv 1810.04805), with the parameters and shapes of Hugging Face transformers
(BertModel, BertForQuestionAnswering, BertForPreTraining); query, key and value weights are stored
as one tensor (`transformer`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from ipusim.errors import WorkloadError, check_name
from ipusim.workload.layers import GraphBuilder
from ipusim.workload.model import Model
from ipusim.workload.zoo.layers.transformer import (
    Shape,
    additive_mask,
    drop,
    first_tokens,
    packed_mask,
    post_norm_layer,
)
from ipusim.workload.zoo.registry import Network, variants

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
OWN_SETTINGS = ("masked_tokens", "vocabulary", "packed")
FACTS = {"family": "bert", "source": "arXiv 1810.04805, as in Hugging Face transformers"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What distinguishes one BERT from another.

    `head` reads the encoder: "question_answering", "pretraining", which predicts `masked_tokens` of
    each item of so many `tokens`, or "none", which ends with the pooler (hidden state of the first
    token and a dense layer with tanh). An item may hold `packed` sequences; above 1 tokens attend
    only to their own, and each has a first token.
    """

    layers: int
    shape: Shape
    tokens: int
    head: str = "none"
    masked_tokens: int = 20
    vocabulary: int = VOCABULARY
    packed: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.tokens <= POSITIONS:
            raise WorkloadError(
                f"Sequence length {self.tokens} of a BERT must be at least 1 and at most "
                f"{POSITIONS}, the positions that it learns."
            )
        check_name("head of a BERT", self.head, LOSSES)
        for what, number in (("masked tokens", self.masked_tokens), ("sequences", self.packed)):
            if not 1 <= number <= self.tokens:
                raise WorkloadError(
                    f"{number} {what} per item of a BERT are impossible: use 1 to {self.tokens}, "
                    "the sequence length."
                )


Encoder = Callable[[GraphBuilder, str, Shape, str], str]
"""Adds all layers: builder, activations (N, T, H), shape, mask; returns what the heads read."""


def encoder(g: GraphBuilder, x: str, shape: Shape, mask: str, *, layers: int) -> str:
    """Add the layers of BERT."""
    for layer in range(layers):
        x = post_norm_layer(g.at(f"encoder.layer.{layer}"), x, shape, mask=mask)
    return x


def build(
    g: GraphBuilder, batch: int, config: Config, layers: Encoder | None = None
) -> str | tuple[str, str]:
    """BERT, or with the given layers another, from token numbers (N, T) to what its head computes.

    With no head the tokens (N, T, H) and the pooled (N, H); for question answering scores
    (N, 2, T) of start and end; for pre-training scores of the masked tokens (N x masked,
    vocabulary) and of the next sentence (N x sequences, 2).
    """
    x, mask = _embed(g, config, batch)
    x = (layers or partial(encoder, layers=config.layers))(g, x, config.shape, mask)
    if config.head == "question_answering":
        return g.transpose("qa_outputs.ends_first", g.linear("qa_outputs", x, SPAN_ENDS), (0, 2, 1))
    pooled = _pool(g, x, config)
    if config.head == "none":
        return x, pooled
    masked = _masked_language_model(g, x, config)
    return masked, g.linear("cls.seq_relationship", pooled, 2)


def _embed(g: GraphBuilder, config: Config, batch: int) -> tuple[str, str]:
    """Add the sum of three embeddings, its norm and dropout, and the attention mask."""
    size = (batch, config.tokens)
    tokens = g.input("input_ids", size, "int32")
    types = g.input("token_type_ids", size, "int32")
    add_mask = additive_mask if config.packed == 1 else packed_mask
    mask = add_mask(g.at("attention_mask"), g.input("attention_mask", size, "int32"))
    hidden, g = config.shape.hidden, g.at("embeddings")
    positions = g.constant("position_ids", (config.tokens,), "int32")
    words = g.embedding("word_embeddings", tokens, config.vocabulary, hidden)
    kinds = g.embedding("token_type_embeddings", types, TOKEN_TYPES, hidden)
    places = g.embedding("position_embeddings", positions, POSITIONS, hidden)
    x = g.elementwise("add", "add", words, kinds)
    x = g.layer_norm("LayerNorm", g.elementwise("add_position", "add", x, places))
    return drop(g, "dropout", x, config.shape), mask


def _pool(g: GraphBuilder, x: str, config: Config) -> str:
    """Dense layer on the first token of each sequence; a pack has them all in one place."""
    y = first_tokens(g, "pooler.first_token", x, config.packed)
    return g.elementwise("pooler.tanh", "tanh", g.linear("pooler.dense", y, config.shape.hidden))


def _masked_language_model(g: GraphBuilder, x: str, config: Config) -> str:
    """Scores of the masked tokens, which the data put first, with the word embedding's weights."""
    words, g = g.full_name("embeddings.word_embeddings.weight"), g.at("cls.predictions")
    y = first_tokens(g, "masked", x, config.masked_tokens)
    y = g.linear("transform", y, config.shape.hidden)
    y = g.elementwise("transform.gelu", "gelu", y)
    y = g.layer_norm("transform.LayerNorm", y)
    y = g.matmul("decoder", y, words, transpose_b=True)
    return g.bias("decoder", y, config.vocabulary)


def _sized(
    layers: int, hidden: int, heads: int, sequence_length: int, head: str, **settings: Any
) -> Config:
    """Return a configuration of this size; further settings are its own or those of `Shape`."""
    own = {name: settings.pop(name) for name in OWN_SETTINGS if name in settings}
    shape = Shape(hidden=hidden, heads=heads, **settings)
    return Config(layers=layers, shape=shape, tokens=sequence_length, head=head, **own)


base = partial(_sized, 12, 768, 12)
large = partial(_sized, 24, 1024, 16)
"""BERT-Base and BERT-Large of a sequence length, with a head."""


def model(name: str, config: Config) -> Model:
    """Return a model that the zoo does not list."""
    known = {"loss": LOSSES[config.head], **FACTS}
    return Network(name=name, build=partial(build, config=config), **known)()


MASKED_TOKENS = {128: 20, 384: 56, 512: 76}
"""Tokens to predict by sequence length, in pre-training on Wikipedia (graphcore/examples,
nlp/bert/pytorch/configs_pretraining.yml; a seventh of the tokens, at most)."""

MOST_PACKED = 3
"""Sequences per pack (``max_sequences_per_pack`` there)."""
KERAS_VOCABULARY = 30400
"""As configs/squad_base_checkpoint_path.json there sets it."""

ANSWERING = {"head": "question_answering"}
KERAS = base(512, **ANSWERING, vocabulary=KERAS_VOCABULARY, attention_bias=False)
HUGGING_FACE = base(512, **ANSWERING, fused_query_key_value=False, activation="erf_gelu")
SQUAD = {
    "bert_base_squad": base(384, **ANSWERING),
    "bert_large_squad": large(384, **ANSWERING),
    "bert_base_squad_sl128": base(128, **ANSWERING),
    "bert_large_squad_sl128": large(128, **ANSWERING),
    "bert_base_squad_sl512_keras": KERAS,
    "bert_base_squad_sl512_hugging_face": HUGGING_FACE,
}
"""Fine-tuning. That in Keras (graphcore/examples nlp/bert/tensorflow2 at tag v3.0.0, and before
that applications/tensorflow2/bert at v2.4.0) pads texts to the 512 tokens that the tokenizer
allows, since no length is given. At v3.0.0 query, key and value come from one product and
attention has no biases; at v2.4.0 the layers are those of transformers."""


def pretraining(make: Callable[..., Config], length: int, **settings: Any) -> Config:
    """Return a BERT for pre-training, which drops attention weights only if told to."""
    settings = {"masked_tokens": MASKED_TOKENS[length], "drops": ("output",)} | settings
    return make(length, "pretraining", **settings)


DROPS, PACKED = {"drops": ("attention", "output")}, {"packed": MOST_PACKED}
PRETRAINING = {
    "bert_base_pretraining_sl128": pretraining(base, 128),
    "bert_base_pretraining_sl384": pretraining(base, 384),
    "bert_base_pretraining_sl512": pretraining(base, 512),
    "bert_large_pretraining_sl128": pretraining(large, 128),
    "bert_large_pretraining_sl384": pretraining(large, 384),
    "bert_large_pretraining_sl512": pretraining(large, 512),
    "bert_base_pretraining_sl128_attention_dropout": pretraining(base, 128, **DROPS),
    "bert_base_pretraining_sl384_attention_dropout": pretraining(base, 384, **DROPS),
    "bert_large_packed_pretraining_sl128": pretraining(large, 128, **PACKED),
    "bert_large_packed_pretraining_sl512": pretraining(large, 512, **PACKED),
}
variants(build, SQUAD, loss=LOSSES["question_answering"], **FACTS)
variants(build, PRETRAINING, loss=LOSSES["pretraining"], **FACTS)
