"""Deep Voice 3: speech from text by gated convolutions and attention.

Ping et al. (arXiv 1710.07654), as in graphcore/examples@v3.1.0, speech/deepvoice3/popart
(vctk_model_conf.json): 80 characters, 4 s of speech at 16 kHz in hops of 600 samples, 108 speakers.
Absolute errors are trained as squares; masks of the losses are left out.
"""

from ipusim.workload.layers import GraphBuilder
from ipusim.workload.zoo.layers.speech import conv_along_time, gated
from ipusim.workload.zoo.registry import network

CHARACTERS, FRAMES, MELS = 80, 106, 80
SYMBOLS = 120
"""Characters, punctuation, phonemes, padding and end."""

EMBEDDING, SPEAKERS, SPEAKER = 256, 108, 16
ENCODER, DECODER, ATTENTION = 128, 256, 256
BINS = 513
TAPS = 5


def _add_speaker(g: GraphBuilder, name: str, x: str, speaker: str) -> str:
    """Add a dense layer of the speaker's embedding (N, S) to every step of rows (N x T, C)."""
    rows, features = g.shape(x)
    batch = g.shape(speaker)[0]
    y = g.elementwise(f"{name}.tanh", "tanh", g.linear(f"{name}.dense", speaker, features))
    y = g.reshape(f"{name}.column", y, (batch, 1, features))
    items = g.reshape(f"{name}.items", x, (batch, rows // batch, features))
    return g.reshape(f"{name}.rows", g.elementwise(name, "add", items, y), (rows, features))


def _block(g: GraphBuilder, x: str, batch: int, speaker: str | None, *, causal: bool) -> str:
    """Add a gated residual convolution; the speaker joins before the gate."""
    features = g.shape(x)[1]
    y = g.elementwise("dropout", "dropout", x)
    y = conv_along_time(g, "conv", y, batch, 2 * features, TAPS, causal=causal)
    if speaker is None:
        y = gated(g, "gated", y)
    else:
        values, gates = g.split("halves", y, (features, features), axis=1)
        values = _add_speaker(g, "speaker", values, speaker)
        gates = g.elementwise("gate", "sigmoid", gates)
        y = g.elementwise("gated", "mul", values, gates)
    return g.elementwise("scale", "scale", g.elementwise("add", "add", y, x))


def _attend(g: GraphBuilder, query: str, key: str, value: str, batch: int) -> str:
    """Add attention of frames (N x F, C) over characters (N x T, E), with one head."""

    def placed(part: str, x: str) -> str:
        rows, features = g.shape(x)
        table = g.parameter(f"{part}_positions", (rows // batch, features), role="constant")
        y = g.reshape(f"{part}_items", x, (batch, rows // batch, features))
        y = g.elementwise(f"{part}_placed", "add", y, table)
        return g.reshape(f"{part}_rows", y, (rows, features))

    def projected(part: str, x: str) -> str:
        y = g.linear(part, x, ATTENTION, bias=False)
        return g.reshape(f"{part}_split", y, (batch, g.shape(x)[0] // batch, ATTENTION))

    keys = projected("key", placed("key", key))
    queries = projected("query", placed("query", query))
    values = projected("value", value)
    scores = g.matmul("scores", queries, keys, transpose_b=True)
    weights = g.softmax("softmax", scores)
    weights = g.elementwise("dropout", "dropout", weights)
    y = g.matmul("context", weights, values)
    y = g.reshape("context_rows", y, (g.shape(query)[0], ATTENTION))
    y = g.elementwise("root", "scale", y)
    y = g.linear("output", y, g.shape(query)[1], bias=False)
    return g.elementwise("act", "relu", y)


@network(
    family="deepvoice",
    source="graphcore/examples@v3.1.0:speech/deepvoice3/popart",
    note="absolute errors trained as squares, without masks and guided attention",
    loss="mean_squared",
    parameters=8_657_330,
    macs=878_954_752,
)
def deepvoice3(g: GraphBuilder, batch: int) -> tuple[str, str, str]:
    """Deep Voice 3 as it is trained, from text (N, 80), frames, speakers to both spectrograms."""
    text = g.input("text", (batch, CHARACTERS), "int32")
    frames = g.input("frames", (batch * FRAMES, MELS))
    who = g.input("speaker", (batch, 1), "int32")
    speaker = g.gather("speaker.embed", g.parameter("speaker.table", (SPEAKERS, SPEAKER)), who)
    table = g.parameter("text.table", (SYMBOLS, EMBEDDING))
    embedded = _add_speaker(g, "text.speaker", g.gather("text.embed", table, text), speaker)
    x = g.elementwise("encoder.in.act", "relu", g.linear("encoder.in", embedded, ENCODER))
    for layer in range(7):
        x = _block(g.at(f"encoder.{layer}"), x, batch, speaker, causal=False)
    x = g.elementwise("encoder.out.act", "relu", g.linear("encoder.out", x, EMBEDDING))
    key = _add_speaker(g, "encoder.speaker", x, speaker)
    value = g.elementwise("encoder.value.add", "add", embedded, key)
    value = g.elementwise("encoder.value", "scale", value)
    x = frames
    for layer, features in enumerate((128, DECODER)):
        x = g.elementwise(f"decoder.in{layer}.dropout", "dropout", x)
        x = _add_speaker(g, f"decoder.in{layer}.speaker", x, speaker)
        x = g.linear(f"decoder.in{layer}", x, features)
        x = g.elementwise(f"decoder.in{layer}.act", "relu", x)
    for layer in range(4):
        x = _block(g.at(f"decoder.{layer}"), x, batch, speaker, causal=True)
        if layer in (0, 3):
            y = _attend(g.at(f"decoder.{layer}.attention"), x, key, value, batch)
            x = g.elementwise(f"decoder.{layer}.join", "add", x, y)
            x = g.elementwise(f"decoder.{layer}.joined", "scale", x)
    mel = gated(g, "mel.gated", g.linear("mel", x, 2 * MELS))
    mel = g.elementwise("mel.act", "sigmoid", mel)
    done = g.elementwise("done.act", "sigmoid", g.linear("done", x, 1))
    for layer in range(6):
        x = _block(g.at(f"converter.{layer}"), x, batch, None, causal=False)
    x = g.elementwise("converter.act", "relu", g.linear("converter.dense", x, DECODER))
    linear = g.elementwise("spectrum.act", "sigmoid", g.linear("spectrum", x, BINS))
    return mel, linear, done
