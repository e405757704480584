"""Values of constants: what follows from weights and shapes alone, where it is small.

The common operators on shapes are computed here; for every other one onnx's reference evaluator is
asked, which takes a millisecond to start.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from ipusim.errors import WorkloadError
from ipusim.workload.onnx.context import ImportContext, Node, node_label, proto_of
from ipusim.workload.onnx.shapes import MISFITS, Shape

_ERRORS = (*MISFITS, RuntimeError)


def _divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind != "i" and a.dtype.kind != "u":
        return a / b
    return (np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))).astype(a.dtype)


def _concat(arrays: list[np.ndarray], node: Node) -> np.ndarray:
    filled = [array for array in arrays if array.shape != (0,)]
    return np.concatenate(filled or arrays, axis=node.given["axis"])


def _slice(arrays: list[np.ndarray], node: Node) -> np.ndarray:
    given = [node.given.get(name) for name in ("starts", "ends", "axes", "steps")]
    given = [a if place >= len(arrays) - 1 else arrays[place + 1] for place, a in enumerate(given)]
    starts, ends, axes, steps = given
    data = arrays[0]
    axes = range(len(starts)) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    chosen = [slice(None)] * data.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        chosen[int(axis)] = slice(*slice(int(start), int(end), int(step)).indices(data.shape[axis]))
        if step < 0 and chosen[int(axis)].stop < 0:
            chosen[int(axis)] = slice(chosen[int(axis)].start, None, int(step))
    return data[tuple(chosen)]


Function = Callable[[list[np.ndarray], Node], np.ndarray]

_TWO: dict[str, Callable[..., Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": _divide,
    "Equal": np.equal,
    "Less": np.less,
    "Greater": np.greater,
    "LessOrEqual": np.less_equal,
    "GreaterOrEqual": np.greater_equal,
    "And": np.logical_and,
    "Or": np.logical_or,
}
_ONE: dict[str, Callable[..., Any]] = {
    "Not": np.logical_not,
    "Neg": np.negative,
    "Abs": np.abs,
    "Floor": np.floor,
    "Ceil": np.ceil,
    "Sqrt": np.sqrt,
    "Identity": np.asarray,
}
_FUNCTIONS: dict[str, Function] = {
    **{name: lambda a, _, f=f: f(a[0], a[1]) for name, f in _TWO.items()},
    **{name: lambda a, _, f=f: f(a[0]) for name, f in _ONE.items()},
    "Gather": lambda a, n: np.take(a[0], a[1], axis=n.given.get("axis", 0)),
    "Concat": _concat,
    "Slice": _slice,
    "Where": lambda a, _: np.where(a[0], a[1], a[2]),
    "Range": lambda a, _: np.arange(a[0].item(), a[1].item(), a[2].item(), dtype=a[0].dtype),
}
_RESHAPED = ("Reshape", "Squeeze", "Unsqueeze", "Flatten")


def evaluate(context: ImportContext, node: Node, shapes: list[Shape] | None) -> list[np.ndarray]:
    """Return the values of a node whose inputs are all known.

    Parameters
    ----------
    shapes : list of tuple, optional
        Shapes of the outputs, where a rule knows them.

    Raises
    ------
    WorkloadError
        If it cannot be computed.
    """
    arrays = [context.values[name].array for name in node.input if name]
    try:
        with np.errstate(all="ignore"):
            return _computed(context, node, arrays, shapes)
    except _ERRORS as error:
        raise WorkloadError(
            f"The constant {node_label(node)} cannot be evaluated "
            f"({' '.join(str(error).split())[:200]})."
        ) from error


def _computed(
    context: ImportContext, node: Node, arrays: list[np.ndarray], shapes: list[Shape] | None
) -> list[np.ndarray]:
    if node.op_type in _FUNCTIONS and "" not in node.input:
        return [np.asarray(_FUNCTIONS[node.op_type](arrays, node))]
    if node.op_type in _RESHAPED and shapes:
        return [arrays[0].reshape(shapes[0])]
    if node.op_type == "Expand" and shapes:
        return [np.broadcast_to(arrays[0], shapes[0])]
    if node.op_type == "Cast":
        return [arrays[0].astype(helper.tensor_dtype_to_np_dtype(node.given["to"]))]
    if node.op_type == "ConstantOfShape" and shapes:
        value = node.given.get("value")
        fill = np.float32(0) if value is None else numpy_helper.to_array(value).reshape(-1)[0]
        return [np.full(shapes[0], fill)]
    if node.op_type == "Constant":
        return [_constant(node)]
    evaluator = ReferenceEvaluator(
        proto_of(node), opsets={"": context.opset, node.domain: context.opset}
    )
    feed = {name: context.values[name].array for name in node.input if name}
    return [np.asarray(result) for result in evaluator.run(None, feed)]


def _constant(node: Node) -> np.ndarray:
    if node.given.get("value") is not None:
        return numpy_helper.to_array(node.given["value"])
    ((name, value),) = node.given.items()
    return np.asarray(value, np.int64 if "int" in name else np.float32)
