"""What systems are made of besides chips: links, host servers, and what the hardware draws."""

from __future__ import annotations

from dataclasses import dataclass
from operator import add
from typing import NamedTuple

from ipusim.errors import ConfigError
from ipusim.machine.constants import Sourced, constant


@dataclass(frozen=True, slots=True, kw_only=True)
class Link(Sourced, file="hardware/links", word="link"):
    """One link between chips, machines or hosts, one direction.

    Payload can use the share ``efficiency`` of the raw bandwidth; an empty transfer takes
    ``latency_s``, one hop of a sync ``sync_s_per_hop``.
    """

    name: str
    bytes_per_s: float = constant("B/s")
    efficiency: float = constant("ratio")
    latency_s: float = constant("s")
    sync_s_per_hop: float = constant("s")

    @property
    def effective_bytes_per_s(self) -> float:
        """Payload bandwidth of one link in one direction, bytes per second."""
        return self.bytes_per_s * self.efficiency


def sync_hops(ipus: int) -> int:
    """Return the hops that a sync over `ipus` chips crosses in one direction, 0 for one chip.

    One hop leaves the rung of the ladder, then half of the remaining rail is crossed (poplibs
    lib/poplibs_test/Util.cpp).
    """
    if ipus < 1:
        raise ConfigError(f"A sync over {ipus} IPUs is impossible: use at least 1.")
    return 0 if ipus == 1 else 1 + (ipus // 2) // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Host(Sourced, file="hardware/hosts", word="host"):
    """One server that feeds the chips: cores, NUMA nodes, how fast one core prepares images.

    NUMA nodes share the cores evenly. ``remote_distance`` is the mean time of a memory access from
    a process that runs on any node, over that of an access within the node; ``memory_stall_share``
    is the share of the time that image decoding waits for memory when all of it is local. A core
    that copies reads and writes ``core_bytes_per_s``; where it puts elements into another order it
    moves ``rearranged_elements_per_s``. With all cores busy each decodes, crops and resizes
    ``decoded_images_per_s_per_core`` JPEG images; where Pillow decodes them whole the rate is
    ``pillow_images_per_s_per_core``, where ten crops of each are cut and their colours changed
    ``ten_crop_images_per_s_per_core``. Of that, the share ``worker_process_efficiency`` is left
    when images pass from a worker process to the loader, the process of an instance that collects
    the batches of its workers and passes on ``loader_bytes_per_s``. An instance has
    ``service_processes`` busy processes beside its workers; one core can fill ``core_cache_bytes``.
    """

    name: str
    cores: int = constant("cores")
    numa_nodes: int = constant("nodes")
    remote_distance: float = constant("ratio")
    memory_stall_share: float = constant("ratio")
    core_bytes_per_s: float = constant("B/s")
    rearranged_elements_per_s: float = constant("elements/s")
    decoded_images_per_s_per_core: float = constant("images/s")
    pillow_images_per_s_per_core: float = constant("images/s")
    ten_crop_images_per_s_per_core: float = constant("images/s")
    worker_process_efficiency: float = constant("ratio")
    loader_bytes_per_s: float = constant("B/s")
    core_cache_bytes: int = constant("B")
    service_processes: int = constant("processes")

    @property
    def cores_per_node(self) -> int:
        """Cores of one NUMA node."""
        return self.cores // self.numa_nodes

    @property
    def swapping_slowdown(self) -> float:
        """Factor on the time of image decoding in processes that are swapped among the nodes."""
        return 1 + self.memory_stall_share * (self.remote_distance - 1)


class Energy(NamedTuple):
    """Energy of some activity by where it is spent, in joules."""

    amp_j: float
    sram_j: float
    exchange_j: float

    @property
    def total_j(self) -> float:
        """All of it, without static, card and host power."""
        return self.amp_j + self.sram_j + self.exchange_j

    def times(self, count: int) -> Energy:
        """Return the energy of the same activity so many times."""
        return Energy(*(count * joules for joules in self))

    def __add__(self, other: Energy) -> Energy:
        return Energy(*map(add, self, other))


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerConstants(Sourced, file="hardware/power", word="chip"):
    """Power and energy of one chip generation.

    A chip that waits draws ``static_w_per_ipu``, everything else on the card or in the machine
    ``card_w``. The energy of a FLOP of the conv units, of float16 or float32 operands, includes
    their delivery; a byte is one read from or written to tile memory, or received over the on-chip
    exchange.
    """

    chip: str
    static_w_per_ipu: float = constant("W")
    card_w: float = constant("W")
    amp_half_pj_per_flop: float = constant("pJ/FLOP")
    amp_float_pj_per_flop: float = constant("pJ/FLOP")
    sram_pj_per_byte: float = constant("pJ/B")
    exchange_pj_per_byte: float = constant("pJ/B")
