"""Branches and loops: which bodies run, how often, and on what."""

from collections.abc import Callable
from itertools import count

import numpy as np

from ipusim.errors import WorkloadError
from ipusim.numerics.operators.registry import Arrays
from ipusim.numerics.program import Node
from ipusim.workload.onnx.control import scan_refusal

MOST_ROUNDS = 100_000
"""Rounds of a loop that data may ask for; a body takes some 0.1 ms, and one may never end."""

Body = Callable[..., list[np.ndarray]]
"""Runs the body of an attribute on the values of its inputs."""


def branch(node: Node, inputs: Arrays, body: Body) -> list[np.ndarray]:
    """If."""
    return body("then_branch" if np.all(inputs[0]) else "else_branch")


def loop(node: Node, inputs: Arrays, body: Body) -> list[np.ndarray]:
    """Loop: up to its trip count, as long as its condition holds."""
    trips, condition, *carried = inputs
    rounds: list[list[np.ndarray]] = []
    for trip in count() if trips is None else range(int(np.ravel(trips)[0])):
        if condition is not None and not np.all(condition):
            break
        if trip == MOST_ROUNDS:
            raise WorkloadError(
                f"Operator 'Loop', node {node.name!r}, has not ended after {MOST_ROUNDS:,} rounds: "
                "give it a smaller trip count or a condition that ends it."
            )
        number, goes_on = np.array(trip, np.int64), np.array(True)
        condition, *results = body("body", number, goes_on, *carried)
        carried, rounds = results[: len(carried)], [*rounds, results[len(carried) :]]
    joined = [np.stack(pieces) for pieces in zip(*rounds, strict=True)]
    empty = len(node.outputs) - len(carried) - len(joined)
    return [*carried, *joined, *(np.zeros(0, np.float32) for _ in range(empty))]


def scan(node: Node, inputs: Arrays, body: Body) -> list[np.ndarray]:
    """Scan: along an axis of each of its last inputs, in either direction."""
    if refused := scan_refusal(node.opset):
        raise WorkloadError(f"Operator 'Scan', node {node.name!r}, {refused}.")
    count = node.attributes["num_scan_inputs"]
    carried, outs = list(inputs[:-count]), len(node.outputs) - len(inputs) + count

    def listed(name: str, length: int) -> list[int]:
        return list(node.attributes.get(name) or [0] * length)

    ends = listed("scan_input_axes", count), listed("scan_input_directions", count)
    scanned = [
        np.flip(np.moveaxis(array, axis, 0), 0) if backwards else np.moveaxis(array, axis, 0)
        for array, axis, backwards in zip(inputs[-count:], *ends, strict=True)
    ]
    rounds = []
    for slices in zip(*scanned, strict=True):
        results = body("body", *carried, *slices)
        carried, rounds = results[: len(carried)], [*rounds, results[len(carried) :]]
    ends = listed("scan_output_axes", outs), listed("scan_output_directions", outs)
    return carried + [
        np.stack(pieces[::-1] if backwards else pieces, axis)
        for pieces, axis, backwards in zip(zip(*rounds, strict=True), *ends, strict=True)
    ]


def mapped(_node: Node, inputs: Arrays, body: Body) -> list[list[np.ndarray]]:
    """SequenceMap: the body for every item, of all inputs that are sequences."""
    rounds = [
        body("body", *(item[place] if isinstance(item, list) else item for item in inputs))
        for place in range(len(inputs[0]))
    ]
    return [list(items) for items in zip(*rounds, strict=True)]


CONTROL: dict[str, Callable[[Node, Arrays, Body], list[np.ndarray]]] = {
    "If": branch,
    "Loop": loop,
    "Scan": scan,
    "SequenceMap": mapped,
}
