"""Time to train: published samples and evaluations over a simulated rate."""

import dataclasses

import pytest
from study_small import SmallPredictor, load_row

from ipusim.study.data.convergence import load_convergence, time_to_train_frame
from ipusim.study.data.published import load_rows
from ipusim.study.data.runs import load_run
from ipusim.study.predict import metric_of, request_for
from ipusim.study.verdicts import compare
from ipusim.study.verdicts.compare import Samples

IMAGES = 1_281_167


def test_samples_are_whole_epochs_where_epochs_are_counted():
    known = load_convergence()
    epochs = {"01": 38, "02": 40, "03": 41, "04": 45}
    for number, count in epochs.items():
        run = known[f"results.mlperf.{number}"]
        assert run.samples == count * IMAGES
        assert run.evaluations == -(-count // 4)  # one in four epochs, and at the end
    assert all(load_run(run_id) for run_id in known)
    assert all("training_results_v2.0" in run.source for run in known.values())


def test_bert_stops_between_two_and_four_million_samples():
    for number in ("05", "06", "07", "08", "09", "10"):
        run = load_convergence()[f"results.mlperf.{number}"]
        # an evaluation every 175,000 to 225,000 samples
        assert 170_000 <= run.samples / run.evaluations <= 232_000


def test_the_time_is_work_over_rate_and_evaluation_is_a_third_of_training():
    row = load_row("results.mlperf.01")
    report = SmallPredictor().answer(request_for(row.run, "specification"))
    rate = report.throughput
    assert metric_of(report, row) == pytest.approx((38 * IMAGES + 10 * 50_000 / 3) / rate / 60)


def test_an_evaluation_by_the_training_program_takes_whole_steps_of_packs_with_one_sequence():
    run = load_run("results.mlperf.10")
    known = load_convergence()["results.mlperf.10"]
    packs = 3 * (3 * 36 * 32)  # 10,000 sequences in steps of 3,456
    assert run.items_per_step == packs // 3
    assert known.evaluation_work(run) == pytest.approx(15.25 * packs * 2 / 3)
    rate = 1_000.0
    work = known.samples + known.evaluation_work(run)
    assert known.seconds_at(rate, run) == pytest.approx(work / (2 * rate))


def test_the_part_that_is_simulated_is_stated():
    rows = [row for row in load_rows(metric="time_to_train") if not row.not_modelled]
    frame = compare.verdicts(rows, predictor=SmallPredictor(), samples=Samples())
    shown = time_to_train_frame(frame).set_index("row_id")
    assert {"results.mlperf.01", "results.mlperf.04"} <= set(shown.index)
    line = shown.loc["results.mlperf.02"]
    work = line["samples"] + line["evaluations"] * 50_000 / 3
    assert line["simulated_samples_per_s"] == pytest.approx(work / line["predicted_min"] / 60)
    assert line["implied_samples_per_s"] == pytest.approx(work / 6.30 / 60)
    assert 0 < line["evaluation_min"] < 0.02 * line["predicted_min"]


def test_a_row_without_known_convergence_is_not_predicted():
    row = load_row("results.mlperf.01")
    assert row.not_modelled == ""
    unknown = dataclasses.replace(row, run=dataclasses.replace(row.run, run_id="results.mlperf.99"))
    assert "not stated" in unknown.not_modelled
