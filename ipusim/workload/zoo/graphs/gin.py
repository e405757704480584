"""GIN: a graph isomorphism network that predicts one property of a molecule.

Xu et al. (arXiv 1810.00826) with edge features, as graphcore/examples trains it on graphs of the
size of ogbg-molhiv (tag v3.3.0, gnn/message_passing/tensorflow2). Every graph of a batch is a group
of its own: its edges reach only its nodes.
"""

from ipusim.workload.zoo.layers.graphs import edges_between, index, sum_of_embeddings, take, total
from ipusim.workload.zoo.registry import Config, GraphBuilder, networks


@networks
def gin_molhiv(g: GraphBuilder, batch: int, c: Config) -> str:
    """GIN, from atoms and bonds, which it may leave out, to one score per graph.

    Bonds are embedded anew in each round, and added to messages.
    """
    graphs, nodes, ends = batch, c.nodes, (batch, c.edges)
    atoms = g.input("nodes", (graphs, nodes, len(c.atom_features)), "int32")
    bonds = g.input("edges", (*ends, len(c.bond_features)), "int32")
    edges = edges_between(g, ("senders", "receivers"), ends, nodes)
    graph_of_node = index(g, "node_graph_idx", (graphs, nodes), 1)
    g.input("edge_graph_idx", ends, "int32")
    x = sum_of_embeddings(g.at("atoms"), atoms, c.atom_features, c.embedding)
    for layer in range(c.rounds):
        messages = g.at(f"layers.{layer}")
        message = take(messages, "gather", x, edges.sources)
        if c.uses_edges:
            bond = sum_of_embeddings(messages.at("bonds"), bonds, c.bond_features, g.shape(x)[-1])
            message = messages.elementwise("message", "add", message, bond)
        summed = total(messages, "sum", message, edges.targets)
        factor = messages.elementwise("epsilon.one", "add", messages.parameter("epsilon", (1,)))
        own = messages.elementwise("own", "mul", x, factor)
        x = messages.elementwise("add", "add", own, summed)
        x = messages.layer_norm("mlp.0.norm", messages.linear("mlp.0", x, c.hidden))
        x = messages.linear("mlp.1", messages.elementwise("mlp.0.relu", "relu", x), c.latent)
        x = messages.elementwise("mlp.1.relu", "relu", x)
    pooled = total(g, "pool", x, graph_of_node)
    ones = g.constant("pool.ones", (graphs, nodes, 1))
    count = total(g, "pool.count", ones, graph_of_node)
    count = g.elementwise("pool.count.floor", "max", count)
    pooled = g.elementwise("pool.mean", "div", pooled, count)
    pooled = g.reshape("pool.rows", pooled, (graphs, c.latent))
    return g.linear("output", pooled, 1)
