"""The rows of the IPUModel table: their small graphs, and whether their memory fits the plans.

A training row is forward, gradient and the addition of the gradient to the weights; a recurrent one
has no update; a pooling row is a maximum and its gradient, a reduction has its input spread
linearly, an embedding is a lookup followed by the sum of gradients. Single operations start in the
layout that they want.
"""

from dataclasses import replace
from math import prod

from ipusim.compiler.program import Program
from ipusim.compiler.state import TensorLayout
from ipusim.machine import Chip
from ipusim.workload.graph import Conv, Elementwise, Graph, MatMul, Pool, Recurrent, Reduce
from ipusim.workload.layers import GraphBuilder
from ipusim.workload.operators.gradient import Backward, Tape, gradient

CHIPS = {"mk1": "GC2", "mk2": "GC200"}
PRECISIONS = {"half": "16.16", "float": "32.32"}
"""Chips and precisions by the names that the table gives them."""

FINGERPRINT_SLACK_BYTES = 64
"""Worst-tile bytes agree with a plan when they exceed region start and partials by no more."""

FULLY_CONNECTED = ("fully_connected", "fully_connected_grouped")
_REDUCTIONS = {"ADD": "sum", "MAX": "max", "SQUARE_ADD": "sumsquare"}


def fingerprint(record: dict[str, str], program: Program, chip: Chip) -> bool | None:
    """Return whether the worst tile's bytes are those of the predicted plans; None if not given.

    Without AMP in any of them nothing lies in interleaved memory.
    """
    if not record["max_tile_memory_bytes"]:
        return None
    partials = int(record["max_tile_memory_bytes"]) - chip.interleaved_offset_bytes
    predicted = max(op.interleaved_bytes for op in program.ops)
    return 0 <= partials - predicted <= FINGERPRINT_SLACK_BYTES if predicted else partials < 0


def graph_of(record: dict[str, str]) -> tuple[Graph, dict[str, TensorLayout]]:
    """Return what a row runs, and the layouts in which tensors start that the tool gives one."""
    kind, layouts = record["op_kind"], {}
    if kind == "pooling":
        layouts["x"] = TensorLayout(grouping=option(record, "fwd-chans-per-group", 1))
    if kind in _BUILD:
        graph = _BUILD[kind](record)
    else:
        layer = _conv(record) if kind.startswith("conv") else _product(record)
        graph = forward_graph(layer) if record["passes"] == "fwd" else training_graph(layer)
    return graph.with_precision(PRECISIONS[record["input_dtype"]]), layouts


def option(record: dict[str, str], name: str, default: int) -> int:
    """Return a special option of the tool."""
    options = dict(part.partition("=")[::2] for part in record["special_options"].split("; "))
    return int(options.get(name, default))


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(size) for size in text.split("x"))


def _window(record: dict[str, str]) -> dict[str, tuple[int, ...]]:
    names = ("field", "kernel", "stride", "padding_lower", "padding_upper")
    return {name: _sizes(record[name]) for name in names}


def _counts(record: dict[str, str], **columns: str) -> dict[str, int]:
    """Return whole numbers of a row, by the attributes that they are."""
    return {name: int(record[column]) for name, column in columns.items()}


def _product(record: dict[str, str]) -> MatMul:
    """Return the matrix product of a row; that of a fully connected layer has stored weights."""
    sizes = _counts(record, groups="matmul_groups", m="m", k="k", n="n")
    return MatMul(**sizes, weights_operand=record["op_kind"] in FULLY_CONNECTED)


def _conv(record: dict[str, str]) -> Conv:
    channels = {"in_channels": "in_channels", "out_channels": "out_channels"}
    counts = _counts(record, batch="batch", groups="conv_groups", **channels)
    return Conv(**counts, **_window(record), dilation=_sizes(record["dilation"]))


def _pooling(record: dict[str, str]) -> Graph:
    """Maximum forward, then its gradient, which reads what the forward pass wrote."""
    counts = _counts(record, batch="batch", channels="in_channels")
    pool, g = Pool(kind="max", **counts, **_window(record)), GraphBuilder("layer")
    x = g.input("x", (pool.batch, pool.channels, *pool.field))
    y = g.apply("forward", pool, (x,), (pool.batch, pool.channels, *pool.out_field))
    return g.finish(y, *_differentiate(g))


def _reduction(record: dict[str, str]) -> Graph:
    shape, axes = _sizes(record["reduce_shape"]), _sizes(record["reduce_dims"])
    reduced = prod(shape[axis] for axis in axes)
    sizes = {"outer": prod(shape) // reduced, "reduced": reduced, "inner": 1}
    function, g = _REDUCTIONS[record["reduce_op"]], GraphBuilder("layer")
    reduce = Reduce(function=function, **sizes, shape=shape, axes=axes)
    return g.finish(g.apply("reduce", reduce, (g.input("x", shape),), (reduce.outer,)))


def _embedding(record: dict[str, str]) -> Graph:
    """A lookup, and rows added to the table; IPUModel counts as if all indices were one row."""
    rows, width, indices = (int(record[f"emb_{name}"]) for name in ("rows", "width", "indices"))
    g = GraphBuilder("layer")
    table, chosen = g.parameter("w", (rows, width)), g.input("i", (indices,))
    y = g.gather("lookup", table, chosen, hottest=indices)
    added = g.input("dy", g.shape(y))
    g.write_slices("update", table, added, chosen, hottest=indices)
    return g.finish(y)


def _recurrent(record: dict[str, str]) -> Graph:
    """A recurrent layer; those named as training rows keep intermediates."""
    sizes = {"steps": "timesteps", "features": "input_size", "hidden": "hidden_size"}
    counts, training = _counts(record, batch="batch", **sizes), record["passes"] != "fwd"
    return recurrent_graph(Recurrent(kind=record["op_kind"], **counts, training=training))


_BUILD = {
    "pooling": _pooling,
    "reduce": _reduction,
    "embedding": _embedding,
    "lstm": _recurrent,
    "gru": _recurrent,
}


def forward_graph(layer: Conv | MatMul, precision: str = "16.16") -> Graph:
    """Build one forward pass; a product without stored weights is a gemm, D = A B + C."""
    g = GraphBuilder("layer")
    y = _forward(g, layer)
    if isinstance(layer, MatMul) and not layer.weights_operand:
        added = (y, g.input("c", g.shape(y)))
        y = g.apply("add", Elementwise.in_place("scaled_add"), added, g.shape(y))
    return g.finish(y).with_precision(precision)


def training_graph(layer: Conv | MatMul, precision: str = "16.16") -> Graph:
    """Build the three passes of one layer and the addition of the gradient to the weights."""
    g = GraphBuilder("layer")
    y = _forward(g, layer)
    dw, dx = _differentiate(g)
    forward, of_weights, of_data = g.ops
    g.ops = []
    # Where data gradient and forward convolution are equal, the table's tool runs both with the
    # same code; its arguments are copied for each call, in the layout that they have already.
    if isinstance(layer, Conv) and replace(of_data.params, pass_kind="forward") == layer:
        for source in ("x", "dy"):
            g.copy(f"copy {source}", source)
    g.ops += [forward, of_data, of_weights]
    # Weights are updated where they lie.
    where = {"alias_of": "w", "role": "output"}
    updated = g.add_tensor("updated", g.shape("w"), "float32", **where)
    g.add_op("add", Elementwise.in_place("scaled_add"), ("w", dw), updated)
    return g.finish(y, dx, updated).with_precision(precision)


def recurrent_graph(layer: Recurrent, precision: str = "16.16") -> Graph:
    """Build a recurrent layer: forward, and where it trains the gradients, without an update."""
    g, columns = GraphBuilder("layer"), layer.gates * layer.hidden
    read = (
        g.input("x", (layer.steps, layer.batch, layer.features)),
        g.parameter("w", (layer.features, columns)),
        g.parameter("r", (layer.hidden, columns)),
        g.parameter("b", (columns,)),
    )
    last = (layer.batch, layer.hidden)
    result = (layer.steps, *last) if layer.sequence else last
    if not layer.training:
        y = g.apply("forward", layer, read, result)
        return g.finish(y).with_precision(precision)
    kept = (layer.steps, layer.saved, *last)
    y, _ = g.apply_several("forward", layer, read, [result, kept])
    return g.finish(y, *_differentiate(g)).with_precision(precision)


def _differentiate(g: GraphBuilder) -> tuple[str, ...]:
    """Add the gradients of all that the only operation reads, given that of its result."""
    (op,) = g.ops
    given = g.input("dy", g.shape(op.outputs[0]))
    tape = Tape(forward=g.tensors, wanted=frozenset(op.inputs))
    gradient(op.params, Backward(tape, op, (given, *[None] * (len(op.outputs) - 1))))
    g.tensors |= tape.tensors
    g.ops += tape.ops
    return tuple(tape.tensors)


def _forward(g: GraphBuilder, layer: Conv | MatMul) -> str:
    """Add a layer with its data and weights; return its result."""
    if isinstance(layer, MatMul):
        data = (layer.groups, layer.m, layer.k)
        weights = (layer.groups, layer.k, layer.n)
        result = (layer.groups, layer.m, layer.n)
    else:
        data = (layer.batch, layer.in_channels, *layer.field)
        weights = (layer.out_channels, layer.in_channels // layer.groups, *layer.kernel)
        result = (layer.batch, layer.out_channels, *layer.out_field)
    stored = isinstance(layer, Conv) or layer.weights_operand
    w = g.parameter("w", weights) if stored else g.input("w", weights)
    return g.apply("forward", layer, (g.input("x", data), w), result)
