"""SchNet: the energy of a cluster of water molecules from where its atoms are.

Schuett et al. (J. Chem. Phys. 148, 241722) in the form of PyTorch Geometric, with the sizes of the
HydroNet runs of Graphcore and PNNL: an edge's filter depends on its length alone, messages are
products of filters and neighbours' features. On the IPU the network looks for the neighbours
itself (graphcore-research/hydronet-gnn at a89c2e4, hydronet/model.py).
"""

from ipusim.workload.graph import Elementwise
from ipusim.workload.zoo.layers.graphs import Edges, Index, edges_between, index, take, total
from ipusim.workload.zoo.registry import Config, GraphBuilder, networks


@networks
def schnet(g: GraphBuilder, batch: int, c: Config) -> str:
    """SchNet, from atoms and their places to one energy per cluster."""
    atoms = c.atoms * batch
    kinds = g.input("atoms", (atoms,), "int32")
    places = g.input("positions", (atoms, 3))
    cluster_of_atom = index(g, "batch", (atoms,), batch)
    if c.searches:
        edges, length = _nearest(g.at("search"), places, cluster_of_atom, c.neighbours)
    else:
        edges = edges_between(g, ("sources", "targets"), (atoms * c.neighbours,), atoms)
        length = _lengths(g, places, edges)
    x = g.embedding("embedding", kinds, c.atom_kinds, c.features)
    spread, cutoff = _spread(g, length, c.gaussians)
    for number in range(c.interactions):
        x = _interaction(g.at(f"interactions.{number}"), x, spread, cutoff, edges, c.features)
    x = _shifted_softplus(g, "lin1.act", g.linear("lin1", x, c.features // 2))
    x = g.linear("lin2", x, 1)
    return total(g, "readout", x, cluster_of_atom)


def _nearest(g: GraphBuilder, places: str, cluster: Index, count: int) -> tuple[Edges, str]:
    """Search among all atoms of the step for the nearest of each; return edges and lengths.

    KNNInteractionGraph of that code: distances of all pairs (torch.pairwise_distance: difference,
    eps, norm); the cutoff in their place where an atom meets itself, one of another cluster, or one
    beyond the cutoff; the nearest of every row. PopART folds no comparison of constants
    (willow/src/ces), so the masks are made in each step.
    """
    atoms, axes = g.shape(places)
    own = g.expand("own", g.reshape("row", places, (atoms, 1, axes)), (atoms, atoms, axes))
    apart = g.elementwise("eps", "add", g.elementwise("sub", "sub", own, places))
    length = g.elementwise("sqrt", "sqrt", g.reduce("norm", "sumsquare", apart, axis=2))
    numbers = g.constant("arange", (atoms,), "int32")
    mask = _truth(g, "diag", "equal", _each_row(g, "diag", numbers), numbers)
    other = _truth(g, "cross", "equal", _each_row(g, "cross", cluster.numbers), cluster.numbers)
    other = _truth(g, "cross.not", "not", other)
    mask = _truth(g, "diag_or_cross", "or", mask, other)
    mask = _truth(g, "mask", "or", mask, _truth(g, "outer", "greater", length))
    length = g.elementwise("neg", "neg", g.elementwise("masked_fill", "select", length, mask))
    length, nearest = g.top_k("topk", length, count)
    edges = (atoms * count,)
    length = g.elementwise("length", "neg", g.reshape("lengths", length, edges))
    sources, targets = g.reshape("sources", nearest, edges), g.constant("targets", edges, "int32")
    return Edges(Index(sources, atoms), Index(targets, atoms)), length


def _each_row(g: GraphBuilder, name: str, numbers: str) -> str:
    """Repeat (count,) numbers along the second axis of a square."""
    (count,) = g.shape(numbers)
    return g.expand(f"{name}.rows", g.column(f"{name}.column", numbers), (count, count))


def _truth(g: GraphBuilder, name: str, function: str, *read: str) -> str:
    """Add a function whose result is true or false."""
    shape = g.shape(read[0])
    work = Elementwise.of(function, shape, "bool", *(g.tensors[tensor] for tensor in read))
    return g.apply(name, work, read, shape, dtype="bool")


def _lengths(g: GraphBuilder, places: str, edges: Edges) -> str:
    """Return how far the ends of given edges are apart."""
    source = take(g, "distance.source", places, edges.sources)
    target = take(g, "distance.target", places, edges.targets)
    apart = g.elementwise("distance.sub", "sub", source, target)
    squares = g.elementwise("distance.square", "square", apart)
    squares = g.reduce("distance.sum", "sum", squares, axis=1)
    return g.elementwise("distance", "sqrt", squares)


def _spread(g: GraphBuilder, length: str, gaussians: int) -> tuple[str, str]:
    """Return Gaussians of every edge's length, and the factor that fades long edges out."""
    (count,) = g.shape(length)
    length = g.column("distance.column", length)
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
