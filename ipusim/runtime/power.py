"""What a step takes besides time: power, energy and money."""

import math
from numbers import Real

from ipusim.compiler.program import Program
from ipusim.errors import ConfigError
from ipusim.machine.parts import Energy
from ipusim.machine.system import System
from ipusim.runtime.calibration import PowerScales
from ipusim.runtime.options.spec import RunConfig

SRAM_BYTES_PER_CYCLE = 16
"""Memory traffic of a busy tile: one 64-bit load and one 64-bit store per cycle."""


def static_power_w(system: System, active_ipus: int) -> float:
    """Return the watts of the cards or machines in use while they wait, all their chips powered."""
    machines = -(-active_ipus // system.ipus_per_machine)
    chips = machines * system.ipus_per_machine
    return chips * system.power.static_w_per_ipu + machines * system.power.card_w


def price_per_item(price_per_hour: float, items_per_s: float) -> float:
    """Return the price of one item, in the unit of the price of an hour."""
    if not isinstance(price_per_hour, Real) or not 0 <= price_per_hour < math.inf:
        raise ConfigError(f"The price per hour is {price_per_hour!r}: give a number, 0 or more.")
    return price_per_hour / 3600 / items_per_s


def program_energy(program: Program, config: RunConfig, scales: PowerScales) -> Energy:
    """Energy of one run of a program: AMP FLOPs, memory traffic of busy tiles, exchanged bytes."""
    power = config.system.power
    half_flops, float_flops = 2 * (program.macs - program.float_macs), 2 * program.float_macs
    amp_pj = half_flops * power.amp_half_pj_per_flop + float_flops * power.amp_float_pj_per_flop
    busy = program.total(
        lambda step: step.repeats * (step.compute_cycles + step.copy_cycles) * step.tiles
    )
    sram_pj = busy * SRAM_BYTES_PER_CYCLE * power.sram_pj_per_byte
    return Energy(
        amp_j=scales.amp * (amp_pj * 1e-12),
        sram_j=scales.sram * (sram_pj * 1e-12),
        exchange_j=program.exchanged_bytes * power.exchange_pj_per_byte * 1e-12,
    )
