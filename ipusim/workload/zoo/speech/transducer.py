"""Transformer transducer: speech to text with a prediction for every pair of step and label.

Zhang et al. (arXiv 2002.02562), as in graphcore/examples@v3.1.0,
speech/transformer_transducer/popart/training: attention is computed head by head, norms have no
learnt scale, and the joint network runs over 15 steps at a time.
"""

from dataclasses import dataclass, replace

from ipusim.workload.graph import Elementwise, Norm
from ipusim.workload.layers import GraphBuilder
from ipusim.workload.zoo.registry import variants

FEATURES = 240
"""Three frames of 80 mel bands."""

TAPS, STRIDE = 16, 2
SYMBOLS = 1024
PREDICTION, JOINT = 512, 512
JOINT_STEPS = 15
"""Steps that the joint network takes at a time (conf_utils.py, joint-net-split-size)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What distinguishes one transducer from another.

    All are padded to so many stacked frames of an utterance and labels of its text; `layers`,
    `hidden` and `heads` are of the encoder, `prediction_layers` LSTM layers of the prediction
    network.
    """

    frames: int
    labels: int
    layers: int
    hidden: int
    heads: int
    prediction_layers: int

    @property
    def steps(self) -> int:
        """Steps after the convolution, which is padded before the start only."""
        return (self.frames - 1) // STRIDE + 1


def _norm(g: GraphBuilder, name: str, x: str) -> str:
    """Add a layer norm whose scale and shift are constants."""
    rows, features = g.shape(x)
    vectors = [
        g.parameter(f"{name}.{part}", (features,), role="constant") for part in ("scale", "shift")
    ]
    params = Norm(kind="layer", batch=rows, channels=features, spatial_elements=1)
    return g.apply(name, params, (x, *vectors), (rows, features))


def _attention(g: GraphBuilder, x: str, batch: int, heads: int) -> str:
    """Add self-attention of rows (N x T, H), head by head."""
    rows, hidden = g.shape(x)
    size = hidden // heads
    parts = {
        part: g.split(
            f"{part}.heads", g.linear(part, x, hidden, bias=False), (size,) * heads, axis=1
        )
        for part in ("query", "key", "value")
    }
    contexts = []
    for head in range(heads):
        label = f"head{head}"
        query, key, value = (
            g.reshape(f"{label}.{part}", split[head], (batch, rows // batch, size))
            for part, split in parts.items()
        )
        scores = g.matmul(f"{label}.scores", query, key, transpose_b=True)
        scores = g.elementwise(f"{label}.scale", "scale", scores)
        weights = g.elementwise(
            f"{label}.dropout", "dropout", g.softmax(f"{label}.softmax", scores)
        )
        context = g.matmul(f"{label}.context", weights, value)
        contexts.append(g.reshape(f"{label}.rows", context, (rows, size)))
    joined = g.concat("join", *contexts, axis=1)
    return g.linear("output", joined, hidden, bias=False)


def _encode(g: GraphBuilder, batch: int, config: Config) -> str:
    """Add the transcription network: (N x steps, H)."""
    x = g.input("features", (batch, FEATURES, config.frames))
    hidden, steps = config.hidden, config.steps
    x = g.conv1d("subsample", x, hidden, TAPS, stride=STRIDE, padding=(TAPS - 1, 0), bias=True)
    positions = g.parameter("encoder.positions", (hidden, steps), role="constant")
    x = g.elementwise("encoder.place", "add", x, positions)
    x = g.reshape("encoder.rows", x, (batch * steps, hidden))
    for layer in range(config.layers):
        name = f"encoder.{layer}"
        y = _attention(g.at(f"{name}.attention"), x, batch, config.heads)
        x = _norm(g, f"{name}.norm1", g.elementwise(f"{name}.add1", "add", y, x))
        y = g.elementwise(f"{name}.act", "relu", g.linear(f"{name}.up", x, 4 * hidden))
        y = g.elementwise(f"{name}.dropout", "dropout", y)
        y = g.linear(f"{name}.down", y, hidden)
        x = _norm(g, f"{name}.norm2", g.elementwise(f"{name}.add2", "add", y, x))
    return x


def _predict(g: GraphBuilder, labels: str, config: Config) -> str:
    """Add the prediction network: labels (N, L) to (N x (L + 1), units)."""
    batch, length = g.shape(labels)
    units = PREDICTION
    x = g.gather("predict.embed", g.parameter("predict.table", (SYMBOLS - 1, units)), labels)
    x = g.reshape("predict.items", x, (batch, length, units))
    x = g.transpose("predict.steps_first", x, (1, 0, 2))
    blank = g.parameter("predict.blank", (1, batch, units), role="constant")
    x = g.concat("predict.start", blank, x, axis=0)
    for layer in range(config.prediction_layers):
        x = g.recurrent(f"predict.lstm{layer}", x, units)
        x = g.elementwise(f"predict.dropout{layer}", "dropout", x)
    x = g.transpose("predict.items_first", x, (1, 0, 2))
    return g.reshape("predict.rows", x, (batch * (length + 1), units))


def _join(g: GraphBuilder, steps: str, labels: str, batch: int, config: Config) -> str:
    """Add the joint network: log probabilities of nothing and of the next label for every pair."""
    joint, columns = JOINT, config.labels + 1
    a = g.linear("joint.steps", steps, joint)
    a = g.reshape("joint.steps.items", a, (batch, config.steps, 1, joint))
    b = g.linear("joint.labels", labels, joint)
    b = g.reshape("joint.labels.items", b, (batch, 1, columns, joint))
    weight = g.parameter("joint.output.weight", (joint, SYMBOLS))
    bias = g.parameter("joint.output.bias", (SYMBOLS,))
    whole, rest = divmod(config.steps, JOINT_STEPS)
    sizes = (JOINT_STEPS,) * whole + ((rest,) if rest else ())
    parts = []
    for index, part in enumerate(g.split("joint.parts", a, sizes, axis=1)):
        name, taken = f"joint.{index}", sizes[index]
        wide = g.expand(f"{name}.expand", part, (batch, taken, columns, joint))
        x = g.elementwise(f"{name}.act", "relu", g.elementwise(f"{name}.add", "add", wide, b))
        x = g.elementwise(f"{name}.dropout", "dropout", x)
        rows = batch * taken * columns
        x = g.reshape(f"{name}.rows", x, (rows, joint))
        x = g.matmul(f"{name}.output", x, weight)
        added = Elementwise.in_place("bias_add", rows * SYMBOLS, broadcast=True)
        x = g.apply(f"{name}.output.bias_add", added, (x, bias), (rows, SYMBOLS))
        x = g.softmax(f"{name}.log_softmax", x, log=True)
        parts.append(g.narrow(f"{name}.chosen", x, axis=1, size=2))
    return g.concat("joint.concat", *parts, axis=0)


def build(g: GraphBuilder, batch: int, config: Config) -> str:
    """Transducer, from features (N, 240, T) and labels (N, L) to the loss."""
    labels = g.input("labels", (batch, config.labels), "int32")
    encoded = _encode(g, batch, config)
    predicted = _predict(g, labels, config)
    pairs = _join(g, encoded, predicted, batch, config)
    return g.alignment_loss("loss", pairs, labels, kind="transducer", steps=config.steps)


NOTE = (
    "trained form, with the loss; 125 labels and, in the small one, 1980 frames before "
    "stacking as test_transducer.py generates them; the large one takes 16.8 s slowed down to "
    "0.85 of the speed"
)
SMALL = Config(frames=660, labels=125, layers=12, hidden=256, heads=8, prediction_layers=1)
LARGE = replace(SMALL, frames=659, layers=14, hidden=768, prediction_layers=2)
"""That of MLPerf 2.0."""
EXAMPLES = "graphcore/examples@v3.1.0:speech/transformer_transducer/popart/training"
MLPERF = "mlcommons/training_results_v2.0: Graphcore, rnnt, configs/transducer-large-1023sp.yaml"
NETWORKS = (
    ("transformer_transducer", SMALL, 13_978_368, 26_248_175_616, {"source": EXAMPLES}),
    ("transformer_transducer_large", LARGE, 107_997_952, 58_506_006_528, {"source": MLPERF}),
)
variants(build, NETWORKS, family="rnn-t", note=NOTE, loss="identity")
