"""Stage 1: what the hardware is. Every value comes from data/hardware with its source."""

from ipusim.machine.chip import Chip, chip_names, load_chip
from ipusim.machine.constants import Constant, hardware_table
from ipusim.machine.gpu import (
    Gpu,
    GpuNode,
    gpu_names,
    gpu_node_names,
    load_gpu,
    load_gpu_node,
)
from ipusim.machine.hosts import Host, host_names, load_host
from ipusim.machine.links import Link, link_names, load_link, sync_hops
from ipusim.machine.power import PowerConstants, load_power
from ipusim.machine.system import System, load_system, system_names

__all__ = [
    "Chip",
    "Constant",
    "Gpu",
    "GpuNode",
    "Host",
    "Link",
    "PowerConstants",
    "System",
    "chip_names",
    "gpu_names",
    "gpu_node_names",
    "hardware_table",
    "host_names",
    "link_names",
    "load_chip",
    "load_gpu",
    "load_gpu_node",
    "load_host",
    "load_link",
    "load_power",
    "load_system",
    "sync_hops",
    "system_names",
]
