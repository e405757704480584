"""SchNet: the energy of a cluster of water molecules from where its atoms are.

Schuett et al. (J. Chem. Phys. 148, 241722) in the form of PyTorch Geometric, with the sizes of the
HydroNet runs of Graphcore and PNNL: an edge's filter depends on its length alone, messages are
products of filters and neighbours' features.
"""

from ipusim.workload.zoo.layers.graphs import Edges, edges_between, index, take, total
from ipusim.workload.zoo.registry import Config, GraphBuilder, networks


@networks
def schnet(g: GraphBuilder, batch: int, c: Config) -> str:
    """SchNet, from atoms, their places and neighbours to one energy per cluster."""
    atoms = c.atoms * batch
    kinds = g.input("atoms", (atoms,), "int32")
    places = g.input("positions", (atoms, 3))
    count = atoms * c.neighbours
    edges = edges_between(g, ("sources", "targets"), (count,), atoms)
    cluster_of_atom = index(g, "batch", (atoms,), batch)
    x = g.embedding("embedding", kinds, c.atom_kinds, c.features)
    spread, cutoff = _distances(g, places, edges, c.gaussians)
    for number in range(c.interactions):
        x = _interaction(g.at(f"interactions.{number}"), x, spread, cutoff, edges, c.features)
    x = _shifted_softplus(g, "lin1.act", g.linear("lin1", x, c.features // 2))
    x = g.linear("lin2", x, 1)
    return total(g, "readout", x, cluster_of_atom)


def _distances(g: GraphBuilder, places: str, edges: Edges, gaussians: int) -> tuple[str, str]:
    """Return Gaussians of every edge's length, and the factor that fades long edges out."""
    (count,) = g.shape(edges.sources.numbers)
    source = take(g, "distance.source", places, edges.sources)
    target = take(g, "distance.target", places, edges.targets)
    apart = g.elementwise("distance.sub", "sub", source, target)
    squares = g.elementwise("distance.square", "square", apart)
    squares = g.reduce("distance.sum", "sum", squares, axis=1)
    length = g.column("distance.column", g.elementwise("distance", "sqrt", squares))
    x = g.expand("gaussians.spread", length, (count, gaussians))
    centres = g.constant("gaussians.offset", (gaussians,))
    x = g.elementwise("gaussians.sub", "sub", x, centres)
    x = g.at("gaussians").chain(x, square="square", scale="scale")
    cutoff = g.at("cutoff").chain(length, angle="scale", cos="cos", add="add", scale="scale")
    return g.elementwise("gaussians", "exp", x), cutoff


def _interaction(
    g: GraphBuilder, x: str, spread: str, cutoff: str, edges: Edges, features: int
) -> str:
    """Add one round of messages to the features of the atoms."""
    filters = _shifted_softplus(g, "mlp.1", g.linear("mlp.0", spread, features))
    filters = g.linear("mlp.2", filters, features)
    filters = g.elementwise("cutoff", "mul", filters, cutoff)
    y = g.linear("conv.lin1", x, features, bias=False)
    message = take(g, "conv.gather", y, edges.sources)
    message = g.elementwise("conv.filter", "mul", message, filters)
    y = total(g, "conv.sum", message, edges.targets)
    y = _shifted_softplus(g, "act", g.linear("conv.lin2", y, features))
    return g.elementwise("add", "add", g.linear("lin", y, features), x)


def _shifted_softplus(g: GraphBuilder, name: str, x: str) -> str:
    return g.elementwise(f"{name}.shift", "sub", g.elementwise(name, "softplus", x))
