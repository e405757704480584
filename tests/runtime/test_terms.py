"""Terms of a step: stated once, priced at any cost, the same as a step simulated with it."""

import pytest

import ipusim
from ipusim.errors import ConfigError
from ipusim.runtime.calibration import FittedCosts
from ipusim.runtime.compile import compile_run
from ipusim.runtime.options.config import make_config
from ipusim.runtime.replica.partition import partition
from ipusim.runtime.terms import Beside, OneChip, Terms
from ipusim.workload import zoo

HAND = OneChip(cycles=1000, exchanges_each=0, clock_hz=1e6, times=2, update_cycles=500)


def by_hand(**given):
    """Terms of two micro-batches of 1 ms, and in training an update of half a millisecond."""
    facts = {"training": False, "clock_hz": 1e6, "schedule": HAND}
    facts |= dict.fromkeys(("host_s", "loader_s", "between_s"), 0.0)
    beside = Beside(transfers_s=1e-4, host_work_s=0.0)
    return Terms(**facts | {"beside": beside} | given)


def test_a_call_from_the_host_is_paid_once_a_step():
    terms, dear = by_hand(training=True), FittedCosts(step_s=1.0)
    assert terms.price(FittedCosts()).step_s == pytest.approx(2.7e-3)
    assert terms.price(dear).step_s == pytest.approx(1 + 2.7e-3)
    assert terms.price(dear).parts_s["fixed"] == 1
    assert terms.line().step_s(dear) == pytest.approx(1 + 2.7e-3)


def test_a_run_of_the_device_is_shared_by_its_iterations():
    dear = FittedCosts(step_s=1e-3, run_s=0.1)
    for training in (False, True):
        once = by_hand(training=training, iterations=1).price(dear)
        often = by_hand(training=training, iterations=50).price(dear)
        assert often.parts_s["fixed"] == pytest.approx(1e-3 + 2e-3)
        assert once.step_s - often.step_s == pytest.approx(0.1 - 2e-3)
    # within a run no request waits for the next; where a run is one batch, it is that of the call
    batches = {count: by_hand(depth=2, iterations=count).price(dear) for count in (1, 50)}
    assert batches[1].latency_s == pytest.approx(2 * batches[1].step_s)
    assert batches[50].latency_s == pytest.approx(2 * (batches[50].step_s - 2e-3))


@pytest.mark.parametrize("training", [False, True])
def test_transfers_beside_the_chips_do_not_hide_the_call(training):
    chips_s, dear = 2.5e-3 if training else 2e-3, FittedCosts(step_s=1.0)
    for host_s, slower_s in ((1e-3, chips_s), (5e-3, 5e-3)):
        terms = by_hand(training=training, beside=None, host_s=host_s)
        assert terms.price(dear).step_s == pytest.approx(1 + slower_s)
        assert sum(terms.price(dear).parts_s.values()) == terms.price(dear).step_s
        assert terms.line().step_s(dear) == pytest.approx(1 + slower_s)


@pytest.mark.parametrize("training", [False, True])
def test_a_loader_goes_on_beside_the_call(training):
    chips_s, dear = 2.5e-3 if training else 2e-3, FittedCosts(step_s=1e-3)
    for loader_s, step_s in ((3e-3, chips_s + 1e-3), (5e-3, 5e-3)):
        terms = by_hand(training=training, beside=None, loader_s=loader_s)
        assert terms.price(dear).step_s == pytest.approx(step_s)
        assert terms.line().step_s(dear) == pytest.approx(step_s)


def test_a_request_waits_for_the_batches_before_it_and_not_for_what_follows_its_own():
    found = by_hand(depth=3, between_s=1e-3).price(FittedCosts())
    assert found.latency_s == pytest.approx(3 * 2.2e-3)
    assert found.step_s == pytest.approx(3.2e-3)


@pytest.mark.parametrize("cost", [-1.0, float("nan"), 1e6])
def test_impossible_costs_are_refused(cost):
    with pytest.raises(ConfigError, match="give 0 or more seconds"):
        by_hand().price(FittedCosts(collective_s=cost))


MODEL = "braggnn"
TRAINING = {"mode": "training", "micro_batch": 2, "gradient_accumulation": 8}
RUNS = {
    "one chip": {"system": "C2", "micro_batch": 2},
    "overlapped": {"system": "IPU-M2000", "overlap_io": True, "batches_in_flight": 3},
    "in turn": {"system": "IPU-M2000", "ipus_per_replica": 2, "schedule": "sequential"},
    "at once": {"system": "IPU-M2000", "ipus_per_replica": 2},
    "trained": {"system": "IPU-POD64", **TRAINING},
    "pipeline": {"system": "IPU-POD64", "ipus_per_replica": 2, **TRAINING},
    "fed slowly": {
        "system": "IPU-POD16",
        "dataset": "prepared",
        "loader_item_s": 1.0,
        "serial_item_s": 0.01,
        **TRAINING,
    },
    "turns": {"system": "IPU-POD64", "ipus_per_replica": 2, "framework": "tensorflow", **TRAINING},
}
COSTS = {
    "starts": FittedCosts(step_s=1e-3),
    "runs": FittedCosts(run_s=1e-3),
    "exchanges": FittedCosts(exchange_cycles=1.0),
    "reductions": FittedCosts(reduction_s=1e-6),
    "collectives": FittedCosts(collective_s=1e-3),
}


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("cost", COSTS)
def test_a_step_pays_each_cost_as_often_as_its_terms_say(name, cost):
    options = RUNS[name]
    terms = ipusim.simulate(MODEL, tier="specification", **options).result.terms
    line = terms.line()
    dear = ipusim.simulate(MODEL, costs=COSTS[cost], **options).result
    assert terms.price(COSTS[cost]).step_s == dear.step_s
    assert dear.step_s == pytest.approx(line.step_s(COSTS[cost]), rel=1e-12)
    assert sum(dear.parts_s.values()) == pytest.approx(dear.step_s)


def test_shared_statistics_are_paid_by_every_micro_batch():
    options = {"system": "IPU-POD16", "batch_norm_span": 2, **TRAINING}
    line = ipusim.simulate("resnet18", **options).result.terms.line()
    norms = 2 * 20
    assert line.reductions == 8 * norms


def test_exchanges_of_a_pipeline_are_those_of_the_chips_that_are_waited_for():
    options = {"system": "IPU-M2000", "replicas": 1, **TRAINING}
    alone = ipusim.simulate(MODEL, **options).result.terms.line()
    compiled = compile_run(zoo.load(MODEL), make_config(**options))
    each = compiled.program.exchanges
    computes_alone = [step for step in compiled.program.steps if not step.exchange_bytes]
    assert each == len(compiled.program.steps) - len(computes_alone) and computes_alone
    assert alone.exchanges == 8 * each > 0
    piped = ipusim.simulate(MODEL, ipus_per_replica=2, **options).result
    schedule = piped.terms.schedule
    works = partition(compiled, (), (0, 1)).works
    assert sum(work.exchanges for stages in works for work in stages) == each
    each = sum(work.exchanges for work in (*schedule.forward, *schedule.backward))
    # Every step waits for one chip, and some steps hold a part of its work only.
    assert 8 * each / 2 <= piped.terms.line().exchanges < 8 * each
    order = schedule.order(FittedCosts())
    assert order.steps(order.periods(8)) > 8


def test_only_what_runs_ahead_waits_for_its_backward_pass():
    """One micro-batch at a time leaves parameters and state alone on the chips of a pipeline."""
    options = {"system": "IPU-M2000", "replicas": 1, "ipus_per_replica": 2, **TRAINING}
    compiled = compile_run(zoo.load(MODEL), make_config(**options))
    cuts = (partition(compiled, (), (0, 1), in_flight) for in_flight in ((1, 1), (3, 1)))
    alone, ahead = ([stage.memory.resident_bytes for stage in cut.measured()] for cut in cuts)
    states = sum(tensor.bytes for tensor in compiled.graph.with_role("state"))
    assert sum(alone) == compiled.graph.parameter_bytes + states
    assert ahead[1] == alone[1]
    assert ahead[0] > alone[0]


def test_what_waits_is_saved_and_restored_but_on_the_last_stage():
    options = {"system": "IPU-M2000", "replicas": 1, "ipus_per_replica": 2, **TRAINING}
    compiled = compile_run(zoo.load(MODEL), make_config(**options))
    cuts = [partition(compiled, (), (0, 1), in_flight) for in_flight in ((1, 1), (3, 2))]
    for alone, ahead in zip(*(cut.works for cut in cuts), strict=True):
        assert ahead[1] == alone[1]
        assert ahead[0].seconds > alone[0].seconds
        # one exchange for each tensor: its counter goes to all tiles
        kept = [name for name, stage in cuts[0].stage_of.items() if stage == 0]
        assert 0 < ahead[0].exchanges - alone[0].exchanges <= len(kept)


@pytest.mark.parametrize("name", ["lstm_2_layers", "dino_vit_base_16", "transe_256"])
def test_items_without_a_micro_batch_are_those_of_the_models_own(name):
    """Also where the first size of the first input is of steps, or of several views of an item."""
    own = zoo.load(name).batch
    asked, unasked = (ipusim.simulate(name, **given) for given in ({"micro_batch": own}, {}))
    assert unasked.result.items == own
    assert unasked.throughput == asked.throughput
