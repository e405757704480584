"""Reductions over replicas: all-reduce as reduce-scatter and all-gather over rings of links."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import fsum
from operator import add
from typing import NamedTuple

from ipusim.machine.interconnect import Ring, replica_rings
from ipusim.machine.system import System


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """Cost of one or more collectives that run one after the other.

    `bytes` are what the chip which holds a tensor sends, over all tensors, `transfer_s` the seconds
    that links carry data, `each_latency_s` those of syncs and empty links in each of the
    repetitions; `paid` is how often a repetition pays the fitted latency.
    """

    collectives: int
    bytes: int
    transfer_s: float
    each_latency_s: float
    repeats: int = 1
    paid: int = 0

    @property
    def latencies(self) -> int:
        """How often the fitted latency is paid in all."""
        return self.repeats * self.paid

    def at(self, latency_s: float) -> float:
        """Return the seconds: transfer, and a fitted latency on top of that of syncs and links."""
        return self.transfer_s + self.repeats * (self.each_latency_s + self.paid * latency_s)


NOTHING = Collective(collectives=0, bytes=0, transfer_s=0.0, each_latency_s=0.0)
"""What a single replica needs."""


class _Pass(NamedTuple):
    """One pass round the rings: bytes sent, seconds of data and of latency, hops of its syncs."""

    bytes: int = 0
    transfer_s: float = 0.0
    latency_s: float = 0.0
    sync_hops: int = 0


Way = Callable[[Ring, int], tuple[_Pass, int]]
"""What bytes cost round one ring, and how many of them the next ring sees."""


def merged_sizes(tensor_bytes: Sequence[int], merge_bytes: int | None) -> tuple[int, ...]:
    """Join tensors, in their order, into buffers of at most `merge_bytes` for one collective each.

    A larger tensor stays alone, an empty one needs none; None joins nothing.
    """
    sizes = [size for size in tensor_bytes if size]
    if merge_bytes is None:
        return tuple(sizes)
    buffers: list[int] = []
    for size in sizes:
        if buffers and buffers[-1] + size <= merge_bytes:
            buffers[-1] += size
        else:
            buffers.append(size)
    return tuple(buffers)


def _ring_pass(ring: Ring, size: int) -> tuple[_Pass, int]:
    """Cost of reducing or gathering `size` bytes round one ring, and the bytes left per member."""
    # Two ways, the quicker is taken, as the library does (poplibs
    # lib/popops/ReplicatedCollectives.cpp, tag 1.0.136): halves of each fragment go round in both
    # directions, members - 1 steps; or whole fragments go half way round and meet, fewer steps with
    # more data each. Either way a member sends members - 1 fragments.
    fragment = -(-size // ring.members)
    sent = (ring.members - 1) * fragment
    steps = ring.members - 1
    around = fragment if ring.directions == 1 else -(-fragment // 2)
    ways = [_steps(ring, sent, steps, steps * around)]
    if ring.directions == 2:
        half = ring.members // 2
        ways.append(_steps(ring, sent, half, half * fragment))
    return min(ways, key=lambda way: way.transfer_s + way.latency_s), fragment


def _steps(ring: Ring, sent: int, steps: int, carried: float) -> _Pass:
    """Cost of so many steps in which a link carries so many bytes in all."""
    return _Pass(
        bytes=sent,
        transfer_s=carried / ring.bytes_per_s,
        latency_s=steps * ring.step_latency_s,
        sync_hops=steps * ring.sync_hops,
    )


def _scatter_pass(ring: Ring, size: int) -> tuple[_Pass, int]:
    """Cost of an all-to-all of `size` bytes round one ring; outer rings see all of them too."""
    n = ring.members
    distances = [min(d, n - d) if ring.directions == 2 else d for d in range(1, n)]
    carried = sum(distances) * -(-size // n) / ring.directions
    sent = (n - 1) * -(-size // n)
    return _steps(ring, sent, max(distances), carried), size


def _one_pass(rings: Sequence[Ring], size: int, way: Way) -> _Pass:
    """Pass `size` bytes round every ring; of a reduce-scatter the next sees the fragment only."""
    # An all-gather costs the same: the order of the rings and of the steps is reversed.
    total = _Pass()
    for ring in rings:
        one, size = way(ring, size)
        # One by one: what `sum` makes of floats depends on the version of Python.
        total = _Pass(*map(add, total, one))
    return total


def _run(
    system: System,
    replicas: int,
    ipus_per_replica: int,
    sizes: Sequence[int],
    way: Way = _ring_pass,
    passes: int = 1,
    apart: int = 1,
) -> Collective:
    """Add up collectives of so many passes over the same replicas; equal sizes are costed once."""
    rings = replica_rings(system, replicas, ipus_per_replica, apart)
    if not rings or not sizes:
        return NOTHING
    known = {size: _one_pass(rings, size, way) for size in set(sizes)}
    each = [known[size] for size in sizes]
    return Collective(
        collectives=len(sizes),
        bytes=passes * sum(one.bytes for one in each),
        transfer_s=passes * fsum(one.transfer_s for one in each),
        each_latency_s=passes * fsum(one.latency_s for one in each),
        # Each step's sync pays the fitted latency for each hop between machines.
        paid=passes * sum(one.sync_hops for one in each),
    )


def all_reduce(
    system: System,
    replicas: int,
    ipus_per_replica: int,
    tensor_bytes: Sequence[int],
    *,
    passes: int = 2,
    apart: int = 1,
) -> Collective:
    """Sum tensors of these sizes over all replicas, or each `apart`-th, and leave the sums there.

    A chip sends ``2 (n - 1) / n`` times the bytes, n the replicas, rounded up to whole bytes per
    fragment. Adding the fragments is left out: each tile adds its share in a few per cent of the
    time that the links need for it.
    """
    sizes = merged_sizes(tensor_bytes, None)
    return _run(system, replicas, ipus_per_replica, sizes, passes=passes, apart=apart)


reduce_scatter = all_gather = partial(all_reduce, passes=1)
"""Sum tensors over all replicas and leave each its part of the sums; or bring the parts of whole
tensors of the given sizes together, the same steps in reverse."""


def all_to_all(
    system: System, replicas: int, ipus_per_replica: int, tensor_bytes: Sequence[int]
) -> Collective:
    """Send every replica its own equal part of a tensor of each replica; else as `all_reduce`.

    Round a ring of n members the part for the member d hops away crosses d links, the nearer way
    round where both are open: each link carries n/8 of a tensor per direction, or (n - 1)/2 where
    only one way is open. Outer rings see the whole tensor too.
    """
    return _run(system, replicas, ipus_per_replica, tuple(tensor_bytes), _scatter_pass)


def cross_ipu_reductions(
    system: System, span: int, count: int, bytes_each: int, ipus_per_replica: int = 1
) -> Collective:
    """Return the cost of small all-reduces over neighbouring replicas (distributed batch norm)."""
    one = all_reduce(system, span, ipus_per_replica, [bytes_each])
    return replace(
        one,
        collectives=count * one.collectives,
        bytes=count * one.bytes,
        transfer_s=count * one.transfer_s,
        # One after the other, each pays the fitted latency once.
        repeats=count,
        paid=one.collectives,
    )
