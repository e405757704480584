"""Deep Voice 3: speech from text by gated convolutions and attention.

Ping et al. (arXiv 1710.07654), as in graphcore/examples@v3.1.0, speech/deepvoice3/popart
(vctk_model_conf.json): 80 characters, 4 s of speech at 16 kHz in hops of 600 samples, 108 speakers.
Absolute errors are trained as squares; masks of the losses are left out.
"""

from ipusim.workload.zoo.layers.speech import conv_along_time, gated
from ipusim.workload.zoo.registry import Config, GraphBuilder, networks


def _add_speaker(g: GraphBuilder, name: str, x: str, speaker: str) -> str:
    """Add a dense layer of the speaker's embedding (N, 1, S) to every step of (N, T, C)."""
    y = g.linear(f"{name}.dense", speaker, g.shape(x)[2])
    return g.elementwise(name, "add", x, g.elementwise(f"{name}.tanh", "tanh", y))


def _block(g: GraphBuilder, x: str, speaker: str | None, taps: int, *, causal: bool) -> str:
    """Add a gated residual convolution; the speaker joins before the gate."""
    y = g.dropout("dropout", x)
    y = conv_along_time(g, "conv", y, 2 * g.shape(x)[2], taps, causal=causal)
    if speaker is None:
        y = gated(g, "gated", y)
    else:
        values, gates = g.split("halves", y, 2, axis=2)
        values = _add_speaker(g, "speaker", values, speaker)
        gates = g.elementwise("gate", "sigmoid", gates)
        y = g.elementwise("gated", "mul", values, gates)
    return g.elementwise("scale", "scale", g.elementwise("add", "add", y, x))


def _attend(g: GraphBuilder, query: str, key: str, value: str, features: int) -> str:
    """Add attention of frames (N, F, C) over characters (N, T, E), with one head."""

    def placed(part: str, x: str) -> str:
        table = g.constant(f"{part}_positions", g.shape(x)[1:])
        return g.elementwise(f"{part}_placed", "add", x, table)

    keys = g.linear("key", placed("key", key), features, bias=False)
    queries = g.linear("query", placed("query", query), features, bias=False)
    values = g.linear("value", value, features, bias=False)
    scores = g.matmul("scores", queries, keys, transpose_b=True)
    weights = g.dropout("dropout", g.softmax("softmax", scores))
    y = g.elementwise("root", "scale", g.matmul("context", weights, values))
    y = g.linear("output", y, g.shape(query)[2], bias=False)
    return g.elementwise("act", "relu", y)


@networks
def deepvoice3(g: GraphBuilder, batch: int, c: Config) -> tuple[str, str, str]:
    """Deep Voice 3 as it is trained, from text (N, 80), frames, speakers to both spectrograms."""
    text = g.input("text", (batch, c.characters), "int32")
    frames = g.input("frames", (batch, c.frames, c.mels))
    who = g.input("speaker", (batch, 1), "int32")
    speaker = g.gather("speaker.embed", g.parameter("speaker.table", (c.speakers, c.speaker)), who)
    table = g.parameter("text.table", (c.symbols, c.embedding))
    embedded = _add_speaker(g, "text.speaker", g.gather("text.embed", table, text), speaker)
    x = g.elementwise("encoder.in.act", "relu", g.linear("encoder.in", embedded, c.encoder))
    for layer in range(7):
        x = _block(g.at(f"encoder.{layer}"), x, speaker, c.taps, causal=False)
    x = g.elementwise("encoder.out.act", "relu", g.linear("encoder.out", x, c.embedding))
    key = _add_speaker(g, "encoder.speaker", x, speaker)
    value = g.elementwise("encoder.value.add", "add", embedded, key)
    value = g.elementwise("encoder.value", "scale", value)
    x = frames
    for layer, features in enumerate((128, c.decoder)):
        x = g.dropout(f"decoder.in{layer}.dropout", x)
        x = _add_speaker(g, f"decoder.in{layer}.speaker", x, speaker)
        x = g.linear(f"decoder.in{layer}", x, features)
        x = g.elementwise(f"decoder.in{layer}.act", "relu", x)
    for layer in range(4):
        x = _block(g.at(f"decoder.{layer}"), x, speaker, c.taps, causal=True)
        if layer in (0, 3):
            y = _attend(g.at(f"decoder.{layer}.attention"), x, key, value, c.attention)
            x = g.elementwise(f"decoder.{layer}.join", "add", x, y)
            x = g.elementwise(f"decoder.{layer}.joined", "scale", x)
    mel = gated(g, "mel.gated", g.linear("mel", x, 2 * c.mels))
    mel = g.elementwise("mel.act", "sigmoid", mel)
    done = g.elementwise("done.act", "sigmoid", g.linear("done", x, 1))
    for layer in range(6):
        x = _block(g.at(f"converter.{layer}"), x, None, c.taps, causal=False)
    x = g.elementwise("converter.act", "relu", g.linear("converter.dense", x, c.decoder))
    linear = g.elementwise("spectrum.act", "sigmoid", g.linear("spectrum", x, c.bins))
    return mel, linear, done
