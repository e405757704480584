"""One replica over several chips: stages with their time and memory, as a pipeline or in turn."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from math import fsum
from typing import Any

from ipusim.errors import ConfigError
from ipusim.runtime.calibration import FittedCosts
from ipusim.runtime.compile import REMEMBERED, Compiled
from ipusim.runtime.options.spec import RunConfig
from ipusim.runtime.replica.balance import stage_transfer_s
from ipusim.runtime.replica.partition import (
    Measured,
    Partitioned,
    Replica,
    by_chip,
    measured_once,
    partition,
)
from ipusim.runtime.replica.schedule import (
    Order,
    check_accumulation,
    micro_batches_in_flight,
    pipeline_order,
)
from ipusim.runtime.terms import UPDATE, Beside, Work


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """Micro-batches of a weight update in a pipeline.

    `forward` and `backward` are what each stage computes of one; recomputation belongs to the
    backward pass. `handover_s` are the copies between stages, which end every step in which a stage
    hands over, `update_s` the device seconds of the weight update on the chip that takes longest.
    """

    forward: tuple[Work, ...]
    backward: tuple[Work, ...]
    config: RunConfig
    update_s: float
    handover_s: float

    def order(self, costs: FittedCosts) -> Order:
        """Return the slots of a micro-batch."""
        works = ([work.at(costs) for work in each] for each in (self.forward, self.backward))
        config = self.config
        return pipeline_order(*works, config.stage_ipus, config.schedule, config.framework)

    def waited_s(self, costs: FittedCosts, beside: Beside) -> tuple[dict[str, float], float]:
        """Return the seconds that all chips wait for in a step.

        Those of every step that ends with copies, by part, among them reductions, which the chips
        share; and those of the host in every step that a micro-batch begins with.
        """
        shared_s = beside.reductions_s(costs) / self.config.ipus_per_replica
        ending = {"stage transfers": self.handover_s, "batch-norm reductions": shared_s}
        waits = self.config.framework.host_opens_cycle
        return ending, beside.transfers_s + beside.host_work_s if waits else 0.0

    def parts_s(self, costs: FittedCosts, beside: Beside | None) -> dict[str, float]:
        """As `Schedule` says."""
        works = [one + two for one, two in zip(self.forward, self.backward, strict=True)]
        load = by_chip(self.config.stage_ipus, works)
        device = self.config.micro_batches * max(work.at(costs) for work in load)
        time_s = partial(self.order(costs).time_s, self.config.micro_batches)
        ending, opening_s = self.waited_s(costs, beside)
        reached, ending_s = time_s(), 0.0
        parts = {"device": device, "pipeline bubbles": reached - device}
        for name, seconds in ending.items():
            ending_s += seconds
            parts[name] = time_s(ending_s) - reached
            reached += parts[name]
        parts["transfers"] = time_s(ending_s, opening_s) - reached
        return parts | {UPDATE: self.update_s}


def pipelined_replica(compiled: Compiled, config: RunConfig) -> Replica:
    """Cut a training graph into stages and run them as a pipeline."""
    rules = config.framework
    check_accumulation(config.gradient_accumulation, len(config.stage_ipus), config.schedule, rules)
    in_flight = micro_batches_in_flight(len(config.stage_ipus), config.schedule, rules)
    resident = compiled.state_bytes if config.optimizer_state == "on_chip" else 0
    placed = (config.pipeline_splits, config.stage_ipus, in_flight)
    cut, update_s, measured = _cut(compiled, resident, *placed)
    forward, backward = cut.works
    how = {"in_turn": rules.copies_in_turn, "pairs_overlap": rules.pairs_overlap}
    handover_s = stage_transfer_s(config.system, config.stage_ipus, *cut.boundary_bytes, **how)
    pipeline = Pipeline(
        forward=tuple(forward),
        backward=tuple(backward),
        config=config,
        update_s=update_s,
        handover_s=handover_s,
    )
    return Replica(schedule=pipeline, parameters=cut.parameters, measured=measured)


@lru_cache(maxsize=REMEMBERED)
def _cut(
    compiled: Compiled, resident_bytes: int, *placed: tuple[Any, ...]
) -> tuple[Partitioned, float, Callable[[], Measured]]:
    """Cut a micro-batch into stages, which tiers share; with seconds of the update, and memory."""
    cut = partition(compiled, *placed)
    updates = cut.updates(compiled)
    update_s = max(part.cycles for part in updates) / compiled.chip.clock_hz
    return cut, update_s, measured_once(cut.measured, resident_bytes, updates)


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """A batch on the chips of a replica: of the works that go on at once the longest counts."""

    works: tuple[Work, ...]
    handover_s: float

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
    sizes, _ = cut.boundary_bytes
    in_turn = config.schedule == "sequential"
    if in_turn:
        works = by_chip((0,) * len(forward), forward)
        handover = fsum(
            stage_transfer_s(config.system, cut.stage_ipus[at : at + 2], [size])
            for at, size in enumerate(sizes)
        )
    else:
        works = by_chip(cut.stage_ipus, forward)
        handover = stage_transfer_s(config.system, cut.stage_ipus, sizes)
    return Replica(
        schedule=Staged(works=works, handover_s=handover),
        delay=0 if in_turn else len(cut.stage_ipus) - 1,
        measured=measured_once(cut.measured),
    )
