"""Stage 1: what the hardware is. Every value comes from data/hardware with its source."""

from ipusim.machine.chip import Chip, chip_names, load_chip
from ipusim.machine.constants import Constant, Sourced, hardware_table, load, names
from ipusim.machine.parts import Host, Link, PowerConstants, sync_hops
from ipusim.machine.system import System, load_system, system_names
