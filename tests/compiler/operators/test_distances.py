"""Distances between rows, and rows that come from Streaming Memory."""

from dataclasses import replace

import pytest
from emitting import emitted, matrix

from ipusim.compiler.operators.distance import distance
from ipusim.machine import load_system
from ipusim.machine.interconnect import replica_rings
from ipusim.runtime.collectives import NOTHING, all_to_all
from ipusim.runtime.options.config import make_config
from ipusim.runtime.step import run_step
from ipusim.workload import zoo
from ipusim.workload.graph import Distance
from ipusim.workload.layers import GraphBuilder
from ipusim.workload.model import Model
from ipusim.workload.training import training_graphs

POD = load_system("IPU-POD16")


def test_distances_by_hand():
    # 535 of 512 x 1536 results on a tile, 90 for the busiest worker; blocks of 24 x 23 results.
    sizes, x = Distance(rows=512, others=1536, width=256), matrix(512, 256, "float32")
    (step,) = emitted(distance, sizes, x)
    assert step.compute_cycles == 6 * 90 * (20 + 3 * 128)
    assert step.exchange_bytes == (24 + 23) * 256 * 4
    # The gradient of the first matrix: 90 of its elements on a tile, each over 1,536 distances.
    (back,) = emitted(distance, replace(sizes, backward=True), x)
    assert back.compute_cycles == 6 * 15 * (20 + 7 * 768)
    assert back.exchange_bytes == (10 + 9) * 1536 * 4


def test_both_matrices_get_a_gradient():
    g = GraphBuilder("distances")
    a, b = (
        g.linear(name, g.input(f"{name}.x", (rows, 5)), 4) for name, rows in (("a", 3), ("b", 7))
    )
    micro = training_graphs(g.finish(g.distance("d", a, b)), loss="mean_squared").micro_batch
    back = [op.params for op in micro.ops if isinstance(op.params, Distance) and op.params.backward]
    assert [(p.rows, p.others) for p in back] == [(3, 7), (7, 3)]


def test_all_to_all_loads_a_ring_by_distance():
    size = 16 * 1_000_000
    (ring,) = replica_rings(POD, 16)
    cost = all_to_all(POD, 16, 1, [size])
    # Parts go 1, 2, ... 7 hops in either direction, one of them 8: 64 links, shared by directions.
    assert cost.transfer_s == pytest.approx(64 * 1_000_000 / 2 / ring.bytes_per_s)
    assert all_to_all(POD, 1, 1, [size]) == NOTHING


def test_streamed_rows_are_read_and_written_but_not_reduced():
    graph = zoo.transe_256().graph(512, precision="32.32")
    assert graph.parameters - 2048 * 256 == 768 * 256 + 1392 * 256
    assert graph.tensors["entities"].dtype == graph.tensors["features"].dtype == "float16"
    trained = training_graphs(graph, loss="cross_entropy", optimizer="adam")
    assert set(trained.gradient_bytes) == {"feature_projection", "relation_embedding"}
    assert trained.update.tensors["entities.m"].elements == 2048 * 256
    exchanged = [op for op in trained.micro_batch.ops if op.function == "all_to_all"]
    assert [op.phase for op in exchanged] == ["forward", "backward"]


def test_a_step_waits_for_the_streaming_memory():
    def build(_):
        g = GraphBuilder("rows")
        rows = g.streamed("rows", (4000, 256), dtype="float16")
        return g.finish(g.linear("dense", g.cast("cast", rows, "float32"), 8))

    model = Model(name="rows", family="test", build=build, loss="mean_squared")
    config = make_config(
        system=POD, mode="training", micro_batch=1, replicas=1, precision="32.32", optimizer="adam"
    )
    parts = run_step(model, config, tier="specification").parts_s
    # Value and two moments, read and written.
    moved = 2 * 3 * 4000 * 256 * 2
    assert parts["streamed rows"] == pytest.approx(moved / POD.buffer_link_bytes_per_s_per_ipu)
