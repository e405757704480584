"""One replica over several chips: stages with their time and memory, run as a pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ipusim.compiler import memory
from ipusim.compiler.program import LoweredOp, Program
from ipusim.machine import Chip
from ipusim.runtime.pipeline import PipelineTime, micro_batches_in_flight, pipeline_step
from ipusim.runtime.run_config import RunConfig
from ipusim.runtime.stages import Partition, balance, split_after, stage_transfer
from ipusim.workload.graph import Graph, Op


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Seconds per micro-batch that are not spent in the program of a chip.

    Attributes
    ----------
    transfers_s, host_work_s : float
        Transfers from and to the host that nothing hides; work of the host in between.
    reductions_s : float
        Reductions of shared norm statistics, over all stages.
    """

    transfers_s: float
    host_work_s: float
    reductions_s: float

    def parts_s(self, times: int) -> dict[str, float]:
        """Return the seconds of so many micro-batches that run one after the other."""
        return {
            "transfers": times * self.transfers_s,
            "host work": times * self.host_work_s,
            "batch-norm reductions": times * self.reductions_s,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One chip of a pipeline.

    Attributes
    ----------
    first_op : str
        Forward operator that it begins with.
    forward_s, backward_s : float
        Device seconds per micro-batch; recomputation counts as backward.
    in_flight : int
        Micro-batches whose stored activations it holds.
    memory : Memory
        With all of those.
    """

    first_op: str
    forward_s: float
    backward_s: float
    in_flight: int
    memory: memory.Memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """What the chips of one replica do in a step.

    Attributes
    ----------
    parts_s : mapping of str to float
        Where the time of all micro-batches goes.
    update_s : float
        Device seconds of the weight update on the chip that takes longest.
    parameters : tuple of tuple of str
        Parameters of each chip.
    memory : Memory
        Of the fullest chip.
    stages : tuple of Stage
        Chips in order; empty for one chip.
    pipeline : PipelineTime or None
        Schedule of the micro-batches; None for one chip.
    """

    parts_s: Mapping[str, float]
    update_s: float
    parameters: tuple[tuple[str, ...], ...]
    memory: memory.Memory
    stages: tuple[Stage, ...] = ()
    pipeline: PipelineTime | None = None


def pipelined_replica(
    graph: Graph,
    program: Program,
    update: tuple[Graph, Program],
    *,
    chip: Chip,
    config: RunConfig,
    resident_bytes: int,
    beside: Beside,
) -> Replica:
    """Cut a training graph into stages and run them as a pipeline.

    Parameters
    ----------
    graph, program : Graph, Program
        One micro-batch, lowered as if for one chip: every stage has a whole chip to itself.
    update : tuple of Graph and Program
        The weight update.
    chip : Chip
    config : RunConfig
        In the mode "training", with more than one chip per replica.
    resident_bytes : int
        Optimiser state on the chips of the replica together.
    beside : Beside
        What comes on top of the programs: host transfers on the first stage, the rest in every
        step of the pipeline.

    Returns
    -------
    Replica

    Raises
    ------
    ConfigError
        If there are more chips than forward operators, or the accumulation does not fill the
        pipeline.
    UnknownNameError
        If a split names no forward operator.
    """
    options = config.training
    lowered = {op.name: op for op in program.ops}
    stage_of = _stages(graph, lowered, config)
    count = config.ipus_per_replica
    forward, backward = [0.0] * count, [0.0] * count
    for op in graph.ops:
        seconds = lowered[op.name].cycles / chip.clock_hz
        (forward if op.phase == "forward" else backward)[stage_of[op.name]] += seconds
    for op in program.ops:
        if op.kind == "input":
            forward[0] += op.cycles / chip.clock_hz
    moved = stage_transfer(config.system, range(count), *_boundary_bytes(graph, stage_of, count))

    def timed(transfer_s: float, first_s: float = 0.0) -> PipelineTime:
        return pipeline_step(
            [forward[0] + first_s, *forward[1:]],
            backward,
            options.gradient_accumulation,
            options.schedule,
            transfer_s,
            framework=options.framework,
        )

    device = options.gradient_accumulation * max(map(sum, zip(forward, backward, strict=True)))
    parts = {"device": device}
    host = beside.transfers_s + beside.host_work_s
    reached = timed(0.0).seconds
    parts["pipeline bubbles"] = reached - device
    per_step = 0.0
    for name, seconds in (
        ("stage transfers", moved.seconds),
        ("batch-norm reductions", beside.reductions_s / count),
    ):
        per_step += seconds
        parts[name] = timed(per_step).seconds - reached
        reached += parts[name]
    pipeline = timed(per_step, host)
    parts["transfers"] = pipeline.seconds - reached
    stages = _measured(graph, program, stage_of, forward, backward, chip, config, resident_bytes)
    owner = _owners(graph, stage_of)
    return Replica(
        parts_s=parts,
        update_s=_update_cycles(update, owner, count) / chip.clock_hz,
        parameters=tuple(
            tuple(name for name, stage in owner.items() if stage == chosen)
            for chosen in range(count)
        ),
        memory=max((stage.memory for stage in stages), key=lambda used: used.peak_tile_bytes),
        stages=stages,
        pipeline=pipeline,
    )


def _stages(graph: Graph, lowered: Mapping[str, LoweredOp], config: RunConfig) -> dict[str, int]:
    """Return the stage of every operator; what derives from a forward operator goes with it."""
    forward = [op for op in graph.ops if op.phase == "forward"]
    position = {op.name: index for index, op in enumerate(forward)}
    home = {op.name: position[op.name if op.name in position else op.source] for op in graph.ops}
    splits = config.training.pipeline_splits
    partition: Partition
    if splits:
        partition = split_after([op.name for op in forward], splits)
    else:
        costs = [0] * len(forward)
        for op in graph.ops:
            costs[home[op.name]] += lowered[op.name].cycles
        partition = balance(costs, config.ipus_per_replica)
    return {name: partition.stage_of(index) for name, index in home.items()}


def _boundary_bytes(
    graph: Graph, stage_of: Mapping[str, int], count: int
) -> tuple[list[int], list[int]]:
    """Return the bytes that go from each stage to the next, and back, per micro-batch."""
    forward, backward = [0] * (count - 1), [0] * (count - 1)
    made = graph.producers()
    consumers = graph.consumers()
    for name, op in made.items():
        start = stage_of[op.name]
        reached = {stage_of[reader.name] for reader in consumers[name]}
        for boundary in range(start, max([start, *reached])):
            forward[boundary] += graph.tensors[name].bytes
        for boundary in range(min([start, *reached]), start):
            backward[boundary] += graph.tensors[name].bytes
    return forward, backward


def _measured(
    graph: Graph,
    program: Program,
    stage_of: Mapping[str, int],
    forward: list[float],
    backward: list[float],
    chip: Chip,
    config: RunConfig,
    resident_bytes: int,
) -> tuple[Stage, ...]:
    """Measure each chip: its part of the graph, with what waits for backward passes."""
    options = config.training
    count = config.ipus_per_replica
    waiting = micro_batches_in_flight(count, options.schedule, options.framework)
    lowered = {op.name: op for op in program.ops}
    total = max(1, graph.parameter_bytes)
    stages = []
    for stage in range(count):
        ops = tuple(op for op in graph.ops if stage_of[op.name] == stage)
        part = _part(graph, ops)
        stored = (waiting[stage] - 1) * _stored_bytes(part)
        state = resident_bytes * part.parameter_bytes // total
        used = memory.measure(
            part,
            Program(tuple(lowered[op.name] for op in ops)),
            chip,
            resident_bytes=stored + state,
        )
        stages.append(
            Stage(
                first_op=ops[0].name,
                forward_s=forward[stage],
                backward_s=backward[stage],
                in_flight=waiting[stage],
                memory=used,
            )
        )
    return tuple(stages)


def _part(graph: Graph, ops: tuple[Op, ...]) -> Graph:
    """Return the graph of some operators; what others make arrives as an input."""
    made = {name for op in ops for name in op.outputs}
    read = dict.fromkeys(name for op in ops for name in op.inputs)
    tensors = {name: graph.tensors[name] for name in (*read, *made)}
    arriving = tuple(
        name
        for name in read
        if name not in made and tensors[name].role in ("input", "activation", "output")
    )
    for name in arriving:
        tensors[name] = replace(tensors[name], role="input", alias_of=None)
    handed_on = tuple(name for op in ops for name in op.outputs if name in graph.outputs)
    return replace(
        graph, tensors=tensors, ops=ops, inputs=arriving, outputs=handed_on, kept=()
    ).validate()


def _stored_bytes(part: Graph) -> int:
    """Bytes of one micro-batch that wait on a chip from its forward to its backward pass."""
    made = {name for op in part.ops if op.phase == "forward" for name in op.outputs}
    early = made | {
        name
        for op in part.ops
        if op.phase == "forward"
        for name in op.inputs
        if name in part.inputs
    }
    late = {name for op in part.ops if op.phase != "forward" for name in op.inputs}
    return sum(part.tensors[name].bytes for name in early & late)


def _owners(graph: Graph, stage_of: Mapping[str, int]) -> dict[str, int]:
    """Return the stage of every parameter: the first that reads it."""
    owner: dict[str, int] = {}
    for op in graph.ops:
        for name in op.inputs:
            if graph.tensors[name].role == "parameter":
                owner.setdefault(name, stage_of[op.name])
    return owner


def _update_cycles(update: tuple[Graph, Program], owner: Mapping[str, int], count: int) -> int:
    """Cycles of the weight update on the chip with most to do."""
    graph, program = update
    cycles = [0] * count
    for op, low in zip(graph.ops, program.ops, strict=True):
        cycles[owner[op.source]] += low.cycles
    return max(cycles)
