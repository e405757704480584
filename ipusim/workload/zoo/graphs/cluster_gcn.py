"""Cluster-GCN: node classification on parts of a large graph.

Chiang et al. (arXiv 1905.07953), as graphcore/examples trains it (tag v3.2.0,
gnn/cluster_gcn/tensorflow2): METIS cuts the training graph into clusters; a step takes some of
them with the edges between their nodes, padded to a fixed size. An item of a micro-batch is such a
step. The adjacency is a dense matrix for one data set and a list of edges for the others.
"""

from collections.abc import Callable
from math import ceil

from ipusim.errors import WorkloadError
from ipusim.workload.zoo.layers.graphs import Edges, edges_between, take, total
from ipusim.workload.zoo.registry import Config, GraphBuilder, networks

Multiply = Callable[[str, str], str]
"""Sums over every node's neighbours, weighted: name and features."""


def slots(c: Config) -> tuple[int, int, int]:
    """Return the nodes and edges that a step is padded to, and how many of the edges only fill up.

    Partitions are not public, so how many edges stay within clusters is not known. [assumed] All of
    them do, as far as a cluster has other nodes to lead to: an upper bound, with the mean degree of
    the whole data set.
    """
    nodes = c.nodes * c.per_step / c.clusters
    edges = nodes * min(c.links / c.linked_nodes, c.nodes / c.clusters - 1)
    padded = ceil(edges * (1 + c.edge_margin))
    return ceil(nodes * (1 + c.node_margin)), padded, padded - int(edges)


@networks
def cluster_gcn(g: GraphBuilder, batch: int, c: Config) -> str:
    """From one padded step to scores (nodes, labels), of a data set that is cut into clusters."""
    if batch != 1:
        raise WorkloadError(
            f"Micro-batch {batch} of {g.name!r} must be 1: an item is a whole group "
            "of clusters that share an adjacency. Use gradient accumulation or more replicas."
        )
    # The spare node takes the edges that only fill up; a matrix is filled up with zeros.
    nodes, *edges = slots(c)
    nodes += not c.dense
    x = g.input("features", (nodes, c.features * (2 if c.precalculated else 1)))
    multiply = _dense(g, nodes) if c.dense else _sparse(g, nodes, *edges, enhanced=c.enhanced)
    for layer in range(c.layers):
        last = layer == c.layers - 1
        name = "output" if last else f"gcn_{layer}"
        if layer or not c.precalculated:
            around = multiply(f"{name}.adjacency", x)
            x = g.concat(f"{name}.concat", around, x, axis=1)
        x = g.dropout(f"{name}.dropout", x)
        x = g.linear(name, x, c.labels if last else c.hidden, bias=False)
        if not last:
            x = g.layer_norm(f"{name}.norm", x)
            x = g.elementwise(f"{name}.relu", "relu", x)
    return x


def _dense(g: GraphBuilder, nodes: int) -> Multiply:
    """Divide the rows of a 0/1 matrix by their sums, as the product with a diagonal matrix."""
    given, own = g.input("adjacency", (nodes, nodes), "bool"), g.at("adjacency")
    matrix = own.cast("cast", given, "float32")
    sums = own.column("column", own.reduce("sums", "sum", matrix, axis=1))
    inverse = own.chain(sums, floor="max", inverse="reciprocal")
    # A diagonal matrix is made by choosing, by position, between the vector and zeros.
    spread = own.expand("spread", inverse, (nodes, nodes))
    diagonal = own.elementwise("diagonal", "select", spread)
    normalised = own.matmul("normalised", diagonal, matrix)
    return lambda name, x: g.matmul(name, normalised, x)


def _sparse(g: GraphBuilder, nodes: int, count: int, padding: int, *, enhanced: bool) -> Multiply:
    """Weigh the edges of a list by the sums of the rows that they belong to."""
    # One edge of every node to itself is in the list, of weight 0 at first.
    count += nodes
    edges = edges_between(g, ("edge_sources", "edge_targets"), (count,), nodes, padding)
    given, own = g.input("edge_values", (count, 1), "bool"), g.at("adjacency")
    values = own.cast("cast", given, "float32")
    sums = total(own, "sums", values, edges.targets)
    if enhanced:
        loops = _self_loops(own, edges)
        ones = own.constant("ones", (nodes, 1))
        values = _add_at(own.at("self"), values, ones, loops)
        sums = own.elementwise("self.sums", "add", sums)
    else:
        sums = own.elementwise("floor", "max", sums)
    inverse = own.elementwise("inverse", "reciprocal", sums)
    values = own.elementwise("scaled", "mul", values, take(own, "at_edges", inverse, edges.targets))
    if enhanced:
        diagonal = own.gather("enhance.read", values, loops)
        diagonal = own.elementwise("enhance.scale", "scale", diagonal)
        values = _add_at(own.at("enhance"), values, diagonal, loops)

    def multiply(name: str, x: str) -> str:
        at_edges = take(g, f"{name}.gather", x, edges.sources)
        weighted = g.elementwise(f"{name}.weight", "mul", at_edges, values)
        return total(g, f"{name}.sum", weighted, edges.targets)

    return multiply


def _self_loops(g: GraphBuilder, edges: Edges) -> str:
    """Find the edges of nodes to themselves: mark them, sort, take the first of the list."""
    (count,), nodes = g.shape(edges.sources.numbers), edges.sources.rows
    # The recipe asks for them three times; XLA computes equal expressions once.
    same = g.elementwise("loops.same", "equal", edges.targets.numbers, edges.sources.numbers)
    ordered = g.sort("loops.sort", g.elementwise("loops.mark", "select", same))
    first, _ = g.split("loops", ordered, (nodes, count - nodes), axis=0)
    return first


def _add_at(g: GraphBuilder, values: str, added: str, places: str) -> str:
    """Add (nodes, 1) values at their places among those of the edges."""
    count, _ = g.shape(values)
    placed = g.scatter_add("scatter", added, places, count)
    return g.elementwise("add", "add", values, placed)
