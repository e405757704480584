"""The servers that feed the chips: cores, NUMA nodes, and how fast one core prepares images."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from ipusim.machine.constants import Constant, constant, load, table_names


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One host server.

    Attributes
    ----------
    name : str
        One of `host_names`.
    cores, numa_nodes : int
        Physical cores, and NUMA nodes that share them evenly.
    remote_distance : float
        Mean time of a memory access from a process that runs on any node, over that of an access
        within the node.
    memory_stall_share : float
        Share of the time that image decoding waits for memory when all of it is local.
    decoded_images_per_s_per_core : float
        JPEG images that one core decodes, crops and resizes per second with all cores busy.
    ten_crop_images_per_s_per_core : float
        The same where ten crops of each image are cut and their colours changed.
    worker_process_efficiency : float
        Share of that rate that is left when the images pass from a worker process to the loader.
    loader_bytes_per_s : float
        What the process of an instance that collects the batches of its workers passes on.
    core_cache_bytes : int
        Cache that one core can fill.
    service_processes : int
        Busy processes of an instance beside its workers.
    constants : dict of str to Constant
        The same values with unit, source and label.
    """

    FILE: ClassVar = "hosts"
    WORD: ClassVar = "host"

    name: str
    cores: int = constant("cores")
    numa_nodes: int = constant("nodes")
    remote_distance: float = constant("ratio")
    memory_stall_share: float = constant("ratio")
    decoded_images_per_s_per_core: float = constant("images/s")
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


def host_names() -> tuple[str, ...]:
    """Return the names of all host servers, in file order."""
    return table_names("hosts")


def load_host(name: str) -> Host:
    """Return one host server.

    Returns
    -------
    Host
        With the values of data/hardware/hosts.toml.

    Raises
    ------
    UnknownNameError
        If there is no such server.
    DataError
        If the data file is missing or corrupt.
    """
    return load(Host, name)
