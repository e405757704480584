"""From an ONNX file to a program: nodes with all attributes, weights with all values.

What follows from weights alone is computed once, in single precision, as the import of the operator
graph folds it.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from ipusim.errors import WorkloadError, nearest_name
from ipusim.numerics.program import Arrays, Node, Program, single
from ipusim.workload.graph import FLOAT_DTYPES, Attributes
from ipusim.workload.onnx.context import DTYPES
from ipusim.workload.onnx.learners import ML
from ipusim.workload.onnx.nodes import Node as FileNode, Scope, Unfolding, taken
from ipusim.workload.onnx.operators import HANDLERS
from ipusim.workload.onnx.operators.products import ATTRIBUTES
from ipusim.workload.onnx.reader import OnnxContents, read_onnx
from ipusim.workload.onnx.recipes import VENDOR
from ipusim.workload.onnx.reference import evaluated
from ipusim.workload.onnx.shapes import Call

_DOMAINS = ("", ML)
"""Those whose operators onnx's reference evaluator computes."""


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
    nodes = _Nodes(contents).of(contents.nodes, Scope(), known)
    return Program(
        name=contents.name,
        nodes=nodes,
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


class _Nodes:
    """Gives the nodes of a file and of its bodies; what follows from constants alone is known."""

    def __init__(self, contents: OnnxContents) -> None:
        self.contents = contents
        self.unfolding = Unfolding(contents)

    def of(
        self, protos: Iterable[onnx.NodeProto], scope: Scope, known: dict[str, np.ndarray]
    ) -> tuple[Node, ...]:
        """Return the nodes that run; results of the others are added to what is known."""
        nodes: list[Node] = []
        for position, item in enumerate(self.unfolding(protos, scope)):
            node = self.node(item, position)
            if not node.bodies and all(name in known for name in node.inputs if name):
                results = evaluate(node, [known.get(name) for name in node.inputs])
                known.update(zip(node.outputs, map(single, results), strict=True))
            else:
                nodes.append(node)
        return tuple(nodes)

    def node(self, item: FileNode, position: int) -> Node:
        """Return a node, its bodies as programs; refuse what onnx does not define."""
        if item.op_type == "ZipMap":
            # The names that it gives to the scores of classes stay on the host.
            item = replace(item, op_type="Identity", domain="", attributes={})
        if item.domain not in _DOMAINS or not onnx.defs.has(item.op_type, item.domain):
            domain = f" of domain {item.domain!r}" if item.domain else ""
            advice = (
                "onnxruntime writes it when it optimises or quantises: give the file before that, "
                "or quantise it in QDQ format"
                if item.domain.startswith(VENDOR)
                else f"the nearest supported operator is {nearest_name(item.op_type, HANDLERS)!r}, "
                "so replace it or export the model without it"
            )
            raise WorkloadError(
                f"Operator {item.op_type!r}{domain}, node {item.name!r}, is not supported; "
                f"{advice}."
            )
        given = item.attributes.items()
        graphs = {name: value for name, value in given if isinstance(value, onnx.GraphProto)}
        outer = dict.fromkeys(name for graph in graphs.values() for name in taken(graph))
        return Node(
            name=item.name or f"{item.op_type} {position}",
            op=item.op_type,
            domain=item.domain,
            inputs=(*item.input, *(item.scope.names.get(name, name) for name in outer)),
            outputs=tuple(item.output),
            params=partial(_attributes, item) if item.op_type in ATTRIBUTES else None,
            attributes={name: value for name, value in given if name not in graphs},
            opset=self.contents.opsets.get(item.domain, self.contents.opset),
            bodies={name: self.body(graph) for name, graph in graphs.items()},
            outer=tuple(outer),
        )

    def body(self, graph: onnx.GraphProto) -> Program:
        """Return a branch or loop body, whose names are its own."""
        known = {item.name: single(_array(item, self.contents)) for item in graph.initializer}
        return Program(
            name=graph.name,
            nodes=self.of(graph.node, Scope(), known),
            inputs=tuple(item.name for item in graph.input),
            outputs=tuple(item.name for item in graph.output),
            values=known,
        )


class _Applied(Call):
    """A node whose operands are arrays."""

    def __init__(self, node: FileNode, inputs: Arrays) -> None:
        self.node = node
        self.shapes = [np.shape(array) for array in inputs if array is not None]

    def shape(self, which: int = 0) -> tuple[int, ...]:
        """Return the shape of an input."""
        return self.shapes[which]


def _attributes(node: FileNode, inputs: Arrays) -> Attributes:
    """Return what a node does on these operands; it raises `MISFITS` if they do not fit."""
    return ATTRIBUTES[node.op_type](_Applied(node, inputs))


def evaluate(node: Node, inputs: list[np.ndarray | None]) -> list[np.ndarray | None]:
    """Compute a node by ONNX's own definition, in the types of its inputs (`WorkloadError`)."""
    given = {name: array for name, array in zip(node.inputs, inputs, strict=True) if name}
    names = {"input": list(node.inputs), "output": list(node.outputs)}
    item = FileNode(op_type=node.op, domain=node.domain, attributes=dict(node.attributes), **names)
    return evaluated(item, node.opset, given, f"Operator {node.op!r}, node {node.name!r},")
