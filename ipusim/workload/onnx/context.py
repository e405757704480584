"""What the operator handlers of the ONNX import share: values known so far, and emission.

Every ONNX value is either *static* (initializers, and whatever follows from them and from
shapes alone) or computed at run time. Static nodes are folded away; run-time nodes become
operators. Shapes come from ONNX's own inference, one node at a time, with static values given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx
from onnx import helper, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

from ipusim.errors import WorkloadError
from ipusim.workload.graph import FLOAT_DTYPES, Attributes, Op, Tensor
from ipusim.workload.layers import GraphBuilder
from ipusim.workload.onnx.reader import ELEMENT_TYPES, KEPT_ELEMENTS, OnnxContents

_PROTO = onnx.TensorProto
DTYPES = {
    _PROTO.FLOAT: "float32",
    _PROTO.DOUBLE: "float32",
    _PROTO.FLOAT16: "float16",
    _PROTO.BFLOAT16: "float16",
    _PROTO.INT32: "int32",
    _PROTO.UINT32: "int32",
    _PROTO.INT64: "int64",
    _PROTO.UINT64: "int64",
    _PROTO.UINT8: "uint8",
    _PROTO.BOOL: "bool",
}
"""ONNX element type -> storage; `Graph.with_precision` sets the floating-point ones anew."""

# Operators that ONNX defines by a function body, for which it infers a type but no shape.
_SHAPE_OF_DATA = ("GroupNormalization",)
_SHAPE_OF_BROADCAST = ("LessOrEqual", "GreaterOrEqual")

_SHAPE_ONLY = {"Transpose", "Reshape", "Unsqueeze", "Squeeze", "Flatten", "Identity", "Cast"}
_EVALUATION_ERRORS = (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError)


@dataclass(slots=True, kw_only=True)
class Value:
    """One ONNX value.

    ``learnable`` says that it comes from an initializer; ``root`` is the initializer whose
    memory it shares if only its shape was changed.
    """

    shape: tuple[int, ...]
    elem_type: int
    static: bool
    array: np.ndarray | None = None
    learnable: bool = False
    root: str | None = None


def node_label(node: onnx.NodeProto) -> str:
    """Return "Conv node 'name'", falling back on the first output where a node has no name."""
    return f"{node.op_type} node {node.name or next(iter(node.output), '?')!r}"


class ImportContext:
    """State of one walk over the nodes of a file."""

    def __init__(self, contents: OnnxContents) -> None:
        self.contents = contents
        self.opset = contents.opset
        self.graph = GraphBuilder(contents.name)
        self.values: dict[str, Value] = {}
        self._aliases: dict[str, str] = {}
        self._producers: dict[str, Op] = {}
        for name, stored in contents.initializers.items():
            self.values[name] = Value(
                shape=stored.shape,
                elem_type=stored.elem_type,
                static=True,
                array=stored.array,
                learnable=True,
                root=name,
            )

    # -- looking things up ---------------------------------------------------------------

    def value(self, name: str, node: onnx.NodeProto) -> Value:
        """Return what is known about an input of a node."""
        if name not in self.values:
            raise WorkloadError(
                f"The {node_label(node)} reads {name!r}, which nothing before it computes."
            )
        return self.values[name]

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a value already seen."""
        return self.values[name].shape

    def array(self, node: onnx.NodeProto, position: int) -> np.ndarray | None:
        """Return the values of an input if it is present, static and small; else None."""
        if not has_input(node, position):
            return None
        return self.values[node.input[position]].array

    def is_static(self, name: str) -> bool:
        """Whether a value does not depend on the data inputs."""
        return self.values[name].static

    def dtype(self, name: str, node: onnx.NodeProto | None = None) -> str:
        """Return the storage type of a value."""
        elem_type = self.values[name].elem_type
        if elem_type not in DTYPES:
            known = elem_type in ELEMENT_TYPES
            kind = _PROTO.DataType.Name(elem_type).lower() if known else str(elem_type)
            where = f" of the {node_label(node)}" if node is not None else ""
            raise WorkloadError(
                f"Tensor {name!r}{where} has element type "
                f"{kind}, which is not supported; use float16, "
                "float32, int32, int64, uint8 or bool."
            )
        return DTYPES[elem_type]

    # -- shapes and static values --------------------------------------------------------

    def infer(self, node: onnx.NodeProto, arrays: dict[str, np.ndarray]) -> None:
        """Record type and shape of every output of a node.

        Parameters
        ----------
        node : onnx.NodeProto
        arrays : dict
            Values to use for static inputs, by name (they may differ from the file's when the
            batch is rewritten).

        Raises
        ------
        WorkloadError
            If the inputs do not fit the operator or a size depends on the data.
        """
        names = [name for name in node.input if name]
        types = {
            name: helper.make_tensor_type_proto(
                self.values[name].elem_type, self.values[name].shape
            )
            for name in names
        }
        data = {name: numpy_helper.from_array(array, name) for name, array in arrays.items()}
        try:
            schema = onnx.defs.get_schema(node.op_type, self.opset, "")
            inferred = shape_inference.infer_node_outputs(
                schema,
                node,
                types,
                input_data=data,
                opset_imports=list(self.contents.opsets),
                ir_version=self.contents.ir_version,
            )
        except (
            shape_inference.InferenceError,
            onnx.checker.ValidationError,
            onnx.defs.SchemaError,
            UnicodeDecodeError,  # a message that quotes damaged text
        ) as error:
            reason = " ".join(str(error).split())
            raise WorkloadError(
                f"The {node_label(node)} cannot take inputs of shapes "
                f"{[self.values[name].shape for name in names]} ({reason})."
            ) from error
        for position, name in enumerate(node.output):
            # Of optional extras (the mask of a Dropout) ONNX does not always know the shape.
            optional = position > 0 and node.op_type != "Split"
            if name and not (optional and _fixed_shape(inferred.get(name)) is None):
                self._record(node, name, inferred.get(name))

    def _record(self, node: onnx.NodeProto, name: str, kind: onnx.TypeProto | None) -> None:
        if name in self.values:
            raise WorkloadError(
                f"The {node_label(node)} computes {name!r}, which already has a value."
            )
        shape = _fixed_shape(kind)
        if shape is None and node.op_type in _SHAPE_OF_DATA:
            shape = self.shape(node.input[0])
        elif shape is None and node.op_type in _SHAPE_OF_BROADCAST:
            shape = np.broadcast_shapes(*(self.shape(source) for source in node.input))
        if kind is None or shape is None:
            raise WorkloadError(
                f"The output {name!r} of the {node_label(node)} has no fixed shape, because its "
                "size depends on data or on an unknown dimension; export the model with fixed "
                "shapes."
            )
        self.values[name] = Value(shape=shape, elem_type=kind.tensor_type.elem_type, static=False)

    def fold(self, node: onnx.NodeProto) -> None:
        """Mark the outputs of a node without run-time inputs static, with values if small."""
        sources = [self.values[name] for name in node.input if name]
        outputs = [self.values[name] for name in node.output if name in self.values]
        shape_only = node.op_type in _SHAPE_ONLY
        for output in outputs:
            output.static = True
            output.learnable = any(source.learnable for source in sources)
            output.root = sources[0].root if shape_only and sources else None
        small = all(prod(output.shape) <= KEPT_ELEMENTS for output in outputs)
        random = node.op_type.startswith(("Random", "Bernoulli", "Multinomial"))
        if small and not random and all(source.array is not None for source in sources):
            for name, array in zip(node.output, self._evaluate(node), strict=True):
                if name in self.values:
                    self.values[name].array = np.asarray(array)

    def _evaluate(self, node: onnx.NodeProto) -> list[np.ndarray]:
        names = list(dict.fromkeys(name for name in node.input if name))
        graph = helper.make_graph(
            [node],
            "constant",
            [
                helper.make_tensor_value_info(
                    name, self.values[name].elem_type, self.values[name].shape
                )
                for name in names
            ],
            [
                helper.make_tensor_value_info(
                    name, self.values[name].elem_type, self.values[name].shape
                )
                for name in node.output
                if name in self.values
            ],
        )
        model = helper.make_model(
            graph, opset_imports=list(self.contents.opsets), ir_version=self.contents.ir_version
        )
        try:
            results = ReferenceEvaluator(model).run(
                None, {name: self.values[name].array for name in names}
            )
        except _EVALUATION_ERRORS as error:
            raise WorkloadError(
                f"The constant {node_label(node)} cannot be evaluated "
                f"({' '.join(str(error).split())})."
            ) from error
        remaining = iter(results)
        return [next(remaining) if name in self.values else np.empty(0) for name in node.output]

    def set_output_shape(self, node: onnx.NodeProto, shape: tuple[int, ...]) -> None:
        """Correct the inferred shape of the first output."""
        self.values[node.output[0]].shape = shape

    def set_static(self, name: str, array: np.ndarray) -> None:
        """Turn an inferred output into a known constant."""
        value = self.values[name]
        value.static, value.array = True, array

    # -- emission ------------------------------------------------------------------------

    def alias(self, node: onnx.NodeProto) -> None:
        """Let the first output of a node stand for its first input."""
        self._aliases[node.output[0]] = self._aliases.get(node.input[0], node.input[0])

    def operand(self, name: str, *, weight: bool = False, role: str | None = None) -> str:
        """Return the graph tensor for an ONNX value, adding static ones on first use.

        Parameters
        ----------
        name : str
        weight : bool
            Whether the operator treats this operand as weights: then any static floating-point
            tensor is a parameter. Elsewhere only initializers of more than one element are.
        role : str, optional
            Overrides that rule for static operands.
        """
        name = self._aliases.get(name, name)
        value = self.values[name]
        if not value.static:
            if name not in self.graph.tensors:
                raise WorkloadError(
                    f"Tensor {name!r} is an optional output that inference does not compute; "
                    "export the model without using it."
                )
            return name
        dtype = self.dtype(name)
        learnt = weight or (value.learnable and prod(value.shape) > 1)
        role = role or ("parameter" if learnt and dtype in FLOAT_DTYPES else "constant")
        known = self.graph.tensors.get(name)
        if known is None or (known.role == "constant" and role == "parameter"):
            alias = value.root if value.root != name else None
            self.graph.tensors[name] = Tensor(
                name=name, shape=value.shape, dtype=dtype, role=role, alias_of=alias
            )
        return name

    def role(self, tensor: str) -> str:
        """Return the role of a graph tensor."""
        return self.graph.tensors[tensor].role

    def producer(self, name: str) -> Op | None:
        """Return the operator that computes a value, if any."""
        return self._producers.get(self._aliases.get(name, name))

    def op_name(self, node: onnx.NodeProto, suffix: str = "") -> str:
        """Return a readable operator name."""
        return (node.name or node.output[0]) + suffix

    def emit(
        self,
        node: onnx.NodeProto,
        params: Attributes,
        inputs: tuple[str, ...],
        *,
        suffix: str = "",
        every_output: bool = False,
    ) -> None:
        """Add the operator that computes the first output of a node, or every one.

        Further outputs are optional extras (masks, saved statistics) except in a Split.
        """
        names = [name for name in node.output if name]
        if not every_output:
            names = names[:1]
        for name in names:
            self.graph.add_tensor(
                Tensor(name=name, shape=self.shape(name), dtype=self.dtype(name, node))
            )
        self.graph.add_op(self.op_name(node, suffix), params, inputs, *names)
        for name in names:
            self._producers[name] = self.graph.ops[-1]

    def emit_intermediate(
        self,
        node: onnx.NodeProto,
        params: Attributes,
        inputs: tuple[str, ...],
        *,
        suffix: str,
    ) -> str:
        """Add an operator with a result of the shape of the node's output; return the result."""
        output = node.output[0]
        name = self.graph.add_tensor(
            Tensor(name=output + suffix, shape=self.shape(output), dtype=self.dtype(output, node))
        )
        self.graph.add_op(self.op_name(node, suffix), params, inputs, name)
        return name


def _fixed_shape(kind: onnx.TypeProto | None) -> tuple[int, ...] | None:
    if kind is None or not kind.tensor_type.HasField("shape"):
        return None
    dims = kind.tensor_type.shape.dim
    if not all(dim.HasField("dim_value") for dim in dims):
        return None
    return tuple(dim.dim_value for dim in dims)


Handler = Callable[[ImportContext, onnx.NodeProto], None]
"""Turns one run-time node, whose outputs are already recorded, into operators."""


def has_input(node: onnx.NodeProto, position: int) -> bool:
    """Whether an optional input is given."""
    return len(node.input) > position and bool(node.input[position])


def attributes(node: onnx.NodeProto) -> dict[str, object]:
    """Return the attributes of a node, strings decoded."""
    found: dict[str, object] = {}
    for attribute in node.attribute:
        value = helper.get_attribute_value(attribute)
        found[attribute.name] = (
            value.decode(errors="replace") if isinstance(value, bytes) else value
        )
    return found
