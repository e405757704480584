"""Conformer: speech to text by layers of attention and convolution, with an attending decoder.

Gulati et al. (arXiv 2005.08100), as Graphcore trained it: the small one of release 2.4
(graphcore/examples@v2.4.0, applications/pytorch/conformer) with a shift of relative positions and
no bias in attention, the medium one of WeNet (v3.3.0, speech/conformer/pytorch) with neither, and
a CTC loss beside that of the decoder. Layer norms stand where the paper has batch norms.
"""

from __future__ import annotations

from dataclasses import dataclass

from ipusim.workload.layers import GraphBuilder
from ipusim.workload.zoo.layers.speech import (
    Attention,
    attention_between,
    conv_along_time,
    gated,
    smoothed_cross_entropy,
    swish,
)
from ipusim.workload.zoo.registry import variants

MELS, VOCABULARY = 80, 4233


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What distinguishes one Conformer from another: the small one, where nothing else is said.

    Input and text are padded to `frames` and `tokens`. Two convolutions with `subsampling` features
    shorten the input; the encoder's convolutions along time have `kernel` taps. With
    `shifts_positions` positions are relative by a shift, with `ctc` a CTC loss is trained besides.
    """

    frames: int = 768
    tokens: int = 46
    subsampling: int = 32
    layers: int = 16
    hidden: int = 144
    heads: int = 4
    feed_forward: int = 576
    kernel: int = 31
    decoder_layers: int = 1
    decoder_feed_forward: int = 640
    attention_dropout: bool = True
    attention_bias: bool = False
    shifts_positions: bool = True
    ctc: bool = False

    @property
    def steps(self) -> int:
        """Steps after two convolutions with stride 2 and three taps."""
        return ((self.frames - 1) // 2 - 1) // 2

    def attention(self, batch: int, queries: int, keys: int) -> Attention:
        """Return the sizes of one attention."""
        return Attention(
            batch=batch,
            queries=queries,
            keys=keys,
            hidden=self.hidden,
            heads=self.heads,
            shared_projection=True,
            dropout=self.attention_dropout,
            bias=self.attention_bias,
            shifts_positions=self.shifts_positions,
        )


def _drop(g: GraphBuilder, name: str, x: str) -> str:
    return g.elementwise(name, "dropout", x)


def _feed_forward(g: GraphBuilder, prefix: str, x: str, features: int, *, encoding: bool) -> str:
    """Add norm, two dense layers and the residual: in the encoder half of it, with Swish."""
    y = g.linear(f"{prefix}.up", g.layer_norm(f"{prefix}.norm", x), features)
    name = f"{prefix}.act"
    y = swish(g, name, y) if encoding else g.elementwise(name, "relu", y)
    y = _drop(g, f"{prefix}.inner_dropout", y)
    y = _drop(g, f"{prefix}.dropout", g.linear(f"{prefix}.down", y, g.shape(x)[1]))
    if encoding:
        y = g.elementwise(f"{prefix}.half", "scale", y)
    return g.elementwise(f"{prefix}.add", "add", x, y)


def _convolve(g: GraphBuilder, prefix: str, x: str, batch: int, config: Config) -> str:
    """Add norm, gate, depthwise convolution along time, and the residual."""
    hidden = config.hidden
    y = g.layer_norm(f"{prefix}.norm_in", x)
    y = conv_along_time(g, f"{prefix}.pointwise1", y, batch, 2 * hidden, 1, bias=False)
    y = gated(g, f"{prefix}.glu", y)
    y = conv_along_time(
        g, f"{prefix}.depthwise", y, batch, hidden, config.kernel, groups=hidden, bias=False
    )
    y = swish(g, f"{prefix}.act", g.layer_norm(f"{prefix}.norm", y))
    y = conv_along_time(g, f"{prefix}.pointwise2", y, batch, hidden, 1, bias=False)
    return g.elementwise(f"{prefix}.add", "add", x, _drop(g, f"{prefix}.dropout", y))


def _encode(g: GraphBuilder, x: str, batch: int, mask: str, config: Config) -> str:
    """Add the encoder: (N x steps, H) to the same."""
    steps, hidden = config.steps, config.hidden
    reach = 2 * steps - 1 if config.shifts_positions else steps
    positions = g.parameter("encoder.positions", (reach, hidden), role="constant")
    shape = config.attention(batch, steps, steps)
    for layer in range(config.layers):
        name = f"encoder.{layer}"
        x = _feed_forward(g, f"{name}.macaron", x, config.feed_forward, encoding=True)
        y = g.layer_norm(f"{name}.attention.norm", x)
        y = attention_between(g, f"{name}.attention", y, y, shape, mask=mask, positions=positions)
        x = g.elementwise(
            f"{name}.attention.add", "add", x, _drop(g, f"{name}.attention.output_dropout", y)
        )
        x = _convolve(g, f"{name}.conv", x, batch, config)
        x = _feed_forward(g, f"{name}.mlp", x, config.feed_forward, encoding=True)
        x = g.layer_norm(f"{name}.norm", x)
    return g.layer_norm("encoder.norm", x)


def _decode(
    g: GraphBuilder, tokens: str, memory: str, batch: int, memory_mask: str, config: Config
) -> str:
    """Add the decoder: tokens (N, L) to scores (N x L, vocabulary)."""
    length, hidden = config.tokens, config.hidden
    table = g.parameter("decoder.table", (VOCABULARY, hidden))
    x = g.elementwise("decoder.scale", "scale", g.gather("decoder.embed", table, tokens))
    x = g.reshape("decoder.items", x, (batch, length, hidden))
    positions = g.parameter("decoder.positions", (length, hidden), role="constant")
    x = g.elementwise("decoder.add_positions", "add", x, positions)
    x = _drop(g, "decoder.dropout", g.reshape("decoder.rows", x, (batch * length, hidden)))
    causal = g.parameter("decoder.mask", (batch, 1, length, length), role="constant")
    own = config.attention(batch, length, length)
    source = config.attention(batch, length, config.steps)
    for layer in range(config.decoder_layers):
        name = f"decoder.{layer}"
        y = g.layer_norm(f"{name}.self.norm", x)
        y = attention_between(g, f"{name}.self", y, y, own, mask=causal)
        x = g.elementwise(f"{name}.self.add", "add", x, _drop(g, f"{name}.self.out_dropout", y))
        y = g.layer_norm(f"{name}.source.norm", x)
        y = attention_between(g, f"{name}.source", y, memory, source, mask=memory_mask)
        x = g.elementwise(f"{name}.source.add", "add", x, _drop(g, f"{name}.source.out_dropout", y))
        x = _feed_forward(g, f"{name}.mlp", x, config.decoder_feed_forward, encoding=False)
    return g.linear("decoder.output", g.layer_norm("decoder.norm", x), VOCABULARY)


def build(g: GraphBuilder, batch: int, config: Config) -> tuple[str, ...]:
    """Conformer, from frames (N, T, 80) and tokens (N, L) to the losses."""
    hidden, steps = config.hidden, config.steps
    x = g.input("features", (batch, config.frames, MELS))
    tokens = g.input("tokens", (batch, config.tokens), "int32")
    targets = g.input("targets", (batch, config.tokens), "int32")
    for function in ("sub", "mul"):
        statistics = g.parameter(f"normalise.{function}.by", (MELS,), role="constant")
        x = g.elementwise(f"normalise.{function}", function, x, statistics)
    x = g.reshape("subsample.image", x, (batch, 1, config.frames, MELS))
    for layer in (1, 2):
        x = g.conv(f"subsample.conv{layer}", x, config.subsampling, 3, stride=2, bias=True)
        x = g.elementwise(f"subsample.act{layer}", "relu", x)
    bands = g.shape(x)[3]
    x = g.transpose("subsample.steps_first", x, (0, 2, 1, 3))
    x = g.reshape("subsample.rows", x, (batch * steps, config.subsampling * bands))
    x = g.linear("subsample.output", x, hidden)
    x = _drop(g, "subsample.dropout", g.elementwise("subsample.scale", "scale", x))
    mask = g.parameter("encoder.mask", (batch, 1, 1, steps), role="constant")
    memory = _encode(g, x, batch, mask, config)
    losses = []
    if config.ctc:
        scores = g.linear("ctc.output", memory, VOCABULARY)
        probabilities = g.softmax("ctc.log_softmax", scores, log=True)
        losses.append(g.alignment_loss("ctc", probabilities, targets, kind="ctc", steps=steps))
    scores = _decode(g, tokens, memory, batch, mask, config)
    losses.insert(0, smoothed_cross_entropy(g, "loss", scores, targets))
    return tuple(losses)


SMALL = Config()
"""That of SDK 2.4: 16 layers of 144 features, one decoder layer."""
MEDIUM = Config(
    frames=1220,
    tokens=48,
    subsampling=256,
    layers=12,
    hidden=256,
    feed_forward=2048,
    kernel=15,
    decoder_layers=6,
    decoder_feed_forward=2048,
    attention_dropout=False,
    attention_bias=True,
    shifts_positions=False,
    ctc=True,
)
"""WeNet's: 12 layers of 256 features, six decoder layers, with CTC."""
SDK_2_4 = {"source": "graphcore/examples@v2.4.0:applications/pytorch/conformer/configs/train.yaml"}
WENET = {"source": "graphcore/examples@v3.3.0:speech/conformer/pytorch/configs/train.yaml"}
NOTE = "trained form: the graph ends with the losses"
NETWORKS = (
    ("conformer_small", SMALL, 9_389_129, 2_041_080_768, SDK_2_4),
    ("conformer_medium", MEDIUM, 44_605_970, 15_356_468_992, WENET),
)
variants(build, NETWORKS, family="conformer", note=NOTE, loss="identity")
