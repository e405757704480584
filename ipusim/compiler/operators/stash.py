"""Stash and restore: what a pipeline keeps of a micro-batch until its backward pass.

Each tensor has a ring of slots, one per micro-batch that waits, and two counters, one to write and
one to read. Sources: graphcore/popart willow/src/popx/op/stashx.cpp and restorex.cpp, whose
counters take an addition and a remainder. TensorFlow's queues have one counter, which one
expression advances (graphcore/tensorflow driver/ops/custom_ops/poputil/fifo.cc); they are not told
apart.
"""

from collections.abc import Iterable

from ipusim.compiler.emitter import COUNTER, Emitter, Placed
from ipusim.compiler.program import Superstep
from ipusim.compiler.stacks import Stack
from ipusim.compiler.tiles import copy_cycles
from ipusim.machine import Chip
from ipusim.workload.graph import Tensor


def stash_steps(
    tensors: Iterable[Tensor], chip: Chip, stack: Stack
) -> tuple[list[Superstep], list[Superstep]]:
    """Return the supersteps of a forward pass that save tensors, and those that bring them back."""
    saving, restoring = (Emitter(chip=chip, stack=stack, tiles=chip.tiles) for _ in range(2))
    for tensor in tensors:
        x = Placed((tensor.elements,), tensor.dtype)
        saving.slice("write to stash", saving.share(x), x.dtype, write=True)
        _advance(saving)
        restoring.slice("read from stash", restoring.share(x), x.dtype)
        _advance(restoring)
        restoring.copy("restore in place", cycles=copy_cycles(restoring.tile_bytes(x), chip))
    return saving.steps, restoring.steps


def _advance(m: Emitter) -> None:
    m.count("add to counter")
    m.integers("rem", COUNTER, "remainder of counter", scalar=True)
