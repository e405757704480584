"""Networks on graphs, sampled networks and their layers, counted by hand."""

from __future__ import annotations

import pytest

from ipusim.workload import zoo
from ipusim.workload.builder import GraphBuilder
from ipusim.workload.graph import Gather, Graph
from ipusim.workload.training import training_graphs
from ipusim.workload.zoo import gin
from ipusim.workload.zoo.graph_layers import Edges, gru_cell, softmax_at_targets
from ipusim.workload.zoo.schnet import Topology as Clusters


def gathers(graph: Graph, function: str) -> list[Gather]:
    found = [op.params for op in graph.ops if isinstance(op.params, Gather)]
    return [params for params in found if params.function == function]


def test_gin_without_bonds_has_the_parameters_of_the_slides():
    # "1.7M model parameters"; the source of the facts counts 1,708,106 without bond tables.
    assert gin.gin_molhiv(gin.Topology(uses_edges=False)).graph(1).parameters == 1_708_106
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


@pytest.mark.parametrize("name", ["tgn_tensorflow", "gin_molhiv", "schnet", "mcmc_bnn"])
def test_every_parameter_gets_a_gradient(name):
    graph = zoo.load(name).graph(8)
    trained = training_graphs(graph, loss=zoo.load(name).loss, optimizer="adam")
    assert set(trained.gradient_bytes) == {t.name for t in graph.with_role("parameter")}


def test_uno_shares_the_towers_of_its_drugs():
    graph = zoo.uno().graph(4)
    arriving = sum(tensor.elements for tensor in graph.with_role("input"))
    assert arriving == 4 * (2 + 942 + 2 * (5270 + 2048))
    products = [op for op in graph.ops if op.kind == "matmul"]
    assert len(products) == 5 * 3 + 3 + 1
    assert len({op.inputs[1] for op in products}) == 3 * 3 + 3 + 1


def test_schnet_sends_messages_along_every_edge():
    graph = zoo.schnet(Clusters(atoms=9, neighbours=2, interactions=1)).graph(5)
    assert [p.indices for p in gathers(graph, "add")] == [5 * 9 * 2, 5 * 9]
    assert [p.rows for p in gathers(graph, "add")] == [5 * 9, 5]


def test_data_of_the_sampled_network_stay_on_the_chip():
    graph = zoo.mcmc_bnn().graph(1000)
    assert graph.inputs == ()
    assert graph.parameters == 22 * 40 + 40 + 40 + 1 + 1 + 1
    assert graph.macs == 1000 * (22 * 40 + 40)


def test_recurrent_cell_by_hand():
    g = GraphBuilder("cell")
    hidden, x = g.input("h", (7, 10)), g.input("x", (7, 4))
    graph = g.finish(gru_cell(g, "cell", hidden, x))
    assert graph.parameters == 3 * 10 * (4 + 10) + 2 * 30
    assert graph.tensors[graph.outputs[0]].shape == (7, 10)
    used = [op.function for op in graph.ops if op.kind == "elementwise"]
    assert sorted(used) == sorted(
        ["bias_add"] * 2 + ["add"] * 4 + ["sigmoid"] * 2 + ["tanh"] + ["mul"] * 2 + ["sub"]
    )


def test_softmax_over_edges_sums_at_their_targets():
    g = GraphBuilder("softmax")
    edges = Edges(
        sources=g.input("s", (12,), "int32"), targets=g.input("t", (12,), "int32"), nodes=5
    )
    scores = g.linear("scores", g.input("x", (12, 3)), 2)
    graph = g.finish(softmax_at_targets(g, "softmax", scores, edges))
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
