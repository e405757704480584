"""Operators that exporters write in pieces, put together as the frameworks of the IPU run them.

Every exporter cuts GELU, SiLU, layer norm and the three projections of attention in another way;
PopART and PopTorch have one operator for each. Functions of one value are known by what their
pieces compute, the rest by its pattern. Each rule looks at one anchor and replaces the last node of
what it finds; pieces that nobody else reads then fall away.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import dropwhile, permutations, product
from math import erf, prod
from typing import NamedTuple, TypeVar

import numpy as np

from ipusim.errors import MISFITS
from ipusim.workload.onnx.constants import RANDOM
from ipusim.workload.onnx.context import ImportContext
from ipusim.workload.onnx.nodes import UNKNOWN, Node
from ipusim.workload.onnx.reader import Value
from ipusim.workload.onnx.shapes import FLOAT, UNARY, Call, by_names, reduced_axes, sliced
from ipusim.workload.operators.base import name_in_body

_erf = np.vectorize(erf)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _hard_sigmoid(x: np.ndarray) -> np.ndarray:
    return np.clip(x / 6 + 0.5, 0, 1)


_VALUES: dict[str, Callable[..., np.ndarray]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Pow": np.power,
    "Square": np.square,
    "Neg": np.negative,
    "Sqrt": np.sqrt,
    "Rsqrt": lambda x: 1 / np.sqrt(x),
    "Reciprocal": np.reciprocal,
    "Erf": _erf,
    "Tanh": np.tanh,
    "Sigmoid": _sigmoid,
    # Whatever its slope, which changes no cost.
    "HardSigmoid": _hard_sigmoid,
    "Softplus": lambda x: np.logaddexp(0, x),
    "Clip": np.clip,
    "Min": np.minimum,
    "Max": np.maximum,
    "Cast": lambda x: x,
    "Identity": lambda x: x,
    "ReduceMean": lambda x, axes: x.mean(axes, keepdims=True),
}
"""What the pieces of functions compute."""

_ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Reciprocal")
"""Pieces that follow the one at which a function is looked for."""
_SUMS = ("ReduceSum", "ReduceMean", "ReduceMax")
_RENAMES = ("Cast", "Identity")
_OF_ELEMENTS = (*UNARY.split(), "Add", "Sub", "Mul", "Div", "Pow")
"""Functions of single elements, if all operands but one are numbers: constants of such shapes."""
_NUMBERS = ((), (1,))
_NEVER_THE_SAME = (*RANDOM, "Dropout", "carry", UNKNOWN)
_VIEWS = ("Reshape", "Squeeze", "Unsqueeze")
_MOST_FOLLOWING, _MOST_PIECES, _MOST_AXES = 8, 16, 6


class Pieces:
    """Who makes and who reads every run-time value, kept up to date while nodes are replaced."""

    def __init__(self, context: ImportContext) -> None:
        self.context = context
        self.shape, self.number = context.shape, context.number
        self.is_static, self.running = context.is_static, context.running
        self.made: dict[str, Node] = {}
        self.readers: dict[str, list[Node]] = {}
        self.kept = set(context.contents.outputs)
        for node in context.nodes:
            self.add(node)

    def add(self, node: Node) -> None:
        """Take a node in."""
        self.made.update(dict.fromkeys((name for name in node.output if name), node))
        for name in dict.fromkeys(node.input):
            self.readers.setdefault(name, []).append(node)

    def maker(self, name: str, *kinds: str) -> Node | None:
        """Return the node that makes a value, if it is of one of these kinds."""
        node = self.made.get(self.source(name))
        return node if node is not None and node.op_type in kinds else None

    def source(self, name: str, kinds: tuple[str, ...] = _RENAMES) -> str:
        """Return the value behind casts and other names, or behind nodes of other kinds."""
        while (node := self.made.get(name)) is not None and node.op_type in kinds:
            name = node.input[0]
        return name

    def only(self, name: str, *kinds: str) -> Node | None:
        """Return the sole reader of a value, through casts, if it is of one of these kinds."""
        readers = self.readers.get(name, [])
        if len(readers) != 1 or name in self.kept:
            return None
        if readers[0].op_type in _RENAMES:
            return self.only(readers[0].output[0], *kinds)
        return readers[0] if readers[0].op_type in kinds else None

    def following(self, node: Node) -> list[Node]:
        """Return the arithmetic that a result goes through, nearest first."""
        found: list[Node] = []
        waiting = [node]
        for item in waiting:
            for reader in self.readers.get(item.output[0], []):
                if reader.op_type in _RENAMES:
                    waiting.append(reader)
                elif reader.op_type in _ARITHMETIC and reader not in found:
                    found.append(reader)
                    waiting.append(reader)
            if len(found) >= _MOST_FOLLOWING:
                break
        return found

    def constant_operand(self, node: Node) -> tuple[str, float] | None:
        """Return the other operand and the number of a node that combines a value with a number."""
        for place in (1, 0):
            number = self.number(node.input[place]) if len(node.input) > 1 else None
            if number is not None and not self.is_static(node.input[1 - place]):
                return node.input[1 - place], number
        return None

    def replace(
        self, node: Node, op_type: str, operands: list[str], kind: str = "", **attributes: object
    ) -> None:
        """Let a node make what it makes in another way, and count it as a fusion of a kind."""
        self.forget(node)
        node.op_type, node.input, node.attributes = op_type, operands, attributes
        self.add(node)
        if kind:
            self.context.fused[kind] += 1

    def swap(self, gone: list[Node], *fresh: Node, kind: str) -> None:
        """Let new nodes stand where the first of others stood, which fall away; count a fusion."""
        nodes = self.context.nodes
        place = min(map(nodes.index, gone))
        rest = [node for node in nodes[place:] if node not in gone]
        nodes[place:] = [*fresh, *rest]
        for node in fresh:
            self.add(node)
        self.context.fused[kind] += 1

    def join(
        self, members: list[Node], op_type: str, source: str, kind: str, **attributes: object
    ) -> None:
        """Let one node make the results of several, in their order, under the name of the first."""
        first = min(members, key=self.context.nodes.index)
        ends = {"input": [source], "output": [node.output[0] for node in members]}
        node = Node(op_type=op_type, name=first.name, attributes=attributes, **ends)
        self.swap(members, node, kind=kind)

    def forget(self, node: Node) -> None:
        """Take a node that is about to change, or falls away, out of the readers."""
        for name in dict.fromkeys(node.input):
            self.readers[name] = [item for item in self.readers[name] if item is not node]

    def like(self, name: str, source: str, **given: object) -> str:
        """Record a value that is another one but for what is given; return its name."""
        self.context.values[name] = replace(self.context.values[source], **given)
        return name

    def read(self, node: Node, place: int, name: str) -> None:
        """Let a node read another value."""
        self.forget(node)
        node.input[place] = name
        self.add(node)


Found = TypeVar("Found")
Rule = Callable[[Pieces, Node], None]
"""Replaces what it finds at a node; `NoMatch` says that it is not there."""


class NoMatch(Exception):
    """A rule does not find the pieces it looks for."""


def found(item: Found | None) -> Found:
    """Return what a rule looks for; `NoMatch` if it is not there, or a condition not met."""
    if not item:
        raise NoMatch
    return item


class Form(NamedTuple):
    """A function that pieces may amount to, by values over elements and the axes of a mean."""

    anchors: str
    kind: str
    name: str
    values: Callable[[np.ndarray, tuple[int, ...]], np.ndarray]
    vectors: tuple[str, ...] = ()  # by which operators a norm takes in a gain and a shift


def _by_root(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    return x / np.sqrt(np.square(x).mean(axes, keepdims=True))


FORMS = (
    Form("Erf", "Gelu", "gelu", lambda x, _: x * (1 + _erf(x / 2**0.5)) / 2),
    Form("Tanh", "Gelu", "gelu (tanh)", lambda x, _: x * (1 + _erf(x / 2**0.5)) / 2),
    Form("Tanh", "Mish", "mish", lambda x, _: x * np.tanh(np.logaddexp(0, x))),
    Form("Sigmoid", "Swish", "silu", lambda x, _: x * _sigmoid(x)),
    Form("HardSigmoid Clip", "HardSwish", "hardswish", lambda x, _: x * _hard_sigmoid(x)),
    Form("Clip", "HardSigmoid", "hardsigmoid", lambda x, _: _hard_sigmoid(x)),
    Form(
        "Sqrt Rsqrt",
        "LayerNormalization",
        "layer norm",
        lambda x, axes: _by_root(x - x.mean(axes, keepdims=True), axes),
        ("Mul", "Add"),
    ),
    Form("Sqrt Rsqrt", "RMSNormalization", "RMS norm", _by_root, ("Mul",)),
)
"""Functions that have one operator, with the operators in pieces at which they are looked for."""

_CLOSE = 1e-2
"""Mean difference that constants in half precision, tanh for erf, and guards of roots may make."""


def amounts(pieces: Pieces, node: Node) -> None:
    """Pieces between two values, in any association, that compute what one operator does."""
    spans = []
    for last, root in product(pieces.following(node)[::-1], _roots(pieces, node)):
        with suppress(NoMatch, *MISFITS):
            spans.append(Span(pieces, last, root))
    forms = [form for form in FORMS if node.op_type in form.anchors.split()]
    for form, span in product(forms, spans):
        with suppress(NoMatch):
            span.replace(form)
            return


def _roots(pieces: Pieces, node: Node) -> list[str]:
    """Return values that an anchor depends on through a few pieces, nearest first."""
    found = [node.input[0]]
    for name in found:
        maker = pieces.made.get(name)
        if maker is not None and maker.op_type in _VALUES and len(found) < _MOST_PIECES:
            found += [x for x in pieces.running(maker.input) if x not in found]
    return found


@cache
def _sample(rank: int) -> np.ndarray:
    return np.random.default_rng(0).uniform(-8, 8, (8, *(3 for _ in range(rank))))


class Span:
    """Pieces from a value to the last of them, which nobody else reads, by what a sample becomes.

    ``vectors`` are the samples that stand for constants along the last axes, by their names.
    """

    def __init__(self, pieces: Pieces, last: Node, root: str) -> None:
        shape = pieces.shape(root)
        found(shape == pieces.shape(last.output[0]) and len(shape) <= _MOST_AXES)
        self.pieces, self.last, self.root = pieces, last, root
        self._known, self._inside = {root: _sample(len(shape))}, []
        self.values = self._value(last.output[0])
        found(self.values.shape == self._known[root].shape and self._is_apart())
        means = [node for node in self._inside if node.op_type == "ReduceMean"]
        self.axes = _from_the_end(pieces, means[0]) if means else ()
        self.vectors = {x: values for x, values in self._known.items() if pieces.is_static(x)}

    def _value(self, name: str) -> np.ndarray:
        """Return the values of a result, noting its node and those before it."""
        if name in self._known:
            return self._known[name]
        if self.pieces.is_static(name):
            number = self.pieces.number(name)
            return np.array(number) if number is not None else self._vector(name)
        node = found(self.pieces.made.get(name))
        found(node.op_type in _VALUES and len(self._inside) <= _MOST_PIECES)
        self._inside.append(node)
        is_mean = node.op_type == "ReduceMean"
        names = node.input[:1] if is_mean else filter(None, node.input)
        operands = [self._value(x) for x in names]
        axes = [_from_the_end(self.pieces, node)] if is_mean else []
        with np.errstate(all="ignore"):
            self._known[name] = _VALUES[node.op_type](*operands, *axes)
        return self._known[name]

    def _vector(self, name: str) -> np.ndarray:
        """Return values that stand for a constant along the last axes, others for each."""
        wide = tuple(dropwhile(lambda size: size == 1, self.pieces.shape(name)))
        found(wide and wide == self.pieces.shape(self.root)[1:][-len(wide) :])
        self._known[name] = _sample(len(wide))[0] + len(self._known)
        return self._known[name]

    def _is_apart(self) -> bool:
        """Whether nobody outside reads what pieces compute before the last of them."""
        names = [x for node in self._inside if node is not self.last for x in node.output]
        readers = [reader for name in names for reader in self.pieces.readers.get(name, [])]
        return not self.pieces.kept.intersection(names) and all(x in self._inside for x in readers)

    def _gain_and_shift(self, form: Form) -> list[str]:
        """Return the vectors that pieces of a form hold; a norm is one over the last axes."""
        last = tuple(range(-len(self.axes), 0))
        found(not form.vectors or (last and self.axes == last))
        found(len(self.vectors) <= len(form.vectors))
        expected = form.values(_sample(self.values.ndim - 1), self.axes)
        for names in permutations(self.vectors):
            scaled = expected
            for kind, name in zip(form.vectors, names, strict=False):
                scaled = _VALUES[kind](scaled, self.vectors[name])
            if np.abs(self.values - scaled).mean() < _CLOSE:
                return list(names)
        raise NoMatch

    def replace(self, form: Form) -> None:
        """Put the operator of a form in the place of pieces that amount to it."""
        vectors, pieces = self._gain_and_shift(form), self.pieces
        if not form.vectors:
            pieces.replace(self.last, form.kind, [self.root], form.name)
            return
        x = pieces.source(self.root)
        axis = len(pieces.shape(x)) + self.axes[0]
        if form.kind == "LayerNormalization" and not vectors:
            vectors = [f"{self.last.output[0]}.scale"]
            ones = Value(shape=pieces.shape(x)[axis:], elem_type=FLOAT, static=True)
            pieces.context.values[vectors[0]] = ones
        pieces.replace(self.last, form.kind, [x, *vectors], form.name, axis=axis)


def _vector(pieces: Pieces, node: Node, output: str, width: int) -> str:
    """Return what a node combines a result with, a vector of constants."""
    names = [name for name in node.input if pieces.source(name) != pieces.source(output)]
    found(len(names) == 1 and pieces.is_static(names[0]))
    found(prod(pieces.shape(names[0])) == width)
    return names[0]


def _axes(pieces: Pieces, node: Node) -> list[int]:
    return reduced_axes(Call(pieces.context, node))


def _from_the_end(pieces: Pieces, node: Node) -> tuple[int, ...]:
    rank = len(pieces.shape(node.input[0]))
    return tuple(axis - rank for axis in _axes(pieces, node))


def global_mean(pieces: Pieces, node: Node) -> None:
    """The mean over the whole field of images or volumes is their global pool."""
    shape = pieces.shape(node.input[0])
    found(len(shape) > 3 and _axes(pieces, node) == list(range(2, len(shape))) and 0 not in shape)
    found(bool(node.get("keepdims", 1)))
    pieces.replace(node, "GlobalAveragePool", node.input[:1], "global pool")


def flat_rows(pieces: Pieces, node: Node) -> None:
    """A Gemm between two Reshapes is a product and its bias: onnxruntime fuses the two so."""
    before, product = found(pieces.maker(node.input[0], "Reshape")), node.output[0]
    readers = list(pieces.readers.get(product, ()))
    found({reader.op_type for reader in readers} == {"Reshape"} and product not in pieces.kept)
    plain = {"alpha": 1.0, "beta": 1.0, "transA": 0}
    found(node.has(2) and all(node.get(key, one) == one for key, one in plain.items()))
    (x, _), (_, weights, bias) = before.input, node.input
    if node.get("transB", 0):
        found(pieces.is_static(weights))
        # In the same memory.
        stored = pieces.context.values[weights]
        same = {"array": None, "root": stored.root or weights}
        weights = pieces.like(f"{weights}.turned", weights, shape=stored.shape[::-1], **same)
    inner, width = pieces.shape(weights)
    found(pieces.shape(x)[-1:] == (inner,) and prod(pieces.shape(bias)) == width)
    context, shape = pieces.context, (*pieces.shape(x)[:-1], width)
    rows, biased = (
        pieces.like(f"{product}.{part}", product, shape=shape) for part in ("rows", "biased")
    )
    add = Node(op_type="Add", input=[rows, bias], output=[biased], name=f"{node.name}.bias")
    context.nodes.insert(context.nodes.index(node) + 1, add)
    node.output = [rows]
    pieces.replace(node, "MatMul", [x, weights], "products of flat rows")
    pieces.add(add)
    if not pieces.readers[before.output[0]] and before.output[0] not in pieces.kept:
        pieces.forget(before)
    for reader in readers:
        if pieces.shape(reader.output[0]) == shape:
            pieces.replace(reader, "Identity", [biased])
        else:
            pieces.read(reader, 0, biased)


def group_norm(pieces: Pieces, node: Node) -> None:
    """Reshape, InstanceNormalization with ones, a Reshape if there is a change, gain, shift."""
    x = found(pieces.maker(node.input[0], "Reshape")).input[0]
    last = pieces.only(node.output[0], "Reshape") or node
    shape, groups = pieces.shape(x), pieces.shape(node.input[0])
    found(pieces.shape(last.output[0]) == shape and len(groups) == 3 and groups[0] == shape[0])
    operands = [x]
    for kind in ("Mul", "Add"):
        following = found(pieces.only(last.output[0], kind))
        operands.append(_vector(pieces, following, last.output[0], prod(shape[1:2])))
        last = following
    pieces.replace(last, "GroupNormalization", operands, "group norm", num_groups=groups[1])


def own_statistics(pieces: Pieces, node: Node) -> None:
    """A batch norm of one item by its own mean and variance: how Keras writes a layer norm."""
    x, scale, shift, mean, variance = node.input
    narrowed = pieces.maker(mean, "Squeeze", "Reshape")
    computed = found(pieces.maker(narrowed.input[0] if narrowed else mean, "ReduceMean"))
    rest = [axis for axis in range(len(pieces.shape(x))) if axis != 1]
    found(pieces.shape(x)[0] == 1 and not pieces.is_static(variance))
    found(pieces.source(computed.input[0]) == x and _axes(pieces, computed) == rest)
    pieces.replace(node, "InstanceNormalization", [x, scale, shift], "norm of one item")


def guarded(pieces: Pieces, node: Node) -> None:
    """Zeros where a softmax is no number: torch's exporters guard rows that are masked whole."""
    chosen = found(pieces.only(node.output[0], "Where"))
    found(pieces.maker(node.input[0], "Softmax"))
    found(chosen.input[2] == node.input[0] and pieces.number(chosen.input[1]) == 0.0)
    pieces.replace(chosen, "Identity", node.input[:1], "guards of a softmax")


def scaled_back(pieces: Pieces, node: Node) -> None:
    """The scale behind a product of integers, which as floats have it already."""
    found(bool(node.attributes.pop("integers", 0)))
    scale = found(pieces.only(node.output[0], "Mul"))
    found(any(pieces.is_static(name) for name in scale.input))
    pieces.replace(scale, "Identity", node.output[:1], "scales of integers")


def one_scale(pieces: Pieces, node: Node) -> None:
    """(a x) (b y) with two numbers is a b x y: attention is exported with a root on each side."""
    scales = [found(pieces.maker(name, "Mul")) for name in node.input]
    (x, a), (y, b) = (found(pieces.constant_operand(scale)) for scale in scales)
    found(all(pieces.only(scale.output[0], "MatMul") is node for scale in scales))
    kept, name = scales[0], f"{scales[0].output[0]}.factor"
    kept.input = [x, pieces.context.constant(name, np.array(a * b, np.float32))]
    pieces.forget(scales[1])
    pieces.read(node, 1, y)
    pieces.context.fused["two scales in one"] += 1


def flags(pieces: Pieces, node: Node) -> None:
    """A product reads the transpose of an operand as it lies: poplin takes any view of it."""
    for place, flag in ((0, "transA"), (1, "transB")):
        turned = pieces.maker(node.input[place], "Transpose")
        order = list(turned.get("perm", ())) if turned is not None else []
        swaps = len(order) > 1 and order[-2] == len(order) - 1
        if not swaps or pieces.only(node.input[place], "MatMul") is not node:
            continue
        order[-2:] = order[:-3:-1]
        name = source = turned.input[0]
        if order != sorted(order):
            shape = tuple(pieces.shape(source)[i] for i in order)
            name = pieces.like(f"{turned.output[0]}.as_it_lies", source, shape=shape)
            turned.output = [name]
            pieces.replace(turned, "Transpose", [source], perm=order)
        pieces.read(node, place, name)
        node.attributes[flag] = 1
        pieces.context.fused["transposed operands"] += 1


def turned_back(pieces: Pieces, node: Node) -> None:
    """A transpose that undoes the one before it: operators with channels last come in pairs.

    Functions of single elements between the two, which tf2onnx leaves there, run without them.
    """
    functions = list(_functions_before(pieces, node))
    name = functions[-1][1] if functions else node.input[0]
    before = found(pieces.maker(name, "Transpose"))
    first, second = found(before.get("perm")), found(node.get("perm"))
    found(len(before.output) == len(node.output) == 1)
    found([first[axis] for axis in second] == sorted(first))
    source = before.input[0]
    for function, name in reversed(functions):
        pieces.read(function, function.input.index(name), source)
        value = pieces.context.values[function.output[0]]
        value.shape, source = pieces.shape(source), function.output[0]
    pieces.replace(node, "Identity", [source], "transposes that cancel")


def _functions_before(pieces: Pieces, node: Node) -> Iterator[tuple[Node, str]]:
    """Give the functions of single elements behind each other that only a node reads, last first.

    Each with the value that it is a function of; what else it takes are numbers.
    """
    name = node.input[0]
    while (maker := pieces.maker(name, *_OF_ELEMENTS)) and pieces.source(name) == name:
        data = pieces.running(maker.input)
        numbers = [x for x in maker.input if x and pieces.is_static(x)]
        alone = len(pieces.readers.get(name, ())) == 1 and name not in pieces.kept
        if not alone or len(data) != 1 or not all(pieces.shape(x) in _NUMBERS for x in numbers):
            return
        name = data[0]
        yield maker, name


def whole_rows(pieces: Pieces, node: Node) -> None:
    """Places that are the same all along a row are read as they were before they were repeated.

    PopTorch does so where they differ along the axis alone (poptorch/source/GNNOptimizations.cpp,
    poptorch/source/GatherWithExpandedIndicesOptimization.cpp).
    """
    repeated = found(pieces.maker(node.input[1], "Expand", "Tile"))
    wide, own = pieces.shape(node.input[1]), pieces.shape(repeated.input[0])
    data, axis = pieces.shape(node.input[0]), Call(pieces.context, node).axis(0)
    own = (*(1 for _ in wide[len(own) :]), *own)
    others = [place for place in range(len(wide)) if place != axis]
    found(own[axis] == wide[axis])
    found(all(own[place] == 1 and wide[place] == data[place] for place in others))
    pieces.read(node, 1, repeated.input[0])
    pieces.context.fused["places of whole rows"] += 1


def partitions(pieces: Pieces) -> None:
    """Slices that cut a tensor into its parts are one Split: torch writes chunks so."""
    families: dict[tuple[str, int], list[tuple[int, int, Node]]] = {}
    for node in pieces.context.nodes:
        with suppress(NoMatch):
            axis, places = _range(pieces, node)
            cut = (places.start, places.stop, node)
            families.setdefault((node.input[0], axis), []).append(cut)
    for (source, axis), members in families.items():
        members.sort(key=lambda item: item[:2])
        edges = [0, *(end for _, end, _ in members)]
        whole = edges[-1] == pieces.shape(source)[axis]
        if len(members) > 1 and whole and [start for start, *_ in members] == edges[:-1]:
            parts = [node for *_, node in members]
            pieces.join(parts, "Split", source, "slices in one split", axis=axis)


def _range(pieces: Pieces, node: Node) -> tuple[int, range]:
    """Return the axis and the places of a Slice along one axis by steps of one."""
    found(node.op_type == "Slice" and not pieces.running(node.input[1:]))
    if any(value.counted for value in pieces.context.inputs(node)[1:]):
        # The chip cuts it in the rounds of a loop; only whole bags leave that (`bags`).
        found(pieces.only(node.output[0], "Gather", *_SUMS))
    cuts = sliced(Call(pieces.context, node))
    found(len(cuts) == 1 and cuts[0][1].step == 1)
    return cuts[0]


def bags(pieces: Pieces) -> None:
    """Parts of one length, each summed and all joined, are one sum along an axis of its own."""
    # Exporters write torch's EmbeddingBag as a loop over bags, which may look up their rows.
    for node in list(pieces.context.nodes):
        if node.op_type == "Concat" and node.get("axis") == 0:
            with suppress(NoMatch):
                _join_bags(pieces, node)


def _join_bags(pieces: Pieces, joint: Node) -> None:
    put = ("Unsqueeze", "dynamic_update", *_RENAMES)
    names = [pieces.source(name, put) for name in joint.input]
    sums = [found(pieces.maker(name, *_SUMS)) for name in names]
    kinds = {node.op_type for node in sums}
    found(len(kinds) == 1 and all(_axes(pieces, node) == [0] for node in sums))
    lookups = [pieces.maker(node.input[0], "Gather") for node in sums]
    looks_up = all(node and node.get("axis", 0) == 0 for node in lookups)
    parts = [node.input[1 if looks_up else 0] for node in (lookups if looks_up else sums)]
    tables = {node.input[0] for node in lookups} if looks_up else set()
    cut = found(pieces.maker(parts[0], "Split"))
    found(len(tables) < 2 and cut.output == list(map(pieces.source, parts)))
    found(Call(pieces.context, cut).axis(0) == 0)
    summed = sums[0].input[0]
    length, *inner = pieces.shape(summed)
    found(all(pieces.shape(name)[0] == length for name in parts))
    found(pieces.shape(joint.output[0]) == (len(parts), *inner))
    made = [("Reshape", "bags", (len(parts), length, *inner))]
    if looks_up:
        made.insert(0, ("Gather", "rows", (len(parts) * length, *inner)))
    x, fresh = cut.input[0], []
    for kind, suffix, shape in made:
        name = pieces.like(f"{joint.output[0]}.{suffix}", summed, shape=shape)
        inputs = [tables.pop(), x] if kind == "Gather" else [x]
        fresh.append(Node(op_type=kind, input=inputs, output=[name], name=name))
        x = name
    ends = {"input": [x], "output": joint.output}
    along = {"axes": [1], "keepdims": 0}
    fresh.append(Node(op_type=kinds.pop(), name=joint.name, attributes=along, **ends))
    pieces.swap([joint], *fresh, kind="bags in one sum")


def siblings(pieces: Pieces) -> None:
    """The same transpose of every part of one tensor is one transpose of all of it."""
    families: dict[tuple[str, tuple[int, ...]], list[Node]] = {}
    for node in pieces.context.nodes:
        if node.op_type != "Transpose":
            continue
        part = pieces.made.get(pieces.source(node.input[0], _VIEWS))
        cuts = part is not None and part.op_type in ("Split", "Slice", "Gather")
        if cuts and not pieces.running(part.input[1:]):
            order = tuple(node.get("perm", ()))
            families.setdefault((part.input[0], order), []).append(node)
    for (source, _), members in families.items():
        total = sum(prod(pieces.shape(node.output[0])) for node in members)
        if len(members) > 1 and total == prod(pieces.shape(source)):
            pieces.join(members, "Transpose", source, "transposes of parts in one", perm=None)


def projections(pieces: Pieces) -> None:
    """Products of one tensor with several weights of one shape, biases included: one product."""
    families: dict[tuple[str, int], list[Node]] = {}
    for node in pieces.context.nodes:
        if node.op_type == "MatMul" and pieces.is_static(node.input[1]):
            shape = pieces.shape(node.input[1])
            value = pieces.context.values[node.input[1]]
            rows = len(shape) == 2 and len(pieces.shape(node.input[0])) > 1
            if rows and value.learnable is not False:
                x = pieces.source(node.input[0], ("Identity",))
                families.setdefault((x, shape[0]), []).append(node)
    for (x, inner), members in families.items():
        if len(members) == 3:
            _join_products(pieces, x, inner, members)


def _join_products(pieces: Pieces, x: str, inner: int, members: list[Node]) -> None:
    first = members[0]
    widths = [pieces.shape(node.input[1])[1] for node in members]
    biases = [_bias_of(pieces, node) for node in members]
    stem, label = f"{first.output[0]}.qkv", first.name or f"{first.output[0]}.qkv"
    own, stored = first.output[0], {"static": True, "learnable": True}
    wide = (*pieces.shape(own)[:-1], sum(widths))

    def joined(
        op_type: str, x: str, suffix: str, weight: tuple[int, ...], parts: list[str]
    ) -> Node:
        # Layers that share their weights share the joined ones too.
        name = "+".join(pieces.context.values[part].root or part for part in parts)
        pieces.like(name, own, shape=weight, root=name, **stored)
        result = pieces.like(stem + suffix, own, shape=wide)
        return Node(op_type=op_type, input=[x, name], output=[result], name=label + suffix)

    weights = [node.input[1] for node in members]
    fresh = [joined("MatMul", x, "", (inner, sum(widths)), weights)]
    if any(biases):
        # Of Whisper's projections only the keys have no bias: the missing one is zeros.
        vectors = [
            vector for add in biases if add for vector in add.input if pieces.is_static(vector)
        ]
        fresh.append(joined("Add", stem, ".biased", (sum(widths),), vectors))
    lasts = [bias or node for bias, node in zip(biases, members, strict=True)]
    ends = {"input": fresh[-1].output, "output": [node.output[0] for node in lasts]}
    split = Node(op_type="Split", name=f"{label}.split", attributes={"axis": -1}, **ends)
    pieces.swap([*members, *lasts], *fresh, split, kind="q, k, v in one product")


def _bias_of(pieces: Pieces, node: Node) -> Node | None:
    """Return the sum of a product and a vector, if that is all that reads the product."""
    add = pieces.only(node.output[0], "Add")
    with suppress(NoMatch):
        if add and _vector(pieces, add, node.output[0], pieces.shape(node.input[1])[1]):
            return add
    return None


RULES: dict[str, tuple[Rule, ...]] = by_names(
    {
        " ".join(form.anchors for form in FORMS): (amounts,),
        "ReduceMean": (global_mean,),
        "InstanceNormalization": (group_norm,),
        "BatchNormalization": (own_statistics,),
        "Gemm": (flat_rows,),
        "IsNaN": (guarded,),
        "Conv": (scaled_back,),
        "MatMul": (scaled_back, one_scale, flags),
        "Transpose": (turned_back,),
        "GatherElements Scatter ScatterElements": (whole_rows,),
    }
)
"""Rules by the operator they are anchored at, tried in order."""


def once(context: ImportContext) -> None:
    """Let nodes that compute the same of the same be one: exporters repeat means and masks.

    PopART merges them too (popart willow/src/transforms/mergeduplicateops.cpp), but a loop computes
    in every round what it says.
    """
    names: dict[str, str] = {}
    known: dict[object, list[str]] = {}

    def same(name: str) -> object:
        value = context.values[name] if name else None
        if value is None or value.array is None or value.trained:
            return name
        return value.elem_type, value.shape, value.content

    for node in context.nodes:
        node.input = [names.get(name, name) for name in node.input]
        if node.op_type.startswith(_NEVER_THE_SAME):
            continue
        form = node.op_type, node.domain, len(node.output), repr(sorted(node.attributes.items()))
        first = known.setdefault((*form, *map(same, node.input)), node.output)
        if name_in_body(first[0]) != name_in_body(node.output[0]):
            names.update(zip(node.output, first, strict=True))


def fuse(context: ImportContext) -> None:
    """Replace patterns among the run-time nodes; drop nodes whose results nobody reads."""
    once(context)
    drop_unread(context)
    pieces = Pieces(context)
    for node in list(context.nodes):
        anchor = ""
        while node.op_type != anchor:
            anchor = node.op_type
            for rule in RULES.get(anchor, ()):
                with suppress(NoMatch):
                    found(node.op_type == anchor)
                    rule(pieces, node)
    drop_unread(context)
    for rule in (partitions, bags, projections, siblings):
        rule(Pieces(context))
    drop_unread(context)
    drop_names(context)


def drop_names(context: ImportContext) -> None:
    """Drop dropouts and what only gives a new name, unless to an output; who reads it reads on."""
    names: dict[str, str] = {}
    kept = []
    for node in context.nodes:
        node.input = [name and names.get(name, name) for name in node.input]
        is_name = node.op_type in ("Identity", "Dropout") and not node.domain
        if is_name and node.output[0] not in context.contents.outputs:
            names[node.output[0]] = node.input[0]
        else:
            kept.append(node)
    context.nodes[:] = kept


def drop_unread(context: ImportContext) -> None:
    """Drop nodes on which no output and no decision depends."""
    needed = {*context.contents.outputs, *context.decisions}
    kept = []
    for node in reversed(context.nodes):
        if needed.intersection(node.output):
            needed.update(node.input)
            kept.append(node)
    context.nodes[:] = kept[::-1]
