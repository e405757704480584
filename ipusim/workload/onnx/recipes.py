"""Recipes: what an operator is made of, written as the simpler nodes that stand for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from ipusim.workload.graph import FLOAT_DTYPES
from ipusim.workload.onnx.nodes import Node
from ipusim.workload.onnx.reader import FLOATS, Value
from ipusim.workload.onnx.shapes import FLOAT, Call, by_names

if TYPE_CHECKING:
    from ipusim.workload.onnx.walk import Walk

VENDOR = "com.microsoft"
"""Domain of the fused operators of onnxruntime."""

BATCH_FIRST, BOTH_WAYS = "batch first", "both ways"
"""In the place of a domain: recurrent layers whose first axis is the batch, or of two ways."""

_OF_TABLES = ("Gather", "Identity", "Reshape", "Transpose")
"""What a lookup in a stored table may go through; of constants the lookup alone runs."""

Operand = str | float | Sequence[int] | np.ndarray
"""A value by its name, or a constant: floats are of single precision."""


class Parts(Call):
    """A composite as its recipe sees it: it writes the nodes that the composite stands for."""

    def __init__(self, walk: Walk, node: Node) -> None:
        super().__init__(walk.context, node)
        self.walk = walk
        self._numbers = count(1)

    def run(self, recipe: Recipe) -> None:
        """Let what a recipe returns be the first result of the composite."""
        result, name = recipe(self), self.out()
        if result is None or not name:
            return
        last = self.context.nodes[-1] if self.context.nodes else self.node
        if last.output[0] == result and result.startswith(f"{self.label}."):
            self.context.record(self.node, name, self.context.values.pop(result))
            last.output[0] = name
            if self.walk.rebatch:
                self.walk.rebatch.follow(last, name, self.shape(name))
        else:
            self("Identity", result, out=name)

    def __call__(self, op_type: str, *inputs: Operand, out: str = "", **attributes: object) -> str:
        """Visit a node; return the name of its first result."""
        return self.several(op_type, [out], *inputs, **attributes)[0]

    def several(
        self, op_type: str, outs: Sequence[str], *inputs: Operand, **attributes: object
    ) -> list[str]:
        """Visit a node of several results; return their names, also of those that had none."""
        stem = f"{self.label}.{op_type}{next(self._numbers)}"
        names = [out or f"{stem}.out" + f".{place}" * (place > 0) for place, out in enumerate(outs)]
        operands = [self._operand(item, f"{stem}.in{place}") for place, item in enumerate(inputs)]
        self.walk.nodes.count()
        node = Node(op_type=op_type, input=operands, output=names, name=stem, attributes=attributes)
        self.walk.visit(node)
        return names

    def _operand(self, item: Operand, name: str) -> str:
        """Return the name of an operand, which a constant is given."""
        if isinstance(item, str):
            return item
        if not isinstance(item, np.ndarray):
            item = np.array(item, np.float32 if isinstance(item, float) else np.int64)
        return self.context.constant(name, item)

    def reading(self, inputs: dict[int, str], **attributes: object) -> Parts:
        """Return the composite with other inputs at places; attributes that are None fall away."""
        other = copy(self)
        operands = [inputs.get(place, name) for place, name in enumerate(self.node.input)]
        attributes = self.node.attributes | attributes
        present = {name: value for name, value in attributes.items() if value is not None}
        other.node = replace(self.node, input=operands, attributes=present)
        return other

    def input(self, place: int) -> str:
        """Return the name of an input of the composite, empty if it is not given."""
        return self.node.input[place] if self.has(place) else ""

    def out(self, place: int = 0) -> str:
        """Return the name of a result of the composite, empty if nobody asks for it."""
        return self.node.output[place] if place < len(self.node.output) else ""

    def is_float(self, name: str) -> bool:
        """Whether a value is of floating-point numbers."""
        return self.context.dtype(name) in FLOAT_DTYPES

    def floating(self, place: int) -> str:
        """Return an input of integers as if it was of floating-point numbers."""
        value = self.context.values[self.input(place)]
        if value.elem_type not in FLOATS:
            value.elem_type = FLOAT
            if value.array is not None:
                value.array = value.array.astype(np.float32)
                scale, zero = (self.known(place + i) for i in (1, 2))
                # Functions are known by single numbers, which take the value that is meant.
                if value.elements == 1 and scale is not None and scale.dtype.kind == "f":
                    value.array = (value.array - (0 if zero is None else zero)) * scale
            elif not value.static:
                self.table_as_float(self.input(place))
        return self.input(place)

    def table_as_float(self, name: str) -> None:
        """Let integers that are looked up in a stored table be floating-point numbers there."""
        made = {out: node for node in self.context.nodes for out in node.output}
        names = [name]
        while names[-1] in made and made[names[-1]].op_type in _OF_TABLES:
            names.append(made[names[-1]].input[0])
        if len(names) > 1 and self.context.is_static(names[-1]):
            for each in names:
                self.context.values[each].elem_type = FLOAT

    def sum(self, first: str, *names: str) -> str:
        """Return the sum of values, absent ones left out."""
        for name in filter(None, names):
            first = self("Add", first, name)
        return first

    def reshape(self, x: str, *shape: int, out: str = "") -> str:
        """Visit a Reshape."""
        return self("Reshape", x, shape, out=out)

    def transpose(self, x: str, *order: int, out: str = "") -> str:
        """Visit a Transpose."""
        return self("Transpose", x, out=out, perm=list(order))

    def slice(self, x: str, axis: int, start: int, end: int) -> str:
        """Visit a Slice along one axis."""
        return self("Slice", x, [start], [end], [axis])

    def split(self, x: str, axis: int, *sizes: int) -> list[str]:
        """Visit a Split; return the parts."""
        return self.several("Split", [""] * len(sizes), x, sizes, axis=axis)

    def stored(self, *shape: int, learnable: bool = True) -> str:
        """Add weights, or a fixed table, whose values do not matter; return their name."""
        name = f"{self.label}.weights{next(self._numbers)}"
        value = Value(shape=shape, elem_type=FLOAT, static=True, learnable=learnable, root=name)
        self.context.record(self.node, name, value)
        return name


Recipe = Callable[[Parts], str | None]
"""Visits what a composite stands for; returns its first result, or None if that has its name."""


def form(node: Node) -> str:
    """Return the domain of a node, or what stands in its place."""
    if node.get("layout") == 1:
        return BATCH_FIRST
    return BOTH_WAYS if node.get("direction") == "bidirectional" else node.domain


def by_domain(tables: Mapping[str, Mapping[str, Recipe]]) -> dict[tuple[str, str], Recipe]:
    """Return a table by domain and operator."""
    return {
        (domain, name): one for domain in tables for name, one in by_names(tables[domain]).items()
    }
