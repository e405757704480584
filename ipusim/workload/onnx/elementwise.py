"""ONNX operators on single elements, and those that only move or rename them."""

from __future__ import annotations

import re
from math import prod

from ipusim.workload.graph import Cast, Conv, Elementwise, Gather, Layout, MatMul
from ipusim.workload.onnx.context import Handler, ImportContext, Node
from ipusim.workload.onnx.shapes import N_ARY, TRUTHS, UNARY, axis_of

_POWERS = {2.0: "square", 0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}
"""Exponents with a function of their own."""

_COMMUTATIVE = frozenset(
    {"Add", "Mul", "Sum", "Mean", "Min", "Max", "Equal", "And", "Or", "Xor", "BitwiseAnd"}
    | {"BitwiseOr", "BitwiseXor"}
)

_VIEWS = ("BitCast", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Slice", "Split", "Expand")
_MOVES = ("Concat", "Pad", "Tile", "DepthToSpace", "SpaceToDepth")


def snake(op_type: str) -> str:
    """Return the name of an operator as the graph writes it: "SpaceToDepth" is "space_to_depth"."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", op_type).lower()


_FUNCTION_NAMES = {
    "Where": "select",
    "Sum": "add",
    "PRelu": "prelu",
    "IsNaN": "is_nan",
    # popops has one vertex for bits and truths.
    "BitwiseNot": "not",
    "BitwiseAnd": "and",
    "BitwiseOr": "or",
    "BitwiseXor": "xor",
    "BitShift": "and",
}


def _function(op_type: str) -> str:
    return _FUNCTION_NAMES.get(op_type, snake(op_type))


def _elementwise(
    context: ImportContext, node: Node, function: str, operands: tuple[str, ...]
) -> None:
    shape, dtype = context.shape(node.output[0]), context.dtype(node.output[0], node)
    tensors = [context.graph.tensors[name] for name in operands]
    first = tensors[0]
    params = Elementwise(
        function=function,
        n_inputs=len(operands),
        elements=prod(shape),
        broadcast=any(tensor.shape != shape for tensor in tensors),
        in_place_ok=first.shape == shape
        and first.dtype == dtype
        and first.role not in ("parameter", "constant"),
    )
    context.emit(node, params, operands)


def unary(context: ImportContext, node: Node) -> None:
    """Functions of one tensor; the constant bounds of Clip are not operands."""
    names = [node.input[0], *(n for n in node.input[1:] if n and not context.is_static(n))]
    operands = tuple(context.operand(name) for name in names)
    _elementwise(context, node, _function(node.op_type), operands)


def _is_bias(context: ImportContext, data: str, bias: str) -> bool:
    """Whether ``bias`` is a per-channel parameter and ``data`` a convolution or product."""
    producer = context.producer(data)
    if producer is None or context.is_static(data) or not context.is_static(bias):
        return False
    if context.role(context.operand(bias)) != "parameter":
        return False
    shape, vector = context.shape(data), context.shape(bias)
    vector = (1,) * (len(shape) - len(vector)) + vector
    if isinstance(producer.params, MatMul):
        channel_axis = len(shape) - 1
    elif isinstance(producer.params, Conv):
        channel_axis = 1
    else:
        return False
    return vector == tuple(size if axis == channel_axis else 1 for axis, size in enumerate(shape))


def n_ary(context: ImportContext, node: Node) -> None:
    """Functions of several broadcast tensors."""
    if node.op_type == "Add":
        for data, bias in (tuple(node.input), tuple(reversed(node.input))):
            if _is_bias(context, data, bias):
                operands = (context.operand(data), context.operand(bias))
                _elementwise(context, node, "bias_add", operands)
                return
    exponent = context.array(node, 1) if node.op_type == "Pow" else None
    if exponent is not None and exponent.size == 1 and exponent.reshape(-1)[0] in _POWERS:
        function = _POWERS[float(exponent.reshape(-1)[0])]
        _elementwise(context, node, function, (context.operand(node.input[0]),))
        return
    operands = tuple(
        context.operand(name, weight=node.op_type == "PRelu" and position == 1)
        for position, name in enumerate(node.input)
    )
    if node.op_type in _COMMUTATIVE:
        # A gate before its tensor is the same product: what has the result's shape comes first.
        shape = context.shape(node.output[0])
        operands = tuple(
            sorted(operands, key=lambda name: context.graph.tensors[name].shape != shape)
        )
    _elementwise(context, node, _function(node.op_type), operands)


def _emit_layout(
    context: ImportContext,
    node: Node,
    operands: tuple[str, ...],
    *,
    moves_data: bool,
    function: str | None = None,
) -> None:
    elements = sum(prod(context.shape(name)) for name in node.output if name)
    params = Layout(
        function=function or snake(node.op_type), elements=elements, moves_data=moves_data
    )
    context.emit(node, params, operands, every_output=True)


def view(context: ImportContext, node: Node) -> None:
    """Reshapes, slices, splits and broadcasts."""
    _emit_layout(context, node, (context.operand(node.input[0]),), moves_data=False)


def move(context: ImportContext, node: Node) -> None:
    """Concatenations, pads, repeats and block permutations."""
    names = node.input if node.op_type == "Concat" else node.input[:1]
    names = [name for name in names if 0 not in context.shape(name)]
    operands = tuple(context.operand(name) for name in names)
    _emit_layout(context, node, operands, moves_data=True)


def transpose(context: ImportContext, node: Node) -> None:
    """Transpose; a view where only axes of size 1 change place; of several parts in one."""
    if len(node.output) > 1:
        _emit_layout(context, node, (context.operand(node.input[0]),), moves_data=True)
        return
    shape = context.shape(node.input[0])
    order = tuple(node.given.get("perm", range(len(shape) - 1, -1, -1)))
    kept = [axis for axis in order if shape[axis] > 1]
    _emit_layout(context, node, (context.operand(node.input[0]),), moves_data=kept != sorted(kept))


def gather(context: ImportContext, node: Node) -> None:
    """Gather: a lookup, or a slice where the indices are constant and the data is not."""
    table, indices = node.input
    axis = node.given.get("axis", 0)
    if context.is_static(indices):
        _emit_layout(context, node, (context.operand(table),), moves_data=False, function="slice")
        return
    shape = context.shape(table)
    rows = shape[axis_of(axis, len(shape))]
    params = Gather(rows=rows, width=prod(shape) // rows, indices=prod(context.shape(indices)))
    context.emit(node, params, (context.operand(table, weight=True), context.operand(indices)))


def cast(context: ImportContext, node: Node) -> None:
    """Cast and CastLike."""
    output = node.output[0]
    params = Cast(to=context.dtype(output, node), elements=prod(context.shape(output)))
    context.emit(node, params, (context.operand(node.input[0]),))


def identity(context: ImportContext, node: Node) -> None:
    """Identity, and Dropout at inference: a new name only, or a view if it leaves the graph."""
    if node.output[0] not in context.contents.outputs:
        context.alias(node)
        return
    elements = prod(context.shape(node.output[0]))
    params = Layout(function="identity", elements=elements, moves_data=False)
    context.emit(node, params, (context.operand(node.input[0]),))


LAYOUT_HANDLERS: dict[str, Handler] = {
    **dict.fromkeys((*UNARY.split(), "IsNaN", "IsInf"), unary),
    **dict.fromkeys((*N_ARY.split(), *TRUTHS.split()), n_ary),
    **dict.fromkeys(_VIEWS, view),
    **dict.fromkeys(_MOVES, move),
    "Transpose": transpose,
    "Gather": gather,
    "Cast": cast,
    "CastLike": cast,
    "Identity": identity,
    "Dropout": identity,
}
