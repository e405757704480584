"""Frameworks: what their programs do in a pipeline, each property with its source."""

from dataclasses import dataclass
from functools import cache

from ipusim.files import load_profile

FILE = "frameworks.toml"
FRAMEWORKS = ("popart", "pytorch", "tensorflow")
DEFAULT_FRAMEWORK = "popart"


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """What sets one framework apart.

    Copies between pipeline stages run one after the other, or all together (`copies_in_turn`), and
    so may the chips of a replica that move optimiser state (`state_in_turn`); both halves of a
    pipeline's last stage are one slot or two (`last_stage_merged`); `phases` says whether there is
    phased execution, `loader` how data loaders prepare items (`host.loader.LOADERS`),
    `running_mean` whether float16 accumulators by default keep the mean of the gradients so far,
    `counts_means` whether each that does counts its micro-batches itself, `parts_apart` whether
    each part of the weights that a replica updates is a function of its own, `joins_chips` whether
    joined collectives hold tensors of all chips of a replica, `least_sharded_elements` from which
    size on weights are sharded where any are, `seeds_dropouts` whether each dropout has a seed made
    for it, and `device_iterations` how many batches of inference the chips run after a call from
    the host.
    """

    name: str
    last_stage_merged: bool
    phases: bool
    copies_in_turn: bool
    state_in_turn: bool
    loader: str
    running_mean: bool
    counts_means: bool
    parts_apart: bool
    joins_chips: bool
    least_sharded_elements: int
    seeds_dropouts: bool
    device_iterations: int


@cache
def load_framework(name: str) -> Framework:
    """Return a framework by its name."""
    return load_profile(Framework, "framework", name, FILE)
