"""Speech from text with parallel transformers: FastSpeech 2 and FastPitch.

FastSpeech 2 (arXiv 2006.04558) as in graphcore/examples@v3.1.0, speech/fastspeech2/tensorflow2;
FastPitch (arXiv 2006.06873) as in graphcore/examples@v3.3.0, speech/fastpitch/pytorch. Both encode
symbols by attention and convolutions, predict how long each lasts and at what pitch, repeat the
symbols accordingly and decode mel frames; both train on sequences padded to 189 symbols and 870
frames.
"""

from functools import partial

from ipusim.workload.zoo.layers.speech import conv_along_time, multiply_lengths
from ipusim.workload.zoo.layers.transformer import Shape, attention
from ipusim.workload.zoo.registry import Config, GraphBuilder, networks

KERNEL = 3


def _block(g: GraphBuilder, x: str, shape: Shape, *, masks: tuple[str, str], c: Config) -> str:
    """Add attention and two convolutions, each with residual, norm and mask."""
    mask, scores_mask = masks
    y = attention(g.at("attention"), x, shape, mask=scores_mask)
    y = g.elementwise("attention.add", "add", y, x)
    x = g.layer_norm("attention.norm", y)
    x = g.elementwise("attention.masked", "mul", x, mask)
    y = conv_along_time(g, "conv1", x, shape.inner, KERNEL)
    if c.postnet:
        y = g.elementwise("conv1.masked", "mul", y, mask)
    y = _activate(g, "conv1.act", y, c.conv_activation, trained=c.given_variance)
    y = conv_along_time(g, "conv2", y, shape.hidden, KERNEL)
    if c.postnet:
        y = g.elementwise("conv2.masked", "mul", y, mask)
    y = g.dropout("conv2.dropout", y)
    y = g.elementwise("conv2.add", "add", y, x)
    return g.elementwise("masked", "mul", g.layer_norm("norm", y), mask)


def _activate(g: GraphBuilder, name: str, x: str, activation: str, *, trained: bool) -> str:
    """Add an activation; Mish as TensorFlow computes it, x times the tanh of softplus(x)."""
    if activation != "mish":
        return g.elementwise(name, activation, x)
    # The softplus takes x where that is large, exp(x) where it is small, and log(1 + exp(x))
    # between (tensorflow, compiler/tf2xla/kernels/softplus_op.cc). The two choices are left out
    # where gradients are wanted.
    if trained:
        y = g.elementwise(f"{name}.softplus", "softplus", x)
    else:
        grown = g.elementwise(f"{name}.exp", "exp", x)
        y = g.at(name).chain(grown, plus_one="add", log="log")
        for size, other in (("small", grown), ("large", x)):
            chosen = g.elementwise(f"{name}.{size}", "less", x)
            y = g.elementwise(f"{name}.take_{size}", "select", chosen, other, y)
    return g.elementwise(name, "mul", x, g.elementwise(f"{name}.tanh", "tanh", y))


def _predictor(g: GraphBuilder, x: str, mask: str, features: int) -> str:
    """Add the prediction of one value per symbol: (N, T, H) to (N, T)."""
    x = g.elementwise("mask_in", "mul", x, mask)
    for layer in range(2):
        x = conv_along_time(g, f"conv{layer}", x, features, KERNEL)
        x = g.elementwise(f"act{layer}", "relu", x)
        x = g.layer_norm(f"norm{layer}", x)
        x = g.dropout(f"dropout{layer}", x)
    x = g.elementwise("mask_out", "mul", g.linear("output", x, 1), mask)
    return g.reshape("values", x, g.shape(x)[:2])


def _masks(g: GraphBuilder, source: str) -> tuple[str, str]:
    """Return a 0/1 mask (N, T, 1) of what stands at (N, T), and what scores get (N, 1, 1, T)."""
    batch, steps = g.shape(source)
    mask = g.cast("cast", g.elementwise("present", "equal", source), "float32")
    away = g.chain(mask, away="sub", scale="scale")
    return g.column("rows", mask), g.reshape("scores", away, (batch, 1, 1, steps))


def _add_positions(g: GraphBuilder, name: str, x: str) -> str:
    """Add a fixed encoding to every step of (N, T, H)."""
    table = g.constant(f"{name}.table", g.shape(x)[1:])
    return g.elementwise(name, "add", x, table)


@networks
def fastspeech(g: GraphBuilder, batch: int, c: Config) -> tuple[str, ...]:
    """FastSpeech, from symbols (N, 189) to mel frames and predicted values."""
    shape = Shape.of(c)
    ids = g.input("symbols", (batch, c.tokens), "int32")
    table = g.parameter("symbols.table", (c.symbols, c.hidden))
    mask, away = _masks(g.at("symbols.mask"), ids)
    x = _add_positions(g, "symbols.positions", g.gather("symbols.embed", table, ids))
    for layer in range(c.layers):
        x = _block(g.at(f"encoder.{layer}"), x, shape, masks=(mask, away), c=c)
    durations = _predictor(g.at("duration"), x, mask, c.predictor)
    kinds = ("pitch", "energy") if c.predicts_energy else ("pitch",)
    values = {kind: _predictor(g.at(kind), x, mask, c.predictor) for kind in kinds}
    for kind, value in values.items():
        source = g.input(f"{kind}.given", (batch, c.tokens)) if c.given_variance else value
        y = g.column(f"{kind}.column", source)
        y = conv_along_time(g, f"{kind}.embed", y, c.hidden, c.embedding_kernel)
        if c.predicts_energy:
            y = g.dropout(f"{kind}.dropout", y)
        x = g.elementwise(f"{kind}.add", "add", x, y)
    if c.postnet:
        # Which symbol each frame repeats is taken as known; the durations behind it cost little.
        symbols = g.constant("lengths.rows", (batch, c.frames), "int32")
        x = g.gather(
            "lengths", g.reshape("lengths.table", x, (batch * c.tokens, c.hidden)), symbols
        )
    else:
        x = multiply_lengths(g, "lengths", x, c.frames, g.input("lengths.ends", (batch, c.tokens)))
    lasting = g.constant("frames.present", (batch, c.frames), "int32")
    mask, away = _masks(g.at("frames.mask"), lasting)
    x = _add_positions(g, "frames.positions", x)
    for layer in range(c.layers):
        x = _block(g.at(f"decoder.{layer}"), x, shape, masks=(mask, away), c=c)
    mel = g.linear("mel", x, c.mels)
    outputs = [mel, durations, *values.values()]
    if c.postnet:
        outputs.insert(1, _postnet(g, mel, mask, trained=c.given_variance))
    return tuple(outputs)


def _keras_norm(g: GraphBuilder, name: str, x: str) -> str:
    """Add the layer norm of Keras itself for float16 rows (N, T, C)."""
    own, features = g.at(name), g.shape(x)[2]
    scale, shift = (own.parameter(part, (features,)) for part in ("weight", "bias"))

    def mean(part: str, y: str) -> str:
        return own.column(f"{part}.column", own.reduce(f"{part}.mean", "mean", y, axis=2))

    # Moments of the rows, then scale and shift of every element (keras, layers/normalization: a
    # norm whose variables are not float32 takes no fused form; tensorflow, nn.moments and
    # nn.batch_normalization). TensorFlow takes the moments in float32, which a graph of one
    # precision does not hold.
    average = mean("values", x)
    apart = own.elementwise("apart", "sub", x, average)
    variance = mean("squares", own.elementwise("squares", "square", apart))
    inverse = own.elementwise("rsqrt", "rsqrt", variance)
    inverse = own.expand("spread", inverse, g.shape(x))
    inverse = own.elementwise("scale", "mul", inverse, scale)
    offset = own.elementwise("moved", "mul", inverse, average)
    offset = own.elementwise("offset", "sub", offset, shift)
    return g.elementwise(name, "add", own.elementwise("scaled", "mul", x, inverse), offset)


def _postnet(g: GraphBuilder, mel: str, mask: str, *, trained: bool) -> str:
    """Add what five convolutions correct in the mel frames, as Tacotron 2 does."""
    y, last = mel, 4
    for layer in range(last + 1):
        features = 512 if layer < last else g.shape(mel)[2]
        y = conv_along_time(g, f"postnet.conv{layer}", y, features, 5)
        # These norms are those of Keras, not the IPU's: in training, in float32, they are a fused
        # norm as well, and in inference, in float16, they are not.
        norm = g.layer_norm if trained else partial(_keras_norm, g)
        y = norm(f"postnet.norm{layer}", y)
        if layer < last:
            y = g.elementwise(f"postnet.tanh{layer}", "tanh", y)
        y = g.dropout(f"postnet.dropout{layer}", y)
    y = g.elementwise("postnet.mask", "mul", y, mask)
    return g.elementwise("mel_after", "add", mel, y)
