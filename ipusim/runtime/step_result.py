"""What one step does and takes, whatever its mode; and the parts that both modes compute alike."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ipusim.compiler.memory import Memory
from ipusim.compiler.program import Program
from ipusim.errors import ConfigError
from ipusim.machine.power import Energy
from ipusim.machine.system import System
from ipusim.runtime import calibration
from ipusim.runtime.host.io import HostIo
from ipusim.runtime.options.spec import RunConfig
from ipusim.runtime.replica.partition import Stage
from ipusim.runtime.replica.schedule import PipelineTime
from ipusim.runtime.terms import Terms
from ipusim.workload.graph import Graph

SRAM_BYTES_PER_CYCLE = 16
"""Memory traffic of a busy tile: one 64-bit load and one 64-bit store per cycle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """One step.

    Attributes
    ----------
    items : int
        Items per replica and step.
    graph, program, memory, io
        What runs per micro-batch, how it was lowered, the memory of the fullest chip, the host
        transfers of a micro-batch.
    update : Program or None
        The weight update of a training step.
    stages : tuple of Stage
        Of a replica over several chips; empty where it is one chip.
    pipeline : PipelineTime or None
        Fill, steady part and drain of a pipelined step.
    terms : Terms
        What the step consists of, before anything fitted has a price.
    parts_s : mapping of str to float
        Where the seconds of a step go; they add up to `step_s`.
    device_s : float
        Seconds of the program of one micro-batch on one chip.
    fixed_s : float
        Fitted cost per step, 0 in the specification tier.
    step_s : float
        Seconds from one step to the next.
    latency_s : float
        Seconds from request to result; in training the step itself.
    throughput_items_per_s : float
        Items per second of all replicas.
    energy : Energy
        Dynamic energy of one replica and step; the calibrated tier applies the fitted factors.
    static_w, power_w : float
        Watts of the cards or machines in use, without hosts: idle, and on average over the step.
    """

    items: int
    graph: Graph
    program: Program
    memory: Memory
    io: HostIo
    update: Program | None = None
    stages: tuple[Stage, ...] = ()
    pipeline: PipelineTime | None = None
    terms: Terms
    parts_s: Mapping[str, float]
    device_s: float
    fixed_s: float
    step_s: float
    latency_s: float
    throughput_items_per_s: float
    energy: Energy
    static_w: float
    power_w: float


def static_power_w(system: System, active_ipus: int) -> float:
    """Return the power, in watts, of the cards or machines in use while they wait.

    Parameters
    ----------
    system : System
    active_ipus : int
        Chips in use; every chip of their cards or machines is powered.
    """
    machines = -(-active_ipus // system.ipus_per_machine)
    chips = machines * system.ipus_per_machine
    return chips * system.power.static_w_per_ipu + machines * system.power.card_w


def price_per_item(price_per_hour: float, items_per_s: float) -> float:
    """Return the price of one item, in the unit of the price of an hour.

    Raises
    ------
    ConfigError
        If the price is negative or no number.
    """
    if not 0 <= price_per_hour < math.inf:
        raise ConfigError(f"The price per hour is {price_per_hour!r}: give a number, 0 or more.")
    return price_per_hour / 3600 / items_per_s


def program_energy(program: Program, config: RunConfig, *, calibrated: bool) -> Energy:
    """Energy of one run of a program: AMP FLOPs, memory traffic of busy tiles, exchanged bytes.

    Parameters
    ----------
    program : Program
    config : RunConfig
    calibrated : bool
        Whether the fitted factors apply.
    """
    busy = sum(
        step.repeats * (step.compute_cycles + step.copy_cycles) * step.tiles
        for step in program.steps
    )
    energy = config.system.power.energy(
        flops=2 * program.macs,
        sram_bytes=busy * SRAM_BYTES_PER_CYCLE,
        exchange_bytes=program.exchanged_bytes,
    )
    if not calibrated:
        return energy
    amp, sram = calibration.power_scales()
    return energy.scaled(amp=amp, sram=sram)
