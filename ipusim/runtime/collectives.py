"""Reductions over replicas: all-reduce as reduce-scatter and all-gather over rings of links."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import fsum

from ipusim.machine.interconnect import Ring, replica_rings
from ipusim.machine.system import System


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """Cost of one or more collectives that run one after the other, or of a pass of one.

    `transfer_s` are the seconds that links carry data, `each_latency_s` those of syncs and empty
    links in each of the repetitions; `paid` is how often a repetition pays the fitted latency.
    """

    transfer_s: float = 0.0
    each_latency_s: float = 0.0
    repeats: int = 1
    paid: int = 0

    def at(self, latency_s: float) -> float:
        """Return the seconds: transfer, and a fitted latency on top of that of syncs and links."""
        return self.transfer_s + self.repeats * (self.each_latency_s + self.paid * latency_s)


NOTHING = Collective()
"""What a single replica needs."""

Way = Callable[[Ring, int], tuple[Collective, int]]
"""What bytes cost round one ring, and how many of them the next ring sees."""


def merged_sizes(tensor_bytes: Sequence[int], merge_bytes: int = 0) -> tuple[int, ...]:
    """Join tensors, in their order, into buffers of at most `merge_bytes` for one collective each.

    A larger tensor stays alone, an empty one needs none; 0 joins nothing.
    """
    buffers: list[int] = []
    for size in filter(None, tensor_bytes):
        if buffers and buffers[-1] + size <= merge_bytes:
            buffers[-1] += size
        else:
            buffers.append(size)
    return tuple(buffers)


def _ring_pass(ring: Ring, size: int) -> tuple[Collective, int]:
    """Cost of reducing or gathering `size` bytes round one ring, and the bytes left per member."""
    # Two ways, the quicker is taken, as the library does (poplibs
    # lib/popops/ReplicatedCollectives.cpp, tag 1.0.136): halves of each fragment go round in both
    # directions, members - 1 steps; or whole fragments go half way round and meet, fewer steps with
    # more data each. Either way a member sends members - 1 fragments.
    fragment = -(-size // ring.members)
    steps = ring.members - 1
    around = fragment if ring.directions == 1 else -(-fragment // 2)
    ways = [_steps(ring, steps, steps * around)]
    if ring.directions == 2:
        half = ring.members // 2
        ways.append(_steps(ring, half, half * fragment))
    return min(ways, key=lambda way: way.at(0.0)), fragment


def _steps(ring: Ring, steps: int, carried: float) -> Collective:
    """Cost of so many steps in which a link carries so many bytes in all."""
    return Collective(
        transfer_s=carried / ring.bytes_per_s,
        each_latency_s=steps * ring.step_latency_s,
        # Each step's sync pays the fitted latency for each hop between machines.
        paid=steps * ring.sync_hops,
    )


def _scatter_pass(ring: Ring, size: int) -> tuple[Collective, int]:
    """Cost of an all-to-all of `size` bytes round one ring; outer rings see all of them too."""
    n = ring.members
    distances = [min(d, n - d) if ring.directions == 2 else d for d in range(1, n)]
    carried = sum(distances) * -(-size // n) / ring.directions
    return _steps(ring, max(distances), carried), size


def _in_turn(parts: Sequence[Collective], passes: int = 1) -> Collective:
    """Add up what runs one after the other, in so many passes."""
    return Collective(
        transfer_s=passes * fsum(one.transfer_s for one in parts),
        each_latency_s=passes * fsum(one.each_latency_s for one in parts),
        paid=passes * sum(one.paid for one in parts),
    )


def all_reduce(
    system: System,
    replicas: int,
    ipus_per_replica: int,
    tensor_bytes: Sequence[int],
    *,
    passes: int = 2,
    apart: int = 1,
    way: Way = _ring_pass,
) -> Collective:
    """Sum tensors of these sizes over all replicas, or each `apart`-th, and leave the sums there.

    A chip sends ``2 (n - 1) / n`` times the bytes, n the replicas, rounded up to whole bytes per
    fragment. Adding the fragments is left out: each tile adds its share in a few per cent of the
    time that the links need for it. Of the two passes round all rings the first scatters the sums
    and the second gathers them; other collectives have fewer, or another `way` round a ring.
    """
    rings = replica_rings(system, replicas, ipus_per_replica, apart)
    sizes = merged_sizes(tensor_bytes)
    known: dict[int, Collective] = {}  # equal sizes are costed once
    for size in set(sizes):
        # An all-gather costs as much: the order of the rings and of the steps is reversed.
        parts, left = [], size
        for ring in rings:
            part, left = way(ring, left)
            parts.append(part)
        known[size] = _in_turn(parts)
    return _in_turn([known[size] for size in sizes], passes)


reduce_scatter = all_gather = partial(all_reduce, passes=1)
"""Sum tensors over all replicas and leave each its part of the sums; or bring the parts of whole
tensors of the given sizes together, the same steps in reverse."""

all_to_all = partial(all_reduce, passes=1, way=_scatter_pass)
"""Send every replica its own equal part of a tensor of each replica.

Round a ring of n members the part for the member d hops away crosses d links, the nearer way round
where both are open: each link carries n/8 of a tensor per direction, or (n - 1)/2 where only one
way is open. Outer rings see the whole tensor too."""


def cross_ipu_reductions(
    system: System, span: int, count: int, bytes_each: int, ipus_per_replica: int = 1
) -> Collective:
    """Return the cost of small all-reduces over neighbouring replicas (distributed batch norm)."""
    one = all_reduce(system, span, ipus_per_replica, [bytes_each])
    # One after the other, each pays the fitted latency once.
    paid = int(one != NOTHING)
    return replace(one, transfer_s=count * one.transfer_s, repeats=count, paid=paid)
