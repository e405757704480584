"""Phased execution: which tensors are streamed when, what overlaps, what a phase must hold."""

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st
from refused import refused

import ipusim
from ipusim.cli import main
from ipusim.errors import IpuSimError
from ipusim.machine.system import load_system
from ipusim.runtime.collectives import all_gather
from ipusim.runtime.phase_splits import weight_splits
from ipusim.runtime.replica.balance import stage_transfer_s
from ipusim.runtime.replica.phases.replica import parts_s, phased_seconds
from ipusim.runtime.replica.phases.streams import (
    handed_over_bytes,
    held_tensors,
    phase_numbers,
    transfers,
)
from ipusim.workload.layers import GraphBuilder
from ipusim.workload.model import Model

ROWS, WIDTH, LAYERS = 64, 256, 6
WEIGHT = 2 * WIDTH * WIDTH
"""Bytes of a layer's weights; there are no biases."""

HIDDEN = 2 * ROWS * WIDTH
"""Bytes of what a layer hands on per item."""

RATE = load_system("IPU-M2000").buffer_link_bytes_per_s_per_ipu


def _dense(batch, *, width=WIDTH, layers=LAYERS):
    g = GraphBuilder("dense")
    x = g.input("x", (batch or 1, ROWS, width))
    for layer in range(layers):
        weights = g.parameter(f"w{layer}", (width, width))
        x = g.elementwise(f"relu{layer}", "relu", g.matmul(f"fc{layer}", x, weights))
    return g.finish(x)


DENSE = Model(name="dense", family="test", build=_dense, loss="mean_squared")
RUN = {"system": "IPU-M2000", "replicas": 1, "tier": "specification"}
TRAINING = {**RUN, "mode": "training", "gradient_accumulation": 8, "optimizer": "adam"}
ON_CHIP = dict.fromkeys(("weights", "activations", "accumulators"), "on_chip")


def infer(**options):
    return ipusim.simulate(DENSE, **{**RUN, **options})


def train(**options):
    return ipusim.simulate(DENSE, **{**TRAINING, **options})


def parts(report):
    return dict(report.result.parts_s)


@pytest.mark.parametrize(
    ("made", "used", "changed", "loads", "stores"),
    [
        # A weight of the first of four phases: read in phase 0 and, in reverse, in phase 6.
        (None, {0, 6}, (), {0, 6}, set()),
        # Of the third, whose backward part is two phases on: it stays on the chip.
        (None, {2, 4}, (), {2}, set()),
        # Updated in the backward phase: loaded for it, stored once at its end.
        (None, {0, 6}, {6}, {0, 6}, {6}),
        (None, {2, 4}, {4}, {2}, {4}),
        # An activation for the next phase or the one after never leaves the chip.
        (3, {4}, (), set(), set()),
        (3, {4, 5}, (), set(), set()),
        # One that waits for a backward phase: stored at the end of its stay, loaded again.
        (0, {6}, (), {6}, {0}),
        (0, {1, 6}, (), {6}, {1}),
        # Without use, and in the phase that made it.
        (2, set(), (), set(), set()),
        (2, {2}, (), set(), set()),
    ],
)
def test_a_tensor_is_loaded_unless_one_of_the_two_phases_before_used_it(
    made, used, changed, loads, stores
):
    assert transfers(made, used, changed) == (loads, stores)


@given(
    st.one_of(st.none(), st.integers(0, 5)),
    st.sets(st.integers(0, 12), max_size=6),
    st.sets(st.integers(0, 12), max_size=2),
)
def test_every_use_finds_its_tensor_and_nothing_changed_is_lost(made, used, changed):
    used = {number for number in used if made is None or number >= made}
    changed &= used
    loads, stores = transfers(made, used, changed)
    held = made  # the last phase that had it on the chip
    fresh = made is not None  # what is on the chip is newer than what lies off it
    for number in sorted(used):
        near = held is not None and number - held <= 2
        assert (number in loads) == (not near)
        assert near or not fresh or any(held <= store < number for store in stores)
        fresh = (fresh and near) or number in changed
        fresh = fresh and number not in stores
        held = number
    assert not (loads and fresh) or made == held
    assert loads or not stores


def test_phases_are_numbered_like_those_of_popart():
    # Three phases as in PopTorch's docstrings: 0 1 2, then 2 1 0 as 2 3 4.
    assert phase_numbers(3, "always_live", training=True) == ((0, 1, 2), (4, 3, 2))
    assert phase_numbers(3, "always_live", training=False) == ((0, 1, 2), ())
    # Three numbers are left out, N = 6: 10 - p.
    assert phase_numbers(3, "off_chip_after_forward", training=True) == ((0, 1, 2), (10, 9, 8))
    spaced = phase_numbers(2, "off_chip_after_forward_no_overlap", training=True)
    assert spaced == ((0, 2), (10, 8))
    assert phase_numbers(2, "off_chip_after_each_phase", training=True) == ((0, 4), (14, 10))


def test_phases_read_about_as_many_bytes_of_weights_each():
    graph = _dense(1)
    assert weight_splits(graph, 3) == ("relu1", "relu3")
    # A phase ends before the operator that would take it over 6/4 layers, the last takes the rest.
    assert weight_splits(graph, 4) == ("relu0", "relu1", "relu2")
    # Where an operator alone reads more than a share, the next begins another phase.
    assert weight_splits(graph, 100) == tuple(f"fc{layer}" for layer in range(LAYERS))


SECONDS = st.lists(st.floats(0, 1), min_size=4, max_size=4)


@given(SECONDS, SECONDS, SECONDS, SECONDS, st.integers(0, 3))
def test_overlap_hides_transfers_behind_other_phases_only(compute, blocking, load, store, at):
    columns = (compute, blocking, load, store)
    serial = phased_seconds(*columns, overlapped=False)
    beside = phased_seconds(*columns, overlapped=True)
    assert serial == pytest.approx(sum(map(sum, columns)))
    assert beside <= serial + 1e-9
    assert beside >= load[0] + sum(compute) + sum(blocking) + store[-1] - 1e-9
    assert beside >= sum(map(sum, columns[1:])) - 1e-9
    for column in columns:
        column[at] += 0.5
        assert phased_seconds(*columns, overlapped=True) >= beside - 1e-9


def test_the_schedule_by_hand():
    columns = ([4.0, 1.0, 1.0], [0.5, 0.5, 0.0], [2.0, 3.0, 2.0], [0.0, 2.0, 1.0])
    # Load 2; phase 0 hides the 3 of phase 1; phase 1 waits for the 2 of phase 2, which follow no
    # store; phase 2 for the store of phase 1; its own store ends the pass.
    assert phased_seconds(*columns, overlapped=True) == 2 + 4 + 2 + 2 + 1 + 1
    named = [
        ("a", "compute", columns[0]),
        ("b", "blocking", columns[1]),
        ("c", "load", columns[2]),
        ("c", "store", columns[3]),
    ]
    assert parts_s(named, 3, overlapped=True) == {"a": 6.0, "b": 1.0, "c": 5.0}


@pytest.mark.parametrize("phases", [2, 3, 6])
def test_phases_that_stay_on_the_chip_cost_nothing(phases):
    plain, phased = infer(), infer(phases=phases, **ON_CHIP)
    assert parts(phased) == pytest.approx(parts(plain))
    plain = train(optimizer_state="on_chip")
    phased = train(phases=phases, optimizer_state="on_chip", **ON_CHIP)
    assert parts(phased) == pytest.approx(parts(plain))
    # All weights, accumulators and states stay for every phase.
    assert {stage.memory.parameter_bytes for stage in phased.result.stages} >= {
        plain.result.memory.parameter_bytes
    }
    assert infer(phases=1).result.parts_s == infer().result.parts_s


def test_weights_of_inference_are_loaded_once_per_phase():
    phased = infer(phases=3, micro_batches_per_phase=5)
    assert parts(phased)["streamed weights"] == pytest.approx(LAYERS * WEIGHT / RATE)
    assert parts(phased)["device"] == pytest.approx(5 * phased.result.device_s)
    assert "streamed activations" not in parts(phased)
    assert phased.result.items == 5
    alone = infer(phases=3)
    assert parts(alone)["streamed weights"] == pytest.approx(parts(phased)["streamed weights"])
    assert parts(phased)["transfers"] == pytest.approx(5 * parts(alone)["transfers"])
    assert list(phased.stages["streamed_bytes"]) == [2 * WEIGHT] * 3
    assert "3 phases on GC200" in repr(phased)
    # No published run is known, so no interval.
    assert infer(phases=3, tier="calibrated").interval80 is None
    assert infer(tier="calibrated").interval80 is not None


def test_spaced_phases_hand_on_through_streaming_memory():
    spaced = infer(phases=3, phase_liveness="off_chip_after_each_phase", micro_batches_per_phase=2)
    # Two boundaries, stored and loaded, for both micro-batches.
    assert parts(spaced)["streamed activations"] == pytest.approx(2 * 2 * 2 * HIDDEN / RATE)
    near = infer(phases=3, phase_liveness="off_chip_after_forward_no_overlap")
    assert "streamed activations" not in parts(near)


def test_training_streams_what_waits_for_the_backward_pass():
    phases, passes = 3, 8
    phased = train(phases=phases)
    found = parts(phased)
    # Numbers 0 1 2 3 4: the first phase's weights are loaded twice, but for those of the first
    # layer, whose input needs no gradient; the others stay. The update after all micro-batches
    # reads and writes each once.
    weights = passes * (LAYERS + 1) * WEIGHT + 2 * LAYERS * WEIGHT
    assert found["streamed weights"] == pytest.approx(weights / RATE)
    sums = (passes + 1) * 2 * LAYERS * WEIGHT
    assert found["streamed accumulators"] == pytest.approx(sums / RATE)
    state = phased.result.memory  # not on the chip
    assert state.resident_bytes < 5 * LAYERS * WEIGHT
    plain = train(optimizer_state="off_chip")
    assert found["streamed optimiser state"] == pytest.approx(parts(plain)["optimiser state"])
    assert "optimiser state" not in found
    assert found["weight update"] == pytest.approx(parts(plain)["weight update"])
    # Of the first phase, what its relus and products read again and hand on to nobody else.
    assert found["streamed activations"] > 0
    kept = train(phases=phases, activations="on_chip")
    assert "streamed activations" not in parts(kept)
    again = train(phases=phases, recompute="auto")
    assert parts(again)["device"] > found["device"]
    assert "streamed activations" not in parts(again)  # what crosses is two phases away at most


def test_one_pass_for_all_micro_batches_updates_in_its_phases():
    once = train(phases=3, micro_batches_per_phase=8)
    found = parts(once)
    # Those of the first phase are loaded again for the backward pass or the update; all are stored.
    assert found["streamed weights"] == pytest.approx((8 + 6) * WEIGHT / RATE)
    assert "streamed accumulators" not in found
    after = parts(train(phases=3))
    for part in ("streamed optimiser state", "weight update", "device"):
        assert found[part] == pytest.approx(after[part])
    assert sum(found.values()) < sum(after.values())


def _tied(batch):
    g = GraphBuilder("tied")
    table = g.parameter("table", (1024, WIDTH))
    x = g.gather("lookup", table, g.input("ids", (batch or 1, ROWS), "int32"))
    for layer in range(LAYERS):
        x = g.elementwise(f"relu{layer}", "relu", g.linear(f"fc{layer}", x, WIDTH, bias=False))
    return g.finish(g.matmul("scores", x, table, transpose_b=True))


TIED = Model(name="tied", family="test", build=_tied, loss="cross_entropy")


def test_gradients_that_wait_for_another_phase_are_sums_of_its_micro_batches():
    found = []
    for together in (4, 8):
        report = ipusim.simulate(
            TIED,
            **TRAINING,
            phase_splits=["relu0", "relu2", "relu4"],
            micro_batches_per_phase=together,
        )
        found.append(parts(report)["streamed activations"])
    # From phase 3 to phase 6 in each pass, stored and loaded; all else is for each micro-batch.
    table = 2 * 1024 * WIDTH
    assert found[0] - found[1] == pytest.approx(2 * table / RATE)


def test_two_chips_stream_while_the_other_computes():
    alone, both = infer(phases=6), infer(phases=6, ipus_per_replica=2)
    forward = [stage.forward_s for stage in both.result.stages]
    load = WEIGHT / RATE
    system = load_system("IPU-M2000")
    handed = stage_transfer_s(system, (0, 1), [HIDDEN])
    expected = load + sum(max(busy, load) for busy in forward[:-1]) + forward[-1] + 5 * handed
    found = parts(both)
    device = ("device", "stage transfers", "streamed weights")
    assert sum(found[part] for part in device) == pytest.approx(expected)
    assert found["stage transfers"] == pytest.approx(5 * handed)
    assert found["streamed weights"] < parts(alone)["streamed weights"]
    assert list(both.stages["ipu"]) == [0, 1] * 3
    waiting = infer(phases=6, ipus_per_replica=2, load_schedule="on_demand")
    assert parts(waiting)["streamed weights"] == pytest.approx(6 * load)


def test_tiles_for_transfers_stream_beside_the_others():
    options = {"phases": 6, "batches_in_flight": 3, "overlap_io": True, "io_tiles": 64}
    beside = infer(**options)
    chip = load_system("IPU-M2000").chip
    copied = LAYERS * WEIGHT / (64 * chip.exchange_bytes_per_cycle * chip.clock_hz)
    load = WEIGHT / RATE
    forward = [stage.forward_s for stage in beside.result.stages]
    hidden = load + sum(max(busy, load) for busy in forward[:-1]) + forward[-1]
    found = parts(beside)
    assert found["device"] + found["streamed weights"] == pytest.approx(hidden + copied)
    spaced = infer(**options, phase_liveness="off_chip_after_forward_no_overlap")
    assert parts(spaced)["streamed weights"] == pytest.approx(LAYERS * load + copied)


def test_more_bandwidth_is_never_slower_and_alone_sets_the_time():
    system = load_system("IPU-M2000")
    streamed, steps = [], []
    for factor in (1, 2, 8):
        fast = replace(system, buffer_link_bytes_per_s_per_ipu=factor * RATE)
        found = parts(train(system=fast, phases=3))
        streamed.append(factor * sum(found[part] for part in found if part.startswith("streamed")))
        steps.append(sum(found.values()))
    assert streamed == pytest.approx([streamed[0]] * 3)
    assert steps == sorted(steps, reverse=True)


def test_sharded_weights_are_gathered_each_time_they_are_loaded():
    options = {"phases": 3, "system": "IPU-POD16", "replicas": 4, "optimizer": "lamb"}
    whole = parts(train(**options))
    found = parts(train(**options, replicated_tensor_sharding=True))
    assert found["streamed weights"] == pytest.approx(whole["streamed weights"] / 4)
    one = all_gather(load_system("IPU-POD16"), 4, 1, [WEIGHT]).at(0.0)
    # Per micro-batch one layer twice and five once.
    assert found["weight all-gather"] == pytest.approx(8 * 7 * one)
    small = parts(train(**options, replicated_tensor_sharding=True, least_sharded_elements=10**9))
    assert small["streamed weights"] == whole["streamed weights"]
    assert "weight all-gather" not in small
    held = parts(train(**options, replicated_tensor_sharding=True, weights="on_chip"))
    assert held["weight all-gather"] == pytest.approx(6 * one)


def _wide(batch):
    return _dense(batch, width=16384, layers=3)


WIDE = Model(name="wide", family="test", build=_wide, loss="mean_squared")


def test_a_model_too_large_for_a_chip_runs_in_phases():
    whole = ipusim.simulate(WIDE, **RUN)
    assert not whole.fits
    assert "ipusim.plan(model" in whole.verdict
    assert "weight" in whole.verdict or "parameters" in whole.verdict
    phased = ipusim.simulate(WIDE, **RUN, phases=3)
    assert phased.fits
    weight = 2 * 16384 * 16384
    tiles = load_system("IPU-M2000").chip.tiles
    for stage in phased.result.stages:
        own = stage.memory
        assert own.parameter_bytes == -(-weight // tiles)
        assert own.code == phased.result.memory.code  # that of all phases
    assert phased.result.step_s > 3 * weight / RATE
    held = ipusim.simulate(WIDE, **RUN, phases=3, weights="on_chip")
    assert not held.fits
    assert held.verdict.startswith("A phase does not fit")
    assert held.held()["bytes"].sum() <= held.used_tile_bytes


def test_what_a_phase_holds():
    batch = {"micro_batch": 4}
    one, five = (infer(phases=3, micro_batches_per_phase=n, **batch) for n in (1, 5))
    tiles = load_system("IPU-M2000").chip.tiles
    for few, many in zip(one.result.stages, five.result.stages, strict=True):
        assert few.memory.resident_bytes == 2 * WEIGHT
        # Four more wait with what arrives or what they hand on, of the same size; the last phase's
        # results leave for the host, but its inputs wait.
        assert many.memory.resident_bytes == 2 * WEIGHT + 4 * 4 * HIDDEN
    first = one.result.stages[0].memory.points[-1]
    assert first.op == "loads of phase 1"
    # Its own weights are done, the next ones there, beside the result.
    assert first.activation_bytes == -(-4 * HIDDEN // tiles)
    waits = infer(phases=3, load_schedule="on_demand", **batch).result.stages[0].memory
    assert waits.points[-1].op == "relu1"
    # In training the first phase's own activations wait for its backward part.
    stays = train(phases=3, activations="on_chip").result.stages
    leaves = train(phases=3).result.stages
    assert stays[1].memory.resident_bytes > leaves[1].memory.resident_bytes


def test_tensors_on_two_chips():
    graph = _dense(1)
    numbers = {op.name: index // 2 for index, op in enumerate(graph.ops)}
    held = {(one.name, one.chip): one for one in held_tensors(graph, numbers, 2)}
    result = graph.ops[1].outputs[0]
    assert (held[result, 0].made, held[result, 0].used) == (0, ())
    assert (held[result, 1].made, held[result, 1].used) == (1, (1,))
    assert ("w1", 0) not in held
    assert held["w1", 1].used == (1,)
    size = graph.tensors[result].bytes
    assert handed_over_bytes(graph, numbers) == dict.fromkeys(range(LAYERS - 1), size)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"phases": 0}, "phases is 0"),
        ({"weights": "off_chip"}, "no meaning without phases"),
        ({"phases": 1, "load_schedule": "preload"}, "no meaning without phases"),
        ({"phases": 3, "phase_splits": ["relu0"]}, "give 2 splits"),
        ({"phase_splits": ["relu9"]}, "relu"),
        ({"phases": 2, "ipus_per_replica": 4}, "take turns on 2"),
        ({"phases": 2, "ipus_per_replica": 2, "schedule": "grouped"}, "leave phases out"),
        (
            {"phases": 2, "ipus_per_replica": 2, "phase_liveness": "off_chip_after_each_phase"},
            "needs ipus_per_replica = 1",
        ),
        ({"phases": 2, "phase_liveness": "always"}, "always_live"),
        ({"phases": 2, "load_schedule": "early"}, "preload"),
        ({"phases": 2, "weights": "ddr"}, "off_chip"),
        ({"phases": 2, "system": "C2"}, "no Streaming Memory"),
        ({"phases": 2, "system": "C2", "mode": "training", **ON_CHIP}, "no Streaming Memory"),
        ({"phases": 2, "mode": "training", "framework": "tensorflow"}, "no phased execution"),
        (
            {
                "phases": 2,
                "mode": "training",
                "gradient_accumulation": 8,
                "micro_batches_per_phase": 3,
            },
            "does not divide a gradient accumulation of 8",
        ),
    ],
)
def test_wrong_options_are_refused_with_one_sentence(options, message):
    with refused(message):
        infer(**options)


def test_what_no_memory_holds_is_refused():
    small = replace(load_system("IPU-M2000"), streaming_memory_bytes_per_machine=LAYERS * WEIGHT)
    assert infer(system=small, phases=2).result.step_s > 0
    with pytest.raises(IpuSimError, match="The 2 replicas on one machine keep"):
        infer(system=small, phases=2, replicas=2)
    narrow = {"phases": 3, "overlap_io": True, "batches_in_flight": 2, "io_tiles": 1}
    with pytest.raises(IpuSimError, match=r"The 1 I/O tiles hold .* give more io_tiles"):
        ipusim.simulate(WIDE, **RUN, **narrow)


def test_the_command_line_takes_phases(capsys):
    assert main(["simulate", "resnet18", "--phases", "2", "--micro-batches-per-phase", "4"]) == 0
    assert "2 phases on GC200" in capsys.readouterr().out
    split = ["--phase-splits", "layer2.1.relu2", "--weights", "on_chip"]
    assert main(["simulate", "resnet18", *split, "--phase-liveness", "always"]) == 2
    assert "always_live" in capsys.readouterr().err


def test_exchanges_of_all_phases_are_waited_for():
    whole, phased = infer(), infer(phases=3, micro_batches_per_phase=2)
    one, all_of = (report.result.terms.line().exchanges for report in (whole, phased))
    assert all_of == 2 * one > 0


def test_constants_are_not_streamed():
    g = GraphBuilder("masked")
    x = g.input("x", (1, ROWS, WIDTH))
    mask = g.constant("mask", (1, ROWS, WIDTH))
    x = g.elementwise("masked", "mul", g.elementwise("relu", "relu", x), mask)
    graph = g.finish(g.elementwise("again", "mul", x, mask))
    held = held_tensors(graph, {"relu": 0, "masked": 1, "again": 4}, 1)
    assert {one.name for one in held} == {"x", "relu.out", "masked.out", "again.out"}
