"""What phases load from Streaming Memory and store there: PopART's rule, tensor by tensor.

The rule is that of graphcore/popart@sdk/poplar/3.3.0:willow/src/transforms/
streamingmemoryopinserter.cpp (getTensorStreamingConfig): a tensor is loaded in every phase that
reads it, unless one of the two phases before used it too, in which case it stayed on the chip; it
is stored by the last phase of such a stay if that made or changed it. What is never loaded is never
stored.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from ipusim.runtime.options.spec import LIVENESS
from ipusim.workload.graph import Graph
from ipusim.workload.training import ACCUMULATOR_SUFFIX

COMPUTED = ("activations", "inputs")
"""Kinds of tensors that are not kept from one step to the next."""

KINDS = {"parameter": "weights", "state": "weights", "input": "inputs"}
"""Kinds of tensors by their role, but for sums of gradients; others are activations."""

ADJACENT = 2
"""A tensor stays on the chip if one of so many phase numbers before used it. The same for two chips
that take turns, where these are one phase of each."""

GAP_AFTER_FORWARD = 3
"""Phase numbers left unused after the last forward phase. The backward phases are then more than
`ADJACENT` numbers away, so that activations they need are stored off the chip meanwhile."""


def phase_numbers(
    phases: int, liveness: str, *, training: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the number of every phase's forward part and, in training, of its backward part.

    The latter of phase p is ``2 N - 2 - p``, where N counts numbers of forward parts and those left
    out (graphcore/popart@sdk/poplar/3.3.0:willow/src/transforms/autodiff/gradgrowerop.cpp), so that
    the last phase is one with its backward part if nothing is.
    """
    forward = tuple(LIVENESS[liveness] * phase for phase in range(phases))
    count = forward[-1] + 1 + (GAP_AFTER_FORWARD if liveness != "always_live" else 0)
    backward = tuple(2 * count - 2 - number for number in forward) if training else ()
    return forward, backward


@dataclass(frozen=True, kw_only=True)
class Held:
    """A tensor on one chip: 0, or of two chips the one with phases of its parity.

    The kind is one of `options.spec.STREAMED`, or "inputs", which the host sends. `made` is the
    phase that makes it, or that receives it from the other chip; None for what is stored. `used`
    are phases that read it, in order, `changed` those that change it in place. `of_each` says
    whether each of the micro-batches that a phase computes in a row has its own.

    What lies off the chip stays on it over `stay` phases between uses, and always if that is None;
    some phases load and store it. A transfer moves `moved_bytes`: those of all micro-batches of a
    phase, and of one part where replicas share the tensor in `parts`.
    """

    name: str
    kind: str
    bytes: int
    chip: int
    made: int | None
    used: tuple[int, ...]
    changed: frozenset[int]
    of_each: bool = False
    stay: int | None = None
    loads: frozenset[int] = frozenset()
    stores: frozenset[int] = frozenset()
    moved_bytes: int = 0
    parts: int = 1

    @cached_property
    def touched(self) -> tuple[int, ...]:
        """Phases in which it is on the chip because they make, read or change it, in order."""
        made = () if self.made is None else (self.made,)
        return tuple(sorted({*made, *self.used, *self.changed}))

    def on_chip(self, phase: int) -> bool:
        """Tell whether it is on the chip in a phase, which touches it or through which it stays."""
        return phase in self.touched or any(
            before < phase < after and (self.stay is None or after - before <= self.stay)
            for before, after in pairwise(self.touched)
        )


def transfers(
    made: int | None, used: Collection[int], changed: Collection[int] = ()
) -> tuple[frozenset[int], frozenset[int]]:
    """Return the phases that load a tensor, off the chip if none made it, and that store it."""
    live = set() if made is None else {made}
    stores = set(live)
    loads: set[int] = set()
    for phase in sorted({*used, *changed}):
        recent = [phase - distance for distance in range(1, ADJACENT + 1)]
        stayed = [number for number in recent if number in live]
        live.add(phase)
        if phase != made and not stayed:
            loads.add(phase)
        if any(number in stores for number in stayed):
            stores.add(phase)
            stores.difference_update(stayed)
        if phase in changed:
            stores.add(phase)
            stores.difference_update(recent)
    return frozenset(loads), frozenset(stores) if loads else frozenset()


def held_tensors(
    graph: Graph, number_of: Mapping[str, int], chips: int, updated: Mapping[str, int] | None = None
) -> tuple[Held, ...]:
    """Return every tensor that phases hold, once for each chip that uses it.

    `number_of` has the phase of every operator, `updated` that which updates a parameter, where one
    does. Of two chips that take turns the first has the even phases. What a phase makes for one on
    the other chip arrives there in the next number, after a copy between the chips
    (streamingmemoryopinserter.cpp, getTensorProducerStreamingConfig). Weights that both chips read
    are held by each [inferred]; PopART loads one and copies it over. Constants and rows of streamed
    tables are left out. Gradients of weights are sums over all micro-batches of a phase, since
    nothing in them belongs to one (willow/src/transforms/batchserialize.cpp), so that one waits for
    those of another phase.
    """
    summed = _summed(graph)
    tensors = graph.tensors
    made: dict[str, int] = {}
    used: dict[str, set[int]] = {}
    changed = {stored_as(graph, name): {number} for name, number in (updated or {}).items()}
    for op in graph.ops:
        number = number_of[op.name]
        for name in op.inputs:
            used.setdefault(stored_as(graph, name), set()).add(number)
        for name in op.outputs:
            if tensors[name].alias_of is None:
                made[name] = number
                used.setdefault(name, set())
            else:
                changed.setdefault(stored_as(graph, name), set()).add(number)
    result = []
    for name, numbers in used.items():
        role = tensors[name].role
        if role == "constant" or name in graph.streamed:
            continue
        kind = KINDS.get(role, "activations")
        if role == "state" and name.endswith(ACCUMULATOR_SUFFIX):
            kind = "accumulators"
        for chip in range(chips):
            own = {number for number in numbers if number % chips == chip}
            edits = {number for number in changed.get(name, ()) if number % chips == chip}
            start = made.get(name)
            if start is not None and start % chips != chip:
                start += 1
            if own or edits or (name in made and start == made[name]):
                result.append(
                    Held(
                        name=name,
                        kind=kind,
                        bytes=tensors[name].bytes,
                        chip=chip,
                        made=start,
                        used=tuple(sorted(own)),
                        changed=frozenset(edits),
                        of_each=kind in COMPUTED and name not in summed,
                    )
                )
    return tuple(result)


def handed_over_bytes(graph: Graph, number_of: Mapping[str, int]) -> dict[int, int]:
    """Return the bytes that go to the other of two chips at the end of each phase."""
    moved: dict[int, int] = {}
    consumers = graph.consumers()
    for name, op in graph.producers().items():
        number = number_of[op.name]
        if any((number_of[reader.name] - number) % 2 for reader in consumers[name]):
            moved[number] = moved.get(number, 0) + graph.tensors[name].bytes
    return moved


def stored_as(graph: Graph, name: str) -> str:
    """Return the tensor whose memory a reshaped or changed tensor shares; itself for others."""
    while graph.tensors[name].alias_of in graph.tensors:
        name = graph.tensors[name].alias_of
    return name


def _summed(graph: Graph) -> frozenset[str]:
    """Return the gradients that go into accumulators, and what they are sums of."""
    producers = graph.producers()
    found: set[str] = set()
    waiting = [
        op.inputs[1]
        for op in graph.ops
        if graph.tensors[op.inputs[0]].name.endswith(ACCUMULATOR_SUFFIX)
    ]
    while waiting:
        name = waiting.pop()
        found.add(name)
        producer = producers.get(name)
        if producer is not None and producer.function in ("add", "concat"):
            waiting.extend(producer.inputs)
    return frozenset(found)
