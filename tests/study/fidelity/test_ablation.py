"""Switching mechanisms off: what a rewritten program keeps, and what becomes of a prediction."""

import pytest
from study_small import load_row

from ipusim import api
from ipusim.compiler.lower import lower
from ipusim.compiler.program_cache import rewritten
from ipusim.compiler.stacks import load_stack
from ipusim.machine import load_chip
from ipusim.study.cached import PooledPredictor
from ipusim.study.fidelity.ablation import (
    PROGRAM_OPTIONS,
    Off,
    ablation_frame,
    ablation_rows,
    ablation_summary,
    ablations,
)
from ipusim.study.predict import request_for
from ipusim.workload import zoo

CHIP = load_chip("GC200")
PHASES = {"exchange": "exchange", "layout copies": "copy", "supersteps": "sync"}
BY_NAME = {item.name: item for item in ablations()}


@pytest.fixture(scope="module")
def program():
    graph = zoo.load("braggnn").graph(2)
    return lower(graph, CHIP, load_stack("sdk-2.4"), host_dtype=None)


@pytest.mark.parametrize(("name", "phase"), PHASES.items())
def test_a_phase_that_is_off_takes_its_cycles_away_and_no_others(program, name, phase):
    before = program.phase_cycles()
    after = Off(BY_NAME[name].off)(program, CHIP)
    assert before[phase] > 0
    assert after.phase_cycles() == before | {phase: 0}
    assert after.cycles == program.cycles - before[phase]
    assert [op.name for op in after.ops] == [op.name for op in program.ops]


def test_products_at_peak_take_their_macs_over_the_peak(program):
    after = Off("products")(program, CHIP)
    peak = CHIP.tiles * 64  # half partials: 64 multiply-accumulates per cycle and tile
    for old, new in zip(program.ops, after.ops, strict=True):
        if not old.macs:
            assert new == old
            continue
        compute = sum(step.repeats * step.compute_cycles for step in new.steps)
        assert compute >= old.macs / peak
        assert compute <= old.macs / peak + max(step.repeats for step in new.steps) + 1
    assert after.cycles < program.cycles


def test_a_rewrite_holds_within_its_context_only():
    def latency():
        return api.simulate("braggnn", micro_batch=2, tier="specification").latency.value

    whole = latency()
    with rewritten(Off("exchange")):
        without = latency()
    assert without < whole
    assert latency() == whole
    # and in training, where other programs are remembered
    options = {"mode": "training", "micro_batch": 2, "loss": "mean_squared"}
    whole = api.simulate("braggnn", **options).latency.value
    with rewritten(Off("copy")):
        assert api.simulate("braggnn", **options).latency.value < whole
    assert api.simulate("braggnn", **options).latency.value == whole


def test_options_are_left_out_of_the_request_and_of_nothing_else():
    run = load_row("results.training.100").run
    whole = request_for(run, "specification")
    assert {"partials", "recompute"} <= set(whole.options)
    partials = BY_NAME["AMP rate"].applied(whole)
    assert partials.options == whole.options | {"partials": "float"}
    assert BY_NAME["I/O overlap"].applied(whole) == whole  # this run has none
    recompute = BY_NAME["recompute"].applied(whole)
    assert recompute.options == whole.options | {"recompute": "none"}
    assert BY_NAME["exchange"].applied(whole).options == whole.options
    assert BY_NAME["exchange"].applied(whole) != whole


def test_each_program_is_taken_once_on_its_smallest_system():
    rows = ablation_rows()
    options = ("model", *PROGRAM_OPTIONS)
    keys = [tuple(getattr(row.run, name) for name in options) for row in rows]
    assert len(set(keys)) == len(keys)
    assert "results.training.100" in {row.row_id for row in rows} or any(
        row.run.model == "resnet50" and row.run.micro_batch == 20 for row in rows
    )


def test_the_table_says_what_each_mechanism_is_worth():
    rows = [load_row("results.inference.064"), load_row("results.inference.058")]
    frame = ablation_frame(rows, predictor=PooledPredictor())
    summary = ablation_summary(frame).set_index("mechanism")
    whole = frame[frame["without"] == ""]["time_ratio"]
    line = summary.loc["exchange"]
    assert line["rows"] == 2
    assert line["with_mean_abs_percent"] == pytest.approx(100 * (whole - 1).abs().mean())
    assert line["time_change_percent"] < 0
    assert summary.loc["I/O overlap", "rows"] == 1  # the other run has none to switch off
    assert "recompute" not in summary.index  # nor does inference recompute
    predicted = api.simulate(
        rows[0].run.model, tier="specification", **rows[0].run.options()
    ).throughput.value
    own = frame[(frame["row_id"] == rows[0].row_id) & (frame["without"] == "")]["time_ratio"]
    assert own.iloc[0] == pytest.approx(rows[0].value / predicted)
