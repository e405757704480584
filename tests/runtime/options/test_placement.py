"""Replicas over several chips: placement, shared chips, sharded updates, inference in stages."""

from math import prod

import pytest
from refused import refused

import ipusim
from ipusim.machine.interconnect import copy_s, sync_s
from ipusim.machine.system import load_system
from ipusim.runtime.calibration import FittedCosts
from ipusim.runtime.collectives import all_gather, reduce_scatter
from ipusim.workload.layers import GraphBuilder
from ipusim.workload.model import Model
from ipusim.workload.optimizers import OPTIMIZERS, Sharding, state_bytes, update_graph
from ipusim.workload.training import training_graphs

ROWS, WIDTH, WORDS = 64, 256, 1024


def _layers(batch, *, tied=True):
    """Lookup, three dense layers, and a product with the table of the lookup."""
    g = GraphBuilder("tied")
    table = g.parameter("table", (WORDS, WIDTH))
    x = g.gather("lookup", table, g.input("ids", (batch or 1, ROWS), "int32"))
    for layer in range(3):
        x = g.elementwise(f"relu{layer}", "relu", g.linear(f"fc{layer}", x, WIDTH))
    last = table if tied else g.parameter("other", (WORDS, WIDTH))
    return g.finish(g.matmul("scores", x, last, transpose_b=True))


TIED = Model(name="tied", family="test", build=_layers, loss="cross_entropy")
TRAINING = {
    "system": "IPU-POD16",
    "mode": "training",
    "micro_batch": 2,
    "gradient_accumulation": 16,
    "optimizer": "lamb",
    "tier": "specification",
}
SHARED = {
    "ipus_per_replica": 2,
    "pipeline_splits": ["lookup", "relu2"],
    "stage_ipus": [0, 1, 0],
}


def train(**options):
    return ipusim.simulate(TIED, **{**TRAINING, **options})


def infer(**options):
    base = {"system": "IPU-POD16", "micro_batch": 2, "tier": "specification"}
    return ipusim.simulate(TIED, **{**base, **options})


def test_stages_that_share_a_chip_add_up():
    report = train(replicas=1, **SHARED)
    stages = report.stages
    assert list(stages["ipu"]) == [0, 1, 0]
    assert list(stages["first_op"]) == ["lookup", "fc0", "scores"]
    load = (stages["forward_ms"] + stages["backward_ms"]).groupby(stages["ipu"]).sum()
    parts = report.result.parts_s
    assert parts["device"] == pytest.approx(16 * load.max() / 1e3)
    # Five slots (PopART merges the last stage's passes): at most 16 + 4 steps of the busier chip.
    reached = parts["device"] + parts["pipeline bubbles"]
    assert reached <= 20 * load.max() / 1e3 * (1 + 1e-9)
    assert list(stages["micro_batches_in_flight"]) == [5, 3, 1]
    first, second, third = report.result.stages
    assert first.memory is third.memory and first.memory is not second.memory


def test_gradients_of_shared_weights_stay_on_their_chip():
    together = train(replicas=1, **SHARED)
    apart = train(
        replicas=1, ipus_per_replica=3, pipeline_splits=["lookup", "relu2"], stage_ipus=[0, 1, 2]
    )
    # Apart, the gradient of the table goes from the last chip to the first.
    more = apart.result.parts_s["stage transfers"] - together.result.parts_s["stage transfers"]
    system = load_system("IPU-POD16")
    table_s = copy_s(system, 1, 2, 2 * WORDS * WIDTH) - copy_s(system, 1, 2, 0)
    assert more > 0.5 * 16 * table_s


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_a_shard_updates_its_part_of_every_weight(optimizer):
    graphs = training_graphs(TIED.graph(2), loss="cross_entropy", optimizer=optimizer)
    forward = TIED.graph(2)
    whole = {name: forward.tensors[name] for name in graphs.gradient_bytes}
    shard = update_graph(forward.name, tuple(whole.values()), optimizer, Sharding(7))
    for name, tensor in whole.items():
        own = [t for t in shard.tensors.values() if t.name.split(".update")[0] == name]
        assert {prod(t.shape) for t in own} <= {-(-tensor.elements // 7), 1}
    assert len(shard.ops) == len(graphs.update.ops)
    states = state_bytes(graphs.update)
    assert states / 7 <= state_bytes(shard) <= states / 7 + 16 * 4 * len(whole)


def test_sharding_trades_state_for_another_exchange():
    options = {"replicas": 4, "ipus_per_replica": 1}
    plain = train(**options)
    all_of_them = {"replicated_tensor_sharding": True, "least_sharded_elements": 1}
    sharded = train(**all_of_them, **options)
    parts = sharded.result.parts_s
    assert "gradient all-reduce" not in parts
    sizes = [t.bytes for t in TIED.graph(2).with_role("parameter")]
    system = load_system("IPU-POD16")
    assert parts["gradient reduce-scatter"] == pytest.approx(
        reduce_scatter(system, 4, 1, sizes).at(0.0)
    )
    assert parts["weight all-gather"] == pytest.approx(all_gather(system, 4, 1, sizes).at(0.0))
    assert parts["gradient reduce-scatter"] + parts["weight all-gather"] == pytest.approx(
        plain.result.parts_s["gradient all-reduce"]
    )
    assert parts["weight update"] < plain.result.parts_s["weight update"]
    assert sharded.result.memory.parameter_bytes < plain.result.memory.parameter_bytes
    # LAMB needs two norms of every weight but a bias, which all shards add up.
    costs = FittedCosts(collective_s=1e-4)
    options["replicas"] = 16
    dear, cheap = (
        train(**all_of_them, **options, **priced).result.parts_s["norm all-reduce"]
        for priced in ({"tier": "calibrated", "costs": costs}, {})
    )
    adapted = [t for t in TIED.graph(2).with_role("parameter") if not t.name.endswith("bias")]
    assert 0 < len(adapted) < len(sizes)
    # an all-reduce is two passes of eight steps, and each syncs four machines, three hops apart
    assert dear - cheap == pytest.approx(2 * len(adapted) * 2 * 8 * 3 * 1e-4)


def test_off_chip_state_is_shared_out():
    options = {"replicas": 4, "ipus_per_replica": 1, "optimizer_state": "off_chip"}
    alone = train(**options).result.parts_s["optimiser state"]
    shared = train(replicated_tensor_sharding=True, **options).result.parts_s["optimiser state"]
    assert shared == pytest.approx(alone / 4, rel=0.02)


def test_one_replica_has_nothing_to_share():
    options = {"replicas": 1, "ipus_per_replica": 1}
    assert (
        train(replicated_tensor_sharding=True, **options).result.step_s
        == train(**options).result.step_s
    )


def test_inference_in_turn_is_one_chip_and_the_copies():
    alone = infer()
    shared = infer(schedule="sequential", **SHARED)
    parts = shared.result.parts_s
    assert parts["device"] == pytest.approx(alone.result.parts_s["device"])
    system = load_system("IPU-POD16")
    handed = 2 * (2 * ROWS * WIDTH)  # half-precision activations of two items
    one = copy_s(system, 0, 1, handed) + sync_s(system, 2)
    assert parts["stage transfers"] == pytest.approx(2 * one)
    assert shared.latency.value == pytest.approx(shared.result.step_s)
    assert "8 x stages in turn on 2 GC200, 3 stages" in repr(shared)
    resident = {stage.ipu: stage.memory.parameter_bytes for stage in shared.result.stages}
    assert sum(resident.values()) == pytest.approx(alone.result.memory.parameter_bytes, abs=2)


def test_replicas_over_a_whole_machine_have_its_host_link_to_themselves():
    system = load_system("IPU-POD16")
    sizes = {}
    for ipus in (1, 2, 4):
        io = infer(ipus_per_replica=ipus).result.io
        sizes[ipus] = io.input_bytes, io.output_bytes, io.sustained_s
        rate = max(io.input_bytes, io.output_bytes) / io.sustained_s
        assert rate == pytest.approx(system.host_bytes_per_s(4 // ipus))
    assert sizes[4][2] <= sizes[1][2]


def test_pipelined_inference_is_as_quick_as_its_busiest_chip():
    turn, piped = infer(schedule="sequential", **SHARED), infer(**SHARED)
    load = piped.stages["forward_ms"].groupby(piped.stages["ipu"]).sum()
    assert piped.result.parts_s["device"] == pytest.approx(load.max() / 1e3)
    assert piped.throughput.value > turn.throughput.value
    assert piped.latency.value == pytest.approx(3 * piped.result.step_s)
    assert sum(piped.result.parts_s.values()) == pytest.approx(piped.result.step_s)


def test_more_chips_never_make_the_busiest_stage_longer():
    busiest = [
        infer(ipus_per_replica=ipus).result.parts_s["device"]
        if ipus > 1
        else infer().result.device_s
        for ipus in (1, 2, 4)
    ]
    assert busiest == sorted(busiest, reverse=True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ipus_per_replica": 2, "stage_ipus": [0, 0, 1]}, "two stages in a row on one IPU"),
        ({"ipus_per_replica": 2, "stage_ipus": [0, 2]}, "name each of 0 to 1 at least once"),
        (
            {"ipus_per_replica": 2, "stage_ipus": [0, 1, 0], "pipeline_splits": ["relu0"]},
            "stage_ipus places 3: give 2 splits",
        ),
        ({"ipus_per_replica": 2, "schedule": "interleaved"}, "does not have: use 'grouped'"),
        ({"replicated_tensor_sharding": True}, "no meaning in the mode 'inference'"),
    ],
)
def test_bad_placement_gets_one_sentence(options, words):
    with refused(words):
        infer(**options)
