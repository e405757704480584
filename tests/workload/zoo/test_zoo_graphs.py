"""Networks on graphs, sampled networks and their layers, counted by hand."""

from itertools import pairwise
from math import ceil

import pytest

from ipusim.compiler.lower import lower
from ipusim.compiler.stacks import load_stack
from ipusim.errors import WorkloadError
from ipusim.machine import load_chip
from ipusim.workload import zoo
from ipusim.workload.graph import Gather, Graph, Sort
from ipusim.workload.layers import GraphBuilder
from ipusim.workload.training import training_graphs
from ipusim.workload.zoo.graphs.cluster_gcn import slots
from ipusim.workload.zoo.layers.graphs import edges_between, gru_cell, softmax_at_targets
from ipusim.workload.zoo.registry import Config


def gathers(graph: Graph, function: str) -> list[Gather]:
    found = [op.params for op in graph.ops if isinstance(op.params, Gather)]
    return [params for params in found if params.function == function]


def test_gin_without_bonds_has_the_parameters_of_the_slides():
    # "1.7M model parameters"; the source of the facts counts 1,708,106 without bond tables.
    assert zoo.gin_molhiv(uses_edges=False).graph(1).parameters == 1_708_106
    # Tables of 13 bond values, of 100 columns in the first round and 300 in the other four.
    with_bonds = zoo.gin_molhiv().graph(1)
    assert with_bonds.parameters == 1_708_106 + 13 * (100 + 4 * 300)
    rounds = 100 * 600 + 600 * 300 + 4 * (300 * 600 + 600 * 300)
    assert with_bonds.macs == 24 * rounds + 300


def test_gin_keeps_graphs_apart():
    graph = zoo.gin_molhiv().graph(256)
    messages = [p for p in gathers(graph, "lookup") if p.groups > 1]
    assert [(p.groups, p.rows, p.indices) for p in messages] == [(256, 24, 50)] * 5
    sums = gathers(graph, "add")
    assert [(p.groups, p.rows) for p in sums] == [(256, 24)] * 5 + [(256, 1)] * 2


@pytest.mark.parametrize(
    ("name", "events", "nodes", "edges"),
    [("tgn_tensorflow", 200, 1201, 4000), ("tgn_pytorch", 40, 401, 1200)],
)
def test_tgn_has_the_slots_of_its_recipe(name, events, nodes, edges):
    graph = zoo.load(name).graph(None)
    assert graph.tensors["batch_times"].shape == (events, 1)
    assert graph.tensors["node_ids"].shape == (nodes,)
    assert graph.tensors["edge_sources"].shape == (edges,)
    # Recurrent cell, two time encodings, attention, predictor.
    message = 2 * 100 + 172 + 100
    cell = 300 * (message + 100) + 2 * 300
    attention = 4 * (100 * 100 + 100) + (172 + 100) * 100
    predictor = 200 * 100 + 100 + 100 + 1
    assert graph.parameters == cell + 2 * 2 * 100 + attention + predictor == 260_401
    on_nodes = 300 * (message + 100) + 100 * 100
    projected = nodes if name == "tgn_tensorflow" else edges
    by_hand = nodes * on_nodes + projected * 3 * 100 * 100 + edges * 272 * 100
    assert graph.macs == by_hand + 2 * events * (200 * 100 + 100)


def test_tgn_keeps_its_memory_on_the_chip():
    graph = zoo.tgn_tensorflow().graph(200)
    stored = {t.name for t in graph.with_role("state")}
    written = {t.alias_of for t in graph.tensors.values() if t.alias_of}
    assert stored == written == {"memory.table0", "memory.times"}
    assert graph.tensors["memory.table0"].shape == (9228, 100 + 172 + 2)
    assert {params.indices for params in gathers(graph, "write")} == {400}
    # Padding points at the spare node wherever edges are gathered or summed.
    padded = [p for p in (*gathers(graph, "lookup"), *gathers(graph, "add")) if p.hottest]
    assert {(p.indices, p.hottest) for p in padded} == {(4000, 800)}


def test_uno_shares_the_towers_of_its_drugs():
    graph = zoo.uno().graph(4)
    arriving = sum(tensor.elements for tensor in graph.with_role("input"))
    assert arriving == 4 * (2 + 942 + 2 * (5270 + 2048))
    products = [op for op in graph.ops if op.kind == "matmul"]
    assert len(products) == 5 * 3 + 3 + 1
    assert len({op.inputs[1] for op in products}) == 3 * 3 + 3 + 1


def test_schnet_sends_messages_along_every_edge():
    graph = zoo.schnet(atoms=9, neighbours=2, interactions=1).graph(5)
    assert [p.indices for p in gathers(graph, "add")] == [5 * 9 * 2, 5 * 9]
    assert [p.rows for p in gathers(graph, "add")] == [5 * 9, 5]


def test_schnet_searches_all_atoms_of_a_step_for_neighbours():
    sizes = {"atoms": 9, "neighbours": 2, "interactions": 1}
    graph = zoo.schnet(**sizes).graph(5)
    assert set(graph.inputs) == {"atoms", "positions", "batch"}
    (search,) = (op for op in graph.ops if op.kind == "sort")
    assert search.params == Sort(outer=45, length=45, kept=2)
    masks = [tensor for tensor in graph.tensors.values() if tensor.dtype == "bool"]
    assert {mask.shape for mask in masks} == {(45, 45)}
    # what is given is not searched for; nothing is trained by the search
    given = zoo.schnet_with_edges(**sizes).graph(5)
    assert {"sources", "targets"} <= set(given.inputs)
    assert not [op for op in given.ops if op.kind == "sort"]
    assert given.parameters == graph.parameters
    trained = training_graphs(graph, loss="mean_squared").micro_batch
    assert not [op for op in trained.ops if op.name.startswith("search") and "gradient" in op.name]


def test_data_of_the_sampled_network_stay_on_the_chip():
    graph = zoo.mcmc_bnn().graph(1000)
    assert graph.inputs == ()
    assert graph.parameters == 22 * 40 + 40 + 40 + 1 + 1 + 1
    assert graph.macs == 1000 * (22 * 40 + 40)


def test_recurrent_cell_by_hand():
    g = GraphBuilder("cell")
    hidden, x = g.input("h", (7, 10)), g.input("x", (7, 4))
    graph = g.finish(gru_cell(g.at("cell"), hidden, x))
    assert graph.parameters == 3 * 10 * (4 + 10) + 2 * 30
    assert graph.tensors[graph.outputs[0]].shape == (7, 10)
    used = [op.function for op in graph.ops if op.kind == "elementwise"]
    assert sorted(used) == sorted(
        ["bias_add"] * 2 + ["add"] * 4 + ["sigmoid"] * 2 + ["tanh"] + ["mul"] * 2 + ["sub"]
    )


def test_softmax_over_edges_sums_at_their_targets():
    g = GraphBuilder("softmax")
    edges = edges_between(g, ("s", "t"), (12,), 5)
    scores = g.linear("scores", g.input("x", (12, 3)), 2)
    graph = g.finish(softmax_at_targets(g.at("softmax"), scores, edges))
    (sums,) = gathers(graph, "add")
    assert (sums.rows, sums.indices, sums.width) == (5, 12, 2)
    micro = training_graphs(graph, loss="mean_squared", optimizer="sgd").micro_batch
    # The sum sends its gradient back by a lookup, the lookup of sums by another sum.
    assert len(gathers(micro, "add")) == len(gathers(micro, "lookup")) == 2
    # Elements equal to the maximum share what reaches it.
    assert [op.function for op in micro.ops if op.source == "softmax.max"][:4] == [
        "equal",
        "sum",
        "div",
        "mul",
    ]


def test_slots_follow_the_batch():
    small, large = (zoo.tgn_pytorch().graph(events) for events in (10, 20))
    assert small.tensors["edge_sources"].elements * 2 == large.tensors["edge_sources"].elements


@pytest.mark.parametrize(
    ("name", "widths", "nodes"),
    [
        # Widths of node features from layer to layer; nodes of a mean step.
        ("ppi", (50, 1024, 1024, 1024, 121), 44_906 / 50),
        ("arxiv", (128, 256, 256, 256, 256, 40), 90_941 / 30),
        ("reddit", (602, 512, 512, 512, 41), 153_431 / 75),
        ("products", (100, 400, 400, 400, 47), 196_615 / 50),
        ("mag", (128, 512, 512, 512, 349), 1_832_925 / 500),
    ],
)
def test_cluster_gcn_by_hand(name, widths, nodes):
    graph = zoo.load(f"cluster_gcn_{name}").graph()
    # A node's features beside those of its neighbours; no bias; a layer norm except at the end.
    weights = sum(2 * a * b for a, b in pairwise(widths))
    assert graph.parameters == weights + 2 * sum(widths[1:-1])
    rows, arriving = graph.tensors["features"].shape
    precalculated = name in ("arxiv", "mag")
    assert arriving == widths[0] * (2 if precalculated else 1)
    spare = name != "ppi"
    assert 1.03 * nodes <= rows - spare < 1.03 * nodes + 1
    around = sum(widths[:-1])
    of_matrix = rows**2 * (rows + around) if name == "ppi" else 0
    assert graph.macs == rows * weights + of_matrix
    sums = [p for p in gathers(graph, "add") if p.width > 1]
    summed = () if name == "ppi" else widths[precalculated:-1]
    assert [p.width for p in sums] == list(summed)
    assert all(p.rows == rows and p.hottest for p in sums)


def test_edges_of_a_cluster_are_bounded_by_its_nodes():
    cut = {"nodes": 1000, "clusters": 100, "per_step": 5, "node_margin": 0.03, "edge_margin": 0.03}
    # A mean step has 50 nodes and 200 edges.
    assert slots(Config(**cut, links=4000, linked_nodes=1000)) == (52, 206, 6)
    _, edges, padding = slots(Config(**cut, links=40_000, linked_nodes=1000))
    assert edges - padding == 5 * 10 * 9


def test_padding_and_self_loops_of_a_list_of_edges():
    graph = zoo.cluster_gcn_reddit().graph()
    mean_edges = 153_431 * 20 / 1500 * min(2 * 11_606_919 / 232_965, 153_431 / 1500 - 1)
    edges, nodes = ceil(mean_edges), ceil(1.03 * 153_431 * 20 / 1500)
    (sort,) = [op.params for op in graph.ops if op.kind == "sort"]
    assert sort.length == edges + nodes + 1
    assert not [op for op in zoo.cluster_gcn_arxiv().graph().ops if op.kind == "sort"]
    # Its recipe cuts edges to the mean; one that keeps those of the fullest clusters pads the rest.
    assert {p.hottest for p in gathers(graph, "lookup") if p.hottest} == {1}
    padded = gathers(zoo.cluster_gcn_reddit(edge_margin=0.03).graph(1), "lookup")
    (padding,) = {p.hottest for p in padded if p.hottest}
    assert padding == pytest.approx(0.03 * mean_edges, rel=0.001)


def test_cluster_gcn_takes_one_group_of_clusters():
    with pytest.raises(WorkloadError, match="Micro-batch 2 of 'cluster_gcn_ppi' must be 1"):
        zoo.cluster_gcn_ppi().graph(2)


def test_only_what_runs_along_edges_takes_longer_with_more_edges():
    small = {"nodes": 4000, "clusters": 40, "features": 64, "hidden": 64, "layers": 2}
    few, many = (
        {
            op.name: op.cycles
            for op in lower(
                zoo.cluster_gcn_reddit(**small, links=links, linked_nodes=1).graph(1),
                load_chip("Bow"),
                load_stack("sdk-3.x"),
                host_dtype=None,
            ).ops
        }
        for links in (8, 80)
    )
    for along_edges in ("gcn_0.adjacency.sum", "adjacency.loops.sort"):
        assert many[along_edges] > 2 * few[along_edges] > 0
    # For few edges the rows are split, so that their indices have to be divided.
    assert many["gcn_0.adjacency.gather"] > few["gcn_0.adjacency.gather"] > 0
    for at_nodes in ("gcn_0", "gcn_0.norm", "output"):
        assert many[at_nodes] == few[at_nodes] > 0


def test_gps_has_the_weights_of_its_recipe():
    graph = zoo.gps_44m().graph(8)

    def perceptron(inputs, hidden, outputs):
        return inputs * hidden + 3 * hidden + hidden * outputs + outputs

    # Messages along edges, at nodes and for the molecule (not in the last layer), attention, the
    # feed-forward layers and three norms.
    whole = perceptron(64 + 256 + 128, 256, 64)
    layer = perceptron(2 * 256 + 128 + 64, 512, 128) + perceptron(1088, 1024, 256) + whole
    layer += 4 * (256 * 256 + 256) + 256 * 1024 + 1024 + 1024 * 256 + 256 + 3 * 2 * 256
    features = 203 * 64 + perceptron(64, 1024, 256) + 62 * 64 + 128 * 32 + 448 * 256 + 256
    features += 13 * 64 + perceptron(64, 512, 128) + 160 * 128 + 128 + 64
    features += sum(2 * width + perceptron(width, 64, 32) for width in (7, 7, 16, 128))
    bias = 2 * 2 * 128 + 128 * 128 + 128 + 128 * 32 + 32 + 101 * 32
    heads = perceptron(256, 256, 1) + 256 * 203 + 203 + 128 * 13 + 13
    assert graph.parameters == 16 * layer - whole + features + bias + heads
    # Every pack gathers and sums in its own rows; the spare ones take the padding.
    messages = [p for p in gathers(graph, "add") if p.width == 128 + 256]
    assert {(p.groups, p.rows, p.indices, p.hottest) for p in messages} == {(8, 61, 121, 16)}
    assert len(messages) == 2 * 16
