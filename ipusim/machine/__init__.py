"""Stage 1: what the hardware is. Every value comes from data/hardware with its source."""

from ipusim.machine.catalogue import Constant, hardware_table
from ipusim.machine.chip import Chip, chip_names, load_chip
from ipusim.machine.links import Link, link_names, load_link, sync_hops
from ipusim.machine.power import PowerConstants, load_power
from ipusim.machine.system import System, load_system, system_names

__all__ = [
    "Chip",
    "Constant",
    "Link",
    "PowerConstants",
    "System",
    "chip_names",
    "hardware_table",
    "link_names",
    "load_chip",
    "load_link",
    "load_power",
    "load_system",
    "sync_hops",
    "system_names",
]
