"""GIN: a graph isomorphism network that predicts one property of a molecule.

Xu et al. (arXiv 1810.00826) with edge features, as graphcore/examples trains it on graphs of the
size of ogbg-molhiv (tag v3.3.0, gnn/message_passing/tensorflow2). Every graph of a batch is a group
of its own: its edges reach only its nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ipusim.workload.graph import Graph
from ipusim.workload.layers import GraphBuilder
from ipusim.workload.model import Model
from ipusim.workload.zoo.layers.graphs import Edges, at_sources, sum_at_targets

ATOM_FEATURES = (119, 4, 12, 12, 10, 6, 6, 2, 2)
BOND_FEATURES = (5, 6, 2)
"""Values that each categorical feature may take (ogb.utils.features)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Sizes of the network and of its graphs.

    Attributes
    ----------
    name : str
    layers, latent, hidden : int
        Rounds of messages; features of a node; features inside the perceptron of a round.
    embedding : int
        Features of a node before the first round.
    nodes, edges : int
        Of one graph; edges are directed.
    uses_edges : bool
        Whether bonds are embedded, anew in each round, and added to messages.
    """

    name: str = "gin_molhiv"
    layers: int = 5
    latent: int = 300
    hidden: int = 600
    embedding: int = 100
    nodes: int = 24
    edges: int = 50
    uses_edges: bool = True


def build(micro_batch: int | None, *, topology: Topology) -> Graph:
    """Build the forward graph from atoms and bonds to one score per graph.

    Parameters
    ----------
    micro_batch : int or None
        Graphs per pass; None means 1.
    topology : Topology
    """
    g = GraphBuilder(topology.name)
    graphs, nodes = micro_batch or 1, topology.nodes
    atoms = g.input("nodes", (graphs, nodes, len(ATOM_FEATURES)), "int32")
    bonds = g.input("edges", (graphs, topology.edges, len(BOND_FEATURES)), "int32")
    ends = (graphs, topology.edges)
    edges = Edges(
        sources=g.input("senders", ends, "int32"),
        targets=g.input("receivers", ends, "int32"),
        nodes=nodes,
    )
    graph_of_node = g.input("node_graph_idx", (graphs, nodes), "int32")
    g.input("edge_graph_idx", ends, "int32")
    x = _embed(g, "atoms", atoms, ATOM_FEATURES, topology.embedding)
    bond_features = g.split("bonds.columns", bonds, (1,) * len(BOND_FEATURES), axis=2)
    for layer in range(topology.layers):
        width = g.shape(x)[-1]
        name = f"layers.{layer}"
        message = at_sources(g, f"{name}.gather", x, edges)
        if topology.uses_edges:
            bond = _sum_of_embeddings(g, f"{name}.bonds", bond_features, BOND_FEATURES, width)
            bond = g.reshape(f"{name}.bonds.graphs", bond, g.shape(message))
            message = g.elementwise(f"{name}.message", "add", message, bond)
        summed = sum_at_targets(g, f"{name}.sum", message, edges)
        factor = g.parameter(f"{name}.epsilon", (1,))
        factor = g.elementwise(f"{name}.epsilon.one", "add", factor)
        own = g.elementwise(f"{name}.own", "mul", x, factor)
        x = g.elementwise(f"{name}.add", "add", own, summed)
        x = g.reshape(f"{name}.rows", x, (graphs * nodes, width))
        x = _perceptron(g, f"{name}.mlp", x, topology)
        x = g.reshape(f"{name}.graphs", x, (graphs, nodes, topology.latent))
    pooled = g.scatter_add("pool", x, graph_of_node, 1)
    ones = g.parameter("pool.ones", (graphs, nodes, 1), "constant")
    count = g.scatter_add("pool.count", ones, graph_of_node, 1)
    count = g.elementwise("pool.count.floor", "max", count)
    pooled = g.elementwise("pool.mean", "div", pooled, count)
    pooled = g.reshape("pool.rows", pooled, (graphs, topology.latent))
    return g.finish(g.linear("output", pooled, 1))


def _embed(g: GraphBuilder, name: str, x: str, sizes: tuple[int, ...], width: int) -> str:
    graphs, count, _ = g.shape(x)
    columns = g.split(f"{name}.columns", x, (1,) * len(sizes), axis=2)
    y = _sum_of_embeddings(g, name, columns, sizes, width)
    return g.reshape(f"{name}.graphs", y, (graphs, count, width))


def _sum_of_embeddings(
    g: GraphBuilder, name: str, columns: tuple[str, ...], sizes: tuple[int, ...], width: int
) -> str:
    """Look every categorical feature up in a table of its own, and add the rows."""
    total = ""
    for number, (column, size) in enumerate(zip(columns, sizes, strict=True)):
        table = g.parameter(f"{name}.{number}.weight", (size, width))
        row = g.gather(f"{name}.{number}", table, column)
        total = g.elementwise(f"{name}.{number}.add", "add", total, row) if total else row
    return total


def _perceptron(g: GraphBuilder, name: str, x: str, topology: Topology) -> str:
    x = g.linear(f"{name}.0", x, topology.hidden)
    x = g.layer_norm(f"{name}.0.norm", x)
    x = g.elementwise(f"{name}.0.relu", "relu", x)
    x = g.linear(f"{name}.1", x, topology.latent)
    return g.elementwise(f"{name}.1.relu", "relu", x)


def gin_molhiv(topology: Topology | None = None) -> Model:
    """GIN with bond features: 1,725,006 parameters, 41.8 MMAC per graph of 24 atoms."""
    topology = topology or Topology()
    return Model(
        name=topology.name,
        family="mpnn",
        build=partial(build, topology=topology),
        source="arXiv 1810.00826, as in graphcore/examples tag v3.3.0",
        loss="binary_cross_entropy",
    )
