"""From an ONNX file to a program: nodes with all attributes, weights with all values.

What follows from weights alone is computed once, in single precision, as the import of the operator
graph folds it.
"""

from os import PathLike
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from ipusim.errors import WorkloadError, nearest_name
from ipusim.numerics.program import Node, Program, single
from ipusim.workload.graph import FLOAT_DTYPES
from ipusim.workload.onnx.builder import HANDLERS
from ipusim.workload.onnx.context import DTYPES
from ipusim.workload.onnx.nodes import Node as FileNode, Scope, Unfolding
from ipusim.workload.onnx.reader import OnnxContents, read_onnx

_SUPPORTED = (*HANDLERS, "Shape", "Size")
"""Operators; results of the last two an import of an operator graph knows without running them."""

_EVALUATION_ERRORS = (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError)
"""What onnx's reference evaluator raises, operator by operator, for operands it cannot take."""


def program_of_onnx(source: str | PathLike[str] | onnx.ModelProto) -> Program:
    """Read an ONNX file, or a model in memory, with its weights; else a `WorkloadError`."""
    contents = read_onnx(source)
    if isinstance(source, onnx.ModelProto):
        model = source
    else:
        try:
            model = onnx.load(Path(source))
        except (OSError, onnx.checker.ValidationError) as error:
            raise WorkloadError(
                f"The weights of {contents.source} cannot be read; put its external data files "
                "beside it."
            ) from error
    values = {item.name: _array(item, contents) for item in model.graph.initializer}
    return program_of_contents(contents, values)


def _array(tensor: onnx.TensorProto, contents: OnnxContents) -> np.ndarray:
    try:
        return numpy_helper.to_array(tensor)
    except (ValueError, TypeError, OSError) as error:
        raise WorkloadError(
            f"Initializer {tensor.name!r} of {contents.source} is damaged; export it again."
        ) from error


def program_of_contents(contents: OnnxContents, values: dict[str, np.ndarray]) -> Program:
    """Build the program of a file that was read; weights without values become parameters."""
    known = {name: single(array) for name, array in values.items()}
    missing = {name: stored.shape for name, stored in contents.initializers.items()}
    nodes: list[Node] = []
    for position, item in enumerate(Unfolding(contents)(contents.nodes, Scope())):
        node = _node(item, position, contents)
        if all(name in known for name in node.inputs if name):
            results = evaluate(node, [known.get(name) for name in node.inputs])
            known.update(zip(node.outputs, results, strict=False))
        else:
            if node.op not in _SUPPORTED or item.domain:
                raise WorkloadError(
                    f"Operator {node.op!r}, node {node.name!r}, is not supported; the nearest "
                    f"supported operator is {nearest_name(node.op, HANDLERS)!r}, so replace it or "
                    "export the model without it."
                )
            nodes.append(node)
    return Program(
        name=contents.name,
        nodes=tuple(nodes),
        inputs=tuple(item.name for item in contents.inputs),
        outputs=contents.outputs,
        input_shapes={
            item.name: tuple(n if isinstance(n, int) else None for n in item.shape or ())
            for item in contents.inputs
        },
        floating=frozenset(
            item.name
            for item in contents.inputs
            if DTYPES.get(item.elem_type, "float32") in FLOAT_DTYPES
        ),
        parameters={name: shape for name, shape in missing.items() if name not in known},
        values=known,
    )


def _node(item: FileNode, position: int, contents: OnnxContents) -> Node:
    if any(isinstance(value, onnx.GraphProto) for value in item.given.values()):
        raise WorkloadError(
            f"Operator {item.op_type!r}, node {item.name!r}, branches or loops, which numerics "
            "does not support; export the model without it."
        )
    return Node(
        name=item.name or f"{item.op_type} {position}",
        op=item.op_type,
        inputs=tuple(item.input),
        outputs=tuple(item.output),
        attributes=item.given,
        opset=contents.opset,
    )


def evaluate(node: Node, inputs: list[np.ndarray | None]) -> list[np.ndarray]:
    """Compute a node by ONNX's own definition, in the types of its inputs (`WorkloadError`)."""
    proto = helper.make_node(node.op, list(node.inputs), list(node.outputs), **node.attributes)
    given = {name: array for name, array in zip(node.inputs, inputs, strict=True) if name}
    try:
        evaluator = ReferenceEvaluator(proto, opsets={"": node.opset})
        return [np.asarray(array) for array in evaluator.run(None, given)]
    except _EVALUATION_ERRORS as error:
        raise WorkloadError(
            f"Operator {node.op!r}, node {node.name!r}, cannot be computed "
            f"({' '.join(str(error).split())})."
        ) from error
