"""ONNX operators that compute without a window: products, normalisation, softmax, reduction."""

from __future__ import annotations

from math import prod

from ipusim.workload.graph import (
    Elementwise,
    MatMul,
    Norm,
    Reduce,
    Softmax,
)
from ipusim.workload.onnx.context import Handler, ImportContext, Node, attributes, has_input

PER_ELEMENT_AXIS_OPSET = 13
"""From here on Softmax works along one axis; before, on everything from that axis on."""


def gemm(context: ImportContext, node: Node) -> None:
    """Gemm: alpha A' B' + beta C, as matrix product, scale and (scaled) addition.

    Scaling by 1 is left out, and so is C where beta is 0. A per-column parameter is added as
    "bias_add", anything else as "add" or, with beta, "scaled_add".
    """
    given = attributes(node)
    alpha, beta = given.get("alpha", 1.0), given.get("beta", 1.0)
    flip_a, flip_b = bool(given.get("transA", 0)), bool(given.get("transB", 0))
    a_shape, output = context.shape(node.input[0]), context.shape(node.output[0])
    a = context.operand(node.input[0], weight=True)
    b = context.operand(node.input[1], weight=True)
    product = MatMul(
        m=output[0],
        k=a_shape[0] if flip_a else a_shape[1],
        n=output[1],
        weights_operand=context.role(b) == "parameter",
        transpose_a=flip_a,
        transpose_b=flip_b,
    )
    scale = Elementwise(function="scale", n_inputs=1, elements=prod(output), in_place_ok=True)
    has_c = has_input(node, 2) and beta != 0.0
    if not has_c and alpha == 1.0:
        context.emit(node, product, (a, b))
        return
    result = context.emit_intermediate(node, product, (a, b), suffix=".product")
    if not has_c:
        context.emit(node, scale, (result,), suffix=".scale")
        return
    if alpha != 1.0:
        result = context.emit_intermediate(node, scale, (result,), suffix=".scale")
    c_shape = context.shape(node.input[2])
    c = context.operand(node.input[2], weight=True)
    per_column = prod(c_shape) == output[1] and c_shape[-1:] == output[1:]
    if beta != 1.0:
        function = "scaled_add"
    elif per_column and context.role(c) == "parameter":
        function = "bias_add"
    else:
        function = "add"
    add = Elementwise(
        function=function,
        n_inputs=2,
        elements=prod(output),
        broadcast=c_shape != output,
        in_place_ok=True,
    )
    context.emit(node, add, (result, c), suffix=f".{function}")


def matmul(context: ImportContext, node: Node) -> None:
    """MatMul of any ranks; a batch that only A has is folded into its rows."""
    a_shape, b_shape = context.shape(node.input[0]), context.shape(node.input[1])
    given = attributes(node)
    flip_a, flip_b = bool(given.get("transA", 0)), bool(given.get("transB", 0))
    a_shape = (*a_shape[:-2], *a_shape[:-3:-1]) if flip_a else a_shape
    b_shape = (*b_shape[:-2], *b_shape[:-3:-1]) if flip_b else b_shape
    a_shape = a_shape if len(a_shape) > 1 else (1, *a_shape)
    b_shape = b_shape if len(b_shape) > 1 else (*b_shape, 1)
    rows, groups = a_shape[-2], 1
    if prod(b_shape[:-2]) == 1:
        rows *= prod(a_shape[:-2])
    else:
        groups = prod(context.shape(node.output[0])) // (rows * b_shape[-1])
    a = context.operand(node.input[0], weight=True)
    b = context.operand(node.input[1], weight=True)
    params = MatMul(
        groups=groups,
        m=rows,
        k=a_shape[-1],
        n=b_shape[-1],
        weights_operand=context.role(b) == "parameter",
        transpose_a=flip_a,
        transpose_b=flip_b,
    )
    context.emit(node, params, (a, b))


def batch_norm(context: ImportContext, node: Node) -> None:
    """BatchNormalization with stored statistics."""
    if attributes(node).get("training_mode", 0):
        context.notes["batch norms in training mode use their stored statistics"] += 1
    batch, channels, *field = context.shape(node.input[0])
    params = Norm(kind="batch", batch=batch, channels=channels, spatial_elements=prod(field))
    operands = (
        context.operand(node.input[0]),
        context.operand(node.input[1], weight=True),
        context.operand(node.input[2], weight=True),
        context.operand(node.input[3], role="constant"),
        context.operand(node.input[4], role="constant"),
    )
    context.emit(node, params, operands)


def layer_norm(context: ImportContext, node: Node) -> None:
    """LayerNormalization over the axes from ``axis`` on."""
    shape = context.shape(node.input[0])
    axis = attributes(node).get("axis", -1) % len(shape)
    params = Norm(
        kind="layer", batch=prod(shape[:axis]), channels=prod(shape[axis:]), spatial_elements=1
    )
    context.emit(node, params, _norm_operands(context, node))


def rms_norm(context: ImportContext, node: Node) -> None:
    """RMSNormalization: square, mean, reciprocal root, and two products."""
    shape = context.shape(node.input[0])
    axis = attributes(node).get("axis", -1) % len(shape)
    rows, length = prod(shape[:axis]), prod(shape[axis:])
    narrow = (*shape[:axis], *(1 for _ in shape[axis:]))
    data = context.operand(node.input[0])

    def step(suffix: str, function: str, shape: tuple[int, ...], *operands: str) -> str:
        params = Elementwise(
            function=function,
            n_inputs=len(operands),
            elements=prod(shape),
            broadcast=len(operands) > 1,
        )
        return context.emit_intermediate(node, params, operands, suffix=suffix, shape=shape)

    squares = step(".square", "square", shape, data)
    reduce = Reduce(function="mean", outer=rows, reduced=length, inner=1)
    mean = context.emit_intermediate(node, reduce, (squares,), suffix=".mean", shape=narrow)
    root = step(".root", "rsqrt", narrow, mean)
    last = Elementwise(function="mul", n_inputs=2, elements=prod(shape), broadcast=True)
    if not has_input(node, 1):
        context.emit(node, last, (data, root))
        return
    scaled = step(".scaled", "mul", shape, data, root)
    context.emit(node, last, (scaled, context.operand(node.input[1], weight=True)))


def group_norm(context: ImportContext, node: Node) -> None:
    """InstanceNormalization and GroupNormalization."""
    batch, channels, *field = context.shape(node.input[0])
    instance = node.op_type == "InstanceNormalization"
    params = Norm(
        kind="instance" if instance else "group",
        batch=batch,
        channels=channels,
        spatial_elements=prod(field),
        groups=channels if instance else attributes(node)["num_groups"],
    )
    context.emit(node, params, _norm_operands(context, node))


def _norm_operands(context: ImportContext, node: Node) -> tuple[str, ...]:
    vectors = (context.operand(name, weight=True) for name in node.input[1:] if name)
    return (context.operand(node.input[0]), *vectors)


def softmax(context: ImportContext, node: Node) -> None:
    """Softmax and LogSoftmax."""
    shape = context.shape(node.input[0])
    modern = context.opset >= PER_ELEMENT_AXIS_OPSET
    axis = attributes(node).get("axis", -1 if modern else 1)
    axis = axis % max(1, len(shape))
    length = prod(shape[axis : axis + 1] if modern else shape[axis:])
    params = Softmax(outer=prod(shape) // length, length=length, log=node.op_type == "LogSoftmax")
    context.emit(node, params, (context.operand(node.input[0]),))


def reduce(context: ImportContext, node: Node) -> None:
    """Reductions over any axes, neighbours or not."""
    shape = context.shape(node.input[0])
    given = attributes(node)
    if node.op_type in ("ArgMax", "ArgMin"):
        axes = (given.get("axis", 0),)
    else:
        listed = context.array(node, 1)
        axes = tuple(given.get("axes", ())) if listed is None else tuple(listed.tolist())
        if not axes and not given.get("noop_with_empty_axes", 0):
            axes = tuple(range(len(shape)))
    chosen = sorted({axis % len(shape) for axis in axes})
    reduced = prod(shape[axis] for axis in chosen)
    neighbours = bool(chosen) and chosen == list(range(chosen[0], chosen[-1] + 1))
    inner = prod(shape[chosen[-1] + 1 :]) if neighbours else 1
    apart = bool(chosen) and not neighbours
    params = Reduce(
        function=node.op_type.removeprefix("Reduce").lower(),
        outer=prod(shape) // (reduced * inner),
        reduced=reduced,
        inner=inner,
        shape=tuple(shape) if apart else (),
        axes=tuple(chosen) if apart else (),
    )
    context.emit(node, params, (context.operand(node.input[0]),))


_REDUCTIONS = (
    "ReduceMean",
    "ReduceSum",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceL1",
    "ReduceL2",
    "ReduceSumSquare",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ArgMax",
    "ArgMin",
)

COMPUTE_HANDLERS: dict[str, Handler] = {
    "Gemm": gemm,
    "MatMul": matmul,
    "BatchNormalization": batch_norm,
    "LayerNormalization": layer_norm,
    "RMSNormalization": rms_norm,
    "InstanceNormalization": group_norm,
    "GroupNormalization": group_norm,
    "Softmax": softmax,
    "LogSoftmax": softmax,
    **dict.fromkeys(_REDUCTIONS, reduce),
}
