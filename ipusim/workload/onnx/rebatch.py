"""Another batch than a file fixes: where its numbers have to follow.

Exporters that are given an example write its batch into target shapes, into places of a view and
into constants that stand beside every item. Both imports are compared by name: what has another
size than in the import at the file's own batch has grown with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from ipusim.workload.builder import sized
from ipusim.workload.onnx.nodes import Node
from ipusim.workload.onnx.reader import Value
from ipusim.workload.onnx.shapes import N_ARY, TRUTHS, UNARY, Shape

if TYPE_CHECKING:
    from ipusim.workload.onnx.recipes import Parts

_TARGETS = {"Reshape": 1, "Expand": 1, "Resize": 3}
_PLACES = {"Gather": 1, "GatherND": 1, "ScatterND": 1}
"""Operators with a shape, or places, that exporters write as numbers, and which input it is."""

_BESIDE = ("Concat", "GatherElements", "ScatterElements", "ScatterND")
"""Operators that need as many items of a constant as of data; others broadcast one."""

_BY_ELEMENT = {*UNARY.split(), *N_ARY.split(), *TRUTHS.split(), "Cast", "Identity", "carry"}
"""Operators whose result is alike along an axis where all that they take is."""

_BY_ITEM = ("MatMul", "LayerNormalization", "RMSNormalization", "Reshape", "Transpose")
"""Those that leave the first axis of their first input as it is, weights of two axes given."""

_REPEATED = (*_BESIDE, *N_ARY.split(), "LSTM", "GRU", "Expand", "MatMul", "carry")
"""Operators that read constants beside every item, or let every item start from one."""


@dataclass(frozen=True, slots=True)
class Rebatch:
    """Another batch than the file fixes, and what the file's own gives.

    ``within`` says of values whose batch lies inside an axis how many positions of the axis are
    outside of it: of (length x batch, width), the rows of a product, the length. ``repeated`` are
    constants known to be alike along axes, by the shapes that they are repeated from.
    """

    before: int
    after: int
    values: dict[str, Value]
    late: bool = False  # whether of several axes that may be the batch the last is, not the first
    within: dict[str, int] = field(default_factory=dict)
    repeated: dict[str, Shape] = field(default_factory=dict)

    def axis(self, name: str, shape: Shape) -> int | None:
        """Return the only axis along which a value grows with the batch."""
        own = self.values[name].shape if name in self.values else shape
        grown = [place for place, size in enumerate(own) if shape[place] != size]
        return grown[0] if len(grown) == 1 else None

    def follow(self, node: Node, name: str, shape: Shape) -> None:
        """Note that the batch of a result lies where it does in an input with the same axis."""
        axis = self.axis(name, shape)
        if axis is None:
            return
        for x in node.input:
            if x in self.within and self.values[name].shape[axis] in self.values[x].shape:
                self.within.setdefault(name, self.within[x])

    def adapt(self, p: Parts) -> None:
        """Let the constants of a node follow the batch."""
        place = _TARGETS.get(p.node.op_type)
        known = p.node.output[0] in self.values
        if place and p.has(place) and known:
            axis = self.axis(p.input(0), p.shape())
            if axis is not None:
                self._target(p, axis, place)
        elif p.node.op_type in _PLACES and known:
            # A scatter may write constants into data, or data into a constant.
            data = (p.node.input[0], *p.node.input[2:])
            at = p.axis(0) if p.node.op_type == "Gather" else 0
            if at in [self.axis(x, p.shape(x)) for x in data]:
                self._places(p, at)
        read = [name for name in p.node.input if name]
        if known and all(name in self.repeated or p.context.is_static(name) for name in read):
            self._note_alike(p)
        if p.node.op_type in _REPEATED:
            self._repeat(p)

    def _target(self, p: Parts, axis: int, place: int) -> None:
        """Put the batch into a target shape.

        It goes where as many elements lie outside of it as before: into an axis of its own, else
        into one that begins there (heads), unless that is the last one, whose features nothing
        joins; or into the one that ends there (rows).
        """
        x, name = p.input(0), p.node.output[0]
        before, sizes = self.values[x].shape, self.values[name].shape
        outside = prod(before[:axis]) * self.within.get(x, 1)
        first = [prod(sizes[:i]) for i in range(len(sizes))]
        within = {i: outside // n for i, n in enumerate(first) if 0 < n <= outside}
        within = {i: n for i, n in within.items() if sizes[i] and sizes[i] % (n * self.before) == 0}
        if not within:
            return

        def rank(i: int) -> tuple[bool, bool, int, int]:
            apart = within[i] * sizes[i] != self.before
            return apart, i == len(sizes) - 1, within[i], -i if self.late else i

        at = min(within, key=rank)
        target = sized(sizes, at, sizes[at] // self.before * self.after)
        p.node.input[place] = p.context.constant(f"{name}.target", np.array(target, np.int64))
        self.within[name] = within[at]

    def _note_alike(self, p: Parts) -> None:
        """Note a constant that repeats another, looks up alike places, or follows from such."""
        name, kind = p.node.output[0], p.node.op_type
        own = self.values[name].shape
        if kind in ("Expand", "Tile"):
            self.repeated[name] = p.shape()
        elif kind in ("Gather", "GatherND") and p.axis(0) == p.get("batch_dims", 0) == 0:
            places = p.known(1)
            if places is not None and places.ndim and bool((places == places[:1]).all()):
                self.repeated[name] = (1, *own[1:])
        elif own and kind in _BY_ELEMENT:
            shapes = {x: p.shape(x) for x in p.node.input if x}
            wide = [
                x for x, shape in shapes.items() if len(shape) == len(own) and shape[:1] != (1,)
            ]
            if wide and all(self._alike(x, p.context.values[x], -len(own)) for x in wide):
                self.repeated[name] = (1, *own[1:])
        elif own and kind in _BY_ITEM and p.shape()[:1] == own[:1]:
            x, order = p.input(0), p.get("perm", (0,))
            apart = order[0] == 0 and (kind != "MatMul" or len(p.shape(1)) == 2)
            if apart and self._alike(x, p.context.values[x], -len(p.shape())):
                self.repeated[name] = (1, *own[1:])

    def _places(self, p: Parts, at: int) -> None:
        """Take from every item, or write into it, what constant places take from the first."""
        # The batch is the axis at which places lie, or the first of several indices; the places of
        # every item are the first item's, moved on. Views with strides are exported so.
        own, places = self.values[p.input(0)].shape, p.known(1)
        several = p.node.op_type != "Gather"
        if places is None or not places.ndim or len(places) % self.before:
            return
        step = np.eye(1, places.shape[-1], dtype=places.dtype)[0] if several else 1
        first = places[: len(places) // self.before]

        def of_items(count: int) -> np.ndarray:
            moved = [first + item * (own[at] // self.before) * step for item in range(count)]
            return np.concatenate(moved)

        if np.array_equal(places, of_items(self.before)):
            name = f"{p.node.output[0]}.places"
            p.node.input[1] = p.context.constant(name, of_items(self.after))

    def _repeat(self, p: Parts) -> None:
        """Repeat constants that stand beside every item: class tokens, states to start from."""
        names = p.node.input[:1] if p.node.op_type == "Expand" else list(p.node.input)
        for axis, before, after in self._grown(p):
            for place, name in enumerate(names):
                value = p.context.values.get(name)
                constant = value and (value.static or name in self.repeated)
                if not constant or place == _PLACES.get(p.node.op_type):
                    continue
                if len(value.shape) < -axis or value.shape[axis] != before:
                    continue
                if before == 1 or self._alike(name, value, axis):
                    one = name if before == 1 else p.slice(name, axis, 0, 1)
                    p.node.input[place] = p("Expand", one, sized(value.shape, axis, after))
                elif axis == -len(value.shape) and before > self.before:
                    # The heads or rows of every item, of queries or positions that are learnt.
                    heads = before // self.before
                    one = name if self.before == 1 else p.slice(name, 0, 0, heads)
                    wide = p("Expand", one, [self.after, heads, *value.shape[1:]])
                    p.node.input[place] = p.reshape(wide, after, *value.shape[1:])

    def _alike(self, name: str, value: Value, axis: int) -> bool:
        """Whether a constant is known not to change along an axis, counted from the end."""
        if name in self.repeated:
            return len(self.repeated[name]) < -axis or self.repeated[name][axis] == 1
        if value.array is None:
            return value.alike and axis == -len(value.shape)
        return value.elements == 0 or bool((value.array == value.array.take([0], axis)).all())

    def _grown(self, p: Parts) -> list[tuple[int, int, int]]:
        """Return axes, counted from the end, along which constants lack items, and both sizes."""
        if p.node.op_type == "Expand":
            pairs = zip(p.shape()[::-1], p.ints("", 1)[::-1], strict=False)
            axes = [(-place, *pair) for place, pair in enumerate(pairs, start=1)]
            batch = (self.before, self.after)
            lacking = [item for item in axes if 1 != item[1] != item[2]]
            # A target of 1 leaves an axis as it is, unless it is the batch.
            return [item for item in lacking if item[2] > 1 or item[1:] == batch]
        if p.node.op_type == "carry":
            return [(-len(p.shape()), self.before, self.after)] if len(p.shape()) > 1 else []
        shapes = {x: p.shape(x) for x in p.node.input if x}
        grown = {x: self.axis(x, shape) for x, shape in shapes.items()}
        groups = -2 if p.node.op_type == "MatMul" else 0
        axes = [
            (axis - len(shapes[x]), self.values[x].shape[axis], shapes[x][axis])
            for x, axis in grown.items()
            if axis is not None and axis - len(shapes[x]) < groups
        ]
        return [item for item in axes if item[1] > 1 or p.node.op_type in _BESIDE]
