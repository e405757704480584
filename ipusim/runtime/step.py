"""One step of a run: device, host and fixed costs put together; rates, latency and power."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ipusim.compiler import memory
from ipusim.compiler.program_cache import lower_kept
from ipusim.compiler.stacks import Stack
from ipusim.errors import ConfigError, resolve_name
from ipusim.machine import Chip
from ipusim.runtime.calibration import FittedCosts, fitted_costs
from ipusim.runtime.compile import REMEMBERED, Lowered
from ipusim.runtime.host.io import host_io
from ipusim.runtime.options.config import TIERS
from ipusim.runtime.options.spec import RunConfig
from ipusim.runtime.replica.inference import shared_inference
from ipusim.runtime.replica.partition import Stage
from ipusim.runtime.replica.phases.replica import phased_replica
from ipusim.runtime.step_result import (
    StepResult,
    compute_chip,
    program_energy,
    static_power_w,
)
from ipusim.runtime.training_step import training_step
from ipusim.workload.folding import drop_dropout, fold_batch_norm
from ipusim.workload.graph import Graph
from ipusim.workload.model import Model
from ipusim.workload.serialization import SerialProduct, serialise

MAX_COST_S = 1e6
"""Largest fitted cost that is taken: beyond it something is wrong with its unit."""


def prepare_graph(model: Model, config: RunConfig) -> Graph:
    """Return the graph that the stack would compile for one micro-batch of inference."""
    return _prepared(
        model, config.stack, config.micro_batch, config.precision, config.serial_products
    )


@lru_cache(maxsize=8)
def _prepared(
    model: Model,
    stack: Stack,
    micro_batch: int | None,
    precision: str,
    serial_products: tuple[SerialProduct, ...],
) -> Graph:
    graph = drop_dropout(model.graph(micro_batch, precision=precision))
    folds = stack.fold_batch_norm and model.folds_batch_norm
    return serialise(fold_batch_norm(graph) if folds else graph, serial_products)


@dataclass(frozen=True, slots=True)
class _Compiled:
    """What is the same in every run of a graph on a chip: nothing of it depends on a tier."""

    lowered: Lowered
    memory: memory.Memory


@lru_cache(maxsize=REMEMBERED)
def _compiled(
    model: Model,
    chip: Chip,
    stack: Stack,
    micro_batch: int | None,
    precision: str,
    serial_products: tuple[SerialProduct, ...],
    partials: str,
    available_memory_proportion: float,
    host_dtype: str | None,
) -> _Compiled:
    graph = _prepared(model, stack, micro_batch, precision, serial_products)
    program = lower_kept(
        graph,
        chip,
        stack,
        partials=partials,
        host_dtype=host_dtype,
        available_memory_proportion=available_memory_proportion,
    )
    lowered = Lowered(graph=graph, program=program)
    return _Compiled(lowered, memory.measure(graph, program, chip))


def run_step(
    model: Model, config: RunConfig, *, tier: str, costs: FittedCosts | None = None
) -> StepResult:
    """Simulate one step.

    Parameters
    ----------
    model : Model
    config : RunConfig
    tier : str
        "calibrated" adds the fitted constants, "specification" nothing.
    costs : FittedCosts, optional
        Fitted costs instead of those in data/calibration.toml.

    Returns
    -------
    StepResult

    Raises
    ------
    ConfigError
        If the tier is unknown or contradicts the given costs, or a training run makes no sense.
    """
    tier = resolve_name("tier", tier, TIERS)
    if tier == "specification" and costs is not None:
        raise ConfigError(
            "The tier 'specification' has no fitted costs, but some were given: leave them out or "
            "use the tier 'calibrated'."
        )
    calibrated = tier == "calibrated"
    if costs is None:
        costs = fitted_costs(config.stack.name) if calibrated else FittedCosts()
    for cost in (costs.step_s, costs.reduction_s, costs.collective_s):
        if not 0 <= cost < MAX_COST_S:
            raise ConfigError(f"A fitted cost is {cost!r} s: give 0 or more seconds.")
    if config.training:
        return training_step(model, config, costs=costs, calibrated=calibrated)
    return _inference_step(model, config, costs=costs, calibrated=calibrated)


def _inference_step(
    model: Model, config: RunConfig, *, costs: FittedCosts, calibrated: bool
) -> StepResult:
    chip = compute_chip(config)
    compiled = _compiled(
        model,
        chip,
        config.stack,
        config.micro_batch,
        config.precision,
        config.serial_products,
        config.partials,
        config.available_memory_proportion,
        config.host_dtype,
    )
    lowered = compiled.lowered.as_rewritten(chip)
    graph, program = lowered.graph, lowered.program
    io = host_io(graph, config)
    # What runs one after the other between two batches on a chip, without the host.
    parts, used, delay = {"device": program.cycles / chip.clock_hz}, compiled.memory, 0
    stages: tuple[Stage, ...] = ()
    if config.phased:
        phased = phased_replica(lowered, chip, config)
        parts, used, stages = dict(phased.parts_s), phased.memory, phased.stages
    elif config.ipus_per_replica > 1:
        shared = shared_inference(lowered, chip, config)
        parts, used, delay, stages = shared.parts_s, shared.memory, shared.delay, shared.stages
    times = config.micro_batches
    # Overlapped transfers hide the fixed cost as well: host and chip then run side by side.
    busy = sum(parts.values())
    if config.overlap_io:
        step = max(busy, times * (io.work_s + io.sustained_s) + costs.step_s)
    else:
        transfers = {"transfers": times * io.exposed_s, "host work": times * io.work_s}
        parts |= transfers | {"fixed": costs.step_s}
        step = sum(parts.values())
        # The buffer holds one batch (defaultBufferingDepth 1 of PopART, prefetch_depth 1 of
        # TensorFlow): the host refills it once the chip has read it.
        read = io.exposed_s if config.batches_in_flight > 1 else 0.0
        step = max(step, times * (read + io.sustained_s))
    parts["waiting for the host"] = step - sum(parts.values())
    latency = (config.batches_in_flight + delay) * step
    items = times * config.items(graph)
    if config.serial_item_s:
        handled = items * config.replicas / config.instances
        parts["host between runs"] = handled * config.serial_item_s
        step += parts["host between runs"]
    energy = program_energy(program, config, calibrated=calibrated).times(times)
    static = static_power_w(config.system, config.active_ipus)
    return StepResult(
        items=items,
        graph=graph,
        program=program,
        memory=used,
        stages=stages,
        io=io,
        parts_s=parts,
        device_s=program.cycles / chip.clock_hz,
        fixed_s=costs.step_s,
        step_s=step,
        latency_s=latency,
        throughput_items_per_s=config.replicas * items / step,
        energy=energy,
        static_w=static,
        power_w=static + config.replicas * energy.total_j / step,
    )
