"""Which way a replica runs: on one chip, in stages, or in phases; and inference in stages."""

from dataclasses import dataclass
from functools import lru_cache

from ipusim.compiler import memory
from ipusim.errors import ConfigError
from ipusim.runtime.calibration import FittedCosts
from ipusim.runtime.compile import REMEMBERED, Compiled
from ipusim.runtime.options.spec import RunConfig
from ipusim.runtime.replica.balance import stage_transfer
from ipusim.runtime.replica.partition import Replica, by_chip, fullest, partition
from ipusim.runtime.replica.phases.replica import phased_replica
from ipusim.runtime.replica.pipelined import pipelined_replica
from ipusim.runtime.terms import UPDATE, Beside, OneChip, Work


def run_replica(compiled: Compiled, config: RunConfig) -> Replica:
    """Return what the chips of a replica do in a step."""
    if config.phased:
        return phased_replica(compiled, config)
    if config.ipus_per_replica > 1:
        return (pipelined_replica if config.training else staged_inference)(compiled, config)
    resident = compiled.state_bytes if config.optimizer_state == "on_chip" else 0
    return Replica(
        schedule=OneChip(
            cycles=compiled.program.cycles,
            exchanges_each=compiled.program.exchanges,
            clock_hz=compiled.chip.clock_hz,
            times=config.micro_batches,
            update_cycles=compiled.update.program.cycles if compiled.update else 0,
        ),
        memory=_one_chip(compiled.timeless or compiled, resident),
        parameters=(tuple(compiled.gradient_bytes),),
    )


@lru_cache(maxsize=REMEMBERED)
def _one_chip(compiled: Compiled, resident_bytes: int) -> memory.Memory:
    update = compiled.update.program if compiled.update else None
    return memory.measure(
        compiled.graph,
        compiled.program,
        compiled.chip,
        update=update,
        resident_bytes=resident_bytes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """A batch on the chips of a replica: of the works that go on at once the longest counts."""

    works: tuple[Work, ...]
    handover_s: float

    def waits(self) -> tuple[int, float]:
        """As `Schedule` says."""
        return max(self.works, key=lambda work: work.seconds).exchanges, 0.0

    def parts_s(self, costs: FittedCosts, beside: Beside | None) -> dict[str, float]:
        """As `Schedule` says."""
        device = max(work.at(costs) for work in self.works)
        parts = {"device": device, "stage transfers": self.handover_s}
        return parts | (beside.parts_s(1, costs) if beside else {}) | {UPDATE: 0.0}


def staged_inference(compiled: Compiled, config: RunConfig) -> Replica:
    """Cut an inference graph into stages and run them.

    "sequential" (PopTorch: sharded execution): a batch passes through all stages before the next
    begins, so the time is that of one chip plus the copies between chips. "grouped" (pipelined
    execution): every stage works on a batch of its own; a step takes as long as the chip with most
    to do, and then all hand over.
    """
    if config.schedule == "interleaved":
        raise ConfigError(
            "The schedule 'interleaved' alternates forward and backward passes, which inference "
            "does not have: use 'grouped' (pipelined) or 'sequential' (one stage after another)."
        )
    cut = partition(compiled, config.pipeline_splits, config.stage_ipus)
    forward, _ = cut.works
    sizes, _ = cut.boundary_bytes()
    in_turn = config.schedule == "sequential"
    if in_turn:
        works = by_chip((0,) * len(forward), forward)
        handover = sum(
            stage_transfer(config.system, cut.stage_ipus[at : at + 2], [size]).seconds
            for at, size in enumerate(sizes)
        )
    else:
        works = by_chip(cut.stage_ipus, forward)
        handover = stage_transfer(config.system, cut.stage_ipus, sizes).seconds
    stages = cut.measured((1,) * len(cut.stage_ipus))
    return Replica(
        schedule=Staged(works=works, handover_s=handover),
        delay=0 if in_turn else len(cut.stage_ipus) - 1,
        memory=fullest(stages),
        stages=stages,
    )
