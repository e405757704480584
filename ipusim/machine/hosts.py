"""The servers that feed the chips: cores, NUMA nodes, and how fast one core prepares images."""

from dataclasses import dataclass, field
from typing import ClassVar

from ipusim.machine.constants import Constant, constant


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One host server; ``constants`` holds the same values with unit, source and label.

    NUMA nodes share the cores evenly. ``remote_distance`` is the mean time of a memory access from
    a process that runs on any node, over that of an access within the node; ``memory_stall_share``
    is the share of the time that image decoding waits for memory when all of it is local. A core
    that copies reads and writes ``core_bytes_per_s``. With all cores busy each decodes, crops and
    resizes so many JPEG images, fewer where Pillow decodes them whole or ten crops of each are cut
    and their colours changed; ``worker_process_efficiency`` of that is left when the images pass
    from a worker process to the loader, the process of an instance that collects the batches of
    its workers and passes on ``loader_bytes_per_s``. An instance has ``service_processes`` busy
    processes beside its workers; one core can fill ``core_cache_bytes``.
    """

    FILE: ClassVar = "hardware/hosts"
    WORD: ClassVar = "host"

    name: str
    cores: int = constant("cores")
    numa_nodes: int = constant("nodes")
    remote_distance: float = constant("ratio")
    memory_stall_share: float = constant("ratio")
    core_bytes_per_s: float = constant("B/s")
    decoded_images_per_s_per_core: float = constant("images/s")
    pillow_images_per_s_per_core: float = constant("images/s")
    ten_crop_images_per_s_per_core: float = constant("images/s")
    worker_process_efficiency: float = constant("ratio")
    loader_bytes_per_s: float = constant("B/s")
    core_cache_bytes: int = constant("B")
    service_processes: int = constant("processes")
    constants: dict[str, Constant] = field(compare=False, repr=False)

    @property
    def cores_per_node(self) -> int:
        """Cores of one NUMA node."""
        return self.cores // self.numa_nodes

    @property
    def swapping_slowdown(self) -> float:
        """Factor on the time of image decoding in processes that are swapped among the nodes."""
        return 1 + self.memory_stall_share * (self.remote_distance - 1)
