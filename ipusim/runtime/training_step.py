"""One training step: micro-batches, the reduction of gradients over replicas, the weight update.

Every replica does the same, so one is simulated; only collectives and the host see how many there
are.  A replica over several chips is a pipeline (`replica_pipeline`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from ipusim.compiler import memory
from ipusim.compiler.program_cache import lower_kept
from ipusim.compiler.stacks import Stack
from ipusim.machine import Chip
from ipusim.runtime.calibration import FittedCosts
from ipusim.runtime.collectives import (
    Collective,
    all_gather,
    all_reduce,
    all_to_all,
    cross_ipu_reductions,
    reduce_scatter,
)
from ipusim.runtime.compile import REMEMBERED, Lowered
from ipusim.runtime.host.io import arriving_bytes, host_io
from ipusim.runtime.host.loader import host_feed
from ipusim.runtime.options.frameworks import load_framework
from ipusim.runtime.options.spec import RunConfig
from ipusim.runtime.replica.phases.plan import forward_splits
from ipusim.runtime.replica.phases.replica import phased_replica
from ipusim.runtime.replica.pipelined import Beside, Replica, pipelined_replica
from ipusim.runtime.step_result import (
    StepResult,
    compute_chip,
    program_energy,
    static_power_w,
)
from ipusim.workload.graph import Graph, Norm
from ipusim.workload.model import Model
from ipusim.workload.optimizers import norms_per_parameter, state_bytes
from ipusim.workload.serialization import SerialProduct, serialise
from ipusim.workload.training import TrainingGraphs, training_graphs

STATISTICS_BYTES = 8
"""Per channel: mean and mean square, or two sums of the gradient, in 32 bits (poplin Norms.cpp)."""

NORM_BYTES = 4
"""A sum of squares."""


@lru_cache(maxsize=REMEMBERED)
def _graphs(
    model: Model,
    micro_batch: int | None,
    precision: str,
    loss: str,
    optimizer: str,
    accumulates: bool,
    recompute: str | tuple[str, ...],
    batch_norm_span: int,
    shards: int,
    serial_products: tuple[SerialProduct, ...],
) -> TrainingGraphs:
    """Derive the graphs of a step; runs that differ only in scale share them."""
    graphs = training_graphs(
        model.graph(micro_batch, precision=precision),
        loss=loss,
        optimizer=optimizer,
        gradient_accumulation=2 if accumulates else 1,
        recompute=recompute,
        batch_norm_span=batch_norm_span,
        shards=shards,
    )
    return replace(graphs, micro_batch=serialise(graphs.micro_batch, serial_products))


@lru_cache(maxsize=REMEMBERED)
def _lowered(
    graph_key: tuple[object, ...],
    chip: Chip,
    stack: Stack,
    partials: str,
    available_memory_proportion: float,
    host_dtype: str | None,
) -> Lowered:
    """Lower the micro-batch and the update; the most expensive part of a simulation."""
    graphs = _graphs(*graph_key)
    options = {
        "partials": partials,
        "available_memory_proportion": available_memory_proportion,
    }
    return Lowered(
        graph=graphs.micro_batch,
        program=lower_kept(graphs.micro_batch, chip, stack, host_dtype=host_dtype, **options),
        update=Lowered(
            graph=graphs.update,
            program=lower_kept(graphs.update, chip, stack, host_dtype=None, **options),
        ),
    )


def _graph_key(model: Model, config: RunConfig) -> tuple[object, ...]:
    """Return what the graphs of a step depend on.

    In phases, automatic recomputation keeps what crosses from one to the next (PopART recomputes
    all else where it recomputes by itself, willow/src/transforms/streamingmemory.cpp).
    """
    recompute = config.recompute
    if not config.phased or recompute != "auto":
        return _key(model, config, recompute)
    plain = _graphs(*_key(model, config, "none")).micro_batch
    return _key(model, config, forward_splits(plain, config))


def _key(model: Model, config: RunConfig, recompute: str | tuple[str, ...]) -> tuple[object, ...]:
    return (
        model,
        config.micro_batch,
        config.precision,
        config.loss or model.loss,
        config.optimizer,
        config.gradient_accumulation > 1,
        recompute,
        config.batch_norm_span,
        config.replicas if config.replicated_tensor_sharding else 1,
        config.serial_products,
    )


def _lower(model: Model, config: RunConfig, chip: Chip) -> Lowered:
    return _lowered(
        _graph_key(model, config),
        chip,
        config.stack,
        config.partials,
        config.available_memory_proportion,
        config.host_dtype,
    ).as_rewritten(chip)


def micro_batch_graph(model: Model, config: RunConfig) -> Graph:
    """Return the graph that one micro-batch of a training run computes."""
    return _graphs(*_graph_key(model, config)).micro_batch


def training_step(
    model: Model, config: RunConfig, *, costs: FittedCosts, calibrated: bool
) -> StepResult:
    """Simulate one training step.

    Parameters
    ----------
    model : Model
    config : RunConfig
        In the mode "training".
    costs : FittedCosts
        Fitted costs; zeros in the specification tier.
    calibrated : bool
        Whether the fitted factors on energy apply.

    Returns
    -------
    StepResult
        ``items`` counts all micro-batches of a step; ``latency_s`` is the step.

    Raises
    ------
    ConfigError
        If the model has no loss or the pipeline more stages than operators.
    WorkloadError
        If an operator has no gradient.
    """
    chip = compute_chip(config)
    graphs = _graphs(*_graph_key(model, config))
    lowered = _lower(model, config, chip)
    graph, program, update = lowered.graph, lowered.program, lowered.update.program
    items = config.items(graph)
    accumulation = config.gradient_accumulation
    io = host_io(graph, config)
    reductions = _norm_reductions(graph, config, costs)
    state = state_bytes(graphs.update)
    on_chip = state if config.optimizer_state == "on_chip" else 0
    # Phases stream it in their own time.
    streamed = 0 if config.phased else state - on_chip
    beside = Beside(
        transfers_s=io.exposed_s,
        host_work_s=io.work_s,
        reductions_s=reductions,
    )
    replica = _replica(lowered, tuple(graphs.gradient_bytes), chip, config, on_chip, beside)
    samples = accumulation * items * config.replicas
    parts = {
        **replica.parts_s,
        **_collectives_s(graphs, replica, config, costs),
        "weight update": replica.update_s,
        "optimiser state": _off_chip_s(streamed, config) * _turns(config),
        "all-to-all": accumulation * _all_to_all_s(graph, config, costs),
        "streamed rows": accumulation * _off_chip_s(_row_bytes(graphs), config),
        "fixed": _fixed_s(replica, costs),
        "host between runs": samples / config.instances * config.serial_item_s,
    }
    prepared = arriving_bytes(graph, config, set(graph.inputs) - set(model.repeated_inputs))
    feed = host_feed(
        config.system,
        config.instances,
        config.dataset,
        workers_per_instance=config.loader_workers,
        item_bytes=prepared // items,
        item_s=config.loader_item_s,
        loader=load_framework(config.framework).loader,
        servers=config.host_servers,
    )
    busy = sum(parts.values())
    # No copy goes on beside what an instance does between two runs of the device.
    between = parts["host between runs"]
    fed = max(accumulation * io.sustained_s + between, samples / feed.items_per_s)
    step = max(busy, fed)
    parts["waiting for the host"] = step - busy
    energy = program_energy(program, config, calibrated=calibrated).times(accumulation)
    energy += program_energy(update, config, calibrated=calibrated)
    static = static_power_w(config.system, config.active_ipus)
    return StepResult(
        items=accumulation * items,
        graph=graph,
        program=program,
        update=update,
        memory=replica.memory,
        stages=replica.stages,
        pipeline=replica.pipeline,
        io=io,
        parts_s={name: seconds for name, seconds in parts.items() if seconds},
        device_s=program.cycles / chip.clock_hz,
        fixed_s=parts["fixed"],
        step_s=step,
        latency_s=step,
        throughput_items_per_s=samples / step,
        energy=energy,
        static_w=static,
        power_w=static + config.replicas * energy.total_j / step,
    )


def _fixed_s(replica: Replica, costs: FittedCosts) -> float:
    """Seconds of the fixed cost: once per weight update, in a pipeline once per cycle of it.

    [A] In each cycle of a pipeline the host is read and all chips of the replica meet, as in a
    batch of inference. Taken up after seeing that pipelines of every family come out too fast, by
    0.4 to 1.5 ms per cycle, and replicas of one chip do not.
    """
    return costs.step_s * (replica.pipeline.steps if replica.pipeline else 1)


def _replica(
    lowered: Lowered,
    parameters: tuple[str, ...],
    chip: Chip,
    config: RunConfig,
    resident_bytes: int,
    beside: Beside,
) -> Replica:
    """Return what the chips of one replica do in a step."""
    program, update = lowered.program, lowered.update.program
    times = config.micro_batches
    if config.phased:
        phased = phased_replica(lowered, chip, config)
        return replace(phased, parts_s={**phased.parts_s, **beside.parts_s(times)})
    if config.ipus_per_replica > 1:
        return pipelined_replica(
            lowered,
            chip=chip,
            config=config,
            resident_bytes=resident_bytes,
            beside=beside,
        )
    return Replica(
        parts_s={"device": times * program.cycles / chip.clock_hz, **beside.parts_s(times)},
        update_s=update.cycles / chip.clock_hz,
        parameters=(parameters,),
        memory=memory.measure(
            lowered.graph, program, chip, update=update, resident_bytes=resident_bytes
        ),
    )


def _collectives_s(
    graphs: TrainingGraphs, replica: Replica, config: RunConfig, costs: FittedCosts
) -> dict[str, float]:
    """Seconds of what replicas exchange for an update; the chips of a replica do so side by side.

    Either gradients are added up on all of them; or each gets its part of the sums, updates its
    part of the weights, and all parts are gathered, with the sums of squares that some rules need
    of a whole weight added up in between (PopART, replicated tensor sharding). Phases that load
    their part of the weights gather it each time instead.

    [A] Each chip exchanges its own tensors, over links to its own twins in other replicas.
    """
    sizes = graphs.gradient_bytes
    held = [[name for name in chip if name in sizes] for chip in replica.parameters]

    def longest(collective: Callable[..., Collective], tensors: list[list[int]]) -> float:
        return max(
            collective(
                config.system,
                config.replicas,
                config.ipus_per_replica,
                of_chip,
                config.merge_gradients_bytes or None,
                costs.collective_s,
            ).seconds
            for of_chip in tensors
        )

    gradients = [[sizes[name] for name in chip] for chip in held]
    if not config.replicated_tensor_sharding:
        return {"gradient all-reduce": longest(all_reduce, gradients)}
    norms = norms_per_parameter(config.optimizer)
    gathered = gradients if replica.gathers is None else [list(replica.gathers)]
    return {
        "gradient reduce-scatter": longest(reduce_scatter, gradients),
        "norm all-reduce": longest(all_reduce, [norms * len(chip) * [NORM_BYTES] for chip in held]),
        "weight all-gather": longest(all_gather, gathered),
    }


def _norm_reductions(graph: Graph, config: RunConfig, costs: FittedCosts) -> float:
    """Seconds per micro-batch of reductions for norms whose statistics replicas share."""
    total = 0.0
    sizes: dict[int, int] = {}
    for op in graph.ops:
        if isinstance(op.params, Norm) and op.params.replica_span > 1:
            size = STATISTICS_BYTES * op.params.channels
            sizes[size] = sizes.get(size, 0) + 1
    for size, count in sizes.items():
        total += cross_ipu_reductions(
            config.system,
            config.batch_norm_span,
            count,
            size,
            costs.reduction_s,
            config.ipus_per_replica,
        ).seconds
    return total


def _all_to_all_s(graph: Graph, config: RunConfig, costs: FittedCosts) -> float:
    """Seconds per micro-batch of exchanges between every two replicas."""
    sizes = [graph.tensors[op.outputs[0]].bytes for op in graph.ops if op.function == "all_to_all"]
    return all_to_all(
        config.system, config.replicas, config.ipus_per_replica, sizes, costs.collective_s
    ).seconds


def _row_bytes(graphs: TrainingGraphs) -> int:
    """Bytes of the rows of a table in Streaming Memory; moments are stored in the table's type."""
    total = 0
    for name in graphs.micro_batch.streamed:
        tensor = graphs.micro_batch.tensors[name]
        moments = [
            state
            for state in graphs.update.with_role("state")
            if state.name.startswith(f"{name}.") and not state.name.endswith(".gradient")
        ]
        total += (1 + len(moments)) * tensor.bytes
    return total


def _turns(config: RunConfig) -> int:
    """Return how many times in a weight update chips of a replica wait for others' state.

    All chips meet at a transfer of any, so transfers of several take place at once only where the
    program lists them side by side (`options.frameworks`).
    """
    return config.ipus_per_replica if load_framework(config.framework).state_in_turn else 1


def _off_chip_s(state_bytes: int, config: RunConfig) -> float:
    """Seconds to read and write state in the Streaming Memory of the machines.

    Every chip of a replica moves its own share at the rate of its link to the machine's memory.
    """
    share = state_bytes / config.ipus_per_replica
    return 2 * share / config.system.buffer_link_bytes_per_s_per_ipu
