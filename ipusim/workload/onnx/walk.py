"""From the nodes of a file to those that run: shapes known, constants folded, branches taken.

Branches whose condition is constant are decided, loops with a constant trip count are unrolled,
sequences of tensors are followed by name, and composite operators are replaced by simpler ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from math import prod

import numpy as np
import onnx
from onnx import helper

from ipusim.errors import WorkloadError
from ipusim.workload.graph import FLOAT_DTYPES
from ipusim.workload.onnx import reader
from ipusim.workload.onnx.context import DTYPES, ImportContext, Value, learnt
from ipusim.workload.onnx.nodes import (
    DEEPEST,
    LARGEST_BODY,
    Node,
    Scope,
    Unfolding,
    definition,
    has_input,
    node_label,
    scope_of,
)
from ipusim.workload.onnx.rebatch import Rebatch
from ipusim.workload.onnx.shapes import (
    FLOAT,
    MISFITS,
    RULES,
    Call,
    Results,
    by_names,
    evaluate,
)

VENDOR = "com.microsoft"
"""Domain of the fused operators of onnxruntime."""

BATCH_FIRST = "batch first"
"""In the place of a domain: recurrent layers whose first axis is the batch."""

_SHAPE_ONLY = ("Transpose", "Reshape", "Unsqueeze", "Squeeze", "Flatten", "Identity", "Cast")
_WEIGHTED = ("Conv", "ConvTranspose", "MatMul", "Gemm", "LSTM", "GRU", "BatchNormalization")
_RANDOM = ("Random", "Bernoulli", "Multinomial")
_INTEGERS = (onnx.TensorProto.INT32, onnx.TensorProto.INT64, onnx.TensorProto.BOOL)
_KEPT_INTEGERS = 16 * reader.KEPT_ELEMENTS
"""Masks and positions may be larger than other constants: sizes are counted from them."""


@contextmanager
def fitting(context: ImportContext, node: Node) -> Iterator[None]:
    """Turn what a rule raises where a node does not fit its inputs into one sentence."""
    try:
        yield
    except MISFITS as error:
        values = [context.values[name] for name in node.input if name in context.values]
        shapes = [value.shape for value in values]
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise Misfit(
            f"The {node_label(node)} cannot take inputs of shapes {shapes} ({reason}).",
            weighted=node.op_type in _WEIGHTED or any(map(_is_vector, values)),
        ) from error


class Misfit(WorkloadError):
    """A node does not fit its inputs; ``weighted`` where it has weights of single channels."""

    def __init__(self, message: str, *, weighted: bool) -> None:
        super().__init__(message)
        self.weighted = weighted


def _is_vector(value: Value) -> bool:
    """Whether a value is a constant along one of several axes."""
    return value.static and len(value.shape) > 1 and 1 < max(value.shape) == value.elements


class Walk:
    """Visits nodes in order.

    `composites` are what replaces a composite operator, `handlers` the operators that run (only
    whether one is there is asked).
    """

    def __init__(
        self,
        context: ImportContext,
        composites: dict,
        handlers: dict,
        *,
        rebatch: Rebatch | None = None,
    ) -> None:
        self.context = context
        self.composites, self.handlers = composites, handlers
        self.rebatch = rebatch
        self._sequences: dict[str, list[str]] = {}
        self._computed: dict[tuple, str] = {}
        self.nodes = Unfolding(context.contents)
        self._depth = 0

    def file(self) -> None:
        """Visit the nodes of the file."""
        self._body(self.context.contents.nodes, Scope())

    def _body(self, protos: Iterable[onnx.NodeProto], scope: Scope) -> None:
        if self._depth > DEEPEST:
            raise WorkloadError(
                f"{reader.capital(self.context.contents.source)} has more than {DEEPEST} "
                "branches or loops within each other; export it again."
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
        if node.op_type in _CONTROL and not node.domain:
            _CONTROL[node.op_type](self, node)
            return
        if node.op_type == "Identity" and node.input[0] in self._sequences:
            self._sequences[node.output[0]] = self._sequences[node.input[0]]
            return
        inputs = [self.context.value(name, node) for name in node.input if name]
        if node.op_type in ("Shape", "Size") and not node.domain:
            self._sizes(node)
            return
        static = all(value.static for value in inputs)
        form = BATCH_FIRST if node.given.get("layout") == 1 else node.domain
        composite = self.composites.get((form, node.op_type))
        composite = composite or self.composites.get((node.domain, node.op_type))
        if composite is not None:
            if not (static and self._evaluated(node, inputs)):
                Parts(self, node).run(composite)
            return
        rule = RULES.get(node.op_type) if not node.domain else None
        known = rule is not None and (static or node.op_type in self.handlers)
        if not known and not (static and self._evaluable(node, inputs)):
            if not self._defined(node):
                if rule is not None:
                    # Without a handler it has to be constant: the rule says what it lacks for that.
                    Call(self.context, node).results()
                self._unknown(node, inputs)
            return
        if self.rebatch:
            self.rebatch.adapt(Parts(self, node))
        results = Call(self.context, node).results()
        if static and self._of_zeros(node, inputs, results):
            return
        if static and not self._repeats(node, inputs, results):
            self._fold(node, inputs, results)
        else:
            self._keep(node, results)

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
        prefix = f"{node.name or node.output[0]}/"
        self._body(function.node, scope_of(node, function, prefix))
        return True

    # -- results ------------------------------------------------------------------------

    def _keep(self, node: Node, results: Results) -> None:
        """Record a run-time node; one whose results are empty is a constant."""
        outputs = self._pairs(node, results)
        empty = all(not prod(shape) for _, (shape, _) in outputs)
        for name, (shape, kind) in outputs:
            self.context.record(node, name, Value(shape=shape, elem_type=kind, static=empty))
            if self.rebatch:
                self.rebatch.follow(node, name, shape)
        if node.op_type == "Dropout" and len(outputs) > 1:
            # At inference nothing is dropped.
            self.context.values[outputs[1][0]].static = True
        if not empty:
            self.context.nodes.append(node)

    def _repeats(self, node: Node, inputs: list[Value], results: Results | None) -> bool:
        """Whether a node repeats weights: what it gives is no parameter of its own."""
        if node.op_type != "Expand" or not inputs[0].learnable or inputs[0].elem_type in _INTEGERS:
            return False
        return 1 < inputs[0].elements < prod(results[0][0])

    def _of_zeros(self, node: Node, inputs: list[Value], results: Results | None) -> bool:
        """Visit what is left of the product of a state of zeros: its bias, or zeros."""
        known = [value.array for value in inputs[:2] if value.array is not None]
        if node.op_type not in ("MatMul", "Gemm") or all(array.any() for array in known):
            return False
        (shape, _), *_ = results
        if self.rebatch and shape[0] == self.rebatch.before:
            shape = (self.rebatch.after, *shape[1:])
        bias = node.input[2] if len(node.input) > 2 else np.zeros((), known[0].dtype)
        Parts(self, node)("Expand", bias, np.array(shape), out=node.output[0])
        return True

    def _sizes(self, node: Node) -> None:
        """Shape and Size: known now, of constants and run-time values alike."""
        shape = self.context.shape(node.input[0])
        array = np.array(shape[node.given.get("start", 0) : node.given.get("end", len(shape))])
        if node.op_type == "Size":
            array = np.array(prod(shape))
        self.context.constant(node.output[0], array.astype(np.int64))

    def _pairs(self, node: Node, results: Results) -> list:
        return [pair for pair in zip(node.output, results, strict=False) if pair[0]]

    def _evaluable(self, node: Node, inputs: list[Value]) -> bool:
        known = all(value.array is not None for value in inputs)
        return known and not node.op_type.startswith(_RANDOM) and not node.domain

    def _evaluated(self, node: Node, inputs: list[Value]) -> bool:
        """Record the values of a composite of constants, if onnx can compute them."""
        try:
            if known := self._evaluable(node, inputs):
                self._fold(node, inputs, Call(self.context, node).results())
        except WorkloadError:
            return False
        return known

    def _fold(self, node: Node, inputs: list[Value], results: Results | None) -> None:
        """Record constants, with values if they are small."""
        pairs = None if results is None else self._pairs(node, results)
        limit = reader.KEPT_ELEMENTS
        if pairs and all(kind in _INTEGERS for _, (_, kind) in pairs):
            limit = _KEPT_INTEGERS
        small = pairs is None or all(prod(shape) <= limit for _, (shape, _) in pairs)
        arrays: list[np.ndarray | None] = [None] * len(node.output)
        if small and self._evaluable(node, inputs):
            arrays = list(evaluate(self.context, node, pairs[0][1][0] if pairs else None))
            if pairs is None:
                kind = helper.np_dtype_to_tensor_dtype
                known = [(array.shape, kind(array.dtype)) for array in arrays]
                pairs = list(zip(filter(None, node.output), known, strict=False))
        shape_only = node.op_type in _SHAPE_ONLY and bool(inputs)
        kinds = {value.learnable for value in inputs}
        learnable = True if True in kinds else False if kinds == {False} else None
        stored = node.op_type == "Constant" and not node.scope.prefix
        stored = stored and self.context.contents.weights_are_constants
        for place, (name, (shape, kind)) in enumerate(pairs):
            array = arrays[place] if place < len(arrays) else None
            value = Value(
                shape=shape if array is None else array.shape,
                elem_type=kind,
                static=True,
                array=array,
                learnable=learnt(shape, array) if stored else learnable,
                root=inputs[0].root if shape_only else self._root(node, name),
            )
            self.context.record(node, name, value)

    def _root(self, node: Node, name: str) -> str | None:
        """Return the first constant that is computed alike, as one is in each round of a loop."""
        sources = tuple(self.context.values[x].root or x for x in node.input if x)
        if not sources:
            return None
        given = repr(sorted(node.given.items()))
        key = (node.op_type, sources, node.output.index(name), given)
        return self._computed.setdefault(key, name)

    def _unknown(self, node: Node, inputs: list[Value]) -> None:
        """Note an unsupported operator; its results get the file's shapes, or that of its input."""
        domain = f" of domain {node.domain!r}" if node.domain else ""
        self.context.unknown.setdefault(f"{node.op_type!r}{domain}", []).append(
            node.name or next(iter(node.output), "?")
        )
        largest = max(inputs, key=lambda value: value.elements, default=None)
        for name in node.output:
            if name:
                shape = self.context.contents.shapes.get(name)
                shape = shape or (largest.shape if largest else ())
                kind = largest.elem_type if largest else FLOAT
                self.context.record(node, name, Value(shape=shape, elem_type=kind, static=False))
        node.given["unknown"] = True
        self.context.nodes.append(node)

    # -- branches, loops, sequences ------------------------------------------------------

    def _graph(self, node: Node, attribute: str, prefix: str, *given: str) -> list[str]:
        """Visit a branch or loop body, its inputs bound to values; return what it gives."""
        graph: onnx.GraphProto = node.given[attribute]
        bound = dict(zip((item.name for item in graph.input), given, strict=False))
        for tensor in graph.initializer:
            # One for all rounds of a loop.
            name = f"{node.name or node.output[0]}/{attribute}/{tensor.name}"
            self.context.keep(name, reader.stored(tensor, self.context.contents.source))
            bound[tensor.name] = name
        scope = node.scope.within(prefix, bound)
        self._body(graph.node, scope)
        return [scope.names.get(item.name, item.name) for item in graph.output]

    def _bind(self, node: Node, output: str, source: str) -> None:
        """Let an output of a branch or loop be a value known by another name."""
        if not output:
            return
        if source in self._sequences:
            self._sequences[output] = self._sequences[source]
        else:
            self.visit(Node(op_type="Identity", input=[source], output=[output], name=output))

    def branch(self, node: Node) -> None:
        """If: the branch that is taken, or where data decide, the longer one."""
        condition = self.context.value(node.input[0], node)
        if condition.array is not None:
            name = "then_branch" if bool(np.all(condition.array)) else "else_branch"
        else:
            name = max(("then_branch", "else_branch"), key=lambda key: len(node.given[key].node))
            self.context.notes["branches that depend on data: the longer one is taken"] += 1
        prefix = f"{node.name or node.output[0]}/"
        results = self._graph(node, name, prefix)
        for output, source in zip(node.output, results, strict=False):
            self._bind(node, output, source)

    def loop(self, node: Node) -> None:
        """Loop: unrolled, up to its trip count or to a condition that is known to end it."""
        trips = self.context.array(node, 0)
        given = LARGEST_BODY + 1 if trips is None else int(trips.reshape(-1)[0])
        condition = node.input[1] if len(node.input) > 1 else ""
        carried, rounds = list(node.input[2:]), []
        for trip in range(min(given, LARGEST_BODY)):
            value = self.context.values.get(condition)
            known = value is not None and value.array is not None
            if known and not bool(np.all(value.array)):
                break
            counted = trips is None and has_input(node, 0)
            if given > LARGEST_BODY and (counted or not known):
                self._unknown_trips(node)
            prefix, counter = self._trip(node, trip)
            goes_on = condition or self.context.constant(f"{prefix}true", np.array(True))
            condition, *results = self._graph(node, "body", prefix, counter, goes_on, *carried)
            rounds.append(results[len(carried) :])
            carried = results[: len(carried)]
        self._finish(node, carried, rounds)

    def _trip(self, node: Node, trip: int) -> tuple[str, str]:
        """Return the prefix of names within one round of a loop, and its number as a constant."""
        prefix = f"{node.name or node.output[0]}#{trip}/"
        return prefix, self.context.constant(f"{prefix}trip", np.array(trip, np.int64))

    def _unknown_trips(self, node: Node) -> None:
        call = Call(self.context, node)
        names = [name for name in node.input[:2] if name and not self.context.is_static(name)]
        inputs = {item.name for item in self.context.contents.inputs}
        given = [name for name in map(call.source, names) if name in inputs]
        typed = [name for name in given if not call.is_image(name)]
        advice = "give it a largest trip count, its first input, or export it unrolled"
        if typed:
            advice = f"add such as '--value {typed[0]}=8'"
        raise WorkloadError(
            f"The {node_label(node)} runs as often as data say, so its time is unknown; {advice}."
        )

    def scan(self, node: Node) -> None:
        """Scan over an axis of its inputs: unrolled, in whichever direction."""
        count = node.given["num_scan_inputs"]
        carried, rounds = list(node.input[: len(node.input) - count]), []
        scanned = node.input[len(carried) :]
        axes = node.given.get("scan_input_axes") or [0] * count
        length = self.context.value(scanned[0], node).shape[axes[0]]
        parts = Parts(self, node)
        for trip in range(length):
            prefix, index = self._trip(node, trip)
            pairs = zip(scanned, axes, strict=True)
            slices = [parts("Gather", source, index, axis=axis) for source, axis in pairs]
            results = self._graph(node, "body", prefix, *carried, *slices)
            rounds.append(results[len(carried) :])
            carried = results[: len(carried)]
        self._finish(node, carried, rounds)

    def _finish(self, node: Node, carried: list[str], rounds: list[list[str]]) -> None:
        """Bind what a loop carries on, and join what its rounds give one by one."""
        for output, source in zip(node.output, carried, strict=False):
            self._bind(node, output, source)
        axes = node.given.get("scan_output_axes")
        for place, output in enumerate(node.output[len(carried) :]):
            if output:
                pieces = [results[place] for results in rounds]
                self._join(node, pieces, output, axis=axes[place] if axes else 0, new_axis=True)

    def _join(
        self, node: Node, pieces: list[str], output: str, *, axis: int, new_axis: bool
    ) -> None:
        if not pieces:
            shape = self.context.contents.shapes.get(output, (0,))
            self.context.values[output] = Value(shape=shape, elem_type=FLOAT, static=True)
            return
        parts = Parts(self, node)
        if new_axis:
            pieces = [parts("Unsqueeze", piece, np.array([axis], np.int64)) for piece in pieces]
        parts("Concat", *pieces, out=output, axis=axis)

    def sequence(self, node: Node) -> None:
        """Operators on sequences: lists of names, which cost nothing until they are joined."""
        known, first = self._sequences, node.input[0] if node.input else ""
        out = node.output[0]
        if node.op_type == "SequenceEmpty":
            known[out] = []
        elif node.op_type == "SequenceConstruct":
            known[out] = list(node.input)
        elif node.op_type == "SplitToSequence":
            self._split(node)
        elif first not in known:
            self._unknown(node, [self.context.value(name, node) for name in node.input if name])
        elif node.op_type in ("SequenceInsert", "SequenceErase"):
            position = 2 if node.op_type == "SequenceInsert" else 1
            place = self._place(node, position)
            items = list(known[first])
            if node.op_type == "SequenceErase":
                items.pop(len(items) - 1 if place is None else place)
            else:
                items.insert(len(items) if place is None else place, node.input[1])
            known[out] = items
        elif node.op_type == "SequenceAt":
            self._bind(node, out, known[first][self._place(node, 1) or 0])
        elif node.op_type == "SequenceLength":
            self.context.constant(out, np.array(len(known[first]), np.int64))
        else:
            axis, new = node.given.get("axis", 0), bool(node.given.get("new_axis", 0))
            self._join(node, known[first], out, axis=axis, new_axis=new)

    def _place(self, node: Node, position: int) -> int | None:
        array = Call(self.context, node).array(position)
        return None if array is None else int(array.reshape(-1)[0])

    def _split(self, node: Node) -> None:
        call = Call(self.context, node)
        shape, axis = call.shape(), node.given.get("axis", 0)
        sizes = call.ints("", 1)
        length = shape[axis]
        if sizes is None:
            sizes = [1] * length
        elif call.array(1).ndim == 0:
            step = max(1, sizes[0])
            sizes = [min(step, length - start) for start in range(0, length, step)]
        parts = Parts(self, node).split(node.input[0], axis, *sizes)
        self._sequences[node.output[0]] = parts

    def optional(self, node: Node) -> None:
        """Optional values that are there."""
        if node.op_type == "OptionalHasElement":
            there = bool(node.input and node.input[0])
            self.context.constant(node.output[0], np.array(there))
        else:
            self._bind(node, node.output[0], node.input[0])


class Parts(Call):
    """A composite as its recipe sees it: it writes the nodes that the composite stands for."""

    def __init__(self, walk: Walk, node: Node) -> None:
        super().__init__(walk.context, node)
        self.walk = walk
        self.label = node.name or next(filter(None, node.output))
        self._count = 0

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

    def __call__(
        self,
        op_type: str,
        *inputs: str | np.ndarray,
        out: str = "",
        outs: int = 1,
        results: list[str] | None = None,
        **given: object,
    ) -> str:
        """Visit a node; return the name of its first result, `other` names the rest."""
        self._count += 1
        stem = f"{self.label}.{op_type}{self._count}"
        first = f"{stem}.out"
        names = results or [out or first, *(self.other(first, i) for i in range(1, outs))]
        operands = [
            self.context.constant(f"{stem}.in{place}", item)
            if isinstance(item, np.ndarray)
            else item
            for place, item in enumerate(inputs)
        ]
        self.walk.nodes.count()
        self.walk.visit(
            Node(op_type=op_type, input=operands, output=names, given=dict(given), name=stem)
        )
        return names[0]

    def other(self, first: str, place: int) -> str:
        """Return the name of a further result of a node."""
        return f"{first}.{place}"

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
        """Return an input of integers as if it was of floating-point numbers.

        A constant that is one number takes the value that its scale and zero, the inputs behind
        it, give it: functions are known by such numbers.
        """
        value = self.context.values[self.input(place)]
        if DTYPES.get(value.elem_type) not in FLOAT_DTYPES:
            value.elem_type = FLOAT
            if value.array is not None:
                value.array = value.array.astype(np.float32)
                scale, zero = (self.context.array(self.node, place + i) for i in (1, 2))
                if value.elements == 1 and scale is not None and scale.dtype.kind == "f":
                    value.array = (value.array - (0 if zero is None else zero)) * scale
        return self.input(place)

    def number(self, value: float) -> np.ndarray:
        """Return a constant operand."""
        return np.asarray(value, np.float32)

    def sum(self, first: str, *names: str) -> str:
        """Return the sum of values, absent ones left out."""
        for name in filter(None, names):
            first = self("Add", first, name)
        return first

    def reshape(self, x: str, *shape: int, out: str = "") -> str:
        """Visit a Reshape."""
        return self("Reshape", x, np.array(shape, np.int64), out=out)

    def over(self, op_type: str, x: str, *axes: int, **given: object) -> str:
        """Visit an operator over axes, which are an input in some operator sets."""
        return self(op_type, x, np.array(axes, np.int64), axes=list(axes), **given)

    def transpose(self, x: str, *order: int, out: str = "") -> str:
        """Visit a Transpose."""
        return self("Transpose", x, out=out, perm=list(order))

    def slice(self, x: str, axis: int, start: int, end: int) -> str:
        """Visit a Slice along one axis."""
        bounds = [np.array([value], np.int64) for value in (start, end, axis)]
        return self("Slice", x, *bounds)

    def split(self, x: str, axis: int, *sizes: int) -> list[str]:
        """Visit a Split; return the parts."""
        first = self("Split", x, np.array(sizes, np.int64), outs=len(sizes), axis=axis)
        return [first, *(self.other(first, place) for place in range(1, len(sizes)))]

    def stored(self, *shape: int, learnable: bool = True) -> str:
        """Add weights, or a fixed table, whose values do not matter; return their name."""
        self._count += 1
        name = f"{self.label}.weights{self._count}"
        value = Value(shape=shape, elem_type=FLOAT, static=True, learnable=learnable, root=name)
        self.context.record(self.node, name, value)
        return name


Recipe = Callable[[Parts], str | None]
"""Visits what a composite stands for; returns its first result, or None if that has its name."""

_CONTROL = by_names(
    {
        "If": Walk.branch,
        "Loop": Walk.loop,
        "Scan": Walk.scan,
        "SequenceEmpty SequenceConstruct SequenceInsert SequenceErase SequenceAt": Walk.sequence,
        "SequenceLength ConcatFromSequence SplitToSequence": Walk.sequence,
        "Optional OptionalGetElement OptionalHasElement": Walk.optional,
    }
)
