"""TGN: a temporal graph network that predicts which user will edit which page.

Rossi et al. (arXiv 2006.10637), on JODIE-Wikipedia, as graphcore/examples trains it: in TensorFlow
(tag v2.4.0, applications/tensorflow/tgn) and in PyTorch Geometric (tag v3.3.0, gnn/tgn/pytorch).
A batch of events reads the memory of the nodes involved and of their last neighbours, brings it up
to date with a recurrent cell, attends over recent edges, scores true and sampled pairs, and writes
the memory back.
"""

from typing import NamedTuple

from ipusim.workload.zoo.layers import graphs
from ipusim.workload.zoo.registry import Config, GraphBuilder, networks

TIMES = 3
"""Whole numbers kept of a node: last update, time since the one before, other end of the event."""
DIRECTIONS = 2


class _Memory(NamedTuple):
    """Rows read from the memory: state of each node, and the time of its last update."""

    state: str
    last_update: str
    tables: tuple[str, ...]
    times: str


@networks
def tgn(g: GraphBuilder, batch: int, c: Config) -> str:
    """From a padded batch of events to scores of true and sampled pairs."""
    events = batch
    nodes, count = 1 + c.nodes_per_event * events, c.edges_per_event * events
    event_times = g.input("batch_times", (events, 1), "int32")
    event_features = g.input("batch_features", (events, c.edge_features))
    ids = g.input("node_ids", (nodes,), "int32")
    event_nodes = g.input("batch_idx", (3 * events,), "int32")
    most_recent = g.input("batch_most_recent", (2 * events,), "bool")
    padding = c.padding_per_event * events
    edges = graphs.edges_between(g, ("edge_sources", "edge_targets"), (count,), nodes, padding)
    edge_times = g.input("edge_times", (count, 1), "int32")
    edge_features = g.input("edge_features", (count, c.edge_features))
    memory = _read_memory(g.at("memory"), ids, c)
    x = memory.state
    since = graphs.take(g, "gnn.last_update", memory.last_update, edges.sources)
    since = g.elementwise("gnn.since", "sub", since, edge_times)
    since = g.cast("gnn.since.cast", since, "float32")
    times = graphs.time_encoding(g.at("gnn.time"), since, c.time_features)
    attributes = g.concat("gnn.edges", edge_features, times, axis=1)
    attend = _attend_at_nodes if c.projects_nodes else _attend_at_edges
    x = attend(g.at("gnn.conv"), x, edges, attributes, c)
    events_from, true, sampled = g.split("events.roles", event_nodes, 3, axis=0)
    twice = g.concat("link.sources", events_from, events_from, axis=0)
    targets = g.concat("link.targets", true, sampled, axis=0)
    source, target = g.gather("link.source", x, twice), g.gather("link.target", x, targets)
    pairs = g.concat("link.pairs", source, target, axis=1)
    hidden = g.elementwise("link.relu", "relu", g.linear("link.hidden", pairs, c.memory))
    scores = g.linear("link.output", hidden, 1)
    ends = g.concat("events.ends", events_from, true, axis=0)
    known = event_times, event_features
    _write_memory(g.at("write"), memory, ids, ends, most_recent, known)
    return scores


def _read_memory(g: GraphBuilder, ids: str, c: Config) -> _Memory:
    """Look the nodes up and bring their state up to date with the last event of each."""
    rows = 1 + c.nodes
    widths = (c.memory, c.edge_features, DIRECTIONS)
    times = g.parameter("times", (rows, TIMES), "state", "int32")
    stored = widths if c.split_memory else (sum(widths),)
    tables = tuple(
        g.parameter(f"table{part}", (rows, width), "state") for part, width in enumerate(stored)
    )
    read = g.gather("times.read", times, ids)
    last_update, since, other_ids = g.split("times.split", read, TIMES, axis=1)
    read = [g.gather(f"table{part}.read", table, ids) for part, table in enumerate(tables)]
    if not c.split_memory:
        read = list(g.split("fields", read[0], widths, axis=1))
    own, features, direction = read
    # The other end of the event: its state alone, which one wide table holds in its first columns.
    states = tables[0]
    if not c.split_memory:
        states, *_ = g.split("states", states, widths, axis=1)
    other = g.gather("other", states, g.reshape("other.ids", other_ids, g.shape(ids)))
    leaves, enters = g.split("direction", direction, DIRECTIONS, axis=1)
    ends = []
    for end, (first, second) in enumerate(((leaves, enters), (enters, leaves))):
        of_own = g.elementwise(f"end{end}.own", "mul", own, first)
        of_other = g.elementwise(f"end{end}.other", "mul", other, second)
        ends.append(g.elementwise(f"end{end}", "add", of_own, of_other))
    since = g.cast("since", since, "float32")
    encoded = graphs.time_encoding(g.at("time"), since, c.time_features)
    message = g.concat("message", *ends, features, encoded, axis=1)
    state = graphs.gru_cell(g.at("gru"), own, message)
    return _Memory(state=state, last_update=last_update, tables=tables, times=times)


def _write_memory(
    g: GraphBuilder, memory: _Memory, ids: str, ends: str, most_recent: str, known: tuple[str, str]
) -> None:
    """Store state, features and times of both ends of every event, the latest of each node."""
    event_times, event_features = known
    events = g.shape(event_times)[0]
    targets = g.gather("ids", g.column("ids.column", ids), ends)
    chosen = g.elementwise("masked", "mul", targets, g.column("mask", most_recent))
    now = g.concat("now", event_times, event_times, axis=0)
    before = g.gather("last_update", memory.last_update, ends)
    since = g.elementwise("since", "sub", now, before)
    state = g.gather("state", memory.state, ends)
    features = g.concat("features", event_features, event_features, axis=0)
    direction = g.constant("direction", (2 * events, DIRECTIONS))
    rows = (state, features, direction)
    if len(memory.tables) == 1:
        rows = (g.concat("rows", *rows, axis=1),)
    for part, (table, updates) in enumerate(zip(memory.tables, rows, strict=True)):
        g.write_slices(f"table{part}", table, updates, chosen)
    times = g.concat("times.rows", now, since, targets, axis=1)
    g.write_slices("times", memory.times, times, chosen)


def _attend_at_nodes(
    g: GraphBuilder, x: str, edges: graphs.Edges, attributes: str, c: Config
) -> str:
    """Graph transformer (arXiv 2009.03509) that shares the edges' projection by key and value."""
    count = g.shape(attributes)[0]
    skip = g.linear("skip", x, c.memory)
    shared = g.linear("edge", attributes, c.memory, bias=False)
    query, keys = g.split(
        "q_kv", g.linear("qkv", x, 3 * c.memory), (c.memory, 2 * c.memory), axis=1
    )
    query = graphs.take(g, "query", query, edges.targets)
    keys = graphs.take(g, "key_value", keys, edges.sources)
    keys = g.reshape("key_value.pairs", keys, (count, 2, c.memory))
    shared = g.reshape("edge.pairs", shared, (count, 1, c.memory))
    keys = g.elementwise("key_value.add", "add", keys, shared)
    keys = g.reshape("k_v.rows", keys, (count, 2 * c.memory))
    key, value = g.split("k_v", keys, 2, axis=1)
    return _attend(g, query, key, value, skip, edges, c.heads)


def _attend_at_edges(
    g: GraphBuilder, x: str, edges: graphs.Edges, attributes: str, c: Config
) -> str:
    """As PyTorch Geometric's TransformerConv runs on rows already taken to the edges."""
    at_target = graphs.take(g, "x_target", x, edges.targets)
    at_source = graphs.take(g, "x_source", x, edges.sources)
    shared = g.linear("edge", attributes, c.memory, bias=False)
    query = g.linear("query", at_target, c.memory)
    key = g.elementwise("key.edge", "add", g.linear("key", at_source, c.memory), shared)
    value = g.elementwise("value.edge", "add", g.linear("value", at_source, c.memory), shared)
    skip = g.linear("skip", x, c.memory)
    return _attend(g, query, key, value, skip, edges, c.heads)


def _attend(
    g: GraphBuilder, query: str, key: str, value: str, skip: str, edges: graphs.Edges, heads: int
) -> str:
    count, features = g.shape(query)
    apart = (count, heads, features // heads)
    scores = g.elementwise("query_key", "mul", query, key)
    scores = g.reshape("query_key.heads", scores, apart)
    scores = g.elementwise("scale", "scale", g.reduce("scores", "sum", scores, axis=2))
    weights = graphs.softmax_at_targets(g.at("softmax"), scores, edges)
    weights = g.column("weights", g.dropout("dropout", weights))
    message = g.elementwise("message", "mul", g.reshape("value.heads", value, apart), weights)
    message = g.reshape("message.rows", message, (count, features))
    summed = graphs.total(g, "sum", message, edges.targets)
    return g.elementwise("add", "add", skip, summed)
