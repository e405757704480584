"""The rows of the IPUModel table: their small graphs, and whether their memory fits the plans.

A training row is forward, gradient and the addition of the gradient to the weights; a recurrent one
has no update; a pooling row is a maximum and its gradient, a reduction has its input spread
linearly, an embedding is a lookup followed by the sum of gradients. Single operations start in the
layout that they want.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

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
from ipusim.workload.operators import (
    conv_data_gradient,
    conv_weight_gradient,
    matmul_data_gradient,
    matmul_weight_gradient,
)

CHIPS = {"mk1": "GC2", "mk2": "GC200"}
DTYPES = {"half": "float16", "float": "float32"}
"""Chips and element types by the names that the table gives them."""

FINGERPRINT_SLACK_BYTES = 64
"""Worst-tile bytes agree with a plan when they exceed region start and partials by no more."""

FULLY_CONNECTED = ("fully_connected", "fully_connected_grouped")
_ROLES = {"x": "input", "w": "parameter", "dy": "input"}
_REDUCTIONS = {"ADD": "sum", "MAX": "max", "SQUARE_ADD": "sumsquare"}


def fingerprint(record: dict[str, str], program: Program, chip: Chip) -> bool | None:
    """Return whether the worst tile's bytes are those of the predicted plans; None if not given."""
    if not record["max_tile_memory_bytes"]:
        return None
    partials = int(record["max_tile_memory_bytes"]) - chip.interleaved_offset_bytes
    slack = partials - max(op.interleaved_bytes for op in program.ops)
    return 0 <= slack <= FINGERPRINT_SLACK_BYTES


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


def _product(record: dict[str, str]) -> MatMul:
    """Return the matrix product of a row; that of a fully connected layer has stored weights."""
    return MatMul(
        groups=int(record["matmul_groups"]),
        m=int(record["m"]),
        k=int(record["k"]),
        n=int(record["n"]),
        weights_operand=record["op_kind"] in FULLY_CONNECTED,
    )


def _conv(record: dict[str, str]) -> Conv:
    return Conv(
        batch=int(record["batch"]),
        in_channels=int(record["in_channels"]),
        out_channels=int(record["out_channels"]),
        groups=int(record["conv_groups"]),
        dilation=_sizes(record["dilation"]),
        **_window(record),
    )


def _pooling(record: dict[str, str], dtype: str) -> Graph:
    """Maximum forward, then its gradient, which reads what the forward pass wrote."""
    pool = Pool(
        kind="max",
        batch=int(record["batch"]),
        channels=int(record["in_channels"]),
        **_window(record),
    )
    shapes = {"x": (pool.batch, pool.channels, *pool.field)}
    shapes |= {"dx": shapes["x"]}
    shapes |= dict.fromkeys(("y", "dy"), (pool.batch, pool.channels, *pool.out_field))
    back = replace(pool, backward=True)
    ops = [
        Op(name="forward", params=pool, inputs=("x",), outputs=("y",)),
        Op(
            name="gradient", params=back, inputs=("dy", "x", "y"), outputs=("dx",), phase="backward"
        ),
    ]
    return _graph(shapes, _ROLES, list(shapes), ops, ("x", "dy"), ("y", "dx"), dtype)


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
    shapes = {"x": shape, "y": (outer,)}
    ops = [Op(name="reduce", params=reduce, inputs=("x",), outputs=("y",))]
    return _graph(shapes, _ROLES, list(shapes), ops, ("x",), ("y",), dtype)


def _embedding(record: dict[str, str], dtype: str) -> Graph:
    """A lookup and the sum of its gradients; IPUModel counts as if all indices were one row."""
    rows, width, indices = (int(record[f"emb_{name}"]) for name in ("rows", "width", "indices"))
    lookup = Gather(rows=rows, width=width, indices=indices, hottest=indices)
    shapes = {"w": (rows, width), "i": (indices,), "y": (indices, width), "dy": (indices, width)}
    shapes |= {"dw": shapes["w"]}
    ops = [
        Op(name="lookup", params=lookup, inputs=("w", "i"), outputs=("y",)),
        Op(
            name="update",
            params=replace(lookup, function="add"),
            inputs=("dy", "i"),
            outputs=("dw",),
            phase="backward",
        ),
    ]
    roles = _ROLES | {"i": "input"}
    return _graph(shapes, roles, list(shapes), ops, ("i", "dy"), ("y", "dw"), dtype)


def _recurrent(record: dict[str, str], dtype: str) -> Graph:
    """A recurrent layer; those named as training rows keep intermediates."""
    return recurrent_graph(
        Recurrent(
            kind=record["op_kind"],
            steps=int(record["timesteps"]),
            batch=int(record["batch"]),
            features=int(record["input_size"]),
            hidden=int(record["hidden_size"]),
            training=record["passes"] != "fwd",
        ),
        dtype,
    )


_BUILD = {
    "reduce": _reduction,
    "embedding": _embedding,
    "lstm": _recurrent,
    "gru": _recurrent,
}


def forward_graph(layer: Conv | MatMul, dtype: str) -> Graph:
    """Build one forward pass whose data come from the host.

    A product without stored weights is a gemm, D = A B + C.
    """
    shapes = _shapes(layer)
    roles = dict(_ROLES)
    gemm = isinstance(layer, MatMul) and not layer.weights_operand
    if gemm:
        roles["w"] = "input"
    names = ["x", "w", "y", *(("c", "z") if gemm else ())]
    shapes |= {"c": shapes["y"], "z": shapes["y"]}
    roles["c"] = "input"
    ops = [Op(name="forward", params=layer, inputs=("x", "w"), outputs=("y",))]
    if gemm:
        ops.append(_scaled_add("y", "c", "z", layer.groups * layer.m * layer.n, "forward"))
    inputs = tuple(name for name in names if roles.get(name) == "input")
    return _graph(shapes, roles, names, ops, inputs, (names[-1],), dtype)


def training_graph(layer: Conv | MatMul, dtype: str) -> Graph:
    """Build the three passes of one layer and the addition of the gradient to the weights.

    Notes
    -----
    Where data gradient and forward convolution are equal, the table's tool runs both with the same
    code; its arguments are then copied for each call, in the layout that they have already.
    """
    convolution = isinstance(layer, Conv)
    back = conv_data_gradient(layer) if convolution else matmul_data_gradient(layer)
    update = conv_weight_gradient(layer) if convolution else matmul_weight_gradient(layer)
    shapes = _shapes(layer)
    shapes |= {"dx": shapes["x"], "dw": shapes["w"], "updated": shapes["w"]}
    names = ["x", "w", "dy", "y", "dx", "dw", "updated"]
    ops: list[Op] = []
    if convolution and replace(back, pass_kind="forward") == layer:
        for source in ("x", "dy"):
            target = f"{source} argument"
            shapes[target] = shapes[source]
            names.append(target)
            copy = Layout(function="copy", elements=_elements(shapes[source]), moves_data=True)
            ops.append(Op(name=f"copy {source}", params=copy, inputs=(source,), outputs=(target,)))
    ops += [
        Op(name="forward", params=layer, inputs=("x", "w"), outputs=("y",)),
        Op(
            name="data gradient",
            params=back,
            inputs=("dy", "w"),
            outputs=("dx",),
            phase="backward",
        ),
        Op(
            name="weight gradient",
            params=update,
            inputs=("x", "dy"),
            outputs=("dw",),
            phase="backward",
        ),
        _scaled_add("w", "dw", "updated", _elements(shapes["w"]), "update"),
    ]
    return _graph(shapes, _ROLES, names, ops, ("x", "dy"), ("y", "dx", "updated"), dtype)


def recurrent_graph(layer: Recurrent, dtype: str) -> Graph:
    """Build a recurrent layer: forward, and where it trains the gradients, without an update."""
    columns = layer.gates * layer.hidden
    state = (layer.steps, layer.batch, layer.hidden)
    shapes = {
        "x": (layer.steps, layer.batch, layer.features),
        "w": (layer.features, columns),
        "r": (layer.hidden, columns),
        "b": (columns,),
        "dy": state,
        "y": state,
        "kept": (layer.steps, layer.saved, layer.batch, layer.hidden),
    }
    shapes |= {f"d{name}": shapes[name] for name in ("x", "w", "r", "b")}
    roles = dict.fromkeys(("x", "dy"), "input") | dict.fromkeys(("w", "r", "b"), "parameter")
    inputs = ("x", "w", "r", "b")
    if not layer.training:
        ops = [Op(name="forward", params=layer, inputs=inputs, outputs=("y",))]
        return _graph(shapes, roles, [*inputs, "y"], ops, ("x",), ("y",), dtype)
    gradients = ("dx", "dw", "dr", "db")
    ops = [
        Op(name="forward", params=layer, inputs=inputs, outputs=("y", "kept")),
        Op(
            name="gradient",
            params=replace(layer, backward=True),
            inputs=("dy", "x", "w", "r", "y", "kept"),
            outputs=gradients,
            phase="backward",
        ),
    ]
    return _graph(shapes, roles, list(shapes), ops, ("x", "dy"), ("y", *gradients), dtype)


def _shapes(layer: Conv | MatMul) -> dict[str, tuple[int, ...]]:
    if isinstance(layer, MatMul):
        data = (layer.groups, layer.m, layer.k)
        weights = (layer.groups, layer.k, layer.n)
        result = (layer.groups, layer.m, layer.n)
    else:
        data = (layer.batch, layer.in_channels, *layer.field)
        weights = (layer.out_channels, layer.in_channels // layer.groups, *layer.kernel)
        result = (layer.batch, layer.out_channels, *layer.out_field)
    return {"x": data, "w": weights, "y": result, "dy": result}


def _elements(shape: tuple[int, ...]) -> int:
    return Tensor(name="shape", shape=shape).elements


def _scaled_add(target: str, other: str, result: str, elements: int, phase: str) -> Op:
    addition = Elementwise(function="scaled_add", n_inputs=2, elements=elements, in_place_ok=True)
    return Op(name="add", params=addition, inputs=(target, other), outputs=(result,), phase=phase)


def _graph(
    shapes: dict[str, tuple[int, ...]],
    roles: dict[str, str],
    names: list[str],
    ops: list[Op],
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
    dtype: str,
) -> Graph:
    tensors = {
        name: Tensor(name=name, shape=shapes[name], dtype=dtype, role=roles.get(name, "activation"))
        for name in names
    }
    return Graph(name="layer", tensors=tensors, ops=tuple(ops), inputs=inputs, outputs=outputs)
