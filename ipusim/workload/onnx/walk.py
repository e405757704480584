"""From the nodes of a file to those that run.

Each node is met by the first of these that knows it: control (`control`), recipes of simpler nodes
(`composites`, `attention`, `learners`), a rule of its shape (`shapes`) with a handler that lets it
run (`operators`), values of constants (`constants`), onnx's own definition by simpler nodes. What
nobody knows is noted as unsupported.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from math import prod

import numpy as np
import onnx
from onnx import helper

from ipusim.errors import MISFITS, WorkloadError
from ipusim.workload.onnx.attention import ATTENTION
from ipusim.workload.onnx.composites import COMPOSITES
from ipusim.workload.onnx.constants import Folding
from ipusim.workload.onnx.context import ImportContext
from ipusim.workload.onnx.control import CONTROL, OF_SEQUENCES
from ipusim.workload.onnx.learners import LEARNERS
from ipusim.workload.onnx.nodes import (
    DEEPEST,
    UNKNOWN,
    Node,
    Scope,
    Unfolding,
    definition,
    scope_of,
)
from ipusim.workload.onnx.operators import HANDLERS
from ipusim.workload.onnx.reader import Value
from ipusim.workload.onnx.rebatch import Rebatch
from ipusim.workload.onnx.recipes import Parts, form
from ipusim.workload.onnx.reference import reason
from ipusim.workload.onnx.shapes import FLOAT, N_ARY, RULES, Call, Results

RECIPES = {**COMPOSITES, **ATTENTION, **LEARNERS}
"""What operators are made of, by domain and operator."""

_WEIGHTED = ("Conv", "ConvTranspose", "MatMul", "Gemm", "LSTM", "GRU", "BatchNormalization")
_REPEATING = ("Expand", "Tile", *N_ARY.split())
"""Operators whose results may repeat what they take."""


@contextmanager
def fitting(context: ImportContext, node: Node) -> Iterator[None]:
    """Turn what a rule raises where a node does not fit its inputs into one sentence."""
    try:
        yield
    except MISFITS as error:
        values = [context.values[name] for name in node.input if name in context.values]
        shapes = [value.shape for value in values]
        constants = [value for value in values if value.static and len(value.shape) > 1]
        vectors = any(1 < max(value.shape) == value.elements for value in constants)
        weighted = vectors or node.op_type in _WEIGHTED
        raise Misfit(
            f"The {node.op_type} node {node.label!r} cannot take inputs of shapes {shapes} "
            f"({reason(error)}).",
            weighted=weighted,
        ) from error


class Misfit(WorkloadError):
    """A node does not fit its inputs; ``weighted`` where it has weights of single channels."""

    def __init__(self, message: str, *, weighted: bool) -> None:
        super().__init__(message)
        self.weighted = weighted


class Walk:
    """Visits nodes in order."""

    def __init__(self, context: ImportContext, rebatch: Rebatch | None) -> None:
        self.context = context
        self.rebatch = rebatch
        self.constants = Folding(context)
        self.sequences: dict[str, list[str]] = {}  # their tensors
        self.nodes = Unfolding(context.contents)
        self._depth = 0

    def body(self, protos: Iterable[onnx.NodeProto], scope: Scope) -> None:
        """Visit the nodes of the file, or of a function, a branch or a loop in it."""
        if self._depth > DEEPEST:
            raise self.context.contents.error(
                f"has more than {DEEPEST} branches or loops within each other"
            )
        self._depth += 1
        for node in self.nodes(protos, scope):
            self.visit(node)
        self._depth -= 1

    def visit(self, node: Node) -> None:
        """Record the results of a node; keep it if it runs."""
        with fitting(self.context, node):
            self._visit(node)

    def _visit(self, node: Node) -> None:
        of_sequence = any(name in self.sequences for name in node.input[:1])
        control = CONTROL | OF_SEQUENCES if of_sequence else CONTROL
        if node.op_type in control and not node.domain:
            control[node.op_type](Parts(self, node))
            return
        inputs = self.context.inputs(node)
        knows = self.constants.known.get(node.op_type)
        if knows and not node.domain:
            knows(node)
            return
        static = all(value.static for value in inputs)
        computed = static and self.constants.computes(node)
        recipe = RECIPES.get((form(node), node.op_type))
        recipe = recipe or RECIPES.get((node.domain, node.op_type))
        if recipe is not None:
            if computed:
                with suppress(WorkloadError):
                    self.constants.fold(node, Call(self.context, node).results())
                    return
            Parts(self, node).run(recipe)
            return
        has_rule = node.op_type in RULES and not node.domain
        if has_rule and (static or node.op_type in HANDLERS):
            self._run(node, static=static)
        elif computed:
            self.constants.fold(node, None)
        elif not self._defined(node):
            # Without a handler it has to be constant: a rule says what it lacks for that.
            Call(self.context, node).results()
            self._unknown(node, inputs)

    def _defined(self, node: Node) -> bool:
        """Visit what onnx defines an operator by; return whether it does."""
        types = [
            helper.make_tensor_type_proto(value.elem_type, value.shape)
            if (value := self.context.values.get(name))
            else onnx.TypeProto()
            for name in node.input
        ]
        function = definition(node, self.context.opset, types)
        if function is None:
            return False
        self.body(function.node, scope_of(node, function, f"{node.label}/"))
        return True

    # -- nodes with a rule ----------------------------------------------------------------

    def _run(self, node: Node, *, static: bool) -> None:
        """Fold a node of constants, keep any other."""
        if self.rebatch:
            self.rebatch.adapt(Parts(self, node))
        results = Call(self.context, node).results()
        if static and (self._of_zeros(node, results) or self._of_rows_alike(node, results)):
            return
        if static and node.op_type != "carry" and not self._repeats_weights(node, results):
            self.constants.fold(node, results)
            if self._runs(node):
                self.context.nodes.append(node)
                for name in filter(None, node.output):
                    self.context.values[name].computed = True
        else:
            self._keep(node, results)

    def _runs(self, node: Node) -> bool:
        """Whether a node of constants runs all the same: products with weights, and what they give.

        PopART folds no products (popart willow/src/ces), and trains the weights behind them.
        """
        values = self.context.inputs(node)
        # A vector times another one is a table, of positions times frequencies.
        learnt = any(v.trained and sum(size > 1 for size in v.shape) > 1 for v in values)
        product = learnt and node.op_type in ("MatMul", "Gemm")
        return node.op_type in HANDLERS and (product or any(value.computed for value in values))

    def _keep(self, node: Node, results: Results) -> None:
        """Record a run-time node; one whose results are empty is a constant."""
        values = {
            name: Value(shape=shape, elem_type=kind, static=False)
            for name, (shape, kind) in zip(node.output, results, strict=False)
            if name
        }
        empty = all(not value.elements for value in values.values())
        for name, value in values.items():
            value.static = empty
            self.context.record(node, name, value)
            if self.rebatch:
                self.rebatch.follow(node, name, value.shape)
        if node.op_type == "Dropout" and len(values) > 1:
            # At inference nothing is dropped.
            self.context.values[node.output[1]].static = True
        if not empty:
            self.context.nodes.append(node)

    def _repeats_weights(self, node: Node, results: Results) -> bool:
        """Whether a node repeats weights: what it gives is no parameter of its own."""
        if node.op_type not in _REPEATING:
            return False
        values = self.context.inputs(node)
        learnt = [value.elements for value in values if value.trained]
        if node.op_type == "Tile" and any(
            1 < own < size for own, size in zip(values[0].shape, results[0][0], strict=True)
        ):
            # Not of one item: heads, say, stand beside those of the next.
            return False
        return 0 < max(learnt, default=0) < np.prod(results[0][0], dtype=object)

    def _of_rows_alike(self, node: Node, results: Results) -> bool:
        """Visit a lookup of the same rows of weights for every item: one, which is repeated."""
        if node.op_type != "Gather" or node.get("axis", 0):
            return False
        weights, places = self.context.inputs(node)
        if not weights.trained or places.array is None:
            return False
        alike = places.array.ndim > 1 and (places.array == places.array[:1]).all()
        if not alike or len(places.array) < 2:
            return False
        parts = Parts(self, node)
        one = parts("Gather", node.input[0], places.array[:1], axis=0)
        parts("Expand", one, results[0][0], out=node.output[0])
        return True

    def _of_zeros(self, node: Node, results: Results) -> bool:
        """Visit what is left of the product of a state of zeros: its bias, or zeros."""
        product = node.input[:2] if node.op_type in ("MatMul", "Gemm") else ()
        arrays = [self.context.values[name].array for name in product]
        if all(array is None or array.any() for array in arrays):
            return False
        (shape, kind), *_ = results
        if self.rebatch and shape[0] == self.rebatch.before:
            shape = (self.rebatch.after, *shape[1:])
        zero = np.zeros((), helper.tensor_dtype_to_np_dtype(kind))
        bias = node.input[2] if node.has(2) else zero
        # Of one row it is the bias itself.
        whole = node.has(2) and self.context.values[bias].elements == prod(shape)
        kind = "Reshape" if whole else "Expand"
        Parts(self, node)(kind, bias, np.array(shape), out=node.output[0])
        return True

    def _unknown(self, node: Node, inputs: list[Value]) -> None:
        """Note an unsupported operator; its results get the file's shapes, or that of its input."""
        domain = f" of domain {node.domain!r}" if node.domain else ""
        self.context.unknown.setdefault(f"{node.op_type!r}{domain}", []).append(node.label)
        largest = max(inputs, key=lambda value: value.elements, default=None)
        for name in filter(None, node.output):
            shape = self.context.contents.shapes.get(name, largest.shape if largest else ())
            kind = largest.elem_type if largest else FLOAT
            self.context.record(node, name, Value(shape=shape, elem_type=kind, static=False))
        node.op_type = UNKNOWN + node.op_type
        self.context.nodes.append(node)
