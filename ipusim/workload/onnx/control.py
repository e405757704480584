"""Branches, loops and sequences of tensors: written out, so that none is left when the graph runs.

A branch whose condition is known is decided, a loop unrolled, a sequence followed by the names of
its tensors. Where data decide, a branch is the longer one; a loop is refused, as nothing bounds it.

On the chip all rounds of a loop share one body. Every round copies what it takes from the one
before, or from outside, aside and then to where the body reads it, unless the body hands it on as
it is, slices what it scans by the number of the round, and writes so into what it stacks
(graphcore/popart at tag sdk/poplar/2.4.0, willow/src/popx/op/loopx.cpp,
patterns/scantolooppattern.cpp and loopscanoutpattern.cpp). What PopART lets a body overwrite is
copied here too; left out are copies before the first round and after the last, and the count of
rounds. A state that starts from constants is computed from the first round on.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice

import numpy as np
import onnx

from ipusim.workload.onnx.nodes import DEEPEST, LARGEST_BODY, Node
from ipusim.workload.onnx.reader import INTEGERS, Value, stored
from ipusim.workload.onnx.recipes import Parts, Recipe
from ipusim.workload.onnx.shapes import FLOAT, by_names
from ipusim.workload.operators.base import round_prefix

_SCAN_WITHOUT_BATCH_OPSET = 9
"""Before it, a Scan has a batch of sequences, whose lengths are its first input."""


_PRODUCTS = ("Conv", "MatMul", "Gemm", "Einsum", "LSTM", "GRU", "RNN", "Attention")
"""Parts of the names of operators that multiply matrices."""

_MAY_END = "loops that data may end earlier run as often as they may"


def _body(p: Parts, attribute: str, prefix: str, *given: str) -> list[str]:
    """Visit a branch or loop body, its inputs bound to values; return what it gives."""
    graph: onnx.GraphProto = p.node.attributes[attribute]
    bound = dict(zip((item.name for item in graph.input), given, strict=False))
    for tensor in graph.initializer:
        # One for all rounds of a loop.
        name = f"{p.label}/{attribute}/{tensor.name}"
        value = stored(tensor, p.context.contents.source)
        p.context.values[name] = replace(value, root=name)
        bound[tensor.name] = name
    outside = p.node.scope
    scope = replace(outside, prefix=prefix, names=outside.names | bound, results={})
    p.walk.body(graph.node, scope)
    return [scope.names.get(item.name, item.name) for item in graph.output]


def _bind(p: Parts, *sources: str) -> None:
    """Let the first outputs of a node be values known by other names."""
    for output, source in zip(p.node.output, sources, strict=False):
        if output and source in p.walk.sequences:
            p.walk.sequences[output] = p.walk.sequences[source]
        elif output:
            p.walk.visit(Node(op_type="Identity", input=[source], output=[output], name=output))


def _branch(p: Parts) -> None:
    """If: the branch that is taken, or where data decide, the longer one."""
    condition = p.context.value(p.node.input[0], p.node)
    if condition.array is not None:
        name = "then_branch" if bool(np.all(condition.array)) else "else_branch"
    else:
        name = max(("then_branch", "else_branch"), key=partial(_length, p))
        p.note("branches that depend on data: the longer one is taken")
        p.context.decisions.add(p.node.input[0])
    _bind(p, *_body(p, name, f"{p.label}/"))


def _length(p: Parts, branch: str) -> tuple[int, int]:
    """Return how many products a branch has, and how many nodes, up to the most that are followed.

    Products count first: they take longer than anything that the nodes around them do.
    """
    kinds = list(islice(_kinds(p, p.get(branch).node), LARGEST_BODY))
    products = sum(any(part in kind for part in _PRODUCTS) for kind in kinds)
    return products, len(kinds)


def _kinds(p: Parts, nodes: Iterable[onnx.NodeProto], depth: int = 0) -> Iterator[str]:
    """Give the operators of nodes, those of functions and bodies within them too."""
    for node in nodes:
        yield node.op_type
        function = p.context.contents.functions.get((node.domain, node.op_type))
        bodies = [item.g.node for item in node.attribute if item.type == item.GRAPH]
        for body in [*bodies, *([function.node] if function else [])]:
            if depth < DEEPEST:
                yield from _kinds(p, body, depth + 1)


def _loop(p: Parts) -> None:
    """Loop: unrolled, up to its trip count or to a condition that is known to end it."""
    trips = p.known(0)
    given = LARGEST_BODY + 1 if trips is None else int(trips.reshape(-1)[0])
    condition, carried, rounds = p.input(1), p.node.input[2:], []
    for trip in range(min(given, LARGEST_BODY)):
        value = p.context.values.get(condition)
        known = value is not None and value.array is not None
        if known and not bool(np.all(value.array)):
            break
        if condition and not known:
            p.context.notes[_MAY_END] = 1
        p.context.decisions.add(condition)
        counted = trips is None and p.has(0)
        if given > LARGEST_BODY and (counted or not known):
            _refuse_trips(p)
        prefix, counter = _trip(p, trip)
        goes_on = condition or p.context.constant(f"{prefix}true", np.array(True))
        (condition,), carried, stacked = _round(p, prefix, carried, before=(counter, goes_on))
        rounds.append(stacked)
    p.context.decisions.add(condition)
    _finish(p, carried, rounds)


def _trip(p: Parts, trip: int) -> tuple[str, str]:
    """Return the prefix of names within one round of a loop, and its number as a constant."""
    prefix = round_prefix(p.label, trip)
    counter = p.context.constant(f"{prefix}trip", np.array(trip, np.int64))
    p.context.values[counter].counted = True
    return prefix, counter


def _round(
    p: Parts, prefix: str, carried: list[str], *scanned: str, before: tuple[str, ...] = ()
) -> tuple[list[str], list[str], list[str]]:
    """Visit a loop body; return its condition, if it has one, what it carries on and stacks.

    ``before`` are the number of the round and the condition of a body that counts.
    """
    body: onnx.GraphProto = p.node.attributes["body"]
    renamed = {node.output[0]: node.input[0] for node in body.node if node.op_type == "Identity"}
    # Of the number and the condition the latter alone is a result.
    ahead = int(bool(before))
    taken, given = list(body.input)[len(before) :], list(body.output)[ahead:]
    states = []
    for place, (name, own, result) in enumerate(zip(carried, taken, given, strict=False)):
        after = result.name
        while after in renamed:
            after = renamed[after]
        passes = after == own.name
        states.append(name if passes else _looped(p, f"{prefix}carry{place}", "carry", name))
    results = _body(p, "body", prefix, *before, *states, *scanned)
    end = ahead + len(carried)
    stacked = [
        _looped(p, f"{prefix}write{place}", "dynamic_update", name)
        for place, name in enumerate(results[end:])
    ]
    return results[:ahead], results[ahead:end], stacked


def _looped(p: Parts, result: str, op_type: str, name: str, *inputs: str, axis: int = 0) -> str:
    """Visit what a loop does to a value beside its body; return the name of the result."""
    value = p.context.values.get(name)
    if value is None:
        # The names of a sequence are carried on.
        return name
    starts = op_type == "carry" and value.elements > 1 and value.elem_type not in INTEGERS
    if value.static and not starts:
        # Numbers that are known stay so, as ones that the chip computes.
        p.context.values[result] = replace(value, counted=True)
        return result
    if value.array is not None and not value.array.any():
        # Zeros are no parameter, not even of one item.
        name = p.context.constant(f"{result}.from", value.array)
    ends = {"input": [name, *inputs], "output": [result]}
    p.walk.visit(Node(op_type=op_type, name=result, attributes={"axis": axis}, **ends))
    return result


def _refuse_trips(p: Parts) -> None:
    inputs = {item.name for item in p.context.contents.inputs}
    computed = map(p.source, p.context.running(p.node.input[:2]))
    sources = [name for name in computed if name in inputs]
    typed = [name for name in sources if not p.is_image(name)]
    advice = "give it a largest trip count, its first input, or export it unrolled"
    if typed:
        advice = f"add such as '--value {typed[0]}=8'"
    raise p.node.error(f"runs as often as data say, so its time is unknown; {advice}")


def scan_refusal(opset: int) -> str:
    """Say why a Scan of an operator set is refused, nothing where it is not."""
    if opset >= _SCAN_WITHOUT_BATCH_OPSET:
        return ""
    return (
        f"is of operator set {opset}, which scans batches; export it with "
        f"{_SCAN_WITHOUT_BATCH_OPSET} or newer"
    )


def _scan(p: Parts) -> None:
    """Scan over an axis of its inputs: unrolled, in whichever direction."""
    if refused := scan_refusal(p.opset):
        raise p.node.error(refused)
    count = p.node.attributes["num_scan_inputs"]
    carried, rounds = p.node.input[: len(p.node.input) - count], []
    scanned = p.node.input[len(carried) :]
    axes = p.get("scan_input_axes") or [0] * count
    for trip in range(p.context.value(scanned[0], p.node).shape[axes[0]]):
        prefix, index = _trip(p, trip)
        slices = [
            p("Gather", source, index, axis=axis)
            if p.context.is_static(source)
            else _looped(p, f"{prefix}slice{i}", "dynamic_slice", source, index, axis=axis)
            for i, (source, axis) in enumerate(zip(scanned, axes, strict=True))
        ]
        _, carried, stacked = _round(p, prefix, carried, *slices)
        rounds.append(stacked)
    _finish(p, carried, rounds)


def _finish(p: Parts, carried: list[str], rounds: list[list[str]]) -> None:
    """Bind what a loop carries on, and join what its rounds give one by one."""
    _bind(p, *carried)
    axes = p.get("scan_output_axes")
    for place, output in enumerate(p.node.output[len(carried) :]):
        if output:
            pieces = [results[place] for results in rounds]
            _join(p, pieces, output, axis=axes[place] if axes else 0, new_axis=True, in_place=True)


def _join(
    p: Parts, pieces: list[str], output: str, *, axis: int, new_axis: bool, in_place: bool = False
) -> None:
    """Join pieces along an axis, perhaps of their own; they may lie `in_place` already."""
    if not pieces:
        shape = p.context.contents.shapes.get(output, (0,))
        p.context.values[output] = Value(shape=shape, elem_type=FLOAT, static=True)
        return
    if new_axis:
        pieces = [p("Unsqueeze", piece, [axis]) for piece in pieces]
    in_memory = {"in_place": in_place} if p.context.running(pieces) else {}
    p("Concat", *pieces, out=output, axis=axis, **in_memory)


# -- sequences and optional values: names, which cost nothing until tensors are joined ---------


def _items(p: Parts) -> list[str]:
    return p.walk.sequences[p.node.input[0]]


def _place(p: Parts, position: int) -> int | None:
    return next(iter(p.ints("", position) or ()), None)


def _construct(p: Parts) -> None:
    p.walk.sequences[p.out()] = list(p.node.input)


def _insert(p: Parts) -> None:
    items, place = list(_items(p)), _place(p, 2)
    items.insert(len(items) if place is None else place, p.input(1))
    p.walk.sequences[p.out()] = items


def _erase(p: Parts) -> None:
    items, place = list(_items(p)), _place(p, 1)
    items.pop(-1 if place is None else place)
    p.walk.sequences[p.out()] = items


def _split(p: Parts) -> None:
    """SplitToSequence: parts of the sizes given, or of one size, the last what is left."""
    axis, sizes = p.get("axis", 0), p.ints("", 1)
    length = p.shape()[axis]
    if sizes is None:
        sizes = [1] * length
    elif p.array(1).ndim == 0:
        step = max(1, sizes[0])
        sizes = [min(step, length - start) for start in range(0, length, step)]
    p.walk.sequences[p.out()] = p.split(p.node.input[0], axis, *sizes)


def _map(p: Parts) -> None:
    """SequenceMap: the body for every item, of all inputs that are sequences."""
    results: list[list[str]] = []
    for place in range(len(_items(p))):
        known = p.walk.sequences
        given = [known[name][place] if name in known else name for name in p.node.input]
        results.append(_body(p, "body", round_prefix(p.label, place), *given))
    for output, items in zip(p.node.output, zip(*results, strict=True), strict=False):
        p.walk.sequences[output] = list(items)


CONTROL: dict[str, Recipe] = by_names(
    {
        "If": _branch,
        "Loop": _loop,
        "Scan": _scan,
        "SequenceEmpty SequenceConstruct": _construct,
        "SplitToSequence": _split,
        "Optional OptionalGetElement": lambda p: _bind(p, p.node.input[0]),
        "OptionalHasElement": lambda p: p.context.constant(p.out(), np.array(p.has(0))),
    }
)
"""Recipes by operator, of standard ones alone."""

OF_SEQUENCES: dict[str, Recipe] = by_names(
    {
        "SequenceInsert": _insert,
        "SequenceErase": _erase,
        "SequenceAt": lambda p: _bind(p, _items(p)[_place(p, 1) or 0]),
        "SequenceLength": lambda p: p.context.constant(p.out(), np.array(len(_items(p)))),
        "SequenceMap": _map,
        "ConcatFromSequence": lambda p: _join(
            p, _items(p), p.out(), axis=p.get("axis", 0), new_axis=bool(p.get("new_axis", 0))
        ),
        "Identity": lambda p: _bind(p, p.node.input[0]),
    }
)
"""Recipes of those whose first input is a sequence."""
