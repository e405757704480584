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
    """One step: what it consists of (`terms`), where its seconds go (`parts_s`), what it reaches.

    `items` are those per replica and step. Graph, program and io are those of a micro-batch, memory
    that of the fullest chip; `update` is the weight update of a training step, `stages` those of a
    replica over several chips, `pipeline` fill, steady part and drain of a pipelined step.
    `device_s` are the seconds of the program of one micro-batch on one chip, `fixed_s` the fitted
    cost per step; `step_s` those from one step to the next, `latency_s` from request to result, in
    training the step itself. The throughput is that of all replicas, the dynamic energy that of one
    and a step, with the fitted factors in the calibrated tier. Watts are those of the cards or
    machines in use, without hosts: idle, and on average over the step.
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
    """Return the watts of the cards or machines in use while they wait, all their chips powered."""
    machines = -(-active_ipus // system.ipus_per_machine)
    chips = machines * system.ipus_per_machine
    return chips * system.power.static_w_per_ipu + machines * system.power.card_w


def price_per_item(price_per_hour: float, items_per_s: float) -> float:
    """Return the price of one item, in the unit of the price of an hour."""
    if not 0 <= price_per_hour < math.inf:
        raise ConfigError(f"The price per hour is {price_per_hour!r}: give a number, 0 or more.")
    return price_per_hour / 3600 / items_per_s


def program_energy(program: Program, config: RunConfig, *, calibrated: bool) -> Energy:
    """Energy of one run of a program: AMP FLOPs, memory traffic of busy tiles, exchanged bytes."""
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
