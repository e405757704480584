"""Constants: nodes that never run, and the values of their results.

Results of constants alone are constants. Their values are computed, by onnx's reference evaluator,
where they are few (shapes, axes, masks, single numbers); of all others the shape is enough.
"""

from itertools import repeat
from math import prod

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ipusim.workload.onnx.context import ImportContext
from ipusim.workload.onnx.nodes import Node
from ipusim.workload.onnx.reader import Value, is_kept, stored
from ipusim.workload.onnx.reference import evaluated
from ipusim.workload.onnx.shapes import Results
from ipusim.workload.operators.base import name_in_body

RANDOM = ("Random", "Bernoulli", "Multinomial")
_OF_POSITIONS = ("Sin", "Cos")
"""Operators that make tables of positions: of frequencies, which nobody learns."""

_SHAPE_ONLY = ("Transpose", "Reshape", "Unsqueeze", "Squeeze", "Flatten", "Identity", "Cast")
"""Operators whose result shares the memory of what they take."""

_RESHAPED = ("Reshape", "Squeeze", "Unsqueeze", "Flatten")
"""Operators of which onnx's reference evaluator refuses forms that files have."""

_MOST_NUMBERS = 2**22
"""Operands and results of what is computed here; of more, as of weights, the shape is enough."""

_PRODUCTS = ("Einsum", "MatMulInteger", "QLinearMatMul", "QLinearConv", "ConvInteger")
_SIZED = ("OneHot", "BlackmanWindow", "HammingWindow", "HannWindow")
"""Operators without a rule of their shape: as large as their operands together, or as these say."""

_REACH = ("kernel_shape", "pads", "dilations")


class Folding:
    """Folds the constants of one import; of some kinds of nodes the results are always known."""

    def __init__(self, context: ImportContext) -> None:
        self.context = context
        self._computed: dict[tuple, str] = {}
        self.known = {"Constant": self._held, "Shape": self._sizes, "Size": self._sizes}

    def computes(self, node: Node) -> bool:
        """Whether the values of a node's results can be known: those of all its inputs are."""
        inputs = self.context.inputs(node)
        known = all(value.array is not None for value in inputs) and onnx.defs.has(node.op_type)
        known = known and not node.op_type.startswith(RANDOM) and not node.domain
        return known and self._numbers(node, inputs) <= _MOST_NUMBERS

    def _numbers(self, node: Node, inputs: list[Value]) -> int:
        """Return about how many numbers computing a node takes, at most."""
        reach = [n for name in _REACH for n in node.get(name) or ()]
        if node.op_type in _PRODUCTS:
            reach += [value.elements for value in inputs]
        elif node.op_type in _SIZED:
            sizes = [value.array for value in inputs[:2] if value.elements == 1]
            reach += [int(array.item()) for array in sizes if array.dtype.kind in "iu"]
        return sum(value.elements for value in inputs) * prod(1 + abs(n) for n in reach)

    def fold(self, node: Node, results: Results | None) -> None:
        """Record results as constants, with values if they are few or no rule told their shapes."""
        arrays = None
        named = zip(node.output, results or (), strict=False)
        if self.computes(node) and all(is_kept(*result) for name, result in named if name):
            arrays = self._evaluated(node, results)
        if results is None:
            kind = helper.np_dtype_to_tensor_dtype
            results = [((), 0) if a is None else (a.shape, kind(a.dtype)) for a in arrays]
        learnable, inputs = self._learnable(node), self.context.inputs(node)
        found = zip(node.output, results, arrays or repeat(None), strict=False)
        for name, (shape, kind), array in found:
            if name:
                shape = shape if array is None else array.shape
                value = Value(shape=shape, elem_type=kind, static=True, array=array)
                value.learnable, value.root = learnable, self._root(node, name)
                value.counted = any(one.counted for one in inputs)
                self.context.record(node, name, value)

    def _held(self, node: Node) -> None:
        """Constant: what the file stores in it; in some files these are the weights."""
        tensor = node.get("value")
        for kind, dtype in (("int", np.int64), ("float", np.float32)):
            numbers = node.get(f"value_{kind}s", node.get(f"value_{kind}"))
            if numbers is not None:
                tensor = numpy_helper.from_array(np.array(numbers, dtype))
        if tensor is None:
            raise node.error("holds no numbers")
        name, own = node.output[0], stored(tensor, f"node {node.label!r}")
        if not self.context.contents.weights_are_constants or node.scope.prefix:
            own.learnable = None
        own.root = self._root(node, name)
        self.context.record(node, name, own)

    def _sizes(self, node: Node) -> None:
        """Shape and Size: known now, of constants and run-time values alike."""
        shape = self.context.shape(node.input[0])
        array = np.array(shape[node.get("start", 0) : node.get("end", len(shape))])
        if node.op_type == "Size":
            array = np.array(prod(shape))
        self.context.constant(node.output[0], array.astype(np.int64))

    def _evaluated(self, node: Node, results: Results | None) -> list[np.ndarray | None]:
        """Return the values of results, None for those without a name."""
        feed = {name: self.context.values[name].array for name in node.input if name}
        if node.op_type in _RESHAPED and results is not None:
            return [feed[node.input[0]].reshape(results[0][0])]
        if node.op_type == "Cast" and self.context.inputs(node)[0].elem_type == node.get("to"):
            # Of the condition of a loop, in every round.
            return [feed[node.input[0]]]
        label = f"The {node.op_type} node {node.label!r}"
        found = evaluated(node, self.context.opset, feed, label)
        return [None if item is None else np.asarray(item) for item in found]

    def _learnable(self, node: Node) -> bool | None:
        """Whether results are learnt: where weights are, not of masks and numbers alone."""
        if node.op_type in _OF_POSITIONS:
            return False
        values = self.context.inputs(node)
        kinds = {value.learnable for value in values}
        if any(value.trained for value in values):
            return True
        return False if kinds == {False} else None

    def _root(self, node: Node, name: str) -> str | None:
        """Return whose memory a result shares: of what it reshapes, or of the first one alike."""
        if node.op_type in _SHAPE_ONLY and any(node.input):
            return self.context.inputs(node)[0].root
        sources = tuple(self._source(x) for x in node.input if x)
        if not sources and name_in_body(name) == name:
            return None
        # The rounds of a loop compute a constant again and again.
        attributes = repr(sorted(node.attributes.items()))
        own = (sources, node.output.index(name), attributes) if sources else name_in_body(name)
        return self._computed.setdefault((node.op_type, own), name)

    def _source(self, name: str) -> object:
        """Return what tells an operand apart: its memory, its whole numbers, or its name."""
        value = self.context.values[name]
        if value.root is None and value.array is not None and value.array.dtype.kind in "iub":
            return value.shape, value.content
        return value.root or name
