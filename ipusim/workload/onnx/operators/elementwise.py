"""ONNX operators on single elements, and those that only move or rename them."""

import re
from math import prod

from ipusim.workload.graph import Cast, Conv, Elementwise, Gather, Layout, MatMul
from ipusim.workload.onnx.operators.emission import Emission, Handler
from ipusim.workload.onnx.shapes import LARGEST, N_ARY, TRUTHS, UNARY, by_names

_POWERS = {2.0: "square", 0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}
"""Exponents with a function of their own."""

_COMMUTATIVE = "Add Mul Sum Mean Min Max Equal And Or Xor BitwiseAnd BitwiseOr BitwiseXor"


def snake(op_type: str) -> str:
    """Return the name of an operator as the graph writes it: "SpaceToDepth" is "space_to_depth"."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", op_type).lower()


_FUNCTION_NAMES = {"Where": "select", "Sum": "add", "IsNaN": "is_nan", "BitShift": "and"}


def _elementwise(e: Emission, operands: tuple[str, ...], function: str = "") -> None:
    tensors = (e.context.graph.tensors[name] for name in operands)
    # popops has one vertex for bits and truths.
    kind = e.node.op_type.removeprefix("Bitwise")
    function = function or _FUNCTION_NAMES.get(kind, snake(kind))
    e.emit(Elementwise.of(function, e.out, e.dtype(e.node.output[0]), *tensors), *operands)


def unary(e: Emission) -> None:
    """Functions of one tensor; the constant bounds of Clip are not operands."""
    first, *others = e.node.input
    _elementwise(e, tuple(map(e.operand, (first, *e.context.running(others)))))


def _is_bias(e: Emission, data: str, bias: str) -> bool:
    """Whether ``bias`` is a per-channel parameter and ``data`` a convolution or product."""
    params = getattr(e.context.producers.get(data), "params", None)
    if not isinstance(params, MatMul | Conv) or not e.context.is_static(bias):
        return False
    shape, vector = e.shape(data), e.shape(bias)
    channel_axis = len(shape) - 1 if isinstance(params, MatMul) else 1
    wide = (1,) * (len(shape) - len(vector)) + vector
    narrow = tuple(size if axis == channel_axis else 1 for axis, size in enumerate(shape))
    return wide == narrow and e.is_parameter(e.operand(bias))


def n_ary(e: Emission) -> None:
    """Functions of several broadcast tensors."""
    kind = e.node.op_type
    if kind == "Add":
        for data, bias in (tuple(e.node.input), tuple(reversed(e.node.input))):
            if _is_bias(e, data, bias):
                _elementwise(e, (e.operand(data), e.operand(bias)), "bias_add")
                return
    power = _POWERS.get(e.context.number(e.node.input[1])) if kind == "Pow" else None
    if power:
        _elementwise(e, e.operands(0), power)
        return
    operands = tuple(
        e.operand(place, weight=kind == "PRelu" and place == 1)
        for place in range(len(e.node.input))
    )
    if kind in _COMMUTATIVE.split():
        # A gate before its tensor is the same product: what has the result's shape comes first.
        tensors = e.context.graph.tensors
        operands = tuple(sorted(operands, key=lambda name: tensors[name].shape != e.out))
    _elementwise(e, operands)


def view_of(e: Emission) -> None:
    """Reshapes, slices, splits and broadcasts; a slice by the round of a loop moves data."""
    counted = e.node.op_type == "Slice" and not all(map(e.is_fixed, range(1, len(e.node.input))))
    function = "dynamic_slice" if counted else snake(e.node.op_type)
    e.layout(function, e.operand(), moves=counted)


def move(e: Emission) -> None:
    """Operators that put elements elsewhere: one move of all results, perhaps of all elements."""
    if e.node.op_type in ("NonZero", "Compress"):
        e.note(LARGEST)
    one = [*e.context.running(e.node.input), e.node.input[0]][:1]
    names = e.node.input if e.node.op_type == "Concat" else one
    filled = (e.operand(name) for name in names if 0 not in e.shape(name))
    e.layout(snake(e.node.op_type), *filled, moves=not e.get("in_place"))


def transpose(e: Emission) -> None:
    """Transpose; a view where only axes of size 1 change place; of several parts in one."""
    shape = e.shape()
    order = tuple(e.get("perm") or range(len(shape) - 1, -1, -1))
    kept = [axis for axis in order if shape[axis] > 1]
    moves = len(e.node.output) > 1 or kept != sorted(kept)
    e.layout("transpose", e.operand(), moves=moves)


def gather(e: Emission) -> None:
    """Gather: a lookup, or a slice where the indices are constant and the data is not."""
    if e.is_fixed(1):
        e.layout("slice", e.operand(), moves=False)
        return
    shape = e.shape()
    rows = shape[e.axis(0)]
    params = Gather(rows=rows, width=prod(shape) // rows, indices=prod(e.shape(1)))
    e.emit(params, e.operand(0, weight=True), e.operand(1))


LAYOUT_HANDLERS: dict[str, Handler] = by_names(
    {
        f"{UNARY} IsNaN IsInf": unary,
        f"{N_ARY} {TRUTHS}": n_ary,
        "BitCast Reshape Flatten Squeeze Unsqueeze Slice Split Expand": view_of,
        "Concat Pad Tile DepthToSpace SpaceToDepth NonZero Compress MaxUnpool Col2Im "
        "ReverseSequence carry dynamic_slice dynamic_update": move,
        "Transpose": transpose,
        "Gather": gather,
        "Cast CastLike": lambda e: e.emit(Cast(), e.operand()),
        "Identity Dropout": lambda e: e.emit(Layout.view("identity"), e.operand()),
    }
)
