"""Compilation of a run: one key, one result, whatever the mode and the way a replica runs."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from typing import Any

from ipusim.compiler.program import LoweredOp, Program
from ipusim.compiler.program_cache import as_rewritten, lower_kept
from ipusim.compiler.stacks import Stack
from ipusim.machine import Chip
from ipusim.runtime.argument_copies import with_arguments, without_arguments
from ipusim.runtime.options.spec import OF_STACK, RunConfig
from ipusim.runtime.phase_splits import forward_splits
from ipusim.workload.folding import drop_dropout, fold_batch_norm, stable_norms
from ipusim.workload.graph import Graph
from ipusim.workload.model import Model
from ipusim.workload.optimizers import state_bytes
from ipusim.workload.serialization import SerialProduct, serialise
from ipusim.workload.training import Graphs, training_graphs

REMEMBERED = 128
"""Graphs, programs and cuts that a process remembers: the published runs of a mode have fewer."""
NO_UPDATE = Program(())
"""The weight update of inference."""
_ANY_CLOCK = 1

_program = lru_cache(maxsize=REMEMBERED)(lower_kept)
"""Lowers a graph; an update is the same graph at every micro-batch, and is lowered once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphJob:
    """What the graphs of a run depend on; runs that differ only in scale or chip share them.

    `training` are the options of `training_graphs`, none in inference.
    """

    model: Model
    micro_batch: int | None
    precision: str
    serial_products: tuple[SerialProduct, ...]
    stable_norm: bool
    training: tuple[tuple[str, Any], ...] = ()
    folds_batch_norm: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileJob:
    """What programs depend on, the key of every cache.

    The chip is without transfer tiles, the stack has the partials and the share of memory of the
    run. `arguments_in` says where operations copy their weights into functions: in the "program" of
    one chip or in each of its "stages" (`partition`), nowhere if empty. What phases load needs no
    copy.
    """

    graphs: GraphJob
    chip: Chip
    stack: Stack
    convolution_partials: str | None
    host_dtype: str | None
    arguments_in: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Compiled:
    """Graphs and programs of a run; each object its own key, so that what it is cut into is kept.

    `graph` is that of a micro-batch, and `program` lowered as if for one chip: a stage or phase has
    a whole chip to itself. `update` is the weight update of a training step with its own program,
    `gradient_bytes` those of each parameter that is trained. `timeless` is the same for any clock:
    what needs no seconds, such as memory, is measured once for it.
    """

    job: CompileJob
    graph: Graph
    program: Program
    update: Graph | None = None
    update_program: Program = NO_UPDATE
    gradient_bytes: Mapping[str, int] = field(default_factory=dict)
    timeless: Compiled | None = None

    @property
    def chip(self) -> Chip:
        """The chip that it was lowered for."""
        return self.job.chip

    @cached_property
    def state_bytes(self) -> int:
        """Bytes of optimiser state."""
        return state_bytes(self.update) if self.update else 0

    def as_rewritten(self) -> Compiled:
        """Return this with its programs as they are read here (`program_cache.rewritten`)."""
        program = as_rewritten(self.program, self.chip)
        if program is self.program:
            return self
        update = as_rewritten(self.update_program, self.chip)
        # Memory stays that of what was compiled.
        return replace(self, program=program, update_program=update)


def tile_steps(*programs: Program) -> int:
    """Count what a compiler generates for an executable: vertices on tiles, and their exchange."""
    # Repeated operations are outlined and generated once, and so are the repeats of a loop;
    # replicas share one executable. Copies of arguments are left out, as in a program to be cut.
    distinct: dict[tuple[object, ...], LoweredOp] = {}
    for program in programs:
        distinct |= without_arguments(program).distinct
    return sum(step.tiles for op in distinct.values() for step in op.steps)


def _accumulation(config: RunConfig) -> str:
    """Return what takes gradients into their accumulators, nothing if there is one micro-batch."""
    if config.gradient_accumulation == 1:
        return ""
    if not config.running_mean:
        return "scaled_add"
    return "counted_running_mean" if config.framework.counts_means else "running_mean"


def graph_job(model: Model, config: RunConfig) -> GraphJob:
    """Return what the graphs of a run depend on."""
    job = GraphJob(
        model=model,
        micro_batch=config.micro_batch,
        precision=config.precision,
        serial_products=config.serial_products,
        stable_norm=config.stable_norm,
    )
    if not config.training:
        return replace(job, folds_batch_norm=config.stack.fold_batch_norm)
    training = {
        "loss": config.loss or model.loss,
        "optimizer": config.optimizer,
        "accumulate": _accumulation(config),
        "accumulator_dtype": config.accumulator_dtype,
        "seeds_dropouts": config.framework.seeds_dropouts,
        "cross_entropy": config.framework.cross_entropy,
        "batch_norm_span": config.batch_norm_span,
        "sharding": config.sharding,
    }
    recompute = config.recompute
    if config.phased and recompute == "auto":
        # It keeps what crosses from one phase to the next; PopART recomputes all else where it
        # recomputes by itself (willow/src/transforms/streamingmemory.cpp).
        whole = graphs(replace(job, training=tuple(training.items()))).micro_batch
        recompute = forward_splits(whole, config)
    return replace(job, training=(*training.items(), ("recompute", recompute)))


@lru_cache(maxsize=REMEMBERED)
def graphs(job: GraphJob) -> Graphs:
    """Return the graphs that the stack would compile."""
    graph = job.model.graph(job.micro_batch, precision=job.precision)
    if job.stable_norm:
        graph = stable_norms(graph)
    if not job.training:
        graph = drop_dropout(graph)
        if job.folds_batch_norm and job.model.folds_batch_norm:
            graph = fold_batch_norm(graph)
        return Graphs(micro_batch=serialise(graph, job.serial_products))
    trained = training_graphs(graph, **dict(job.training))
    return replace(trained, micro_batch=serialise(trained.micro_batch, job.serial_products))


def compile_run(model: Model, config: RunConfig) -> Compiled:
    """Compile what one micro-batch of a run computes, and in training the weight update."""
    chip, arguments_in = config.system.chip, ""
    if config.framework.copies_arguments and "weights" not in config.off_chip:
        arguments_in = "program" if config.ipus_per_replica == 1 else "stages"
    job = CompileJob(
        graphs=graph_job(model, config),
        chip=replace(chip, tiles=chip.tiles - config.io_tiles),
        stack=replace(config.stack, **{name: getattr(config, name) for name in OF_STACK}),
        convolution_partials=config.convolution_partials,
        host_dtype=config.host_dtype,
        arguments_in=arguments_in,
    )
    return _compiled(job).as_rewritten()


@lru_cache(maxsize=REMEMBERED)
def _compiled(job: CompileJob) -> Compiled:
    """Compile for a chip, whose clock says how long cycles are and not which they are."""
    timeless = _lowered(replace(job, chip=replace(job.chip, clock_hz=_ANY_CLOCK)))
    return replace(timeless, job=job, timeless=timeless)


@contextmanager
def keeping_all() -> Iterator[None]:
    """Within this context nothing is collected: of all that is made, next to nothing is garbage."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@lru_cache(maxsize=REMEMBERED)
@keeping_all()
def _lowered(job: CompileJob) -> Compiled:
    """Lower the graphs of a job: the most expensive part of a simulation."""
    made = graphs(job.graphs)
    target = {"chip": job.chip, "stack": job.stack}
    lower = partial(_program, **target, convolution_partials=job.convolution_partials)
    program = lower(made.micro_batch, host_dtype=job.host_dtype)
    if job.arguments_in == "program":
        program = Program(with_arguments(made.micro_batch, program.ops, job.chip))
    return Compiled(
        job=job,
        graph=made.micro_batch,
        program=program,
        update=made.update,
        update_program=lower(made.update, host_dtype=None) if made.update else NO_UPDATE,
        gradient_bytes=made.gradient_bytes,
    )
