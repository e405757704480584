"""GPS++: messages along bonds beside attention between all atoms, for one property of a molecule.

Masters et al. (arXiv 2302.02947), as graphcore/examples trains it on PCQM4Mv2 (tag v3.3.0,
gnn/ogb_lsc_pcqm4mv2/tensorflow2, configs/GPS_PCQ_16gps_44M.yaml). An item is a pack of molecules,
whose edges reach only its own nodes; one node, edge and molecule of it take the padding. Three
heads leave their errors: of the property, and of guessing the features of atoms and bonds. What the
host masks or perturbs costs the chip nothing.
"""

from math import prod

from ipusim.workload.zoo.layers import graphs
from ipusim.workload.zoo.layers.transformer import Shape, attention, feed_forward
from ipusim.workload.zoo.registry import Config, GraphBuilder, networks

State = tuple[str, str, str]
"""What is known of nodes, edges and molecules."""
Links = tuple[graphs.Edges, graphs.Index, graphs.Index]
"""The ends of edges, and the molecules of nodes and edges."""


def _perceptron(g: GraphBuilder, x: str, hidden: int, width: int, act: str = "gelu") -> str:
    x = g.layer_norm("norm", g.linear("0", x, hidden))
    return g.linear("1", g.elementwise("act", act, x), width)


def _encoded(g: GraphBuilder, x: str, width: int) -> str:
    """Add the perceptron of a positional or structural feature, which is normalised first."""
    x = _perceptron(g, g.layer_norm("prenorm", x), 2 * width, width, "relu")
    return _drop_rows(g, "dropout", x)


def _drop_rows(g: GraphBuilder, name: str, x: str) -> str:
    """Drop whole rows: one number is drawn for each."""
    ones = g.constant(f"{name}.ones", (*g.shape(x)[:2], 1))
    return g.elementwise(name, "mul", x, g.elementwise(f"{name}.draw", "dropout", ones))


def _drop_molecules(g: GraphBuilder, name: str, x: str, molecule: graphs.Index) -> str:
    """Add stochastic depth: all atoms of a molecule are kept or dropped together."""
    packs, _ = g.shape(molecule.numbers)
    ones = g.constant(f"{name}.ones", (packs, molecule.rows, 1))
    drawn = g.elementwise(f"{name}.draw", "dropout", ones)
    x = g.elementwise(f"{name}.scale", "scale", x)
    return g.elementwise(name, "mul", x, graphs.take(g, f"{name}.take", drawn, molecule))


def _kernels(g: GraphBuilder, x: str, count: int) -> str:
    """Spread distances (..., 1) over Gaussian kernels of learnt mean and width, in 32 bits."""
    mean, width = (g.parameter(part, (count,)) for part in ("mean", "width"))
    width = g.elementwise("floor", "add", g.elementwise("abs", "abs", width))
    dtype, spread = g.tensors[x].dtype, (*g.shape(x)[:-1], count)
    x = g.cast("wide", x, "float32", fixed=True)
    x = g.elementwise("sub", "sub", g.expand("spread", x, spread), mean)
    x = g.chain(g.elementwise("div", "div", x, width), square="square", half="scale", exp="exp")
    x = g.elementwise("scale", "scale", g.elementwise("norm", "div", x, width))
    return g.cast("narrow", x, dtype)


def _bias(g: GraphBuilder, packs: int, c: Config) -> tuple[str, str]:
    """Return what is added to attention (N, heads, T, T), and the sums of an atom's kernels."""
    pairs = (packs, c.nodes * c.nodes)
    paths = g.input("shortest_path_distances", pairs, "int32")
    apart = g.column("pairs.paths", g.elementwise("pairs.equal", "equal", paths))
    mask = g.cast("pairs.mask", apart, "float32")
    bias = g.at("pairs").chain(mask, invert="sub", bias="scale")
    x = g.elementwise("paths.clip", "clip", paths)
    x = g.embedding("paths", x, c.longest_path + 1, c.heads)
    for use in ("where", "mask", "shown"):
        x = g.elementwise(f"paths.{use}", "mul", x, mask)
    distances = g.input("atom_distances", (*pairs, 1))
    spread = _kernels(g.at("distances"), distances, c.kernels)
    spread = g.elementwise("distances.mask", "mul", spread, mask)
    y = g.linear("distances.0", spread, c.kernels)
    y = g.linear("distances.1", g.elementwise("distances.act", "gelu", y), c.heads)
    for use in ("mask2", "shown"):
        y = g.elementwise(f"distances.{use}", "mul", y, mask)
    x = g.elementwise("pairs.sum", "add", g.elementwise("pairs.add", "add", y, x), bias)
    x = g.reshape("pairs.heads", x, (packs, c.nodes, c.nodes, c.heads))
    of_atom = g.reshape("distances.atoms", spread, (packs, c.nodes, c.nodes, c.kernels))
    of_atom = g.reduce("distances.sum", "sum", of_atom, axis=2)
    return g.transpose("pairs.heads_first", x, (0, 3, 1, 2)), of_atom


def _guess(g: GraphBuilder, name: str, x: str, known: str, sizes: tuple[int, ...]) -> str:
    """Return the mean cross-entropy of guessing the features of every row."""
    *rows, _ = g.shape(x)
    logits = g.cast(f"{name}.wide", g.linear(name, x, sum(sizes)), "float32", fixed=True)
    labels = g.split(f"{name}.labels", known, len(sizes), axis=2)
    losses = ""
    for part, column in enumerate(g.split(f"{name}.parts", logits, sizes, axis=2)):
        head = g.at(f"{name}.{part}")
        label = head.expand("label", labels[part], (*rows, sizes[part]))
        label = head.elementwise("is", "equal", label)
        label = head.cast("one_hot", label, "float32", fixed=True)
        loss = head.softmax("log_softmax", column, log=True)
        loss = head.elementwise("chosen", "mul", loss, label)
        loss = head.reduce("loss", "sum", loss, axis=2)
        losses = head.elementwise("add", "add", losses, loss) if losses else loss
    losses = g.reshape(f"{name}.rows", losses, (prod(rows),))
    return g.elementwise(f"{name}.mean", "scale", losses)


def _messages(g: GraphBuilder, state: State, links: Links, c: Config, *, last: bool) -> State:
    """Bring edges, then nodes, then what is known of their molecules up to date."""
    (nodes, edges, whole), (ends, of_node, of_edge) = state, links
    sent = graphs.take(g, "sent", nodes, ends.sources)
    received = graphs.take(g, "received", nodes, ends.targets)
    around = graphs.take(g, "edge.whole", whole, of_edge)
    x = g.concat("edge.concat", received, sent, edges, around, axis=2)
    new_edges = _perceptron(g.at("edge"), x, 4 * c.edge, c.edge)
    new_edges = _drop_rows(g, "edge.dropout", new_edges)
    at_end = g.concat("at_end", new_edges, sent, axis=2)
    at_start = g.concat("at_start", new_edges, received, axis=2)
    arriving = graphs.total(g, "in", at_end, ends.targets)
    leaving = graphs.total(g, "out", at_start, ends.sources)
    around = graphs.take(g, "node.whole", whole, of_node)
    x = g.concat("node.concat", arriving, leaving, nodes, around, axis=2)
    new_nodes = _perceptron(g.at("node"), x, 4 * c.hidden, c.hidden)
    if not last:
        all_nodes = graphs.total(g, "whole.nodes", new_nodes, of_node)
        all_edges = graphs.total(g, "whole.edges", new_edges, of_edge)
        x = g.concat("whole.concat", whole, all_nodes, all_edges, axis=2)
        x = _perceptron(g.at("whole"), x, 4 * c.whole, c.whole)
        whole = g.elementwise("whole.add", "add", _drop_rows(g, "whole.dropout", x), whole)
    new_nodes = _drop_rows(g, "node.dropout", new_nodes)
    new_nodes = g.elementwise("node.add", "add", new_nodes, nodes)
    return new_nodes, g.elementwise("edge.add", "add", new_edges, edges), whole


def _features(
    g: GraphBuilder, packs: int, atoms: str, bonds: str, of_atom: str, c: Config
) -> State:
    """Encode what is known of atoms and bonds."""
    x = graphs.sum_of_embeddings(g.at("atoms"), atoms, c.atom_features, c.embedded)
    known = [_perceptron(g.at("atoms.mlp"), x, 4 * c.hidden, c.hidden)]
    degree = g.input("centrality_encoding", (packs, c.nodes), "int32")
    known.append(g.embedding("centrality", degree, c.nodes + 1, c.embedded))
    known.append(g.linear("distances.of_atom", of_atom, c.encoded, bias=False))
    for name, width in (
        ("lap_eig_vals", c.eigenvalues),
        ("lap_eig_vecs", c.eigenvalues),
        ("random_walk_landing_probs", c.random_walks),
    ):
        x = g.input(name, (packs, c.nodes, width))
        known.append(_encoded(g.at(f"{name}.encoder"), x, c.encoded))
    node = g.linear("node", g.concat("node.concat", *known, axis=2), c.hidden)
    x = graphs.sum_of_embeddings(g.at("bonds"), bonds, c.bond_features, c.embedded)
    x = _perceptron(g.at("bonds.mlp"), x, 4 * c.edge, c.edge)
    lengths = _kernels(g.at("lengths"), g.input("ogb_bond_lengths", (packs, c.edges, 1)), c.kernels)
    x = g.concat("edge.concat", x, _encoded(g.at("lengths.encoder"), lengths, c.encoded), axis=2)
    whole = g.parameter("whole.weight", (1, c.whole))
    whole = g.expand("whole", whole, (packs, c.molecules, c.whole))
    return node, g.linear("edge", x, c.edge), g.copy("whole.copy", whole)


@networks
def gps_44m(g: GraphBuilder, batch: int, c: Config) -> tuple[str, str, str]:
    """GPS++ of 44 million weights, from packs to the errors of property, atoms and bonds."""
    packs, names = batch, ("senders", "receivers")
    ends = graphs.edges_between(g, names, (packs, c.edges), c.nodes, c.empty_edges)
    of_node = graphs.index(g, "node_graph_idx", (packs, c.nodes), c.molecules)
    of_edge = graphs.index(g, "edge_graph_idx", (packs, c.edges), c.molecules, c.empty_edges)
    atoms = g.input("node_feat", (packs, c.nodes, len(c.atom_features)), "int32")
    bonds = g.input("edge_feat", (packs, c.edges, len(c.bond_features)), "int32")
    bias, of_atom = _bias(g, packs, c)
    state = _features(g, packs, atoms, bonds, of_atom, c)
    shape = Shape.of(c)
    for layer in range(c.layers):
        own, nodes, last = g.at(f"layers.{layer}"), state[0], layer == c.layers - 1
        x, edges, whole = _messages(own.at("mpnn"), state, (ends, of_node, of_edge), c, last=last)
        x = own.layer_norm("mpnn.norm", x)
        y = attention(own.at("attention"), nodes, shape, mask=bias)
        if layer:
            y = _drop_molecules(own, "attention.drop", y, of_node)
        y = own.layer_norm("attention.norm", own.elementwise("attention.add", "add", y, nodes))
        x = own.elementwise("join", "add", y, x)
        y = feed_forward(own.at("ffn"), x, shape)
        if layer:
            y = _drop_molecules(own, "ffn.drop", y, of_node)
        state = own.layer_norm("norm", own.elementwise("ffn.add", "add", y, x)), edges, whole
    nodes, edges, _ = state
    x = _perceptron(g.at("output"), graphs.total(g, "pool", nodes, of_node), 4 * c.whole, 1)
    x = g.elementwise("error.sub", "sub", x, g.input("labels", (packs, c.molecules, 1)))
    return (
        g.elementwise("error", "abs", x),
        _guess(g, "guess.atoms", nodes, atoms, c.atom_features),
        _guess(g, "guess.bonds", edges, bonds, c.bond_features),
    )
