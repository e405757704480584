import dataclasses
import math
import re

import pandas as pd
import pytest
from study_small import SmallPredictor, load_row, small_verdicts

from ipusim.errors import DataError, StudyError
from ipusim.files import data_dir
from ipusim.runtime.calibration import (
    Calibration,
    FittedCosts,
    Interval,
    PowerScales,
    StepCosts,
    calibration_text,
    load_calibration,
)
from ipusim.runtime.terms import Line
from ipusim.study.cached import Prediction
from ipusim.study.data.published import load_rows
from ipusim.study.fit.samples import Sample, samples_of
from ipusim.study.fit.step_cost import (
    calibrate,
    costs_without,
    fit_power_scales,
    fit_run_costs,
    fit_step_costs,
    fitting_rows,
)
from ipusim.study.predict import TIERS, metric_of, request_for
from ipusim.study.verdicts import compare
from ipusim.study.verdicts.compare import Samples
from ipusim.study.verdicts.summary import Verdict

CLOCK_HZ = 1.33e9


def sample(
    gap_ms,
    published_ms=1.0,
    family="a",
    stack="s",
    floor_ms=0.0,
    exchanges=0,
    framework="f",
    iterations=1,
):
    line = Line(
        base_s=(published_ms - gap_ms) * 1e-3,
        floor_s=floor_ms * 1e-3,
        exchanges=exchanges,
        reductions=0,
        collectives=0,
        clock_hz=CLOCK_HZ,
        iterations=iterations,
    )
    known = load_rows(study="qwant", metric="throughput")[0]
    run = dataclasses.replace(
        known.run, family=family, stack=stack, framework=framework, micro_batch=1, replicas=1
    )
    row_id = f"{family}.{stack}.{gap_ms}"
    row = dataclasses.replace(known, row_id=row_id, run=run, value=1e3 / published_ms)
    return Sample(row=row, line=line)


def total_error(samples, call_s):
    steps = [max(item.line.floor_s, item.line.base_s) + call_s for item in samples]
    published = [item.published_s for item in samples]
    return sum(abs(step / each - 1.0) for step, each in zip(steps, published, strict=True))


def best_call(samples):
    costs = fit_step_costs(tuple(samples)).at("s", "f")
    assert costs.exchange_cycles == 0
    return costs.step_s


@pytest.fixture(scope="module")
def frame():
    return small_verdicts()


@pytest.mark.parametrize(
    ("predicted", "published", "verdict"),
    [
        (1.1, 1.0, "hit"),
        (0.9, 1.0, "hit"),
        (1.1001, 1.0, "near"),
        (1.25, 1.0, "near"),
        (0.7499, 1.0, "miss"),
        (math.nan, 1.0, ""),
        (1.0, math.nan, ""),
        (1.0, 0.0, ""),
    ],
)
def test_verdict_rule(predicted, published, verdict):
    assert compare.verdict_of(predicted, published) == verdict


@pytest.mark.parametrize(
    ("predicted", "rate", "time"),
    [(110.0, "hit", "hit"), (90.5, "near", "hit"), (110.5, "near", "near"), (79.0, "miss", "near"),
     (0.0, "miss", "miss"), (math.nan, "", "")],
)  # fmt: skip
def test_a_rate_is_judged_as_printed_and_by_its_time(predicted, rate, time):
    assert compare.verdict_of(predicted, 100.0, "throughput") == rate
    assert compare.verdict_of(predicted, 100.0, "latency") == time


def test_a_ratio_of_times_is_that_of_rates_turned():
    # A rate twice as high, or a time half as long, is half the time.
    assert compare.time_ratio("throughput", 100.0, 50.0) == 0.5
    assert compare.time_ratio("latency", 100.0, 50.0) == 2.0
    assert math.isnan(compare.time_ratio("efficiency", 100.0, 50.0))


def test_a_verdict_is_that_of_the_prediction_against_what_was_published(frame):
    known = frame[frame["status"] == compare.PREDICTED]
    rows = list(zip(known["calibrated"], known["published"], known["metric"], strict=True))
    assert list(known["verdict"]) == [compare.verdict_of(*row) for row in rows]
    assert list(known["verdict"]) != [compare.verdict_of(*row[:2]) for row in rows]
    turned = [compare.verdict_of(published, predicted) for predicted, published, _ in rows]
    assert list(known["verdict"]) != turned


def test_the_narrower_class_of_a_run_comes_first():
    row = load_row("results.inference.049")
    wide = "known family, inference"
    ends = {"low": 0.8, "high": 1.2, "rows": (), "without": {}}
    kinds = {kind: Interval(kind=kind, **ends) for kind in (wide, f"{wide}, GC200")}
    fitted = Calibration(
        steps=StepCosts(), power=PowerScales(), intervals=kinds, known_families=(row.family,)
    )
    assert compare.kind_of(row, fitted) == f"{wide}, GC200"
    del kinds[f"{wide}, GC200"]
    assert compare.kind_of(row, fitted) == wide


def test_values_that_are_a_test_are_hits_near_and_misses():
    counts = {"rows": 10, "hit": 3, "near": 2, "miss": 1}
    verdict = Verdict(
        **counts, typical_percent=5.0, worst_percent=-40.0, worst_row="a", left_out=""
    )
    assert verdict.counted == 6
    assert verdict.lines()[0] == "6 of 10 values are a test: 3 hit, 2 near, 1 miss"


def test_fit_is_exact_when_one_constant_explains_all():
    samples = [sample(0.25, published_ms=p) for p in (0.5, 1.0, 7.0)]
    assert best_call(samples) == pytest.approx(0.25e-3)


def test_fit_tells_a_call_from_supersteps():
    call_ms, cycles = 0.1, 400
    samples = [
        sample(call_ms + 1e3 * cycles * n / CLOCK_HZ, published_ms=9.0, exchanges=n)
        for n in (100, 500, 900)
    ]
    costs = fit_step_costs(tuple(samples)).at("s", "f")
    assert (costs.step_s, costs.exchange_cycles) == (pytest.approx(call_ms * 1e-3), cycles)


def test_frameworks_share_the_supersteps_of_a_stack_and_stacks_the_call_of_a_framework():
    calls, cycles = {"f": 0.1, "g": 0.3}, {"s": 400, "t": 250}
    samples = [
        sample(
            calls[framework] + 1e3 * cycles[stack] * n / CLOCK_HZ,
            published_ms=9.0,
            exchanges=n,
            stack=stack,
            framework=framework,
        )
        for framework, stack, n in (
            *(("f", "s", n) for n in (100, 500, 900)),
            *(("g", "s", n) for n in (200, 600)),
            *(("f", "t", n) for n in (300, 800)),
        )
    ]
    fitted = fit_step_costs(tuple(samples))
    assert {name: cost.value for name, cost in fitted.supersteps.items()} == cycles
    for name, call_ms in calls.items():
        assert fitted.calls[name].value == pytest.approx(call_ms * 1e-3)
    # A framework is known on every stack that has rows, and on no other.
    assert fitted.at("t", "g").step_s == fitted.calls["g"].value
    assert fitted.at("new", "g") == FittedCosts()


def test_fit_minimises_the_mean_error_and_ignores_an_outlier():
    samples = [sample(g, p) for g, p in ((0.2, 1), (0.3, 1.4), (0.25, 0.8), (0.22, 2), (9, 10))]
    best = best_call(samples)
    grid = [index * 1e-6 for index in range(0, 10_000, 5)]
    assert total_error(samples, best) <= min(total_error(samples, cost) for cost in grid) + 1e-12
    assert best < 0.3e-3


def test_a_run_costs_what_rows_with_other_iterations_alone_say():
    """Runs of 5 and 10 batches that are published 0.25 ms apart, and one that nothing is like."""
    few = sample(0.5, published_ms=2.5, iterations=5)
    many = sample(0.25, published_ms=2.25, iterations=10)
    other = sample(0.4, published_ms=1.0, iterations=100)
    run = fit_run_costs([few, many, other])["f"]
    assert run.value == pytest.approx(0.25e-3 / (1 / 5 - 1 / 10))
    assert run.rows == (few.row.row_id, many.row.row_id)
    # nothing is left for the call
    costs = fit_step_costs((few, many)).at("s", "f")
    assert costs.run_s == run.value and costs.step_s == pytest.approx(0, abs=1e-9)
    assert fit_run_costs([few, other]) == {}
    slower = sample(1.0, published_ms=3.0, iterations=10)
    assert fit_run_costs([few, slower])["f"].value == 0


def test_one_pair_that_is_far_off_does_not_move_the_cost_of_a_run():
    """Pairs of runs of 1 and 2 batches that say 1, 2 and 60 ms."""
    pairs = [
        (sample(gap_ms, 90.0), sample(gap_ms - half_ms, 90.0 - half_ms, iterations=2))
        for gap_ms, half_ms in ((0.5, 0.5), (1.0, 1.0), (40.0, 30.0))
    ]
    samples = [item for pair in pairs for item in pair]
    assert fit_run_costs(samples)["f"].value == pytest.approx(2e-3)


def test_a_floor_is_what_the_call_comes_on_top_of():
    held = sample(0.2, published_ms=1.0, floor_ms=0.9)  # published 1 ms, base 0.8 ms
    assert best_call([held]) == pytest.approx(0.1e-3)
    samples = [held, sample(0.5), sample(0.1, floor_ms=1.3), sample(0.3, 2.0, floor_ms=2.2)]
    best = best_call(samples)
    grid = [index * 1e-6 for index in range(2_000)]
    assert total_error(samples, best) <= min(total_error(samples, c) for c in grid) + 1e-12


def test_fit_is_never_negative_and_does_not_depend_on_order():
    samples = [sample(g) for g in (-0.4, -0.1, 0.3)]
    assert best_call(samples) == 0.0
    mixed = [sample(g) for g in (0.1, 0.2, 0.3, 0.4)]
    assert best_call(mixed) == best_call(mixed[::-1])
    assert best_call([]) == 0.0


def test_own_stack_is_preferred_and_own_family_never_used():
    samples = [
        sample(0.1, family="a", stack="s"),
        sample(0.2, family="b", stack="s"),
        sample(0.4, family="b", stack="t"),
    ]
    full = costs_without(samples)
    assert set(full.supersteps["s"].rows) == {"a.s.0.1", "b.s.0.2"}
    without = costs_without(samples, "b")
    assert without.supersteps["s"].rows == ("a.s.0.1",)
    # another stack's samples say nothing: no cost rather than a borrowed one
    for stack, costs in (("t", without), ("new", full)):
        assert costs.at(stack, "f") == FittedCosts()


def test_constants_are_fitted_on_the_results_page_alone():
    rows = fitting_rows()
    assert {row.study for row in rows} == {"results"}
    assert {row.metric for row in rows} == {"throughput"}
    assert {row.run.mode for row in rows} == {"inference"}
    assert {row.run.ipus_per_replica or 1 for row in rows} == {1}
    assert len(rows) == len({row.row_id for row in rows}) >= 27


def test_samples_turn_throughput_into_time_per_step():
    rows = [load_row(f"results.inference.{number}") for number in ("049", "058")]
    plain, overlapped = samples_of(rows, SmallPredictor())
    assert overlapped.published_s == pytest.approx(8 / 14321)  # printed batch 16, run as 8
    for sample, items in ((plain, 4), (overlapped, 8)):
        rate = SmallPredictor().answer(request_for(sample.row.run, "specification")).throughput
        assert sample.line.step_s(FittedCosts()) == pytest.approx(items / rate)


def test_calibration_round_trip(own_data):
    before = load_calibration()
    written = calibrate(SmallPredictor())
    assert set(written.steps.supersteps) == {"sdk-2.4", "sdk-3.x"}
    assert set(written.steps.calls) == {"popart", "pytorch", "tensorflow"}
    read = load_calibration()
    assert read.steps.supersteps == written.steps.supersteps
    assert read.steps.runs == written.steps.runs
    for framework, call in written.steps.calls.items():
        assert read.steps.calls[framework].rows == call.rows
        assert read.steps.calls[framework].value == pytest.approx(call.value, rel=1e-6)
    assert read.steps.at("sdk-1.0", "popart") == FittedCosts()
    fitted_on = {row for cost in read.steps.supersteps.values() for row in cost.rows}
    assert not any(row.startswith("qwant") for row in fitted_on)
    assert read.power == before.power  # kept unless it is fitted anew


def test_calibration_is_the_same_text_every_time(own_data):
    texts = set()
    for _ in range(2):
        texts.add(calibration_text(calibrate(SmallPredictor())))
        texts.add((own_data / "calibration.toml").read_text())
    assert len(texts) == 1


def test_calibration_in_use_is_written_as_it_stands():
    assert calibration_text(load_calibration()) == (data_dir() / "calibration.toml").read_text()


def test_power_scales_solve_what_two_numbers_can(monkeypatch, own_data):
    # power that was made with known factors gives those factors back
    rows = {row.row_id: row for row in load_rows(study="qwant")}
    parts = {f"batch{size}": (5.0 + size, 40.0 - size * size) for size in (2, 4, 6, 8, 10, 12)}

    class Known(SmallPredictor):
        def answer(self, request):
            batch = f"batch{2 * request.options['micro_batch']}"
            amp, sram = parts[batch]
            watts = {"static": 110.0, "amp": amp, "sram": sram, "exchange": 4.0}
            rate = rows[f"qwant.table2.{batch}"].value
            return dataclasses.replace(
                super().answer(request), throughput=rate, power_parts_w=watts
            )

    def made(row):
        amp, sram = parts[row.run.run_id.rsplit(".", 1)[-1]]
        watts = 110.0 + 4.0 + 3.0 * amp + 2.5 * sram
        rate = rows[row.row_id.replace("table3", "table2")].value
        return dataclasses.replace(row, value=rate / watts)

    def made_rows(*, study, metric):
        chosen = [row for row in rows.values() if row.metric == metric]
        return tuple(made(row) for row in chosen) if metric == "efficiency" else tuple(chosen)

    with monkeypatch.context() as patch:
        patch.setattr("ipusim.study.fit.step_cost.load_rows", made_rows)
        scales = fit_power_scales(Known())
    assert (scales.amp, scales.sram) == pytest.approx((3.0, 2.5), abs=1e-3)
    assert len(scales.rows) == 6
    calibrate(SmallPredictor(), power=True)
    read = load_calibration().power
    assert read.rows == scales.rows
    assert min(read.amp, read.sram) >= 0


@pytest.mark.parametrize("text", ["", "call_cost = 3", "[call_cost.x]\nvalue = 'much'", "[[["])
def test_damaged_calibration(own_data, text):
    (own_data / "calibration.toml").write_text(text)
    with pytest.raises(DataError, match=r"run 'ipusim calibrate'\.$"):
        load_calibration()


@pytest.mark.parametrize("damage", ["programs = 1\n", "programs = 'all'\n"])
def test_damaged_counts_of_what_ran(own_data, damage):
    path = own_data / "calibration.toml"
    path.write_text(re.sub(r"programs = \d+\n", damage, path.read_text()))
    with pytest.raises(DataError, match=r"is damaged .*run 'ipusim calibrate'\.$"):
        load_calibration()


def test_committed_calibration_can_be_read():
    assert set(load_calibration().steps.supersteps) == {"sdk-2.4", "sdk-3.x"}


def test_columns_and_rows(frame):
    assert tuple(frame.columns[:19]) == (
        "row_id", "study", "table", "family", "system", "stack", "mode", "kind",
        "metric", "unit", "published", "roofline", "specification", "calibrated", "low80", "high80",
        "verdict", "status", "note",
    )  # fmt: skip
    assert list(frame["row_id"]) == [row.row_id for row in load_rows()]
    assert set(frame["status"]) == {"predicted", "not_modelled"}
    # Every row whose run is modelled, among them all of Qwant's 18.
    modelled = {row.row_id for row in load_rows() if not row.not_modelled}
    assert set(frame.loc[frame["status"] == "predicted", "row_id"]) == modelled
    assert (frame["study"][frame["status"] == "predicted"] == "qwant").sum() == 18


def test_every_row_says_how_it_was_run(frame):
    assert tuple(frame.columns[20:]) == compare.RUN_COLUMNS
    lines = frame.set_index("row_id")
    row = load_row("tamu.table3.12")
    line = lines.loc[row.row_id]
    assert (line["chips"], line["micro_batch"], line["batch_norm_span"]) == (64, 20, 2)
    assert (line["label"], line["series"]) == (row.label, row.run.series)
    assert "gradient accumulation" in line["assumed"]
    assert lines.loc["qwant.table1.batch2", "gradient_accumulation"] is pd.NA
    # a row that fixed a constant is no test of it, nor is one that says again what another does
    fitted = lines["left_out"] == "fixed a constant"
    assert set(lines.loc[fitted, "metric"]) == {"efficiency", "throughput"}
    assert (lines.loc[fitted, "note"].str.contains("fitted on this row")).all()
    again = lines[lines["left_out"].str.startswith("restate another (")]
    assert set(again["study"] + " " + again["metric"]) == {"qwant throughput", "tamu epoch_time"}
    assert (lines["left_out"] != "").sum() == fitted.sum() + len(again)


def test_rows_that_are_not_modelled_say_why(frame):
    left = frame[frame["status"] == "not_modelled"]
    assert (left["note"].str.len() > 10).all()
    assert left[list(TIERS)].isna().all().all()
    assert (left["verdict"] == "").all()


def test_tiers_are_in_the_unit_of_the_row(frame):
    by_id = frame.set_index("row_id")
    run = load_row("qwant.table2.batch2").run
    bound, whole = (
        SmallPredictor().answer(request_for(run, tier)) for tier in ("roofline", "specification")
    )
    assert by_id.loc["qwant.table1.batch2", "specification"] == 1e3 * whole.latency
    assert by_id.loc["qwant.table2.batch2", "specification"] == whole.throughput
    assert by_id.loc["qwant.table2.batch2", "roofline"] == bound.throughput > whole.throughput
    assert whole.throughput == pytest.approx(2 / whole.latency)
    efficiency = by_id.loc["qwant.table3.batch2"]
    assert efficiency["specification"] == whole.throughput / whole.power
    assert math.isnan(efficiency["roofline"])  # a roofline has no power


def test_latency_counts_the_batches_in_flight(frame):
    known = frame.set_index("row_id")["specification"]
    for row_id, batches in (("results.inference.049", 3), ("results.inference.056", 1)):
        step_ms = 1e3 * load_row(row_id).run.items_per_step / known[row_id]
        assert known[f"{row_id}.latency"] == pytest.approx(batches * step_ms)


def series(name, ipus, published_ms, machines):
    one = sample(0.0, published_ms=1.0, family=name)
    line = dataclasses.replace(one.line, base_s=1e-3, collectives=machines)
    run = dataclasses.replace(one.row.run, series=name, replicas=ipus)
    items_per_s = 1e3 * run.items_per_step / published_ms
    row = dataclasses.replace(one.row, row_id=f"{name}.{ipus}", run=run, value=items_per_s)
    return Sample(row=row, line=line)


def test_what_a_run_belongs_to_has_no_part_in_its_costs():
    run = dataclasses.replace(load_row("results.training.001").run, series="own")
    steps = tuple(
        sample(gap, 2.0, family, run.stack, framework=run.framework)
        for family, gap in ((run.family, 0.9), ("other", 0.2), (run.family, 0.8))
    )
    scaling = (
        *(series("own", 4, 1.0, 0), series("own", 16, 5.0, 4)),  # a millisecond for each machine
        *(series("other", 4, 1.0, 0), series("other", 16, 1.4, 4)),  # a tenth of that
    )
    costs = compare.left_out_costs(run, Samples(steps=steps, scaling=scaling))
    assert costs.step_s == pytest.approx(0.2e-3)
    assert costs.collective_s == pytest.approx(1e-4)
    # inference pays no collective, and another run is fitted on what this one was not
    other = dataclasses.replace(run, family="third", series="third")
    known = compare.left_out_costs(other, Samples(steps=steps, scaling=scaling))
    assert known.step_s == pytest.approx(0.8e-3)
    assert known.collective_s == pytest.approx(5.5e-4)
    inference = dataclasses.replace(run, mode="inference")
    assert compare.left_out_costs(inference, Samples(scaling=scaling)).collective_s == 0


def test_the_comparison_hands_each_run_its_own_costs(monkeypatch):
    seen = {}
    known = {"resnet": 1e-4, "resnext": 7e-4}
    monkeypatch.setattr(
        compare, "left_out_costs", lambda run, samples: FittedCosts(step_s=known[run.family])
    )
    rows = [load_row("results.inference.049"), load_row("results.inference.064")]
    predictor = SmallPredictor()
    compare.verdicts(rows, predictor=predictor, samples=Samples())
    for request in predictor.asked:
        if request.options.get("tier") == "calibrated":
            seen[request.model] = request.options["costs"].step_s
    assert seen == {"resnet50": 1e-4, "resnext101_32x4d": 7e-4}


def test_calibrated_tier_leaves_the_own_family_out(frame):
    samples = samples_of(fitting_rows(), SmallPredictor())
    run = load_row("results.inference.064").run
    costs = costs_without(samples, "resnext")
    fitted_on = costs.supersteps["sdk-2.4"].rows
    assert not {"results.inference.064", "results.inference.072"} & set(fitted_on)
    own, other = (
        request_for(run, "calibrated", costs=each.at(run.stack, "tensorflow"))
        for each in (costs, costs_without(samples))
    )
    engine = SmallPredictor()
    got = frame.set_index("row_id").loc["results.inference.064", "calibrated"]
    assert got == engine.answer(own).throughput != engine.answer(other).throughput


def test_an_interval_comes_from_other_families_and_is_one_of_time(monkeypatch):
    interval = Interval(
        kind="new network, inference", low=0.8, high=1.25, rows=(), without={"resnext": (0.5, 2.5)}
    )
    fitted = Calibration(
        steps=StepCosts(), power=PowerScales(), intervals={interval.kind: interval}
    )
    monkeypatch.setattr(compare, "load_calibration", lambda: fitted)
    ids = ("qwant.table1.batch2", "qwant.table2.batch2", "qwant.table3.batch2",
           "results.inference.049", "results.inference.049.latency")  # fmt: skip
    rows = [load_row(row_id) for row_id in ids]
    frame = compare.verdicts(rows, predictor=SmallPredictor(), samples=Samples())
    low, high = (frame[end] / frame["calibrated"] for end in ("low80", "high80"))
    # slower by 2.5 is a latency of 2.5 and a throughput of 0.4 times the predicted one
    assert list(low[[0, 1, 3, 4]]) == pytest.approx([0.5, 0.4, 0.8, 0.8])
    assert list(high[[0, 1, 3, 4]]) == pytest.approx([2.5, 2.0, 1.25, 1.25])
    assert math.isnan(low[2])  # efficiency needs power, which nothing was left out of
    assert set(frame["kind"]) == {"new network, inference"}


def test_published_values_do_not_reach_the_predictor():
    predictor = SmallPredictor()
    compare.verdicts(load_rows(study="qwant"), predictor=predictor, samples=Samples())
    allowed = {*load_row("qwant.table1.batch2").run.options(), "tier", "costs", "as_if_it_fits"}
    assert all(set(request.options) <= allowed for request in predictor.asked)
    assert len(predictor.asked) == 6 * len(TIERS)  # each run is predicted once for three tables


def test_power_rows_that_were_fitted_on_say_so(monkeypatch):
    rows = load_rows(study="qwant", metric="efficiency")
    fitted = Calibration(steps=StepCosts(), power=PowerScales(amp=1.1, rows=(rows[0].row_id,)))
    monkeypatch.setattr(compare, "load_calibration", lambda: fitted)
    notes = compare.verdicts(rows, predictor=SmallPredictor(), samples=Samples())["note"]
    assert ["fitted on this row" in note for note in notes] == [True] + [False] * 5


def test_summary_counts_by_hand():
    rows = load_rows(study="qwant", metric="latency")
    frame = compare.verdicts(rows, predictor=SmallPredictor(), samples=Samples())
    frame = frame.assign(
        specification=frame["published"] * [1.05, 0.95, 1.2, 0.7, 1.0, 1.1],
        roofline=math.nan,
    )
    line = compare.tier_summary(frame, by=("study",)).set_index("tier").loc["specification"]
    assert (line["rows"], line["hit"], line["near"], line["miss"]) == (6, 4, 1, 1)
    assert line["median_abs_error_percent"] == pytest.approx(7.5)
    assert line["max_abs_error_percent"] == pytest.approx(30)
    assert line["bias_percent"] == pytest.approx((5 - 5 + 20 - 30 + 0 + 10) / 6)
    assert compare.tier_summary(frame).set_index("tier").loc["roofline", "rows"] == 0


def test_errors_are_signed(frame):
    shown = compare.with_errors(frame).set_index("row_id").loc["qwant.table1.batch2"]
    error = shown["specification_error_percent"]
    assert error == pytest.approx(100 * (shown["specification"] / 1.36 - 1)) and error < 0


def test_predicting_what_is_not_modelled_is_refused():
    with pytest.raises(StudyError, match="is not modelled"):
        request_for(load_row("argonne.results.04").run, "calibrated")
    with pytest.raises(StudyError, match="Unknown tier 'best'"):
        request_for(load_row("qwant.table1.batch2").run, "best")


def test_a_metric_without_prediction_is_refused():
    row = dataclasses.replace(load_row("qwant.table1.batch2"), metric="weight")
    with pytest.raises(StudyError, match="weight"):
        metric_of(Prediction(latency=1.0, throughput=1.0), row)
