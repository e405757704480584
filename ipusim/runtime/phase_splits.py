"""Where the phases of a model begin."""

from ipusim.runtime.options.spec import RunConfig
from ipusim.workload.graph import Graph


def forward_splits(graph: Graph, config: RunConfig) -> tuple[str, ...]:
    """Return the forward operators of a graph after which the next phase begins."""
    return config.phase_splits or weight_splits(graph, config.phases)


def weight_splits(graph: Graph, phases: int) -> tuple[str, ...]:
    """Return where to cut a graph so that phases read about as many bytes of weights."""
    ops = [op for op in graph.ops if op.phase == "forward"]
    stored = {t.name: t.bytes for role in ("parameter", "constant") for t in graph.with_role(role)}
    costs = [sum(stored.get(name, 0) for name in dict.fromkeys(op.inputs)) for op in ops]
    total = sum(costs)
    splits: list[str] = []
    read = 0
    for index, cost in enumerate(costs):
        # A phase ends before the operator with which it would read more than its share, once it
        # reads any (graphcore/popart@sdk/poplar/3.3.0:willow/src/transforms/streamingmemory.cpp);
        # fewer phases result where few operators read most of the weights.
        full = read and (read + cost) * phases > total
        if full and len(splits) < phases - 1:
            splits.append(ops[index - 1].name)
            read = 0
        read += cost
    return tuple(splits)
