"""What a training step adds: reductions and collectives of replicas, state and rows off the chip.

Every replica does the same, so one is simulated; only collectives and the host see how many there
are.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial

from ipusim.compiler.tiles import ceil_div
from ipusim.runtime import collectives
from ipusim.runtime.compile import Compiled
from ipusim.runtime.host import arriving_bytes, fed_items_per_s
from ipusim.runtime.options.spec import RunConfig
from ipusim.runtime.replica.partition import Replica
from ipusim.runtime.terms import UPDATE
from ipusim.workload.graph import Graph, Norm
from ipusim.workload.optimizers import kept_states, norms

STATISTICS_BYTES = 8
"""Per channel: mean and mean square, or two sums of the gradient, in 32 bits (poplin Norms.cpp)."""

NORM_BYTES = 4
"""A sum of squares."""


def after_passes(
    compiled: Compiled, replica: Replica, config: RunConfig
) -> dict[str, collectives.Collective]:
    """Return what follows all micro-batches of a training step, by part."""
    graph, accumulation = compiled.graph, config.gradient_accumulation
    # Phases stream it in their own time.
    off_chip = config.optimizer_state == "off_chip" and not config.phased
    state = compiled.state_bytes if off_chip else 0
    # All chips of a replica meet at a transfer of any, so transfers of several take place at once
    # only where the program lists them side by side (`options.frameworks`).
    turns = config.ipus_per_replica if config.framework.state_in_turn else 1
    sent = [graph.tensors[op.outputs[0]].bytes for op in graph.ops if op.function == "all_to_all"]
    replicas = (config.system, config.replicas, config.ipus_per_replica)
    return {
        **_collectives(compiled, replica, config),
        UPDATE: collectives.NOTHING,
        "optimiser state": _off_chip(turns * state, config),
        "all-to-all": collectives.all_to_all(*replicas, sent, passes=accumulation),
        "streamed rows": _off_chip(accumulation * _row_bytes(compiled), config),
    }


def prepared_s(compiled: Compiled, config: RunConfig) -> float:
    """Return the seconds in which loaders prepare the items of a step."""
    graph, samples = compiled.graph, config.micro_batches * config.items * config.replicas
    repeated = set(compiled.job.graphs.model.repeated_inputs)
    arriving = arriving_bytes(graph, config, set(graph.inputs) - repeated)
    return samples / fed_items_per_s(config, arriving // config.items)


def _collectives(
    compiled: Compiled, replica: Replica, config: RunConfig
) -> dict[str, collectives.Collective]:
    """Return what replicas exchange for an update, the chips of a replica one after the other.

    Either gradients are added up on all of them; or, if a weight is sharded, each gets its part of
    the sum, updates its part of the weight, and all parts are gathered, with the sums of squares
    that some rules need of a whole weight added up in between. The replicas of a sharding domain do
    that among themselves; their parts of the sum are first added to those of the other domains
    (willow/src/transforms/streamingmemoryopinserter.cpp, RTSAllReduceToScatter). Only all-reduces
    are joined, and none of a part's update that is a function of its own: PopART joins others from
    SDK 3.0 on, with options that no application sets (mergeReduceScatterCollectives,
    mergeAllGatherCollectives). Phases that load their part of the weights gather it each time
    instead.

    Each chip exchanges its own tensors with its like in other replicas. All chips meet at such an
    exchange, and those of several are side by side only where they are joined: else PopART lists
    loads and stores of optimiser state alone so (willow/src/transforms/
    accumulateouterfragmentparallelizer.cpp).
    """
    weights, sizes, sharding = compiled.graph.tensors, compiled.gradient_bytes, config.sharding
    framework, merged = config.framework, config.merge_gradients_bytes
    domain = config.sharding_domain

    def exchanged(*, sharded: bool) -> list[list[str]]:
        return [
            [n for n in chip if n in sizes and (sharding.parts(weights[n]) > 1) == sharded]
            for chip in replica.parameters
        ]

    def run(
        collective: Callable[..., collectives.Collective],
        tensors: list[list[int]],
        merged: int = 0,
        replicas: int = domain,
    ) -> collectives.Collective:
        if merged and framework.joins_chips:
            tensors = [max(tensors, key=sum)]
        joined = [size for chip in tensors for size in collectives.merged_sizes(chip, merged)]
        return collective(config.system, replicas, config.ipus_per_replica, joined)

    names = exchanged(sharded=True)
    parts = [[sizes[name] for name in chip] for chip in names]
    whole = [[sizes[name] for name in chip] for chip in exchanged(sharded=False)]
    shards = [[ceil_div(size, domain) for size in chip] for chip in parts]
    between = partial(collectives.all_reduce, apart=domain)
    merged_squares = 0 if framework.parts_apart else merged
    squares = [
        [NORM_BYTES for name in chip for _ in range(norms(config.optimizer, weights[name]))]
        for chip in names
    ]
    gathered = [[weights[name].bytes for name in chip] for chip in names]
    if replica.gathers is not None:
        gathered = [list(replica.gathers)]
    return {
        "gradient all-reduce": run(collectives.all_reduce, whole, merged, config.replicas),
        "gradient reduce-scatter": run(collectives.reduce_scatter, parts),
        "shard all-reduce": run(between, shards, merged, config.replicas),
        "norm all-reduce": run(collectives.all_reduce, squares, merged_squares),
        "weight all-gather": run(collectives.all_gather, gathered),
    }


def norm_reductions(graph: Graph, config: RunConfig) -> tuple[collectives.Collective, ...]:
    """Return the reductions of a micro-batch for norms whose statistics replicas share."""
    found = (op.params for op in graph.ops if isinstance(op.params, Norm))
    sizes = Counter(STATISTICS_BYTES * one.channels for one in found if one.replica_span > 1)
    return tuple(
        collectives.cross_ipu_reductions(
            config.system, config.batch_norm_span, count, size, config.ipus_per_replica
        )
        for size, count in sizes.items()
    )


def _row_bytes(compiled: Compiled) -> int:
    """Bytes of the rows of a table in Streaming Memory; moments are stored in the table's type."""
    states, total = kept_states(compiled.update), 0
    for name in compiled.graph.streamed:
        moments = sum(state.name.startswith(f"{name}.") for state in states)
        total += (1 + moments) * compiled.graph.tensors[name].bytes
    return total


def _off_chip(state_bytes: int, config: RunConfig) -> collectives.Collective:
    """Cost of reading and writing state in Streaming Memory, by each chip its share of it."""
    share = state_bytes / config.ipus_per_replica
    seconds = 2 * share / config.system.buffer_link_bytes_per_s_per_ipu
    return collectives.Collective(transfer_s=seconds)
