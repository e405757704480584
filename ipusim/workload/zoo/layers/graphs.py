"""Layers of graph networks: messages along edges, their sums at nodes, attention, memory cells.

Nodes and edges are rows of matrices; an edge names its ends by row number. Networks of the IPU
take graphs of fixed size, padded with edges of a spare node: how many there are (`padding`) decides
how long the tile with that node's row works (`Gather.hottest`).
"""

from typing import NamedTuple

from ipusim.workload.layers import GraphBuilder


class Index(NamedTuple):
    """The row that each of (count,), or of (groups, count), belongs to: `numbers` of `rows` rows.

    Rows are those of one group, a spare one included; `padding` numbers only fill up.
    """

    numbers: str
    rows: int
    padding: int = 0


def index(g: GraphBuilder, name: str, shape: tuple[int, ...], rows: int, padding: int = 0) -> Index:
    """Let the host send which row each belongs to."""
    return Index(g.input(name, shape, "int32"), rows, padding)


class Edges(NamedTuple):
    """The edges of a padded graph, by the nodes that they leave and enter."""

    sources: Index
    targets: Index


def edges_between(
    g: GraphBuilder, ends: tuple[str, str], shape: tuple[int, ...], nodes: int, padding: int = 0
) -> Edges:
    """Let the host send the edges of a graph: the node numbers of both ends, by these names."""
    return Edges(*(index(g, name, shape, nodes, padding) for name in ends))


def take(g: GraphBuilder, name: str, x: str, index: Index) -> str:
    """Give each, such as every edge, the row that it belongs to, such as that of its node."""
    return g.gather(name, x, index.numbers, hottest=index.padding)


def total(g: GraphBuilder, name: str, x: str, index: Index) -> str:
    """Add up what belongs to the same row, such as what edges bring to a node."""
    return g.scatter_add(name, x, index.numbers, index.rows, hottest=index.padding)


def sum_of_embeddings(g: GraphBuilder, columns: str, sizes: tuple[int, ...], width: int) -> str:
    """Look every categorical feature (..., features) up in a table of its own, and add the rows."""
    total = ""
    features = g.unstack("columns", columns, axis=len(g.shape(columns)) - 1)
    for number, (feature, size) in enumerate(zip(features, sizes, strict=True)):
        row = g.embedding(str(number), feature, size, width)
        total = g.elementwise(f"{number}.add", "add", total, row) if total else row
    return total


def softmax_at_targets(g: GraphBuilder, scores: str, edges: Edges) -> str:
    """Add a softmax of (edges, heads) scores over the edges that enter the same node.

    As graphcore/examples writes it (tag v2.4.0, applications/tensorflow/tgn/model.py,
    index_softmax): in 32 bits, less the largest score of all, over a sum of at least 1e-6.
    """
    dtype = g.tensors[scores].dtype
    wide = g.cast("wide", scores, "float32")
    largest = g.reduce("max", "max", wide, axis=0)
    powers = g.elementwise("exp", "exp", g.elementwise("sub", "sub", wide, largest))
    sums = g.elementwise("floor", "clip", total(g, "sums", powers, edges.targets))
    sums = take(g, "sums_at_edges", sums, edges.targets)
    return g.cast("narrow", g.elementwise("div", "div", powers, sums), dtype)


def gru_cell(g: GraphBuilder, hidden: str, x: str) -> str:
    """Add a step of PyTorch's GRU: (rows, state) and (rows, features) to (rows, state)."""
    size = g.shape(hidden)[-1]
    # Reset, update and candidate come from one product.
    of_input = g.split("input.gates", g.linear("input", x, 3 * size), 3, axis=1)
    of_hidden = g.split("hidden.gates", g.linear("hidden", hidden, 3 * size), 3, axis=1)
    reset, update = (
        g.elementwise(gate, "sigmoid", g.elementwise(f"{gate}.add", "add", *parts))
        for gate, *parts in zip(("reset", "update"), of_input, of_hidden, strict=False)
    )
    # It resets the candidate after its product.
    candidate = g.elementwise("reset.mul", "mul", reset, of_hidden[2])
    candidate = g.elementwise("candidate.add", "add", of_input[2], candidate)
    candidate = g.elementwise("candidate", "tanh", candidate)
    # (1 - update) candidate + update hidden, with one operation fewer.
    change = g.elementwise("change", "sub", hidden, candidate)
    change = g.elementwise("update.mul", "mul", change, update)
    return g.elementwise("new", "add", candidate, change)


def time_encoding(g: GraphBuilder, times: str, size: int) -> str:
    """Turn (rows, 1) times in 32 bits into (rows, size) cosines of learnt frequency and phase."""
    rows = g.shape(times)[0]
    x = g.expand("spread", times, (rows, size))
    x = g.elementwise("mul", "mul", x, g.parameter("weight", (size,)))
    x = g.elementwise("add", "add", x, g.parameter("bias", (size,)))
    # In 16 bits the application brings the argument within one turn first (tf.mod in 32 bits),
    # which is left out: some 66 cycles an element by poplibs' estimate.
    return g.elementwise("cos", "cos", x)
