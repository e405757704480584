"""A graph cut into stages: who computes what, what changes chips, what each chip must hold."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from operator import attrgetter

from ipusim.compiler import memory
from ipusim.compiler.program import LoweredOp, Program, Superstep
from ipusim.compiler.stacks import Stack
from ipusim.machine import Chip
from ipusim.runtime.argument_copies import with_arguments
from ipusim.runtime.compile import Compiled
from ipusim.runtime.replica.balance import balance, split_after
from ipusim.runtime.terms import Schedule, Work
from ipusim.workload.graph import Graph, Op, Tensor

_FLOWING = ("input", "activation", "output")
"""Roles of tensors that go from operator to operator; the others stay on the chip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage of a replica over several chips, or one of its phases.

    Seconds are those of the device per micro-batch, recomputation counting as backward; `in_flight`
    are the micro-batches whose stored activations it holds. Memory is that of its chip, with all
    stages there and the micro-batches that wait; of a phase, with what lies there then, and
    `streamed_bytes` are loaded from Streaming Memory and stored there.
    """

    ipu: int
    ops: tuple[Op, ...]
    forward_s: float
    backward_s: float
    in_flight: int
    memory: memory.Memory
    streamed_bytes: int = 0


Measured = tuple[memory.Memory, tuple[Stage, ...]]
"""Memory of the fullest chip, and the stages, none where one chip holds all of the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """What the chips of one replica do in a step.

    `measured` returns what they hold: no time depends on it, so it is measured when it is read.
    `delay` are the steps that a batch of inference spends in the pipeline beyond its first;
    `parameters` are those of each chip in training. `gathers` are the bytes of the weights that a
    step puts together from the shards of the replicas whenever it loads them; None where that takes
    place once, after the weight update.
    """

    schedule: Schedule
    measured: Callable[[], Measured]
    delay: int = 0
    parameters: tuple[tuple[str, ...], ...] = ()
    gathers: tuple[int, ...] | None = None


def measured_once(
    measure: Callable[..., tuple[Stage, ...]], *given: object
) -> Callable[[], Measured]:
    """Return what measures the stages of a replica when it is first called."""

    @cache
    def measured() -> Measured:
        stages = measure(*given)
        return max((one.memory for one in stages), key=attrgetter("peak_tile_bytes")), stages

    return measured


@dataclass(frozen=True)
class Partitioned:
    """A lowered graph, the stage of every operator, and the micro-batches in flight on each."""

    graph: Graph
    lowered: Mapping[str, LoweredOp]
    stage_of: Mapping[str, int]
    stage_ipus: tuple[int, ...]
    in_flight: tuple[int, ...]
    chip: Chip
    stack: Stack

    @property
    def ipus(self) -> int:
        """Chips of the replica."""
        return len(set(self.stage_ipus))

    @cached_property
    def works(self) -> tuple[list[Work], list[Work]]:
        """What every stage computes, forward and backward."""
        none = self._work()
        forward, backward = ([none] * len(self.stage_ipus) for _ in range(2))
        placed = [
            (forward if op.phase == "forward" else backward, self.stage_of[op.name], op.name)
            for op in self.graph.ops
        ]
        placed += [(forward, 0, name) for name, op in self.lowered.items() if op.kind == "input"]
        alike = {id(op.steps): op.steps for op in self.lowered.values()}
        works = {key: self._work(*steps) for key, steps in alike.items()}
        for part, stage, name in placed:
            part[stage] += works[id(self.lowered[name].steps)]
        # Where several micro-batches are in flight, each is saved by the forward pass and restored
        # by the backward, but on the last stage, whose backward pass follows at once.
        for stage, count in enumerate(self.in_flight[:-1]):
            if count > 1:
                # Only where there is a pipeline: what was planned before needs no numpy.
                from ipusim.compiler.operators.stash import stash_steps

                saved, restored = stash_steps(self._stored(stage), self.chip, self.stack)
                forward[stage] += self._work(*saved)
                backward[stage] += self._work(*restored)
        return forward, backward

    def _work(self, *steps: Superstep) -> Work:
        return Work(
            seconds=sum(step.cycles for step in steps) / self.chip.clock_hz,
            exchanges=sum(step.exchanges for step in steps),
            clock_hz=self.chip.clock_hz,
        )

    @cached_property
    def boundary_bytes(self) -> tuple[list[int], list[int]]:
        """The bytes that go from each stage to the next, and back, per micro-batch."""
        count = len(self.stage_ipus)
        forward, backward = [0] * (count - 1), [0] * (count - 1)
        consumers = self.graph.consumers()
        for name, op in self.graph.producers().items():
            start = self.stage_of[op.name]
            readers = {self.stage_of[reader.name] for reader in consumers[name]}
            # What is read further on passes through every stage between (graphcore/popart
            # willow/src/transforms/pipeline.cpp, contiguate copies); what its own chip alone reads
            # goes nowhere.
            away = [s for s in readers if self.stage_ipus[s] != self.stage_ipus[start]]
            for boundary in range(start, max([start, *away])):
                forward[boundary] += self.graph.tensors[name].bytes
            for boundary in range(min([start, *away]), start):
                backward[boundary] += self.graph.tensors[name].bytes
        return forward, backward

    @cached_property
    def owners(self) -> dict[str, int]:
        """The stage of every parameter: the first that reads it."""
        owner: dict[str, int] = {}
        for op in self.graph.ops:
            for name in op.inputs:
                tensor = self.graph.tensors[name]
                if tensor.role == "parameter":
                    for stored in dict.fromkeys((tensor.alias_of or name, name)):
                        owner.setdefault(stored, self.stage_of[op.name])
        return owner

    @cached_property
    def parameters(self) -> tuple[tuple[str, ...], ...]:
        """The parameters of each chip."""
        owners = [(name, self.stage_ipus[stage]) for name, stage in self.owners.items()]
        return tuple(tuple(name for name, ipu in owners if ipu == one) for one in range(self.ipus))

    def updates(self, compiled: Compiled) -> tuple[Program, ...]:
        """Return the part of a weight update that each chip runs."""
        parts: list[list[LoweredOp]] = [[] for _ in range(self.ipus)]
        for op, low in zip(compiled.update.ops, compiled.update_program.ops, strict=True):
            parts[self.stage_ipus[self.owners[op.source]]].append(low)
        return tuple(Program(tuple(part)) for part in parts)

    def measured(
        self, resident_bytes: int = 0, updates: Sequence[Program | None] = ()
    ) -> tuple[Stage, ...]:
        """Measure each chip: its part of the graph and update, with what waits for backward passes.

        Optimiser state on the chips of the replica, `resident_bytes` together, is shared out like
        the parameters.
        """
        waiting = [0] * self.ipus
        for stage, count in enumerate(self.in_flight):
            stored = sum(tensor.bytes for tensor in self._stored(stage))
            waiting[self.stage_ipus[stage]] += (count - 1) * stored
        used = []
        for ipu, update in enumerate(updates or [None] * self.ipus):
            graph, program = self.on_chip(ipu)
            state = resident_bytes * graph.parameter_bytes // max(1, self.graph.parameter_bytes)
            held = {"update": update, "resident_bytes": waiting[ipu] + state}
            used.append(memory.measure(graph, program, self.chip, **held))
        return tuple(
            self.stage(stage, self.in_flight[stage], used[ipu])
            for stage, ipu in enumerate(self.stage_ipus)
        )

    def stage(
        self, number: int, in_flight: int, used: memory.Memory, streamed_bytes: int = 0
    ) -> Stage:
        """Return a stage with what was measured of it."""
        forward, backward = (works[number].seconds for works in self.works)
        return Stage(
            ipu=self.stage_ipus[number],
            ops=tuple(self.own[number]),
            forward_s=forward,
            backward_s=backward,
            in_flight=in_flight,
            memory=used,
            streamed_bytes=streamed_bytes,
        )

    @cached_property
    def own(self) -> list[list[Op]]:
        """The operators of each stage."""
        own: list[list[Op]] = [[] for _ in self.stage_ipus]
        for op in self.graph.ops:
            own[self.stage_of[op.name]].append(op)
        return own

    def _stored(self, stage: int) -> list[Tensor]:
        """Tensors that wait from the forward to the backward pass of a stage."""
        forward = [op for op in self.own[stage] if op.phase == "forward"]
        early = dict.fromkeys(name for op in forward for name in (*op.inputs, *op.outputs))
        late = {name for op in self.own[stage] if op.phase != "forward" for name in op.inputs}
        waiting = (self.graph.tensors[name] for name in early if name in late)
        return [tensor for tensor in waiting if tensor.role in _FLOWING]

    def on_chip(self, ipu: int) -> tuple[Graph, Program]:
        """Return the graph and the program of a chip."""
        ops = [op for op in self.graph.ops if self.stage_ipus[self.stage_of[op.name]] == ipu]
        return part_of(self.graph, self.lowered, ops)


def partition(
    compiled: Compiled,
    splits: tuple[str, ...],
    stage_ipus: tuple[int, ...],
    in_flight: tuple[int, ...] = (),
) -> Partitioned:
    """Cut a lowered graph after the splits or, without any, so that the largest stage is smallest.

    One micro-batch at a time by default.
    """
    graph, home = compiled.graph, homes(compiled.graph)
    programs = {op.name: op for op in compiled.program.ops}
    forward = [op.name for op in graph.ops if op.phase == "forward"]
    if splits:
        starts = split_after(forward, splits)
    else:
        costs = [0] * len(forward)
        for op in graph.ops:
            costs[home[op.name]] += programs[op.name].cycles
        starts = balance(costs, len(stage_ipus))
    stage_of = {name: bisect_right(starts, index) - 1 for name, index in home.items()}
    if compiled.job.arguments_in == "stages":
        passing = with_arguments(
            graph, programs.values(), compiled.chip, lambda name: stage_ipus[stage_of[name]]
        )
        programs = {op.name: op for op in passing}
    return Partitioned(
        graph=graph,
        lowered=programs,
        stage_of=stage_of,
        stage_ipus=stage_ipus,
        in_flight=in_flight or (1,) * len(stage_ipus),
        chip=compiled.chip,
        stack=compiled.job.stack,
    )


def homes(graph: Graph) -> dict[str, int]:
    """Return the place of every operator among the forward ones: what derives from one is there."""
    forward = [op.name for op in graph.ops if op.phase == "forward"]
    place = {name: index for index, name in enumerate(forward)}
    return {op.name: place[op.name if op.name in place else op.source] for op in graph.ops}


def by_chip(stage_ipus: Sequence[int], works: Sequence[Work]) -> tuple[Work, ...]:
    """Return what every chip computes: its stages together."""
    first = replace(works[0], seconds=0.0, exchanges=0)
    load = [first] * len(set(stage_ipus))
    for ipu, work in zip(stage_ipus, works, strict=True):
        load[ipu] += work
    return tuple(load)


def part_of(
    graph: Graph, lowered: Mapping[str, LoweredOp], ops: Sequence[Op], kept: Iterable[str] = ()
) -> tuple[Graph, Program]:
    """Return the graph and the program of some operators, with the results that are `kept`."""
    made = {name for op in ops for name in op.outputs}
    read = dict.fromkeys(name for op in ops for name in op.inputs)
    # Of a parameter that is read in parts, all of it is there.
    stored = [graph.tensors[name] for name in read if graph.tensors[name].role == "parameter"]
    whole = [tensor.alias_of for tensor in stored if tensor.alias_of in graph.tensors]
    read = dict.fromkeys([*whole, *read])
    tensors = {name: graph.tensors[name] for name in (*read, *made)}
    # What other operators make.
    arriving = tuple(name for name in read if name not in made and tensors[name].role in _FLOWING)
    for name in arriving:
        tensors[name] = replace(tensors[name], role="input", alias_of=None)
    outputs = tuple(name for op in ops for name in op.outputs if name in graph.outputs)
    ends = {"inputs": arriving, "outputs": outputs, "kept": tuple(kept)}
    program = Program(tuple(lowered[op.name] for op in ops))
    return replace(graph, tensors=tensors, ops=tuple(ops), **ends), program
