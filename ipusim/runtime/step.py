"""One step of a run: device, host and fixed costs put together; rates, latency and power."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ipusim.compiler import memory
from ipusim.compiler.lowering import lower
from ipusim.compiler.program import Program
from ipusim.errors import ConfigError, resolve_name
from ipusim.machine import Chip
from ipusim.machine.power import Energy
from ipusim.machine.system import System
from ipusim.runtime import calibration
from ipusim.runtime.host_io import HostIo, host_io
from ipusim.runtime.run_config import TIERS, RunConfig
from ipusim.workload.folding import fold_batch_norm
from ipusim.workload.graph import Graph
from ipusim.workload.model import Model

SRAM_BYTES_PER_CYCLE = 16
"""Memory traffic of a busy tile: one 64-bit load and one 64-bit store per cycle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one step does and takes.

    Attributes
    ----------
    items : int
        Items per replica and step.
    graph, program, memory, io
        What was run, how it was lowered, its memory, its host transfers.
    device_s : float
        Seconds of the program on one chip.
    fixed_s : float
        Fitted cost per step, 0 in the specification tier.
    step_s : float
        Seconds from one step to the next.
    latency_s : float
        Seconds from request to result: batches in flight times the step.
    throughput_items_per_s : float
        Items per second of all replicas.
    energy : Energy
        Dynamic energy of one chip and step; the calibrated tier applies the fitted factors.
    static_w, power_w : float
        Watts of the cards or machines in use, without hosts: idle, and on average over the step.
    """

    items: int
    graph: Graph
    program: Program
    memory: memory.Memory
    io: HostIo
    device_s: float
    fixed_s: float
    step_s: float
    latency_s: float
    throughput_items_per_s: float
    energy: Energy
    static_w: float
    power_w: float


def prepare_graph(model: Model, config: RunConfig) -> Graph:
    """Return the graph that the stack would compile for one micro-batch."""
    graph = model.graph(config.micro_batch, precision=config.precision)
    return fold_batch_norm(graph) if config.stack.fold_batch_norm else graph


def run_step(
    model: Model, config: RunConfig, *, tier: str, step_cost_s: float | None = None
) -> StepResult:
    """Simulate one step.

    Parameters
    ----------
    model : Model
    config : RunConfig
    tier : str
        "calibrated" adds the fitted constants, "specification" nothing.
    step_cost_s : float, optional
        Fixed cost per step instead of the one in data/calibration.toml.

    Returns
    -------
    StepResult

    Raises
    ------
    ConfigError
        If the tier is unknown or contradicts the given cost.
    """
    tier = resolve_name("tier", tier, TIERS)
    if tier == "specification" and step_cost_s is not None:
        raise ConfigError(
            f"The tier 'specification' has no fitted cost, but step_cost_s = {step_cost_s!r} was "
            "given: leave it out or use the tier 'calibrated'."
        )
    if step_cost_s is not None and not 0 <= step_cost_s < 1e6:
        raise ConfigError(f"The step cost is {step_cost_s!r} s: give 0 or more seconds.")
    calibrated = tier == "calibrated"
    fixed = 0.0
    if calibrated:
        fixed = calibration.step_cost_s(config.stack.name) if step_cost_s is None else step_cost_s
    graph = prepare_graph(model, config)
    chip = _compute_chip(config)
    program = lower(
        graph, chip, config.stack, partials=config.partials, host_dtype=config.host_dtype
    )
    io = host_io(graph, config)
    device = program.cycles / chip.clock_hz
    # Overlapped transfers hide the fixed cost as well: host and chip then run side by side.
    if config.overlap_io:
        step = max(device, io.work_s + io.sustained_s + fixed)
    else:
        step = max(device + io.work_s + io.exposed_s + fixed, io.sustained_s)
    items = config.micro_batch or _leading(graph)
    energy = _energy(program, config)
    if calibrated:
        amp, sram = calibration.power_scales()
        energy = energy.scaled(amp=amp, sram=sram)
    static = static_power_w(config.system, config.active_ipus)
    return StepResult(
        items=items,
        graph=graph,
        program=program,
        memory=memory.measure(graph, program, chip),
        io=io,
        device_s=device,
        fixed_s=fixed,
        step_s=step,
        latency_s=config.batches_in_flight * step,
        throughput_items_per_s=config.replicas * items / step,
        energy=energy,
        static_w=static,
        power_w=static + config.active_ipus * energy.total_j / step,
    )


def _compute_chip(config: RunConfig) -> Chip:
    """Return the chip without the tiles that only transfer."""
    chip = config.system.chip
    return replace(chip, tiles=chip.tiles - config.io_tiles) if config.io_tiles else chip


def _leading(graph: Graph) -> int:
    """Items of a step where the model fixes them: the leading size of its first input."""
    shape = graph.tensors[graph.inputs[0]].shape if graph.inputs else ()
    return shape[0] if shape and shape[0] > 0 else 1


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


def _energy(program: Program, config: RunConfig) -> Energy:
    """Energy of a step on one chip: AMP FLOPs, memory traffic of busy tiles, exchanged bytes."""
    busy = sum(
        step.repeats * (step.compute_cycles + step.copy_cycles) * step.tiles
        for step in program.steps
    )
    return config.system.power.energy(
        flops=2 * program.macs,
        sram_bytes=busy * SRAM_BYTES_PER_CYCLE,
        exchange_bytes=program.exchanged_bytes,
    )
