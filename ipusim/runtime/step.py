"""One step of a run: compiled once, priced as often as there are tiers; and its roofline."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache, partial

from ipusim.compiler.memory import Memory, measure
from ipusim.compiler.program import Program
from ipusim.errors import ConfigError, resolve_name
from ipusim.machine.parts import Energy
from ipusim.runtime.calibration import FittedCosts, PowerScales, calibration, fitted_costs
from ipusim.runtime.compile import REMEMBERED, Compiled, compile_run, graph_job, graphs
from ipusim.runtime.host import HostIo, host_io, replicas_per_process
from ipusim.runtime.options.config import TIERS
from ipusim.runtime.options.spec import RunConfig
from ipusim.runtime.power import program_energy, static_power_w
from ipusim.runtime.replica.partition import Measured, Replica, Stage
from ipusim.runtime.replica.pipelined import pipelined_replica, staged_inference
from ipusim.runtime.terms import Beside, OneChip, Priced, Terms
from ipusim.runtime.training_step import after_passes, norm_reductions, prepared_s
from ipusim.workload.graph import Graph
from ipusim.workload.model import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult(Priced):
    """One step at the fitted `costs`: what it consists of (`terms`), what it reaches.

    `items` are those per replica and step. Graph, program and io are those of a micro-batch;
    `update` is the weight update, empty in inference, `measured` returns what the chips hold.
    `device_s` are the seconds of the program of one micro-batch on one chip. The throughput is that
    of all replicas, the dynamic energy that of one and a step, with the fitted factors in the
    calibrated tier. Watts are those of the cards or machines in use, without hosts: idle, and on
    average over the step.
    """

    items: int
    graph: Graph
    program: Program
    measured: Callable[[], Measured]
    io: HostIo
    update: Program
    terms: Terms
    costs: FittedCosts
    device_s: float
    throughput_items_per_s: float
    energy: Energy
    static_w: float
    power_w: float

    @property
    def memory(self) -> Memory:
        """Memory of the fullest chip."""
        return self.measured()[0]

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Stages of a replica over several chips."""
        return self.measured()[1]


def run_step(
    model: Model, config: RunConfig, *, tier: str, costs: FittedCosts | None = None
) -> StepResult:
    """Simulate one step: if calibrated, with the fitted constants or with the `costs` given."""
    tier = resolve_name("tier", tier, TIERS)
    if tier == "specification" and costs is not None:
        raise ConfigError(
            "The tier 'specification' has no fitted costs, but some were given: leave them out or "
            "use the tier 'calibrated'."
        )
    if not isinstance(costs, FittedCosts | None):
        raise ConfigError(f"The costs are {costs!r}: give FittedCosts, or leave them out.")
    calibrated = tier == "calibrated"
    if costs is None:
        names = config.stack.name, config.framework.name
        costs = fitted_costs(*names) if calibrated else FittedCosts()
    compiled = compile_run(model, config)
    replica, io, terms = _terms(compiled, config)
    priced = terms.price(costs)
    times, items = config.micro_batches, config.micro_batches * config.items
    scales = calibration().power if calibrated else PowerScales()
    energy = program_energy(compiled.program, config, scales).times(times)
    energy += program_energy(compiled.update_program, config, scales)
    static = static_power_w(config.system, config.active_ipus)
    return StepResult(
        **asdict(priced),
        items=items,
        graph=compiled.graph,
        program=compiled.program,
        update=compiled.update_program,
        measured=replica.measured,
        io=io,
        terms=terms,
        costs=costs,
        device_s=compiled.program.cycles / compiled.chip.clock_hz,
        throughput_items_per_s=config.replicas * items / priced.step_s,
        energy=energy,
        static_w=static,
        power_w=static + config.replicas * energy.total_j / priced.step_s,
    )


@lru_cache(maxsize=1)
def _terms(compiled: Compiled, config: RunConfig) -> tuple[Replica, HostIo, Terms]:
    """State the terms of a run; the tiers of a run are mostly asked for one after the other."""
    replica, io = _replica(compiled, config), host_io(compiled.graph, config)
    times, items, training = config.micro_batches, config.items, config.training
    between = times * items * config.replicas / (config.instances or 1) * config.serial_item_s
    if training:
        # No copy goes on beside what an instance does between two runs of the device.
        host_s, loader_s = times * io.sustained_s + between, prepared_s(compiled, config)
    else:
        # The buffer holds one batch (defaultBufferingDepth 1 of PopART, prefetch_depth 1 of
        # TensorFlow): the host refills it once the chip has read it.
        first = io.work_s
        if not config.overlap_io:
            first = io.exposed_s if config.batches_in_flight > 1 else 0.0
        host_s = times * (first + io.sustained_s)
        loader_s = times * replicas_per_process(config) * items * config.loader_item_s
    hidden = config.overlap_io and not training
    beside = Beside(
        transfers_s=io.exposed_s,
        host_work_s=io.rearranged_s + (0.0 if hidden else io.work_s),
        reductions=norm_reductions(compiled.graph, config),
    )
    terms = Terms(
        training=training,
        clock_hz=compiled.chip.clock_hz,
        schedule=replica.schedule,
        beside=None if hidden and not io.rearranged_s else beside,
        after=after_passes(compiled, replica, config) if training else {},
        host_s=host_s,
        loader_s=loader_s,
        between_s=between,
        depth=config.batches_in_flight + replica.delay,
        iterations=config.device_iterations,
    )
    return replica, io, terms


def _replica(compiled: Compiled, config: RunConfig) -> Replica:
    if config.phased:
        from ipusim.runtime.replica.phases.replica import phased_replica  # few runs have phases

        return phased_replica(compiled, config)
    if config.ipus_per_replica > 1:
        return (pipelined_replica if config.training else staged_inference)(compiled, config)
    resident = compiled.state_bytes if config.optimizer_state == "on_chip" else 0
    return Replica(
        schedule=OneChip(
            cycles=compiled.program.cycles,
            exchanges_each=compiled.program.exchanges,
            clock_hz=compiled.chip.clock_hz,
            times=config.micro_batches,
            update_cycles=compiled.update_program.cycles,
        ),
        measured=partial(_one_chip, compiled.timeless or compiled, resident),
        parameters=(tuple(compiled.gradient_bytes),),
    )


@lru_cache(maxsize=REMEMBERED)
def _one_chip(compiled: Compiled, resident_bytes: int) -> Measured:
    held = {"update": compiled.update_program, "resident_bytes": resident_bytes}
    return measure(compiled.graph, compiled.program, compiled.chip, **held), ()


def roofline_step_s(model: Model, config: RunConfig) -> tuple[float, int]:
    """Return the least seconds of one step, and the items of a replica in it.

    The baseline that every comparison prints beside the simulation: peak rates and nothing else.
    The largest of: arithmetic at the peak of the data type; every activation and parameter moved
    once through tile memory; every input of a convolution or product received once over the
    exchange; the host link. A training step is that for every micro-batch, forward and backward,
    shared evenly by the chips of a replica.
    """
    graph = graphs(graph_job(model, config)).micro_batch
    times = config.micro_batches
    chip = config.system.chip
    compute = 2 * graph.macs / chip.peak_flops_per_s(*config.product_dtypes)
    moved = sum(graph.tensors[name].bytes for op in graph.ops for name in (*op.inputs, *op.outputs))
    received = sum(
        graph.tensors[name].bytes
        for op in graph.ops
        if op.kind in ("conv", "matmul", "recurrent")
        for name in op.inputs
    )
    on_chip = max(compute, moved / chip.sram_bytes_per_s, received / chip.exchange_bytes_per_s)
    step = times * max(on_chip / config.ipus_per_replica, host_io(graph, config).sustained_s)
    items = config.items
    return step, times * items
