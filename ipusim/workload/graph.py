"""Operator graphs: tensors, operators and their bookkeeping.

A `Graph` is immutable, lists its operators in an order in which they can run, and names every
tensor that an operator reads or writes. It knows nothing about hardware.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ipusim.errors import WorkloadError, check_name
from ipusim.workload.operators.alignment_loss import AlignmentLoss
from ipusim.workload.operators.base import DTYPE_BYTES, Attributes, Op, Tensor, changed
from ipusim.workload.operators.conv import Conv
from ipusim.workload.operators.distance import Distance
from ipusim.workload.operators.elementwise import Cast, Elementwise
from ipusim.workload.operators.gather import Gather
from ipusim.workload.operators.layout import Layout
from ipusim.workload.operators.loss import Loss
from ipusim.workload.operators.matmul import MatMul
from ipusim.workload.operators.nms import NonMaxSuppression
from ipusim.workload.operators.norm import Norm
from ipusim.workload.operators.pool import Pool
from ipusim.workload.operators.recurrent import Recurrent
from ipusim.workload.operators.reduce import Reduce
from ipusim.workload.operators.softmax import Softmax
from ipusim.workload.operators.sort import Sort

PHASES = ("forward", "recompute", "backward", "update")
"""Parts of a training step; inference is all forward."""

PRECISIONS = {
    "16.16": ("float16", "float16"),
    "16.32": ("float16", "float32"),
    "32.32": ("float32", "float32"),
    "float8": ("float16", "float16"),
}
"""Name -> (storage of activations, storage of weights), as Graphcore's results page defines it.

With "float8" operands of products and convolutions are float8, all else is float16.
"""

OPERAND_DTYPES = {"32.32": "float32", "float8": "float8"}
"""Type of what products and convolutions read, where that is not float16."""

FLOAT_DTYPES = ("float16", "float32")

IMAGE_RANK = 4
"""Least number of axes of images: items, channels and two of the field."""


def arriving_dtype(tensor: Tensor, host_dtype: str | None) -> str:
    """Return the type in which the host sends a tensor, where it has data of type `host_dtype`.

    Only floating-point tensors follow the host's type, and only images (items, channels, field)
    are sent as bytes.
    """
    floating = tensor.dtype in FLOAT_DTYPES
    if not host_dtype or not floating or (host_dtype == "uint8" and len(tensor.shape) < IMAGE_RANK):
        return tensor.dtype
    return host_dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A network for one micro-batch on one replica.

    Every tensor that an operator reads or writes, or that enters or leaves, is in `tensors`; `ops`
    are in topological order, `inputs` and `outputs` what is exchanged with the host. Of the tensors
    `kept` are computed and stay on the chip for the program that runs next; `streamed` are
    parameters and constants that are rows of a table in Streaming Memory: a step reads them from
    there and writes them back, and no other replica holds them; `fixed` ones keep their element
    type whatever the precision of the run.
    """

    name: str
    tensors: Mapping[str, Tensor]
    ops: tuple[Op, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    kept: tuple[str, ...] = ()
    streamed: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()

    def __hash__(self) -> int:
        """Hash what is short and tells most graphs apart: they are keys of what is remembered."""
        return hash((self.name, self.inputs, self.outputs, len(self.ops)))

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one pass of the whole micro-batch."""
        return sum(op.macs for op in self.ops)

    def with_role(self, role: str) -> tuple[Tensor, ...]:
        """Return the tensors with one role, in the order in which they were added."""
        return tuple(tensor for tensor in self.tensors.values() if tensor.role == role)

    def _stored_parameters(self) -> tuple[Tensor, ...]:
        roots: dict[str, Tensor] = {}
        for tensor in self.with_role("parameter"):
            roots.setdefault(tensor.alias_of or tensor.name, tensor)
        return tuple(roots.values())

    @property
    def parameters(self) -> int:
        """Number of learnable parameters; shared ones count once, running statistics never."""
        return sum(tensor.elements for tensor in self._stored_parameters())

    @property
    def parameter_bytes(self) -> int:
        """Bytes of the learnable parameters."""
        return sum(tensor.bytes for tensor in self._stored_parameters())

    @property
    def output_bytes(self) -> int:
        """Bytes that the host receives per micro-batch, in the storage types of this graph."""
        return sum(self.tensors[name].bytes for name in self.outputs)

    def producers(self) -> dict[str, Op]:
        """Map each computed tensor to the operator that writes it."""
        return {name: op for op in self.ops for name in op.outputs}

    def consumers(self) -> dict[str, tuple[Op, ...]]:
        """Map each tensor to the operators that read it, in order; unread ones to ()."""
        readers: dict[str, list[Op]] = {name: [] for name in self.tensors}
        for op in self.ops:
            for name in dict.fromkeys(op.inputs):
                readers[name].append(op)
        return {name: tuple(ops) for name, ops in readers.items()}

    def validate(self) -> Graph:
        """Check names, order and shapes (`WorkloadError`); return the graph itself."""
        kept = ("parameter", "constant", "state")
        stored = {t.name for t in self.tensors.values() if t.role in kept}
        available = stored | set(self.inputs)
        names: set[str] = set()
        for op in self.ops:
            if op.name in names:
                raise WorkloadError(f"Graph {self.name!r} has two operators named {op.name!r}.")
            names.add(op.name)
            for name in op.inputs:
                if name not in available:
                    raise WorkloadError(
                        f"Operator {op.name!r} reads {name!r}, which nothing before it provides."
                    )
            for name in op.outputs:
                if name not in self.tensors:
                    raise WorkloadError(f"Operator {op.name!r} writes unknown tensor {name!r}.")
                if name in available:
                    raise WorkloadError(
                        f"Operator {op.name!r} writes {name!r}, which already has a value."
                    )
                available.add(name)
            for name, count in op.params.sizes(op):
                if self.tensors[name].elements != count:
                    raise WorkloadError(
                        f"Operator {op.name!r} expects {count} elements in {name!r}, which has "
                        f"shape {self.tensors[name].shape}."
                    )
        for name in (*self.inputs, *self.outputs):
            if name not in self.tensors or name not in available:
                raise WorkloadError(f"Graph {self.name!r} exchanges unknown tensor {name!r}.")
        for key, tensor in self.tensors.items():
            if key != tensor.name or key not in available:
                raise WorkloadError(
                    f"Graph {self.name!r} lists tensor {key!r}, which nothing provides."
                )
        return self

    def with_precision(self, precision: str) -> Graph:
        """Return the same graph with its floating-point storage set by name, a key of `PRECISIONS`.

        Activations stand before the dot, parameters and stored statistics after it. Integer tensors
        stay as they are, and so do fixed ones. A cast between types that became equal turns into an
        identity that moves nothing.
        """
        check_name("precision", precision, PRECISIONS)
        activations, weights = PRECISIONS[precision]
        tensors = {}
        fixed = frozenset(self.fixed)
        for name, tensor in self.tensors.items():
            if tensor.dtype in FLOAT_DTYPES and name not in fixed:
                is_stored = tensor.role in ("parameter", "constant", "state")
                dtype = weights if is_stored else activations
                tensor = tensor if dtype == tensor.dtype else changed(tensor, dtype=dtype)
            tensors[name] = tensor
        ops = tuple(_settle_cast(op, tensors) for op in self.ops)
        graph = replace(self, tensors=tensors, ops=ops)
        return _with_float8(graph) if precision == "float8" else graph


def _with_float8(graph: Graph) -> Graph:
    """Return the same graph with products and dense convolutions of float8, others as they are."""
    tensors, ops = dict(graph.tensors), []

    # Sums leave as half (poplibs lib/poplin/ConvVertexType.cpp: half partials alone). Convolutions
    # with groups stay float16: the vertices for few channels have no float8 form but one of SLIC.
    def takes(op: Op) -> bool:
        return isinstance(op.params, MatMul) or (
            isinstance(op.params, Conv) and op.params.groups == 1
        )

    def stored(name: str) -> str:
        return tensors[name].alias_of or name

    others = {stored(name) for op in graph.ops if not takes(op) for name in op.inputs}
    for op in graph.ops:
        if not takes(op):
            ops.append(op)
            continue
        operands = list(op.inputs[:2])
        for place, name in enumerate(operands):
            if tensors[name].role == "parameter" and stored(name) not in others:
                tensors[name] = replace(tensors[name], dtype="float8")
            elif tensors[name].dtype in FLOAT_DTYPES:
                operands[place] = cast = f"{name}.float8"
                if cast not in tensors:
                    like = Tensor(name=cast, shape=tensors[name].shape, dtype="float8")
                    ops.append(Op(name=cast, params=Cast(), inputs=(name,), outputs=(cast,)))
                    tensors[cast] = like
        ops.append(replace(op, inputs=(*operands, *op.inputs[2:])))
    return replace(graph, tensors=tensors, ops=tuple(ops))


def _settle_cast(op: Op, tensors: Mapping[str, Tensor]) -> Op:
    if not isinstance(op.params, Cast):
        return op
    source, target = tensors[op.inputs[0]], tensors[op.outputs[0]]
    if source.dtype != target.dtype:
        return op
    return replace(op, params=Layout.view("identity"))
