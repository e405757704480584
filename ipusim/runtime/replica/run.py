"""Which way a replica runs: on one chip, in stages, or in phases."""

from __future__ import annotations

from functools import lru_cache

from ipusim.compiler import memory
from ipusim.runtime.compile import REMEMBERED, Compiled
from ipusim.runtime.options.spec import RunConfig
from ipusim.runtime.replica.inference import staged_inference
from ipusim.runtime.replica.partition import Replica, exchange_supersteps
from ipusim.runtime.replica.phases.replica import phased_replica
from ipusim.runtime.replica.pipelined import pipelined_replica
from ipusim.runtime.terms import OneChip


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
            exchanges_each=exchange_supersteps(compiled.program.ops),
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
