"""The rows of the IPUModel table: their small graphs, and whether their memory fits the plans.

A training row is forward, gradient and the addition of the gradient to the weights; a recurrent one
has no update; a pooling row is a maximum and its gradient, a reduction has its input spread
linearly, an embedding is a lookup followed by the sum of gradients. Single operations start in the
layout that they want.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from ipusim.compiler.program import Program
from ipusim.compiler.state import TensorLayout
from ipusim.machine import Chip
from ipusim.workload.graph import (
    Conv,
    Elementwise,
    Gather,
    Graph,
    Layout,
    MatMul,
    Op,
    Pool,
    Recurrent,
    Reduce,
    Tensor,
)
from ipusim.workload.operators.gradient import Backward, Tape

CHIPS = {"mk1": "GC2", "mk2": "GC200"}
DTYPES = {"half": "float16", "float": "float32"}
"""Chips and element types by the names that the table gives them."""

FINGERPRINT_SLACK_BYTES = 64
"""Worst-tile bytes agree with a plan when they exceed region start and partials by no more."""

FULLY_CONNECTED = ("fully_connected", "fully_connected_grouped")
_ROLES = {"x": "input", "dy": "input", "i": "input", "c": "input", "w": "parameter"}
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
    kind, dtype = record["op_kind"], DTYPES[record["input_dtype"]]
    if kind in _BUILD:
        return _BUILD[kind](record, dtype), {}
    if kind == "pooling":
        layout = TensorLayout(grouping=option(record, "fwd-chans-per-group", 1))
        return _pooling(record, dtype), {"x": layout}
    layer = _conv(record) if kind.startswith("conv") else _product(record)
    build = forward_graph if record["passes"] == "fwd" else training_graph
    return build(layer, dtype), {}


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


def _pooling(record: dict[str, str], dtype: str) -> Graph:
    """Maximum forward, then its gradient, which reads what the forward pass wrote."""
    counts = _counts(record, batch="batch", channels="in_channels")
    pool = Pool(kind="max", **counts, **_window(record))
    shapes = {"x": (pool.batch, pool.channels, *pool.field)}
    shapes["y"] = (pool.batch, pool.channels, *pool.out_field)
    return _differentiated(_graph(shapes, [_op("forward", pool, "x", "y")], ("y",), dtype))


def _reduction(record: dict[str, str], dtype: str) -> Graph:
    shape, axes = _sizes(record["reduce_shape"]), _sizes(record["reduce_dims"])
    reduced = prod(shape[axis] for axis in axes)
    outer = prod(shape) // reduced
    reduce = Reduce(
        function=_REDUCTIONS[record["reduce_op"]],
        outer=outer,
        reduced=reduced,
        inner=1,
        shape=shape,
        axes=axes,
    )
    return _graph({"x": shape, "y": (outer,)}, [_op("reduce", reduce, "x", "y")], ("y",), dtype)


def _embedding(record: dict[str, str], dtype: str) -> Graph:
    """A lookup and the sum of its gradients; IPUModel counts as if all indices were one row."""
    rows, width, indices = (int(record[f"emb_{name}"]) for name in ("rows", "width", "indices"))
    lookup = Gather(rows=rows, width=width, indices=indices, hottest=indices)
    shapes = {"w": (rows, width), "i": (indices,), "y": (indices, width)}
    return _differentiated(_graph(shapes, [_op("lookup", lookup, "w i", "y")], ("y",), dtype))


def _recurrent(record: dict[str, str], dtype: str) -> Graph:
    """A recurrent layer; those named as training rows keep intermediates."""
    sizes = {"steps": "timesteps", "features": "input_size", "hidden": "hidden_size"}
    counts, training = _counts(record, batch="batch", **sizes), record["passes"] != "fwd"
    return recurrent_graph(Recurrent(kind=record["op_kind"], **counts, training=training), dtype)


_BUILD = {"reduce": _reduction, "embedding": _embedding, "lstm": _recurrent, "gru": _recurrent}


def forward_graph(layer: Conv | MatMul, dtype: str) -> Graph:
    """Build one forward pass; a product without stored weights is a gemm, D = A B + C."""
    shapes, ops = _shapes(layer), [_op("forward", layer, "x w", "y")]
    if not isinstance(layer, MatMul) or layer.weights_operand:
        return _graph(shapes, ops, ("y",), dtype)
    shapes |= {"c": shapes["y"], "z": shapes["y"]}
    ops.append(_scaled_add("y", "c", "z", "forward"))
    return _graph(shapes, ops, ("z",), dtype, {"w": "input"})


def training_graph(layer: Conv | MatMul, dtype: str) -> Graph:
    """Build the three passes of one layer and the addition of the gradient to the weights."""
    shapes = _shapes(layer)
    alone = _graph(shapes, [_op("forward", layer, "x w", "y")], ("y",), dtype)
    forward, of_weights, of_data = _differentiated(alone).ops
    (dw,), (dx,) = of_weights.outputs, of_data.outputs
    shapes |= {"dy": shapes["y"], dx: shapes["x"], dw: shapes["w"], "updated": shapes["w"]}
    copies = []
    # Where data gradient and forward convolution are equal, the table's tool runs both with the
    # same code; its arguments are copied for each call, in the layout that they have already.
    if isinstance(layer, Conv) and replace(of_data.params, pass_kind="forward") == layer:
        for source in ("x", "dy"):
            argument = f"{source}_argument"
            shapes[argument] = shapes[source]
            copies.append(_op(f"copy {source}", Layout.move("copy"), source, argument))
    update = _scaled_add("w", dw, "updated", "update")
    ops = [*copies, forward, of_data, of_weights, update]
    graph = _graph(shapes, ops, ("y", dx, "updated"), dtype)
    # Weights are updated where they lie.
    updated = replace(graph.tensors["updated"], alias_of="w")
    return replace(graph, tensors=graph.tensors | {"updated": updated})


def recurrent_graph(layer: Recurrent, dtype: str) -> Graph:
    """Build a recurrent layer: forward, and where it trains the gradients, without an update."""
    columns = layer.gates * layer.hidden
    shapes = {
        "x": (layer.steps, layer.batch, layer.features),
        "w": (layer.features, columns),
        "r": (layer.hidden, columns),
        "b": (columns,),
        "y": (layer.steps, layer.batch, layer.hidden),
    }
    roles = {"r": "parameter", "b": "parameter"}
    if not layer.training:
        return _graph(shapes, [_op("forward", layer, "x w r b", "y")], ("y",), dtype, roles)
    shapes["kept"] = (layer.steps, layer.saved, layer.batch, layer.hidden)
    ops = [_op("forward", layer, "x w r b", "y kept")]
    return _differentiated(_graph(shapes, ops, ("y",), dtype, roles))


def _differentiated(graph: Graph) -> Graph:
    """Add the gradients of all that an operation reads, given that of its result."""
    (op,), tensors = graph.ops, graph.tensors
    tape = Tape(forward=tensors, wanted=frozenset(op.inputs))
    Backward(tape, op, ("dy", *[None] * (len(op.outputs) - 1))).run()
    given = replace(tensors["y"], name="dy", role="input")
    return replace(
        graph,
        tensors={**tensors, "dy": given, **tape.tensors},
        ops=(op, *tape.ops),
        inputs=(*graph.inputs, "dy"),
        outputs=("y", *tape.tensors),
    )


def _shapes(layer: Conv | MatMul) -> dict[str, tuple[int, ...]]:
    """Return the shapes of data, weights and result of a layer."""
    if isinstance(layer, MatMul):
        data = (layer.groups, layer.m, layer.k)
        weights = (layer.groups, layer.k, layer.n)
        result = (layer.groups, layer.m, layer.n)
    else:
        data = (layer.batch, layer.in_channels, *layer.field)
        weights = (layer.out_channels, layer.in_channels // layer.groups, *layer.kernel)
        result = (layer.batch, layer.out_channels, *layer.out_field)
    return {"x": data, "w": weights, "y": result}


def _op(name: str, params: Any, inputs: str, outputs: str, phase: str = "forward") -> Op:
    """Return an operation; names of tensors are separated by spaces."""
    tensors = {"inputs": tuple(inputs.split()), "outputs": tuple(outputs.split())}
    return Op(name=name, params=params, phase=phase, **tensors)


def _scaled_add(target: str, other: str, result: str, phase: str) -> Op:
    return _op("add", Elementwise.in_place("scaled_add"), f"{target} {other}", result, phase)


def _graph(
    shapes: Mapping[str, tuple[int, ...]],
    ops: Sequence[Op],
    outputs: tuple[str, ...],
    dtype: str,
    roles: Mapping[str, str] | None = None,
) -> Graph:
    """Return a graph of tensors with `_ROLES`, or others that are given."""
    roles = _ROLES | dict(roles or {})
    tensors = {
        name: Tensor(name=name, shape=shape, dtype=dtype, role=roles.get(name, "activation"))
        for name, shape in shapes.items()
    }
    inputs = tuple(name for name in shapes if roles.get(name) == "input")
    return Graph(name="layer", tensors=tensors, ops=tuple(ops), inputs=inputs, outputs=outputs)
