"""Pipelines: cuts, schedules against a step-by-step simulation, micro-batches in flight, copies."""

import itertools
import time
from typing import NamedTuple

import pytest
from hypothesis import given, strategies as st
from refused import refused

from ipusim.errors import ConfigError, UnknownNameError
from ipusim.machine import load, load_system
from ipusim.machine.interconnect import copy_s, sync_s
from ipusim.runtime.options.frameworks import FRAMEWORKS, Framework
from ipusim.runtime.options.spec import SCHEDULES
from ipusim.runtime.replica.balance import balance, split_after, stage_transfer_s
from ipusim.runtime.replica.schedule import (
    accumulation_rule,
    check_accumulation,
    micro_batches_in_flight,
    pipeline_order,
)

LAYERS = ["stem", "block1", "block2", "block3", "head"]
POD16 = load_system("IPU-POD16")

seconds = st.lists(st.integers(1, 20).map(float), min_size=1, max_size=5)
schedules = st.sampled_from(SCHEDULES)
frameworks = st.sampled_from(FRAMEWORKS)


class PipelineTime(NamedTuple):
    """Of all micro-batches of a weight update."""

    seconds: float
    steps: int


def pipeline_step(
    forward,
    backward,
    accumulation,
    schedule="grouped",
    transfer_s=0.0,
    *,
    host_s=0.0,
    framework="popart",
    stage_ipus=None,
) -> PipelineTime:
    """Time the micro-batches of a weight update, each stage on a chip of its own by default."""
    ipus, known = stage_ipus or range(len(forward)), load(Framework, framework)
    check_accumulation(accumulation, len(forward), schedule, known)
    order = pipeline_order(forward, backward, ipus, schedule, known)
    seconds = order.time_s(accumulation, transfer_s, host_s)
    return PipelineTime(seconds, order.steps(order.periods(accumulation)))


def simulate(forward, backward, accumulation, schedule, transfer, host, framework):
    """Move micro-batches one by one through the stages; every step ends for all chips at once.

    All wait while the host sends the micro-batch that begins.
    """
    stages = len(forward)
    path = [[(chip, "forward")] for chip in range(stages)]
    path += [[(chip, "backward")] for chip in reversed(range(stages))]
    if schedule == "grouped" and framework != "tensorflow":
        path[stages - 1 : stages + 1] = [path[stages - 1] + path[stages]]
    waiting, running, total = accumulation, [], 0.0
    stored, most = [0] * stages, [0] * stages
    for step in itertools.count():
        begins = {
            "grouped": True,
            "interleaved": step % 2 == 0,
            "sequential": not running,
        }[schedule]
        if waiting and begins:
            running.append(0)
            waiting -= 1
            total += host
        if not running and not waiting:
            return total, most
        work, copies = [0.0] * stages, False
        for place in running:
            for chip, half in path[place]:
                work[chip] += (forward if half == "forward" else backward)[chip]
                stored[chip] += half == "forward"
                most[chip] = max(most[chip], stored[chip])
            if place + 1 < len(path):
                copies |= path[place][-1][0] != path[place + 1][0][0]
        for place in running:
            for chip, half in path[place]:
                stored[chip] -= half == "backward"
        total += max(work) + copies * transfer
        running = [place + 1 for place in running if place + 1 < len(path)]


small = st.integers(0, 3).map(float)


@given(seconds, st.data(), schedules, frameworks, small, small)
def test_time_is_that_of_the_simulation(forward, data, schedule, framework, transfer, host):
    stages = len(forward)
    backward = data.draw(st.lists(st.integers(1, 40).map(float), min_size=stages, max_size=stages))
    least, multiple = accumulation_rule(stages, schedule, load(Framework, framework))
    extra = data.draw(st.integers(0, 12))
    count = least + multiple * extra
    found = pipeline_step(
        forward, backward, count, schedule, transfer, host_s=host, framework=framework
    )
    overlap = schedule if stages > 1 else "sequential"
    total, most = simulate(forward, backward, count, overlap, transfer, host, framework)
    assert found.seconds == pytest.approx(total)
    busiest = max(f + b for f, b in zip(forward, backward, strict=True))
    assert found.seconds >= count * busiest - 1e-9
    assert tuple(most) == micro_batches_in_flight(stages, schedule, load(Framework, framework))


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(("stages", "accumulation"), [(2, 8), (4, 16), (4, 2048), (8, 32)])
def test_bubble_of_balanced_stages(stages, accumulation, framework):
    found = pipeline_step([1.0] * stages, [2.0] * stages, accumulation, framework=framework)
    assert found.seconds == pytest.approx(3 * (accumulation + stages - 1))


def test_both_halves_of_the_last_stage_are_one_slot_or_two():
    """A step for each of 16 micro-batches, and one for each further slot of 4 stages."""
    for framework, slots in (("popart", 7), ("pytorch", 7), ("tensorflow", 8)):
        found = pipeline_step([1.0] * 4, [2.0] * 4, 16, framework=framework)
        assert found.steps == 16 + slots - 1


def test_schedules_in_order():
    def total(schedule):
        return pipeline_step([1.0] * 4, [2.0] * 4, 16, schedule).seconds

    assert total("grouped") < total("interleaved") < total("sequential") == 4 * 3 * 16


def test_interleaved_is_as_quick_where_both_passes_take_as_long():
    same = [1.0] * 4
    assert pipeline_step(same, same, 16, "interleaved").seconds == pytest.approx(
        pipeline_step(same, same, 16, "grouped").seconds
    )


def test_two_stages_on_one_chip_run_one_after_the_other():
    found = pipeline_step(
        [1.0] * 5, [2.0] * 5, 20, framework="tensorflow", stage_ipus=[0, 1, 2, 3, 0]
    )
    assert found.seconds >= 20 * 6


def test_stages_on_one_chip_need_no_copies():
    found = pipeline_step([1.0] * 7, [2.0] * 7, 24, "sequential", 5.0, stage_ipus=[0] * 7)
    assert found.seconds == pytest.approx(24 * 21)


def test_time_to_compute_does_not_depend_on_accumulation():
    begun = time.perf_counter()
    found = pipeline_step([1.0] * 16, [2.0] * 16, 10**9)
    assert time.perf_counter() - begun < 0.2
    assert found.seconds == pytest.approx(3 * (10**9 + 15))


@pytest.mark.parametrize(
    ("stages", "schedule", "framework", "count", "message"),
    [
        (4, "grouped", "popart", 6, "use 7 or more"),
        (4, "grouped", "tensorflow", 12, "use a multiple of 8"),
        (4, "interleaved", "tensorflow", 10, "use a multiple of 4"),
        (4, "sequential", "tensorflow", 0, "use 1 or more"),
        (1, "grouped", "popart", 0, "use 1 or more"),
    ],
)
def test_too_little_accumulation(stages, schedule, framework, count, message):
    times = [1.0] * stages
    with pytest.raises(ConfigError, match=message):
        pipeline_step(times, times, count, schedule, framework=framework)


def test_chips_that_are_shared_take_fewer_micro_batches_at_once():
    """Of five stages on chips 0 1 0 1 2 only two rotations never meet."""
    times, shared = [1.0] * 5, {"stage_ipus": (0, 1, 0, 1, 2), "framework": "tensorflow"}
    with pytest.raises(ConfigError, match="the 2 micro-batches in flight .* a multiple of 2"):
        pipeline_step(times, times, 5, "interleaved", **shared)
    assert pipeline_step(times, times, 10, "interleaved", **shared).seconds > 0


@pytest.mark.parametrize("stages", range(1, 9))
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_rule_is_the_smallest_that_runs(stages, schedule, framework):
    least, multiple = accumulation_rule(stages, schedule, load(Framework, framework))
    times = [1.0] * stages
    for count in (least, least + multiple):
        assert pipeline_step(times, times, count, schedule, framework=framework).steps >= stages
    assert (
        least >= max(micro_batches_in_flight(stages, schedule, load(Framework, framework)))
        or stages == 1
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pipeline_step([1.0], [1.0], 1, framework="popar"), "'popart'"),
        (lambda: split_after(LAYERS, ["blok1"]), "did you mean 'block1'"),
        (lambda: split_after(LAYERS, ["block2", "block1"]), "'block1' does not come after"),
        (lambda: split_after(LAYERS, ["block1", "block1"]), "'block1' does not come after"),
        (lambda: split_after(LAYERS, ["head"]), "'head' is the last operator"),
        (lambda: split_after(LAYERS, ["stem"] * 5), "'stem' does not come after"),
        (lambda: balance([1, 2], 3), "the model has 2"),
    ],
)
def test_bad_input_gets_one_sentence(call, message):
    with refused(message):
        call()


def test_unknown_split_is_an_unknown_name():
    with pytest.raises(UnknownNameError):
        split_after(LAYERS, ["nowhere"])


def test_named_splits():
    cut = split_after(LAYERS, ["stem", "block2"])
    assert cut == (0, 1, 3)
    assert split_after(LAYERS, []) == (0,)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=9), st.data())
def test_balance_finds_the_least_largest_stage(costs, data):
    stages = data.draw(st.integers(1, len(costs)))
    starts = balance(costs, stages)
    ranges = list(itertools.pairwise((*starts, len(costs))))
    assert len(ranges) == stages and starts[0] == 0
    assert all(start < stop for start, stop in ranges)

    def largest(starts):
        return max(
            sum(costs[start:stop]) for start, stop in itertools.pairwise((0, *starts, len(costs)))
        )

    best = min(map(largest, itertools.combinations(range(1, len(costs)), stages - 1)))
    assert max(sum(costs[start:stop]) for start, stop in ranges) == best


def test_copies_over_the_ladder():
    link, hop = 16e9 * 0.85, POD16.ipu_link.latency_s
    assert copy_s(POD16, 0, 1, 10**9) == pytest.approx(hop + 1e9 / (6 * link))
    assert copy_s(POD16, 0, 2, 10**9) == pytest.approx(hop + 1e9 / (2 * link))
    assert copy_s(POD16, 1, 2, 0) == pytest.approx(2 * hop)
    assert copy_s(POD16, 0, 15, 0) == pytest.approx(8 * hop)
    torus = load_system("IPU-POD64")
    assert copy_s(torus, 0, 62, 0) == pytest.approx(torus.ipu_link.latency_s)
    racks = load_system("IPU-POD256")
    rate = 2 * 12.5e9 * 0.85
    assert copy_s(racks, 0, 64, 10**9) == pytest.approx(racks.gw_link.latency_s + 1e9 / rate)


def test_slowest_copy_between_stages_counts():
    found = stage_transfer_s(POD16, [0, 1, 2], [10**8, 10**6], [5 * 10**7, 10**6])
    assert found == pytest.approx(sync_s(POD16, 3) + copy_s(POD16, 0, 1, 10**8))
    assert stage_transfer_s(POD16, [0, 0], [10**8]) == 0
    assert stage_transfer_s(POD16, [0], []) == 0


def test_copies_in_turn_take_the_time_of_all_that_a_chip_makes():
    """TensorFlow calls the copies of each stage, forward or backward, one after the other."""
    forward, backward = [10**8, 10**6], [5 * 10**7, 0]
    found = stage_transfer_s(POD16, [0, 1, 2], forward, backward, in_turn=True)
    of_middle_chip = [
        stage_transfer_s(POD16, [0, 1, 2], sizes)
        for sizes in ([10**8, 0], [5 * 10**7, 0], [0, 10**6])
    ]
    assert found == pytest.approx(sum(of_middle_chip))
    apart = stage_transfer_s(POD16, [0, 1, 2], [10**8, 0], [10**8, 0], in_turn=True)
    assert stage_transfer_s(
        POD16, [0, 1, 2, 3], [10**8, 0, 10**8], [10**8, 0, 10**8], in_turn=True
    ) == pytest.approx(apart, rel=1e-3)
    one_by_one = stage_transfer_s(
        POD16, [0, 1, 2, 3], [10**8, 0, 10**8], [10**8, 0, 10**8], in_turn=True, pairs_overlap=False
    )
    assert one_by_one == pytest.approx(2 * apart, rel=1e-3)
    assert load(Framework, "tensorflow").copies_in_turn
    assert not load(Framework, "popart").copies_in_turn
