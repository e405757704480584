"""Values of single nodes: onnx's reference evaluator, and what it refuses or overlooks."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator

from ipusim.errors import WorkloadError

_EVALUATED_FROM = {"QuantizeLinear": 19, "DequantizeLinear": 19}
"""Operator sets of the oldest forms that are evaluated; older ones are special cases of these."""

_ERRORS = (
    *(RuntimeError, NotImplementedError, TypeError, ValueError, IndexError, KeyError),
    *(AttributeError, ArithmeticError, AssertionError, MemoryError),
)
"""What the evaluator raises, operator by operator, for operands it cannot take."""


def evaluated(node: onnx.NodeProto, opset: int, given: Mapping[str, Any], label: str) -> list[Any]:
    """Return the results of a node, None for those without a name; else a `WorkloadError`."""
    try:
        with np.errstate(all="ignore"):
            if node.op_type == "GatherElements":
                return [_elements(node, *(given[name] for name in node.input))]
            return _by_reference(node, opset, given)
    except _ERRORS as error:
        reason = " ".join(str(error).split())[:200]
        raise WorkloadError(f"{label} cannot be computed ({reason}).") from error


def _by_reference(node: onnx.NodeProto, opset: int, given: Mapping[str, Any]) -> list[Any]:
    """Evaluate a model of one node: operators that are functions of its types need them."""
    graph = helper.make_graph(
        [node],
        "one node",
        [_typed(name, value) for name, value in given.items()],
        [helper.make_empty_tensor_value_info(name) for name in node.output if name],
    )
    version = max(opset, _EVALUATED_FROM.get(node.op_type, 0))
    opsets = [helper.make_opsetid(node.domain, version)]
    evaluator = ReferenceEvaluator(helper.make_model(graph, opset_imports=opsets))
    found = iter(evaluator.run(None, dict(given)))
    return [next(found) if name else None for name in node.output]


def _typed(name: str, value: np.ndarray | list[np.ndarray]) -> onnx.ValueInfoProto:
    if isinstance(value, list):
        return helper.make_empty_tensor_value_info(name)
    kind = helper.np_dtype_to_tensor_dtype(np.asarray(value).dtype)
    return helper.make_tensor_value_info(name, kind, np.shape(value))


def _elements(node: onnx.NodeProto, data: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Take single elements, of any axis and with fewer indices than data beside it."""
    axis = next((item.i for item in node.attribute if item.name == "axis"), 0) % data.ndim
    ends = [data.shape[i] if i == axis else n for i, n in enumerate(places.shape)]
    return np.take_along_axis(data[tuple(map(slice, ends))], places, axis)
