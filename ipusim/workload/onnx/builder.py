"""From the contents of an ONNX file to a graph, for any batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx

from ipusim.errors import WorkloadError, nearest_name
from ipusim.workload.graph import Graph
from ipusim.workload.onnx.context import ImportContext, Value
from ipusim.workload.onnx.elementwise import LAYOUT_HANDLERS
from ipusim.workload.onnx.inputs import InputPlan
from ipusim.workload.onnx.products import COMPUTE_HANDLERS
from ipusim.workload.onnx.reader import OnnxContents
from ipusim.workload.onnx.recurrent import RECURRENT_HANDLERS
from ipusim.workload.onnx.windows import WINDOW_HANDLERS

HANDLERS = COMPUTE_HANDLERS | WINDOW_HANDLERS | LAYOUT_HANDLERS | RECURRENT_HANDLERS
"""Operators that may depend on the data; any other one only where all its inputs are constant."""

_CONTROL_FLOW = ("If", "Loop", "Scan", "SequenceMap")


@dataclass(frozen=True, slots=True)
class OnnxBuild:
    """Callable that builds the graph of a file for a micro-batch (None: the file's own)."""

    contents: OnnxContents
    plan: InputPlan

    @property
    def batch(self) -> int:
        """Items of a pass where no micro-batch is given."""
        return self.plan.fixed or self.plan.default

    def __call__(self, micro_batch: int | None) -> Graph:
        """Build the graph.

        Raises
        ------
        WorkloadError
            If the file cannot be built at all, or not at this micro-batch.
        """
        size = micro_batch or self.batch
        if self.plan.fixed == 0 or size == self.batch:
            return _walk(self.contents, self.plan, self.plan.shapes(size))
        if self.plan.fixed is None:
            shapes = self.plan.shapes(size)
            raise WorkloadError(
                f"{self._label} has data inputs of shapes {shapes}, which share no leading batch "
                f"dimension, so micro-batch {micro_batch} is impossible; use 1 to take the file "
                "as exported."
            )
        return self._rebatched(self.plan.fixed, size)

    def _rebatched(self, fixed: int, size: int) -> Graph:
        """Return the graph with another batch than the file fixes, if all work follows it."""
        shapes = self.plan.shapes(size)
        exported = _walk(self.contents, self.plan, shapes)
        resized = [(size, *shape[1:]) for shape in shapes]
        try:
            graph = _walk(self.contents, self.plan, resized, (fixed, size))
            possible = _scales(exported, graph, fixed, size)
        except WorkloadError:
            possible = False
        if not possible:
            raise WorkloadError(
                f"{self._label} fixes its batch of {fixed} inside the graph, so micro-batch "
                f"{size} is impossible; export it with a symbolic batch or use {fixed}."
            )
        return graph

    @property
    def _label(self) -> str:
        return self.contents.source[0].upper() + self.contents.source[1:]


def _scales(exported: Graph, rebatched: Graph, before: int, after: int) -> bool:
    """Whether work and outputs grew with the batch, as they must if it was a batch."""
    if exported.macs * after != rebatched.macs * before:
        return False
    return all(
        exported.tensors[old].elements * after == rebatched.tensors[new].elements * before
        for old, new in zip(exported.outputs, rebatched.outputs, strict=True)
    )


def _walk(
    contents: OnnxContents,
    plan: InputPlan,
    shapes: list[tuple[int, ...]],
    rebatch: tuple[int, int] | None = None,
) -> Graph:
    context = ImportContext(contents)
    for name, array in plan.values.items():
        kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        context.values[name] = Value(shape=array.shape, elem_type=kind, static=True, array=array)
    for item, shape in zip(plan.inputs, shapes, strict=True):
        context.values[item.name] = Value(shape=shape, elem_type=item.elem_type, static=False)
        context.graph.input(item.name, shape, context.dtype(item.name))
    for node in contents.nodes:
        _visit(context, node, rebatch)
    if not context.graph.ops:
        raise WorkloadError(
            f"{contents.source[0].upper() + contents.source[1:]} computes nothing from its data "
            "inputs, so there is nothing to simulate."
        )
    return context.graph.finish(*[_output(context, name) for name in contents.outputs])


def _output(context: ImportContext, name: str) -> str:
    if name not in context.values:
        raise WorkloadError(
            f"Graph output {name!r} of {context.contents.source} is computed by no node."
        )
    return context.operand(name)


def _visit(context: ImportContext, node: onnx.NodeProto, rebatch: tuple[int, int] | None) -> None:
    inputs = [context.value(name, node) for name in node.input if name]
    if node.domain not in ("", "ai.onnx") or node.op_type in _CONTROL_FLOW:
        raise _unsupported(node)
    static = all(value.static for value in inputs)
    if not static and node.op_type not in HANDLERS:
        raise _unsupported(node)
    if static and not onnx.defs.has(node.op_type):
        raise _unsupported(node)
    arrays = {
        name: context.values[name].array
        for name in node.input
        if name and context.values[name].array is not None
    }
    if rebatch is not None and not static and node.op_type == "Reshape":
        target = arrays.get(node.input[1])
        if target is not None and target.size and target[0] == rebatch[0]:
            arrays[node.input[1]] = np.concatenate(([rebatch[1]], target[1:])).astype(np.int64)
    context.infer(node, arrays)
    if static:
        context.fold(node)
        return
    HANDLERS[node.op_type](context, node)


def _unsupported(node: onnx.NodeProto) -> WorkloadError:
    domain = f" of domain {node.domain!r}" if node.domain not in ("", "ai.onnx") else ""
    known = [name for name in HANDLERS if name != node.op_type]
    return WorkloadError(
        f"Operator {node.op_type!r}{domain}, node {node.name or next(iter(node.output), '?')!r}, "
        f"is not supported; the nearest supported operator is {nearest_name(node.op_type, known)!r}"
        ", so replace it or export the model without it."
    )
