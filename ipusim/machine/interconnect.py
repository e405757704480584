"""Rings and copies over the links of a system: what a collective or a stage-to-stage copy uses."""

from dataclasses import dataclass

from ipusim.errors import ConfigError
from ipusim.machine.parts import sync_hops
from ipusim.machine.system import System


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """Members that pass data to their neighbours, step by step.

    Each sends `bytes_per_s` of payload in one direction, or in both at once where `directions` is
    2; a step also takes `step_latency_s`, the latency of a sync and of the links. The sync is of
    all members: it runs along the ladder and back, and each of the `sync_hops` from one machine to
    the next makes it longer (poplibs lib/poplibs_test/Util.cpp, tag sdk/poplar/2.0.0, has it so
    from chip to chip). Over GW-Links these are the hops within a rack and one to the next rack. [A]
    Taken after seeing collectives over 4 machines too slow and those over 16 right.
    """

    members: int
    directions: int
    bytes_per_s: float
    step_latency_s: float
    sync_hops: int


def sync_s(system: System, ipus: int) -> float:
    """Return the seconds of a sync over `ipus` chips.

    That is `Chip.global_sync_cycles`, or the time of the sync hops along the ladder and back where
    that is longer.
    """
    on_chip = system.chip.seconds(system.chip.global_sync_cycles)
    return max(on_chip, 2 * sync_hops(ipus) * system.ipu_link.sync_s_per_hop)


def replica_rings(
    system: System, replicas: int, ipus_per_replica: int = 1, apart: int = 1
) -> tuple[Ring, ...]:
    """Return the rings of a collective over neighbouring replicas, innermost first.

    One ring lies over IPU-Links, a second one over GW-Links where the replicas reach beyond the
    chips that IPU-Links join; a single replica has no ring. `ConfigError` if a replica does not
    fit the chips that IPU-Links join, or replicas, or groups of `apart`, fill the racks unevenly.

    Replicas of one chip lie on a ring along the periphery of the ladder, up one rail and down the
    other, so a rail is the narrowest part; two of them share a rung (poplibs
    lib/popops/TensorCollectives.cpp, tag sdk/poplar/2.0.0, createRing; Poplar user guide, GCL:
    peripheral ring). Replicas of more chips exchange chip by chip along the rail, in a closed ring
    where a torus is filled and otherwise up and back along a line, which leaves one direction. A
    tensor lives on one chip of a replica and is reduced over links to the same chip of other
    replicas, which it has to itself. [inferred]

    If `apart` exceeds 1, each collective joins every `apart`-th replica, and `apart` of them run
    side by side. Within a rack they share the IPU-Links, as the hops of each pass the replicas of
    all others; beyond it each machine has its own GW-Links. [inferred]
    """
    domain = system.ipu_link_domain_ipus
    if ipus_per_replica > domain:
        raise ConfigError(
            f"A replica of {ipus_per_replica} IPUs does not fit the {domain} IPUs that IPU-Links "
            f"join in {system.name}: use at most {domain}."
        )
    within = min(replicas, domain // ipus_per_replica)
    if replicas % within:
        raise ConfigError(
            f"{replicas} replicas do not fill groups of {within}, as many as IPU-Links join in "
            f"{system.name}: use a multiple of {within}."
        )
    if replicas % apart or max(within, apart) % min(within, apart):
        raise ConfigError(
            f"Groups of {apart} of the {replicas} replicas cross those of {within} that IPU-Links "
            f"join in {system.name}: use a divisor or a multiple of {within}."
        )
    near, far = within // apart, replicas // max(within, apart)
    rings = []
    if near > 1:
        rings.append(_ipu_link_ring(system, near, ipus_per_replica, apart))
    if far > 1:
        rings.append(_gw_link_ring(system, far, ipus_per_replica))
    return tuple(rings)


def _ipu_link_ring(system: System, members: int, ipus_per_replica: int, apart: int) -> Ring:
    """Return the ring over IPU-Links of every `apart`-th replica."""
    one_chip = ipus_per_replica == 1
    on_rung = one_chip and members * apart == 2
    links = system.pair_links if on_rung else system.rail_links
    ipus = members * apart * ipus_per_replica
    closed = system.topology == "torus" and ipus == system.ipu_link_domain_ipus
    both_ways = not on_rung and (one_chip or closed)
    hops = max(1, apart * ipus_per_replica // 2)
    return Ring(
        members=members,
        directions=2 if both_ways else 1,
        bytes_per_s=links * system.ipu_link.effective_bytes_per_s / apart,
        step_latency_s=sync_s(system, ipus) + hops * system.ipu_link.latency_s,
        sync_hops=-(-ipus // system.ipus_per_machine) - 1,
    )


def _gw_link_ring(system: System, members: int, ipus_per_replica: int) -> Ring:
    """Return the ring over GW-Links, which a machine's chips share, one of each replica."""
    sharing = max(1, system.ipus_per_machine // ipus_per_replica)
    rate = system.gw_links_per_machine * system.gw_link.effective_bytes_per_s / sharing
    return Ring(
        members=members,
        directions=1,
        bytes_per_s=rate,
        step_latency_s=system.gw_link.sync_s_per_hop + system.gw_link.latency_s,
        sync_hops=system.ipu_link_domain_ipus // system.ipus_per_machine,
    )


def copy_s(system: System, source: int, target: int, size: int) -> float:
    """Return the seconds of a copy from one chip to another, without the sync before it.

    Chips 0 and 1 form the first rung of the ladder, 2 and 3 the next; traffic crosses the rung
    first and then follows the rail (poplibs lib/poplibs_test/Util.cpp, tag sdk/poplar/2.0.0). Each
    link takes its latency, the narrowest sets the payload per second.
    """
    domain = system.ipu_link_domain_ipus
    if source // domain != target // domain:
        gateway = _gw_link_ring(system, 2, system.ipus_per_machine)
        return system.gw_link.latency_s + size / gateway.bytes_per_s
    rungs = abs(source // 2 - target // 2)
    if system.topology == "torus":
        rungs = min(rungs, domain // 2 - rungs)
    crossing = int(source % 2 != target % 2)
    hops = rungs + crossing
    links = system.rail_links if rungs else system.pair_links
    rate = links * system.ipu_link.effective_bytes_per_s
    return hops * system.ipu_link.latency_s + size / rate
