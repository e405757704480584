"""Frameworks: what their programs do in a pipeline, each property with its source."""

from dataclasses import dataclass

from ipusim.machine.constants import Sourced

FRAMEWORKS = ("popart", "pytorch", "tensorflow")
DEFAULT_FRAMEWORK = "popart"


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework(Sourced, file="frameworks", word="framework"):
    """What sets one framework apart."""

    name: str
    last_stage_merged: bool
    """Whether both halves of a pipeline's last stage, forward and backward, are one slot."""
    phases: bool
    """Whether there is phased execution."""
    copies_in_turn: bool
    """Whether copies between pipeline stages run one after the other, not all together."""
    pairs_overlap: bool
    """Whether copies in turn still overlap with those between other pairs of chips."""
    host_opens_cycle: bool
    """Whether all chips of a pipeline wait for what the host sends at the start of a cycle."""
    state_in_turn: bool
    """Whether the chips of a replica move optimiser state one after the other."""
    loader: str
    """How an instance prepares items: in worker "processes" (PyTorch), or a pool of "threads"."""
    running_mean: bool
    """Whether float16 accumulators by default keep the mean of the gradients so far."""
    counts_means: bool
    """Whether each accumulator of a mean counts its micro-batches itself, else one for all."""
    parts_apart: bool
    """Whether a part of a weight that a replica updates is a function of its own, with its
    collectives, so that none is joined with those of other weights."""
    joins_chips: bool
    """Whether a joined all-reduce may hold gradients of all chips of a replica, which then go at
    once, else of one chip."""
    least_sharded_elements: int
    """Elements from which on weights are sharded where any are."""
    seeds_dropouts: bool
    """Whether each dropout has a seed made for it."""
    cross_entropy: str
    """How it writes a cross entropy, one of `ipusim.workload.operators.loss.CROSS_ENTROPIES`."""
    copies_arguments: bool
    """Whether equal operations are one function, into which each call copies its weights."""
    device_iterations: int
    """Batches of inference that the chips run after a call from the host."""
