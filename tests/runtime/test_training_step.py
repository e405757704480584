"""A training step: its parts, replicas, pipelines, memory, and what is refused."""

import gc
import time

import pytest
from refused import refused

import ipusim
from ipusim.errors import IpuSimError
from ipusim.machine.interconnect import replica_rings
from ipusim.machine.system import load_system
from ipusim.runtime.calibration import FittedCosts
from ipusim.runtime.compile import graph_job, graphs
from ipusim.runtime.options.config import make_config
from ipusim.workload import zoo
from ipusim.workload.layers import GraphBuilder
from ipusim.workload.model import Model
from ipusim.workload.training import training_graphs

BASE = {
    "system": "IPU-POD16",
    "mode": "training",
    "micro_batch": 2,
    "gradient_accumulation": 8,
    "host_dtype": "uint8",
    "tier": "specification",
}


def run(model: str = "resnet18", **options: object):
    return ipusim.simulate(model, **{**BASE, **options})


@pytest.fixture(scope="module")
def report():
    return run()


def test_parts_add_up_to_the_step(report):
    result = report.result
    assert sum(result.parts_s.values()) == pytest.approx(result.step_s)
    assert result.parts_s["device"] == pytest.approx(8 * result.device_s)
    assert report.throughput.value == pytest.approx(16 * 8 * 2 / result.step_s)
    assert report.parts["share_percent"].sum() == pytest.approx(100)
    assert set(report.layers["phase"]) == {"forward", "backward", "update"}
    in_micro_batch = report.layers[report.layers["phase"] != "update"]
    assert in_micro_batch["cycles"].sum() == report.cycles_per_step
    assert sum(report.power_parts_w.values()) == pytest.approx(report.power.value)
    assert "training with sgd_momentum, micro-batch 2 x 8 accumulated" in repr(report)


def test_accumulation_repeats_the_micro_batch_and_not_the_update(report):
    twice = run(gradient_accumulation=16)
    more = twice.result.step_s - report.result.step_s
    parts = report.result.parts_s
    assert more == pytest.approx(parts["device"] + parts["transfers"])
    assert twice.result.update.cycles == report.result.update.cycles


def in_every_framework(**options):
    """Run one step of BERT in PopART, PopTorch and TensorFlow."""
    options |= {"micro_batch": 1, "replicas": 1, "gradient_accumulation": 1}
    return [
        run("bert_base_squad", framework=name, **options)
        for name in ("popart", "pytorch", "tensorflow")
    ]


def test_who_writes_a_cross_entropy_out():
    losses = [one.layers.query("kind == 'loss'") for one in in_every_framework()]
    popart, pytorch, tensorflow = (loss.supersteps.sum() for loss in losses)
    assert pytorch > popart > tensorflow


def test_who_makes_a_seed_for_each_dropout():
    reports = in_every_framework(loss="mean_squared")
    popart, pytorch, tensorflow = (one.cycles_per_step for one in reports)
    assert popart == pytorch > tensorflow


def test_who_keeps_a_running_mean():
    # PopTorch, if the accumulators are float16 and no part of SGD's momentum.
    options = {"system": "IPU-M2000", "replicas": 1, "mode": "training", "optimizer": "adam"}
    asked = {
        "popart": {},
        "pytorch": {},
        "pytorch, asked not to": {"running_mean": False},
        "pytorch, sgd": {"optimizer": "sgd_momentum"},
        "popart, asked to": {"running_mean": True},
        "tensorflow": {},
    }
    means = {
        name: make_config(**options | {"framework": name.split(",")[0]} | more).running_mean
        for name, more in asked.items()
    }
    assert [name for name, mean in means.items() if mean] == ["pytorch", "popart, asked to"]
    once, summed = (run(gradient_accumulation=1, running_mean=mean) for mean in (True, False))
    assert once.parts_s == summed.parts_s
    more_cycles = {}
    for name in ("popart", "tensorflow"):
        mean, total = (
            run(gradient_accumulation=4, running_mean=mean, framework=name).cycles_per_step
            for mean in (True, False)
        )
        more_cycles[name] = mean - total
    assert more_cycles["popart"] > more_cycles["tensorflow"] > 0  # numbers for each, or for all


def test_small_weights_are_updated_whole():
    # ResNet-18: 62 parameters, 40 of them vectors of at most 512 elements and a bias of 1,000.
    options = {"replicas": 16, "optimizer": "lamb", "replicated_tensor_sharding": True}
    sharded = run(framework="pytorch", **options)
    all_of_them = run(framework="pytorch", least_sharded_elements=1, **options)
    none = run(framework="pytorch", least_sharded_elements=10**9, **options)
    parts = ("gradient reduce-scatter", "norm all-reduce", "weight all-gather")
    assert not any(part in none.parts_s for part in parts)
    assert "gradient all-reduce" not in all_of_them.parts_s
    assert sharded.parts_s["gradient all-reduce"] < none.parts_s["gradient all-reduce"]
    for part in parts:
        assert 0 < sharded.parts_s[part] < all_of_them.parts_s[part]
    updates = [
        graphs(graph_job(zoo.load(one.model), one.config)).update.tensors
        for one in (sharded, all_of_them)
    ]
    assert [update["bn1.weight"].elements for update in updates] == [64, 64 // 16]
    for update in updates:
        assert update["layer4.0.conv1.weight"].elements == 512 * 256 * 9 // 16


SHARDED = {"replicas": 16, "optimizer": "lamb", "replicated_tensor_sharding": True}


def test_who_joins_the_norms_of_sharded_weights():
    # Only all-reduces are joined, and in TensorFlow none of a part's update.
    for name, joined in (("popart", True), ("tensorflow", False)):
        many, few = (
            run(framework=name, merge_gradients_bytes=size, **SHARDED).parts_s
            for size in (0, 1 << 30)
        )
        assert (few["norm all-reduce"] < many["norm all-reduce"] / 10) == joined, name
        for part in ("gradient reduce-scatter", "weight all-gather"):
            assert few[part] == many[part]


def test_chips_exchange_in_turn_unless_their_tensors_are_joined():
    def found(framework, size, chips):
        options = {"ipus_per_replica": chips, "replicas": 4, "merge_gradients_bytes": size}
        return run(framework=framework, gradient_accumulation=8, **options)

    # Two passes of three steps each, over the rails.
    rings = {chips: replica_rings(load_system("IPU-POD16"), 4, chips)[0] for chips in (1, 2)}
    each_s = {chips: 6 * ring.step_latency_s for chips, ring in rings.items()}
    for name, joined in (("pytorch", True), ("tensorflow", False)):
        reports = [found(name, size, chips) for size, chips in ((0, 2), (1 << 30, 2), (1 << 30, 1))]
        apart, halves, whole = (one.result.terms.after["gradient all-reduce"] for one in reports)
        sizes = graphs(graph_job(zoo.load("resnet18"), reports[0].config)).gradient_bytes.values()
        assert apart.each_latency_s == pytest.approx(len(sizes) * each_s[2])
        carried = apart.transfer_s * rings[2].bytes_per_s
        assert carried == pytest.approx(6 / 4 * sum(sizes), rel=1e-3)
        assert whole.each_latency_s == pytest.approx(each_s[1])
        assert halves.each_latency_s == pytest.approx((1 if joined else 2) * each_s[2])
        assert (halves.transfer_s < 0.99 * apart.transfer_s) == joined


def test_the_fixed_cost_is_paid_once_per_update(report):
    costs = FittedCosts(step_s=1e-3)
    for accumulation in (8, 16):
        options = {"gradient_accumulation": accumulation}
        dear = run(tier="calibrated", costs=costs, **options)
        assert dear.result.step_s - run(**options).result.step_s == pytest.approx(1e-3)


def test_a_training_loop_that_makes_data_lets_the_device_wait(report):
    slow = run(instances=2, serial_item_s=1e-3).result
    items = 16 * 8 * 2 / 2  # of one process
    assert slow.parts_s["host between runs"] == pytest.approx(1e-3 * items)
    assert slow.step_s - report.result.step_s == pytest.approx(1e-3 * items)
    for wrong in (-1e-6, float("nan"), "long"):
        with pytest.raises(IpuSimError, match="serial_item_s is"):
            run(serial_item_s=wrong)


def test_a_process_copies_the_inputs_of_its_replicas_one_after_the_other():
    options = {"micro_batch": 16, "host_dtype": "float32", "replicas": 8}
    few, many = (run(instances=n, **options).result for n in (1, 8))
    inputs = 16 * (3 * 224 * 224 + 1) * 4  # images and labels
    # Read and written, and the lines read that the cache of a core no longer holds.
    copy = 3 * inputs / load_system("IPU-POD16").host.core_bytes_per_s
    assert few.io.sustained_s == pytest.approx(8 * copy)
    assert many.io.sustained_s < few.io.sustained_s
    assert few.step_s == pytest.approx(8 * 8 * copy)
    assert few.parts_s["waiting for the host"] > 0
    # Nothing is copied while the process makes data between two runs.
    slow = run(instances=1, serial_item_s=1e-3, **options).result
    assert slow.step_s - few.step_s == pytest.approx(1e-3 * 8 * 8 * 16)


def test_a_pipeline_is_called_by_the_host_once_and_pays_exchanges_in_every_cycle():
    options = {"ipus_per_replica": 2, "gradient_accumulation": 8}
    free = run(**options).result
    dear = run(tier="calibrated", costs=FittedCosts(step_s=1e-3), **options).result
    order = free.terms.schedule.order(FittedCosts())
    steps = order.steps(order.periods(8))
    assert steps > 8
    assert dear.step_s - free.step_s == pytest.approx(1e-3)
    dear = run(tier="calibrated", costs=FittedCosts(exchange_cycles=1000), **options).result
    least = 1000 * steps / 1.33e9  # each cycle has an exchange on its slowest chip
    assert dear.step_s - free.step_s > least


def test_replicas_only_add_collectives(report):
    alone = run(replicas=1)
    assert "gradient all-reduce" not in alone.result.parts_s
    assert report.result.parts_s["gradient all-reduce"] > 0
    assert report.cycles_per_step == alone.cycles_per_step


def test_unmerged_gradients_pay_latency_for_every_tensor():
    costs = FittedCosts(collective_s=1e-4)
    options = {"tier": "calibrated", "costs": costs}
    single = run(**options).result.parts_s["gradient all-reduce"]
    merged = run(merge_gradients_bytes=2**30, **options).result.parts_s["gradient all-reduce"]
    tensors = len(
        training_graphs(zoo.load("resnet18").graph(2), loss="cross_entropy").gradient_bytes
    )
    assert single - merged > 0.9 * (tensors - 1) * 4 * 1e-4


def test_distributed_batch_norm_pays_one_reduction_per_norm_and_pass():
    options = {"tier": "calibrated", "replicas": 2}
    norms = sum(op.kind == "norm" for op in run(replicas=2).result.graph.ops)
    cheap = run(batch_norm_span=2, costs=FittedCosts(), **options)
    dear = run(batch_norm_span=2, costs=FittedCosts(reduction_s=1e-5), **options)
    assert dear.result.step_s - cheap.result.step_s == pytest.approx(8 * norms * 1e-5)
    assert norms == 2 * 20


def test_many_replicas_cost_no_time_to_simulate():
    run(system="IPU-POD256", replicas=256)
    begin = time.perf_counter()
    report = run(system="IPU-POD256", replicas=256)
    assert time.perf_counter() - begin < 1.0
    assert report.result.parts_s["gradient all-reduce"] > 0


def test_a_slow_host_holds_the_step():
    fast = run(micro_batch=16, dataset="generated")
    fed = run(micro_batch=16, dataset="imagenet_jpeg", instances=1)
    assert "waiting for the host" not in fast.result.parts_s
    assert fed.result.parts_s["waiting for the host"] > 0
    assert fed.throughput.value < fast.throughput.value
    both = [
        run(micro_batch=16, dataset="imagenet_jpeg", instances=n).throughput.value for n in (8, 16)
    ]
    assert both[0] > both[1]  # more processes than NUMA nodes are swapped among them


def test_recomputation_trades_cycles_for_memory():
    kept = run("resnet50", micro_batch=8)
    auto = run("resnet50", micro_batch=8, recompute="auto")
    assert auto.cycles_per_step > kept.cycles_per_step
    assert auto.result.memory.total_bytes < kept.result.memory.total_bytes
    assert auto.peak_tile_bytes < kept.peak_tile_bytes
    assert "recompute" in set(auto.layers["phase"])


def test_optimiser_state_off_the_chip_frees_memory_and_takes_time():
    on, off = (run(optimizer="adam", optimizer_state=place) for place in ("on_chip", "off_chip"))
    state = 2 * 4 * 11_689_512
    # Read and written once per update, at the rate of the chip's link to the machine's memory.
    rate = load_system("IPU-POD16").buffer_link_bytes_per_s_per_ipu
    assert off.result.parts_s["optimiser state"] == pytest.approx(2 * state / rate)
    freed = on.result.memory.parameter_bytes - off.result.memory.parameter_bytes
    assert freed == pytest.approx(state / 1472, abs=2)


def test_chips_of_tensorflow_take_turns_at_their_state():
    options = {"optimizer": "adam", "optimizer_state": "off_chip", "replicas": 1}
    options |= {"ipus_per_replica": 2, "gradient_accumulation": 4}
    side_by_side, in_turn = (
        run(framework=name, **options).result.parts_s["optimiser state"]
        for name in ("popart", "tensorflow")
    )
    assert in_turn == pytest.approx(2 * side_by_side)


def test_a_pipeline_has_stages_bubbles_and_less_memory_on_each_chip():
    options = {"micro_batch": 8, "replicas": 1, "recompute": "none"}
    alone = run("resnet50", **options)
    piped = run("resnet50", ipus_per_replica=4, **options)
    stages = piped.stages
    assert len(stages) == 4
    assert list(stages["micro_batches_in_flight"]) == [7, 5, 3, 1]
    device_ms = stages["forward_ms"].sum() + stages["backward_ms"].sum()
    slowest = (stages["forward_ms"] + stages["backward_ms"]).max()
    assert slowest < 0.4 * device_ms
    parts = piped.result.parts_s
    assert parts["device"] == pytest.approx(8 * slowest / 1e3)
    assert parts["pipeline bubbles"] > 0 and parts["stage transfers"] > 0
    assert sum(parts.values()) == pytest.approx(piped.result.step_s)
    kept = run("resnet50", ipus_per_replica=4, schedule="sequential", **options)
    assert set(kept.stages["micro_batches_in_flight"]) == {1}
    in_turn_ms = kept.stages["forward_ms"].sum() + kept.stages["backward_ms"].sum()
    # An operation that is alone on its chip has no function to copy its weights into.
    assert in_turn_ms == pytest.approx(1e3 * alone.result.device_s, rel=1e-4)
    assert in_turn_ms < 1e3 * alone.result.device_s
    # where several are in flight, what waits is saved and restored, but on the last stage
    longer = stages["backward_ms"] > kept.stages["backward_ms"]
    assert list(longer) == [True, True, True, False]
    assert kept.stages["peak_tile_bytes"].max() < piped.stages["peak_tile_bytes"].max()
    resident = [stage.memory.parameter_bytes for stage in kept.result.stages]
    assert sum(resident) == pytest.approx(alone.result.memory.parameter_bytes, abs=8)


@pytest.mark.parametrize("ipus", [1, 2])
def test_code_of_the_weight_update_lies_beside_that_of_the_micro_batch(ipus):
    options = {"ipus_per_replica": ipus, "replicas": 1, "optimizer_state": "off_chip"}
    plain, lengthy = (run(optimizer=name, **options).result for name in ("sgd", "adam"))
    used = [
        [stage.memory for stage in result.stages] or [result.memory] for result in (plain, lengthy)
    ]
    for first, second in zip(*used, strict=True):
        assert first.parameter_bytes == second.parameter_bytes
        assert first.code.chip.control_code < second.code.chip.control_code


def test_pipeline_splits_are_kept():
    options = {"ipus_per_replica": 2, "replicas": 1}
    piped = run(pipeline_splits=["layer2.1.relu2"], **options)
    assert list(piped.stages["first_op"]) == ["conv1", "layer3.0.conv1"]


def test_a_wider_master_copy_costs_casts_and_memory(report):
    wide = run(precision="16.32")
    assert "cast" in set(wide.layers["kind"])
    assert wide.result.memory.parameter_bytes > 1.9 * report.result.memory.parameter_bytes
    assert wide.cycles_per_step > report.cycles_per_step


def test_roofline_of_training_is_never_beaten(report):
    options = {name: value for name, value in BASE.items() if name != "tier"}
    bound = ipusim.roofline("resnet18", **options)
    assert bound.throughput.value > report.throughput.value
    # Both are of one step and its items, whatever the host prepares meanwhile.
    items = report.throughput.value * report.latency.value
    assert bound.throughput.value * bound.latency.value == pytest.approx(items)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gradient_accumulation": 0}, "gradient_accumulation is 0: give a whole number"),
        ({"replicas": 17}, "17 replicas need 17 IPUs, but IPU-POD16 has 16"),
        ({"replicas": 3, "batch_norm_span": 2}, "does not divide 3 replicas"),
        ({"replicas": 16, "instances": 3}, "instances = 3 does not divide 16 replicas"),
        ({"ipus_per_replica": 32}, "does not fit IPU-POD16"),
        ({"ipus_per_replica": 2, "gradient_accumulation": 1}, "use 3 or more"),
        ({"ipus_per_replica": 2, "pipeline_splits": ["conv1", "relu"]}, "give 1 splits"),
        ({"ipus_per_replica": 2, "pipeline_splits": ["conv11"]}, "conv1"),
        ({"loss": "hinge"}, "cross_entropy"),
        ({"optimizer": "adagrad"}, "adam"),
        ({"optimizer_state": "host"}, "off_chip"),
        ({"schedule": "roundrobin"}, "grouped"),
        ({"framework": "jax"}, "popart"),
        ({"dataset": "cifar"}, "generated"),
        ({"merge_gradients_bytes": -1}, "0 or more"),
        ({"recompute": ["layer9"]}, "layer"),
    ],
)
def test_bad_options_get_one_sentence(options, words):
    with refused(words):
        run(**options)


def test_a_pipeline_longer_than_the_model_is_refused():
    g = GraphBuilder("tiny")
    graph = g.finish(g.linear("fc", g.input("x", (4, 8)), 4))
    model = Model(name="tiny", family="test", build=lambda size: graph, loss="cross_entropy")
    with pytest.raises(IpuSimError, match="needs 4 operators, but the model has 3"):
        run(model, ipus_per_replica=4, host_dtype=None, micro_batch=None)


def test_a_model_that_names_no_loss_is_refused():
    g = GraphBuilder("silent")
    graph = g.finish(g.linear("fc", g.input("x", (4, 8)), 4))
    model = Model(name="silent", family="test", build=lambda size: graph)
    with pytest.raises(IpuSimError, match="'silent' cannot be trained because it names no loss"):
        run(model, host_dtype=None, micro_batch=None)
    assert run(model, loss="mean_squared", host_dtype=None, micro_batch=None).fits


@pytest.mark.parametrize("collects", [True, False])
def test_nothing_is_collected_while_a_model_is_compiled(collects):
    g, found = GraphBuilder("tiny"), []
    graph = g.finish(g.linear("fc", g.input("x", (4, 8)), 4))

    def build(size):
        found.append(gc.isenabled())
        if len(found) == 2:
            raise IpuSimError("It cannot be built.")
        return graph

    model = Model(name="tiny", family="test", build=build, loss="mean_squared")
    (gc.enable if collects else gc.disable)()
    try:
        run(model, host_dtype=None, micro_batch=None)
        with pytest.raises(IpuSimError):
            run(model, host_dtype=None, micro_batch=None, precision="32.32")
        assert found == [False, False]
        assert gc.isenabled() == collects
    finally:
        gc.enable()


def test_a_sharding_domain_keeps_to_itself_all_but_the_sum_of_its_parts():
    # willow/src/transforms/streamingmemoryopinserter.cpp, RTSAllReduceToScatter.
    options = SHARDED | {"system": "IPU-POD128", "replicas": 128, "framework": "popart"}
    one = run(**options)
    racks = run(sharding_domain=64, **options)
    rack = run(**options | {"system": "IPU-POD64", "replicas": 64})
    for part in ("gradient reduce-scatter", "norm all-reduce", "weight all-gather"):
        assert racks.parts_s[part] == rack.parts_s[part] < one.parts_s[part]
    assert "shard all-reduce" not in rack.parts_s
    assert "shard all-reduce" not in one.parts_s
    between = racks.result.terms.after["shard all-reduce"]
    trained = graphs(graph_job(zoo.load(racks.model), racks.config))
    sharding, weights = racks.config.sharding, trained.micro_batch.tensors
    sizes = [n for name, n in trained.gradient_bytes.items() if sharding.parts(weights[name]) > 1]
    # A 64th of each gradient goes once to the other rack, added up, and once back.
    (far,) = replica_rings(racks.config.system, 128, 1, 64)
    assert between.each_latency_s == pytest.approx(len(sizes) * 2 * far.step_latency_s)
    assert between.transfer_s == pytest.approx(sum(sizes) / 64 / far.bytes_per_s, rel=1e-4)
    update = trained.update
    assert update.tensors["layer4.0.conv1.weight"].elements == 512 * 256 * 9 // 64
    with pytest.raises(IpuSimError, match="sharding_domain = 48 does not divide 128 replicas"):
        run(sharding_domain=48, **options)
    unsharded = options | {"replicated_tensor_sharding": False}
    for name in ("sharding_domain", "least_sharded_elements"):
        with pytest.raises(IpuSimError, match=f"{name} = 64 has no meaning without"):
            run(**{name: 64}, **unsharded)


def test_wide_accumulators_are_scattered_and_narrow_weights_gathered():
    options = {"replicated_tensor_sharding": True, "optimizer": "lamb", "replicas": 16}
    narrow, wide = (
        run(accumulator_dtype=kind, **options).result.terms.after for kind in (None, "float32")
    )
    part = "gradient reduce-scatter"
    # Twice the bytes, some of which another way round the ring is faster for.
    assert 1.9 * narrow[part].transfer_s < wide[part].transfer_s < 2 * narrow[part].transfer_s
    assert wide["weight all-gather"] == narrow["weight all-gather"]


def test_stable_norms_are_asked_for():
    def norms(model, **options):
        """Cycles of the norms of the forward pass, as they are and stable."""
        for stable in (False, True):
            layers = ipusim.simulate(model, stable_norm=stable, micro_batch=2, **options).layers
            forward = layers[(layers["kind"] == "norm") & (layers["phase"] == "forward")]
            yield forward["cycles"].sum()

    for model, mode in (("resnet18", "training"), ("gpt2_small_padded_sl1024", "inference")):
        plain, stable = norms(model, mode=mode)
        assert 1.1 * plain < stable < 2 * plain
    # Folded into convolutions they have no statistics.
    assert list(norms("resnet18")) == [0, 0]
