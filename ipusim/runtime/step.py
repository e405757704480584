"""One step of a run: compiled once, priced as often as there are tiers."""

from __future__ import annotations

from functools import lru_cache

from ipusim.errors import ConfigError, resolve_name
from ipusim.runtime.calibration import FittedCosts, fitted_costs
from ipusim.runtime.compile import Compiled, compile_run
from ipusim.runtime.host.io import HostIo, host_io
from ipusim.runtime.options.config import TIERS
from ipusim.runtime.options.spec import RunConfig
from ipusim.runtime.replica.pipelined import Pipeline
from ipusim.runtime.replica.replica import Replica
from ipusim.runtime.replica.run import run_replica
from ipusim.runtime.step_result import StepResult, program_energy, static_power_w
from ipusim.runtime.terms import Beside, Terms
from ipusim.runtime.training_step import training_terms
from ipusim.workload.model import Model


def run_step(
    model: Model, config: RunConfig, *, tier: str, costs: FittedCosts | None = None
) -> StepResult:
    """Simulate one step.

    The tier "calibrated" adds the fitted constants of data/calibration.toml, or the `costs` given,
    "specification" nothing.
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
    compiled, replica, io, terms = _stated(model, config)
    priced = terms.price(costs)
    times, items = config.micro_batches, config.micro_batches * config.items(compiled.graph)
    energy = program_energy(compiled.program, config, calibrated=calibrated).times(times)
    update = compiled.update.program if compiled.update else None
    if update is not None:
        energy += program_energy(update, config, calibrated=calibrated)
    static = static_power_w(config.system, config.active_ipus)
    pipeline = None
    if isinstance(terms.schedule, Pipeline):
        pipeline = terms.schedule.whole(costs, terms.beside)
    return StepResult(
        items=items,
        graph=compiled.graph,
        program=compiled.program,
        update=update,
        memory=replica.memory,
        stages=replica.stages,
        pipeline=pipeline,
        io=io,
        terms=terms,
        parts_s=priced.parts_s,
        device_s=compiled.program.cycles / compiled.chip.clock_hz,
        fixed_s=priced.fixed_s,
        step_s=priced.step_s,
        latency_s=priced.latency_s,
        throughput_items_per_s=config.replicas * items / priced.step_s,
        energy=energy,
        static_w=static,
        power_w=static + config.replicas * energy.total_j / priced.step_s,
    )


def _stated(model: Model, config: RunConfig) -> tuple[Compiled, Replica, HostIo, Terms]:
    compiled = compile_run(model, config)
    return (compiled, *_terms(compiled, config))


@lru_cache(maxsize=1)
def _terms(compiled: Compiled, config: RunConfig) -> tuple[Replica, HostIo, Terms]:
    """State the terms of a run; the tiers of a run are mostly asked for one after the other."""
    replica = run_replica(compiled, config)
    io = host_io(compiled.graph, config)
    if config.training:
        return replica, io, training_terms(compiled, replica, io, config)
    return replica, io, _inference_terms(compiled, replica, io, config)


def _inference_terms(compiled: Compiled, replica: Replica, io: HostIo, config: RunConfig) -> Terms:
    """Return what one batch of inference consists of.

    The buffer holds one batch (defaultBufferingDepth 1 of PopART, prefetch_depth 1 of TensorFlow):
    the host refills it once the chip has read it.
    """
    times = config.micro_batches
    between = 0.0
    if config.serial_item_s:
        handled = times * config.items(compiled.graph) * config.replicas / config.instances
        between = handled * config.serial_item_s
    first = io.work_s
    if not config.overlap_io:
        first = io.exposed_s if config.batches_in_flight > 1 else 0.0
    return Terms(
        training=False,
        clock_hz=compiled.chip.clock_hz,
        schedule=replica.schedule,
        beside=None
        if config.overlap_io
        else Beside(transfers_s=io.exposed_s, host_work_s=io.work_s),
        host_s=times * (first + io.sustained_s),
        between_s=between,
        depth=config.batches_in_flight + replica.delay,
    )
