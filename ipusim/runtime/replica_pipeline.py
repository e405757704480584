"""One replica over several chips: stages with their time and memory, run as a pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ipusim.compiler import memory
from ipusim.compiler.program import Program
from ipusim.machine import Chip
from ipusim.runtime.partitioned import Stage, partition, updates_by_chip
from ipusim.runtime.pipeline import PipelineTime, micro_batches_in_flight, pipeline_step
from ipusim.runtime.run_config import RunConfig
from ipusim.runtime.stages import stage_transfer
from ipusim.workload.graph import Graph


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
        In order; empty for one chip that holds all of the model.
    pipeline : PipelineTime or None
        Schedule of the micro-batches; None without a pipeline.
    gathers : tuple of int or None
        Bytes of the weights that a step puts together from the shards of the replicas whenever it
        loads them; None where that takes place once, after the weight update.
    """

    parts_s: Mapping[str, float]
    update_s: float
    parameters: tuple[tuple[str, ...], ...]
    memory: memory.Memory
    stages: tuple[Stage, ...] = ()
    pipeline: PipelineTime | None = None
    gathers: tuple[int, ...] | None = None


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
        What comes on top of the programs: host transfers in every step that a micro-batch begins
        with, the rest in every step of the pipeline.

    Returns
    -------
    Replica

    Raises
    ------
    ConfigError
        If there are more stages than forward operators, or the accumulation does not fill the
        pipeline.
    UnknownNameError
        If a split names no forward operator.
    """
    options, placement = config.training, config.placement
    cut = partition(graph, program, placement, chip)
    forward, backward = cut.seconds()
    moved = stage_transfer(config.system, cut.stage_ipus, *cut.boundary_bytes())

    def timed(transfer_s: float, host_s: float = 0.0) -> PipelineTime:
        return pipeline_step(
            forward,
            backward,
            options.gradient_accumulation,
            placement.schedule,
            transfer_s,
            host_s=host_s,
            framework=options.framework,
            stage_ipus=cut.stage_ipus,
        )

    load = cut.load_s([sum(both) for both in zip(forward, backward, strict=True)])
    device = options.gradient_accumulation * max(load)
    parts = {"device": device}
    waited = beside.transfers_s + beside.host_work_s
    reached = timed(0.0).seconds
    parts["pipeline bubbles"] = reached - device
    per_step = 0.0
    for name, seconds in (
        ("stage transfers", moved.seconds),
        ("batch-norm reductions", beside.reductions_s / cut.ipus),
    ):
        per_step += seconds
        parts[name] = timed(per_step).seconds - reached
        reached += parts[name]
    pipeline = timed(per_step, waited)
    parts["transfers"] = pipeline.seconds - reached
    in_flight = micro_batches_in_flight(placement.stages, placement.schedule, options.framework)
    owner = cut.owners()
    updates = updates_by_chip(update, owner, cut.ipus)
    stages = cut.measured(in_flight, resident_bytes, updates)
    return Replica(
        parts_s=parts,
        update_s=max(part.cycles for part in updates) / chip.clock_hz,
        parameters=tuple(
            tuple(name for name, ipu in owner.items() if ipu == chosen)
            for chosen in range(cut.ipus)
        ),
        memory=max((stage.memory for stage in stages), key=lambda used: used.peak_tile_bytes),
        stages=stages,
        pipeline=pipeline,
    )
