"""One replica over several chips: stages with their time and memory, run as a pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from ipusim.compiler import memory
from ipusim.machine import Chip
from ipusim.runtime.compile import REMEMBERED, Lowered
from ipusim.runtime.options.frameworks import load_framework
from ipusim.runtime.options.spec import RunConfig
from ipusim.runtime.replica.balance import stage_transfer
from ipusim.runtime.replica.partition import Stage, partition, updates_by_chip
from ipusim.runtime.replica.schedule import PipelineTime, micro_batches_in_flight, pipeline_step


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cut:
    """What of a pipeline depends on no cost: stages, traffic between them, updates."""

    load_s: tuple[float, ...]
    boundary_bytes: tuple[list[int], list[int]]
    stages: tuple[Stage, ...]
    parameters: tuple[tuple[str, ...], ...]
    update_cycles: int


def pipelined_replica(
    lowered: Lowered,
    *,
    chip: Chip,
    config: RunConfig,
    resident_bytes: int,
    beside: Beside,
) -> Replica:
    """Cut a training graph into stages and run them as a pipeline.

    Parameters
    ----------
    lowered : Lowered
        With its update.
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
    placed = (config.pipeline_splits, config.stage_ipus, config.schedule, config.framework)
    cut = _cut(lowered, chip, placed, resident_bytes)
    moved = stage_transfer(
        config.system,
        config.stage_ipus,
        *cut.boundary_bytes,
        in_turn=load_framework(config.framework).copies_in_turn,
    )

    def timed(transfer_s: float, host_s: float = 0.0) -> PipelineTime:
        return pipeline_step(
            [stage.forward_s for stage in cut.stages],
            [stage.backward_s for stage in cut.stages],
            config.gradient_accumulation,
            config.schedule,
            transfer_s,
            host_s=host_s,
            framework=config.framework,
            stage_ipus=config.stage_ipus,
        )

    device = config.gradient_accumulation * max(cut.load_s)
    parts = {"device": device}
    waited = beside.transfers_s + beside.host_work_s
    reached = timed(0.0).seconds
    parts["pipeline bubbles"] = reached - device
    per_step = 0.0
    for name, seconds in (
        ("stage transfers", moved.seconds),
        ("batch-norm reductions", beside.reductions_s / config.ipus_per_replica),
    ):
        per_step += seconds
        parts[name] = timed(per_step).seconds - reached
        reached += parts[name]
    pipeline = timed(per_step, waited)
    parts["transfers"] = pipeline.seconds - reached
    return Replica(
        parts_s=parts,
        update_s=cut.update_cycles / chip.clock_hz,
        parameters=cut.parameters,
        memory=max((stage.memory for stage in cut.stages), key=lambda used: used.peak_tile_bytes),
        stages=cut.stages,
        pipeline=pipeline,
    )


@lru_cache(maxsize=REMEMBERED)
def _cut(
    lowered: Lowered,
    chip: Chip,
    placed: tuple[tuple[str, ...], tuple[int, ...], str, str],
    resident_bytes: int,
) -> _Cut:
    """Cut a step into stages; tiers and costs, and runs that differ in scale, share the cut."""
    splits, stage_ipus, schedule, framework = placed
    cut = partition(lowered, splits, stage_ipus, chip)
    in_flight = micro_batches_in_flight(len(stage_ipus), schedule, framework)
    owner = cut.owners()
    updates = updates_by_chip(lowered.update, owner, cut.ipus)
    stages = cut.measured(in_flight, resident_bytes, updates)
    return _Cut(
        load_s=tuple(cut.load_s([stage.forward_s + stage.backward_s for stage in stages])),
        boundary_bytes=cut.boundary_bytes(),
        stages=stages,
        parameters=tuple(
            tuple(name for name, ipu in owner.items() if ipu == chosen)
            for chosen in range(cut.ipus)
        ),
        update_cycles=max(part.cycles for part in updates),
    )
