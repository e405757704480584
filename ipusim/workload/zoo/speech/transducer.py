"""Transformer transducer: speech to text with a prediction for every pair of step and label.

Zhang et al. (arXiv 2002.02562), as in graphcore/examples@v3.1.0,
speech/transformer_transducer/popart/training: attention is computed head by head, norms have no
learnt scale, and the joint network runs over 15 steps at a time.
"""

from ipusim.workload.zoo.registry import Config, GraphBuilder, networks

FIXED = {"scale": "constant", "shift": "constant"}
"""Vectors of the norms."""


def _attention(g: GraphBuilder, x: str, heads: int) -> str:
    """Add self-attention of (N, T, H), head by head."""
    hidden = g.shape(x)[2]
    parts = []
    for part in ("query", "key", "value"):
        y = g.linear(part, x, hidden, bias=False)
        parts.append(g.split(f"{part}.heads", y, heads, axis=2))
    contexts = []
    for head, (query, key, value) in enumerate(zip(*parts, strict=True)):
        own = g.at(f"head{head}")
        scores = own.matmul("scores", query, key, transpose_b=True)
        weights = own.softmax("softmax", own.elementwise("scale", "scale", scores))
        weights = own.dropout("dropout", weights)
        contexts.append(own.matmul("context", weights, value))
    return g.linear("output", g.concat("join", *contexts, axis=2), hidden, bias=False)


def _encode(g: GraphBuilder, x: str, c: Config) -> str:
    """Add the transcription network: (N, 240, T) to (N, steps, H)."""
    hidden = c.hidden
    before = {"padding": c.taps - 1, "padding_upper": 0}
    x = g.conv("subsample", x, hidden, c.taps, stride=c.stride, bias=True, **before)
    batch, _, steps = g.shape(x)
    positions = g.constant("encoder.positions", (hidden, steps))
    x = g.elementwise("encoder.place", "add", x, positions)
    x = g.reshape("encoder.rows", x, (batch, steps, hidden))
    for layer in range(c.layers):
        block = g.at(f"encoder.{layer}")
        y = _attention(block.at("attention"), x, c.heads)
        x = block.layer_norm("norm1", block.elementwise("add1", "add", y, x), FIXED)
        y = block.elementwise("act", "relu", block.linear("up", x, 4 * hidden))
        y = block.dropout("dropout", y)
        y = block.linear("down", y, hidden)
        x = block.layer_norm("norm2", block.elementwise("add2", "add", y, x), FIXED)
    return x


def _predict(g: GraphBuilder, labels: str, c: Config) -> str:
    """Add the prediction network: labels (N, L) to (N, L + 1, units)."""
    units = c.prediction
    x = g.gather("embed", g.parameter("table", (c.symbols - 1, units)), labels)
    x = g.transpose("steps_first", x, (1, 0, 2))
    blank = g.constant("blank", (1, *g.shape(x)[1:]))
    x = g.concat("start", blank, x, axis=0)
    for layer in range(c.prediction_layers):
        x = g.recurrent(f"lstm{layer}", x, units)
        x = g.dropout(f"dropout{layer}", x)
    return g.transpose("items_first", x, (1, 0, 2))


def _join(g: GraphBuilder, steps: str, labels: str, c: Config) -> str:
    """Add the joint network: log probabilities of nothing and of the next label for every pair."""
    (batch, count, _), columns = g.shape(steps), g.shape(labels)[1]
    a = g.reshape("steps.items", g.linear("steps", steps, c.joint), (batch, count, 1, c.joint))
    b = g.reshape("labels.items", g.linear("labels", labels, c.joint), (batch, 1, columns, c.joint))
    weight = g.parameter("output.weight", (c.joint, c.symbols))
    bias = g.parameter("output.bias", (c.symbols,))
    whole, rest = divmod(count, c.joint_steps)
    sizes = (c.joint_steps,) * whole + ((rest,) if rest else ())
    parts = []
    for index, part in enumerate(g.split("parts", a, sizes, axis=1)):
        one = g.at(str(index))
        wide = one.expand("expand", part, (batch, sizes[index], columns, c.joint))
        x = one.elementwise("act", "relu", one.elementwise("add", "add", wide, b))
        x = one.dropout("dropout", x)
        x = one.elementwise("output.bias_add", "bias_add", one.matmul("output", x, weight), bias)
        x = one.softmax("log_softmax", x, log=True)
        parts.append(one.narrow("chosen", x, axis=3, size=2))
    return g.concat("concat", *parts, axis=1)


@networks
def transducer(g: GraphBuilder, batch: int, c: Config) -> str:
    """Transducer, from features (N, 240, T) and labels (N, L) to the loss."""
    text = g.input("labels", (batch, c.labels), "int32")
    encoded = _encode(g, g.input("features", (batch, c.features, c.frames)), c)
    predicted = _predict(g.at("predict"), text, c)
    pairs, steps = _join(g.at("joint"), encoded, predicted, c), g.shape(encoded)[1]
    return g.alignment_loss("loss", pairs, text, kind="transducer", steps=steps)
