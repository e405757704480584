"""What the import of an ONNX file knows while it runs, and how operators get into the graph.

Every ONNX value is either *static* (initializers, and whatever follows from them and from
shapes alone) or computed at run time. Static nodes are folded away; run-time nodes become
operators, after fusion.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import onnx
from onnx import helper

from ipusim.errors import WorkloadError
from ipusim.workload.builder import TensorBuilder
from ipusim.workload.graph import FLOAT_DTYPES, Op, Tensor
from ipusim.workload.onnx.nodes import Node
from ipusim.workload.onnx.reader import ELEMENT_TYPES, OnnxContents, Value

_PROTO = onnx.TensorProto
_STORED = {
    "float32": "FLOAT DOUBLE",
    "float16": "FLOAT16 BFLOAT16",
    "int32": "INT32 UINT32 INT16 UINT16 STRING",
    "int64": "INT64 UINT64",
    "uint8": "UINT8 INT8",
    "bool": "BOOL",
}
_SMALL = ("FLOAT8", "FLOAT4", "INT4", "UINT4", "INT2", "UINT2")
DTYPES = {kind: "uint8" for name, kind in _PROTO.DataType.items() if name.startswith(_SMALL)}
for _dtype, _kinds in _STORED.items():
    DTYPES.update(dict.fromkeys(map(_PROTO.DataType.Value, _kinds.split()), _dtype))
"""ONNX element type -> storage; `Graph.with_precision` sets the floating-point ones anew."""

_ASSUMED_TYPES = {
    _PROTO.DOUBLE: "float64 is computed as float of the precision of the run",
    _PROTO.BFLOAT16: "bfloat16 is computed as float of the precision of the run",
    _PROTO.INT16: "16-bit integers are stored as 32-bit ones",
    _PROTO.UINT16: "16-bit integers are stored as 32-bit ones",
    _PROTO.STRING: "texts are numbers of entries; the texts stay on the host",
}

LARGEST_TENSOR = 2**34
"""Elements; in float16 more than half the memory of 64 IPUs."""


class ImportContext:
    """State of one import: values known so far, nodes that run, the graph, and counts of notes.

    ``decisions`` are the values by which branches are chosen and loops ended when the graph runs.
    """

    def __init__(self, contents: OnnxContents) -> None:
        self.contents = contents
        self.opset = contents.opset
        self.graph = TensorBuilder(contents.name)
        stored = contents.initializers.items()
        self.values = {name: replace(value, root=name) for name, value in stored}
        self.nodes: list[Node] = []
        self.notes: Counter[str] = Counter()
        self.fused: Counter[str] = Counter()
        self.unknown: dict[str, list[str]] = {}
        self.decisions: set[str] = set()
        self.producers: dict[str, Op] = {}

    def summary(self) -> str:
        """Return in one line what was fused, assumed, and timed as memory traffic alone."""
        timed = {kind: len(nodes) for kind, nodes in self.unknown.items()}
        parts = {"fused": self.fused, "assumed": self.notes, "only as memory traffic": timed}
        return "; ".join(
            f"{what}: " + ", ".join(f"{name} ({count} x)" for name, count in found.items())
            for what, found in parts.items()
            if found
        )

    # -- looking things up ---------------------------------------------------------------

    def value(self, name: str, node: Node) -> Value:
        """Return what is known about an input of a node."""
        if name not in self.values:
            raise node.error(f"reads {name!r}, which nothing before it computes")
        return self.values[name]

    def inputs(self, node: Node) -> list[Value]:
        """Return what is known about the inputs of a node that are given."""
        return [self.value(name, node) for name in node.input if name]

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a value already seen."""
        return self.values[name].shape

    def number(self, name: str) -> float | None:
        """Return a constant that is one number."""
        array = self.values[name].array
        if array is None or array.size != 1 or array.dtype.kind in "OSU":
            return None
        return float(array.reshape(-1)[0])

    def is_static(self, name: str) -> bool:
        """Whether a value does not depend on the data inputs."""
        return self.values[name].static

    def running(self, names: Iterable[str]) -> list[str]:
        """Return those of some names that data inputs decide; absent operands have none."""
        return [name for name in names if name and not self.is_static(name)]

    def dtype(self, name: str, node: Node | None = None) -> str:
        """Return the storage type of a value."""
        elem_type = self.values[name].elem_type
        if elem_type not in DTYPES:
            known = elem_type in ELEMENT_TYPES
            kind = _PROTO.DataType.Name(elem_type).lower() if known else str(elem_type)
            where = f" of the {node.op_type} node {node.label!r}" if node is not None else ""
            raise WorkloadError(
                f"Tensor {name!r}{where} has element type {kind}, which is not supported; use "
                "float16, float32, an integer type or bool."
            )
        if elem_type in _ASSUMED_TYPES:
            self.notes[_ASSUMED_TYPES[elem_type]] += 1
        return DTYPES[elem_type]

    def reads(self, name: str) -> bool:
        """Whether a run-time node or the host reads a value."""
        return name in self.contents.outputs or any(name in node.input for node in self.nodes)

    # -- recording -----------------------------------------------------------------------

    def record(self, node: Node, name: str, value: Value) -> None:
        """Record a result of a node."""
        if name in self.values:
            raise node.error(f"computes {name!r}, which already has a value")
        if any(size < 0 for size in value.shape) or value.elements > LARGEST_TENSOR:
            raise node.error(
                f"computes {name!r} of shape {value.shape}, which must have from 0 to "
                f"{LARGEST_TENSOR} elements, what some tens of chips hold; give smaller inputs"
            )
        self.values[name] = value

    def constant(self, name: str, array: np.ndarray) -> str:
        """Add a constant that an import rule needs; return its name."""
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        self.values[name] = Value(
            shape=array.shape, elem_type=kind, static=True, array=array, learnable=False
        )
        return name

    # -- emission ------------------------------------------------------------------------

    def operand(self, name: str, *, weight: bool = False, role: str = "") -> str:
        """Return the graph tensor for an ONNX value, adding static ones on first use."""
        value = self.values[name]
        if not value.static:
            if name not in self.graph.tensors:
                raise WorkloadError(
                    f"Tensor {name!r} is an optional output that inference does not compute; "
                    "export the model without using it."
                )
            return name
        dtype = self.dtype(name)
        # What is used as weights is a parameter, elsewhere only an initializer of several elements.
        learnt = value.trained or (weight and value.learnable is not False)
        role = role or ("parameter" if learnt and dtype in FLOAT_DTYPES else "constant")
        known = self.graph.tensors.get(name)
        if known is None or (known.role == "constant" and role == "parameter"):
            alias = value.root if value.root != name else None
            self.graph.tensors[name] = Tensor(
                name=name, shape=value.shape, dtype=dtype, role=role, alias_of=alias
            )
        return name
