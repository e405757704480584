"""What the chips of one replica do in a step, whichever way it runs."""

from __future__ import annotations

from dataclasses import dataclass

from ipusim.compiler.memory import Memory
from ipusim.runtime.replica.partition import Stage
from ipusim.runtime.terms import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """What the chips of one replica do in a step, and the memory of the fullest.

    `stages` is empty for one chip that holds all of the model; `delay` are the steps that a batch
    of inference spends in the pipeline beyond its first; `parameters` are those of each chip in
    training. `gathers` are the bytes of the weights that a step puts together from the shards of
    the replicas whenever it loads them; None where that takes place once, after the weight update.
    """

    schedule: Schedule
    memory: Memory
    stages: tuple[Stage, ...] = ()
    delay: int = 0
    parameters: tuple[tuple[str, ...], ...] = ()
    gathers: tuple[int, ...] | None = None


def fullest(stages: tuple[Stage, ...]) -> Memory:
    """Return the memory of the fullest chip."""
    return max((stage.memory for stage in stages), key=lambda used: used.peak_tile_bytes)
