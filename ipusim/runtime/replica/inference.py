"""Inference with a model over several chips: one stage after another, or all at once."""

from __future__ import annotations

from dataclasses import dataclass

from ipusim.compiler import memory
from ipusim.errors import ConfigError
from ipusim.machine import Chip
from ipusim.runtime.compile import Lowered
from ipusim.runtime.options.spec import RunConfig
from ipusim.runtime.replica.balance import stage_transfer
from ipusim.runtime.replica.partition import Stage, partition


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedInference:
    """What the chips of one replica do for a batch.

    Attributes
    ----------
    parts_s : dict of str to float
        Where the time between two batches goes, the host left out.
    delay : int
        Steps that a batch spends in the pipeline beyond its first.
    memory : Memory
        Of the fullest chip.
    stages : tuple of Stage
        In order.
    """

    parts_s: dict[str, float]
    delay: int
    memory: memory.Memory
    stages: tuple[Stage, ...]


def shared_inference(lowered: Lowered, chip: Chip, config: RunConfig) -> SharedInference:
    """Cut an inference graph into stages and run them.

    Parameters
    ----------
    lowered : Lowered
    chip : Chip
    config : RunConfig
        In the mode "inference", with more than one chip per replica.

    Returns
    -------
    SharedInference
        "sequential" (PopTorch: sharded execution): a batch passes through all stages before the
        next begins, so the time is that of one chip plus the copies between chips. "grouped"
        (pipelined execution): every stage works on a batch of its own; a step takes as long as the
        chip with most to do, and then all hand over.

    Raises
    ------
    ConfigError
        If there are more stages than operators, or the schedule has no meaning without a backward
        pass.
    UnknownNameError
        If a split names no operator.
    """
    schedule = config.schedule
    if schedule == "interleaved":
        raise ConfigError(
            "The schedule 'interleaved' alternates forward and backward passes, which inference "
            "does not have: use 'grouped' (pipelined) or 'sequential' (one stage after another)."
        )
    cut = partition(lowered, config.pipeline_splits, config.stage_ipus, chip)
    forward, _ = cut.seconds()
    sizes, _ = cut.boundary_bytes()
    if schedule == "sequential":
        copies = [
            stage_transfer(config.system, cut.stage_ipus[at : at + 2], [size]).seconds
            for at, size in enumerate(sizes)
        ]
        parts = {"device": sum(forward), "stage transfers": sum(copies)}
    else:
        moved = stage_transfer(config.system, cut.stage_ipus, sizes)
        parts = {"device": max(cut.load_s(forward)), "stage transfers": moved.seconds}
    stages = cut.measured((1,) * len(cut.stage_ipus))
    return SharedInference(
        parts_s=parts,
        delay=0 if schedule == "sequential" else len(cut.stage_ipus) - 1,
        memory=max((stage.memory for stage in stages), key=lambda used: used.peak_tile_bytes),
        stages=stages,
    )
