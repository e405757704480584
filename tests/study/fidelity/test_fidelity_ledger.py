"""The ledger: summaries counted by hand, rows and pairs picked as described, figures that draw."""

import numpy as np
import pandas as pd
import pytest
from study_small import load_row, small_verdicts

from ipusim.errors import ConfigError, StudyError, UnknownNameError
from ipusim.study import audit, book
from ipusim.study.data.convergence import time_to_train_frame
from ipusim.study.data.published import load_rows
from ipusim.study.fidelity import ledger as fidelity
from ipusim.study.predict import SOURCED
from ipusim.study.results import study as results
from ipusim.study.specs import load_spec
from ipusim.study.verdicts.compare import PREDICTED
from ipusim.study.verdicts.intervals import coverage_table
from ipusim.study.verdicts.summary import verdict_on
from ipusim.view import view


@pytest.fixture(scope="module")
def frame():
    return small_verdicts()


def test_errors_are_of_time_and_slower_is_above_one(frame):
    used = fidelity.time_errors(frame).set_index("row_id")
    rate = used.loc["results.inference.049"]
    assert rate["ratio"] == pytest.approx(rate["published"] / rate["calibrated"])
    latency = used.loc["results.inference.049.latency"]
    assert latency["ratio"] == pytest.approx(latency["calibrated"] / latency["published"])
    assert "efficiency" not in set(used["metric"])


def test_the_ledger_compares_tiers_on_the_same_rows(frame):
    ledger = fidelity.ledger(frame)
    assert ledger["rows"].nunique() == 1
    printed = (100 * (frame["calibrated"] / frame["published"] - 1)).abs()
    turned = (100 * (frame["published"] / frame["calibrated"] - 1)).abs()
    rates = frame["metric"].str.startswith("throughput")
    sizes = printed.where(~rates, np.maximum(printed, turned))
    known = sizes[frame[["roofline", "specification", "calibrated"]].notna().all(axis=1)]
    line = ledger.set_index("tier").loc["calibrated"]
    assert line["median_abs_error_percent"] == pytest.approx(known.median())
    assert line["p90_abs_error_percent"] == pytest.approx(np.percentile(known, 90))


def test_rows_are_counted_on_ipus_alone(frame):
    counted = fidelity.coverage_of_rows(frame)
    every = counted.iloc[-1]
    rows = load_rows()
    gpus = sum(row.system in ("A100",) for row in rows)
    assert every["rows"] == len(rows) - gpus
    assert every["predicted"] == counted["predicted"].iloc[:-1].sum()
    reasons = fidelity.not_predicted(frame)
    assert reasons["rows"].sum() == every["rows"] - every["predicted"]
    assert (reasons["why"].str.len() > 10).all()


def test_the_worst_rows_come_first(frame):
    worst = fidelity.worst_rows(frame, 7)
    ratios = fidelity.time_errors(frame).set_index("row_id")["ratio"]
    sizes = np.abs(np.log(ratios.astype(float)))
    assert len(worst) == 7
    assert list(sizes[worst["row_id"]]) == sorted(sizes[worst["row_id"]], reverse=True)
    assert sizes[worst["row_id"]].min() >= sizes.drop(worst["row_id"]).max()


def test_pairs_print_the_same_and_ran_the_same(frame):
    pairs, known = fidelity.bow_pairs(frame), frame.set_index("row_id")["calibrated"]
    assert len(pairs) >= 5
    for line in pairs.to_dict("records"):
        bow, classic = load_row(line["bow_row"]), load_row(line["classic_row"])
        assert bow.run.micro_batch == classic.run.micro_batch
        assert bow.run.overlap_io == classic.run.overlap_io
        assert line["published_ratio"] == pytest.approx(bow.value / classic.value)
        ratio = known[line["bow_row"]] / known[line["classic_row"]]
        assert line["predicted_ratio"] == pytest.approx(ratio)
    assert pairs["clock_ratio"].unique() == pytest.approx([1.85 / 1.33])


def test_what_was_asked_is_judged_by_its_bound(frame):
    scaling = pd.DataFrame({"left_out_error_percent": [-2.0, 4.0, 1.0]})
    pairs = pd.DataFrame({"within": [True, True, False, True]})
    merit = fidelity.figures_of_merit(frame, scaling, pairs, coverage_table(frame))
    lines = merit.set_index("figure")
    assert lines.loc["scaling, series left out: median error", "value_percent"] == 2.0
    assert lines.loc["scaling, series left out: median error", "met"]
    assert lines.loc["pairs of Bow and Classic within 10 %", "value_percent"] == 75.0
    assert lines.loc["pairs of Bow and Classic within 10 %", "met"]


def test_a_rate_twice_too_high_is_off_by_half_its_time(frame):
    doubled = frame.assign(calibrated=2.0 * frame["published"], specification=frame["published"])
    doubled = doubled[doubled["metric"] == "throughput"]
    scaling = pd.DataFrame({"left_out_error_percent": [0.0]})
    pairs = pd.DataFrame({"within": [True]})
    merit = fidelity.figures_of_merit(doubled, scaling, pairs, coverage_table(frame))
    line = merit.set_index("figure").loc["calibrated, family left out: median error"]
    assert line["value_percent"] == pytest.approx(100.0)  # as printed, the worse of the two
    assert fidelity.time_errors(doubled)["ratio"].unique() == pytest.approx([0.5])


def test_families_stand_apart(frame):
    apart = fidelity.families_apart(frame).set_index("group")
    whole = apart.loc["all"]
    for pair in (("inference, Bow", "inference, Classic"), ("training, Bow", "training, Classic"),
                 ("training, one chip per replica", "training, pipelines")):  # fmt: skip
        mode = pair[0].split(",")[0]
        both = [f"{mode}, known families", f"{mode}, new networks"]
        assert apart.loc[list(pair), "rows"].sum() == apart.loc[both, "rows"].sum()
    assert (
        apart.loc[["inference, known families", "training, known families"], "families"].max() <= 5
    )
    tests = fidelity.judged(frame)
    assert whole["rows"] == len(tests) == verdict_on([frame]).counted
    assert len(tests) < (frame["status"] == "predicted").sum()  # some fixed a constant
    # README counts sizes, the site verdicts: one rule, so one number, and no hit that is no test.
    assert whole["hits"] == (tests["size_percent"] <= 10).sum() == verdict_on([frame]).hit
    assert whole["runs"] < whole["rows"]
    medians = tests.groupby("family")["size_percent"].median()
    assert whole["median_of_families_percent"] == pytest.approx(medians.median())
    alone = tests[~tests["transferable"]]  # their host was timed for one program
    assert whole["timed_hits"] == (alone["size_percent"] <= 10).sum()


def test_what_was_adopted_stands_beside_the_other_tiers_on_the_same_rows(frame):
    without = frame.assign(**{SOURCED: frame["specification"].where(frame["mode"] == "training")})
    tiers = fidelity.ledger(without, by=("mode",))
    assert list(tiers["tier"]) == ["roofline", SOURCED, "specification", "calibrated"]
    assert set(tiers["mode"]) == {"training"}
    assert tiers["rows"].nunique() == 1
    assert SOURCED not in set(fidelity.ledger(frame)["tier"])


def test_summaries_and_figures_are_of_all_rows(frame):
    pairs = fidelity.bow_pairs(frame)
    scaling = pd.DataFrame(
        {
            "series": ["a", "a", "b"],
            "row_id": [f"results.training.{number}" for number in ("001", "002", "100")],
            "ipus": [16, 64, 16],
            "left_out_error_percent": [1.0, -2.0, 3],
        }
    )
    summary = fidelity.scaling_summary(scaling).set_index("series")
    assert list(summary["rows"]) == [2, 1, 3]
    assert summary.loc["all", "max_abs_error_percent"] == 3
    layers = fidelity.layers_frame()
    assert set(layers["layer"].str.split().str[0]) == {"vertices", "operations", "layers", "memory"}
    assert layers[["median_percent", "mean_percent"]].notna().any(axis=1).all()
    intervals = view(frame, load_spec("fidelity")["figures"]["fidelity_intervals"])
    assert (intervals["held"] <= intervals["count"]).all()
    page = book.open("fidelity")
    families = fidelity.errors_by_family(frame)
    tiers = fidelity.time_errors(frame)
    drawn = {"families": families, "tiers": tiers, "intervals": frame, "pairs": pairs}
    drawn |= {"scaling": fidelity.slowdowns(scaling)}
    results_page = book.open("results")
    little = results_page.figure("results_little", audit.table("littles_law")).figure
    assert len(little.axes[0].lines[0].get_xdata()) == 104
    rates = results.published_and_predicted(frame, "inference")
    assert results_page.figure("results_inference", rates).figure.axes[0].get_title(loc="left")
    for axis in page.figure("fidelity_tiers", tiers).figure.axes:
        assert [line.get_ydata()[-1] for line in axis.lines[:3]] == [100] * 3
    for name, table in drawn.items():
        figure = page.figure(f"fidelity_{name}", table).figure
        assert figure.axes[0].get_title(loc="left")


def test_tables_of_the_page_hold_every_number_once(frame):
    lines = results.table_frame(frame, *{row.table for row in load_rows(study="results")})
    numbers = lines.filter(regex="_published$").count().sum()
    assert numbers == len(load_rows(study="results"))
    assert lines["row_id"].is_unique
    yolo = lines.set_index("row_id").loc["results.inference.106"]
    assert yolo["batch_as_run"] == 16
    assert (yolo["model"], yolo["sdk"], yolo["dataset"]) == (
        "Yolo v4", "2.4.0", "Synthetic (host-generated)",
    )  # fmt: skip
    assert yolo["latency_printed"] == "9.42 ms"
    assert yolo["fold"].startswith("yolo: ")
    with pytest.raises(UnknownNameError):
        results.table_frame(frame, "Classic trainings")


def test_families_can_be_chosen(frame):
    rows = results.study_rows(["vit"])
    assert {row.family for row in rows} == {"vit"}
    assert len(results.study_rows()) == len(load_rows(study="results"))
    # a table and a panel that have no row of them are still there
    own = frame[(frame["study"] == "results") & (frame["family"] == "vit")]
    assert results.table_frame(own, "Bow inference").empty
    tables = results.published_and_predicted(own, "inference")
    empty = book.open("results").figure("results_inference", tables).figure
    assert [axis.get_title(loc="left") for axis in empty.axes] == [
        "Classic (GC200): 0 rows", "Bow: 0 rows",
    ]  # fmt: skip
    assert time_to_train_frame(own).columns[0] == "row_id"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"families": "bert", "jobs": 1}, "families is 'bert'"),
        ({"families": ["berd"], "jobs": 1}, "bert"),
        ({"families": [], "jobs": 0}, "jobs is 0"),
    ],
)
def test_bad_parameters_of_the_results_notebook(given, says):
    with pytest.raises((ConfigError, UnknownNameError), match=says):
        book.open("results", **given)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"worst_rows": 0, "jobs": 1}, "worst_rows is 0"),
        ({"worst_rows": 2.5, "jobs": 1}, "worst_rows is 2.5"),
        ({"worst_rows": 5, "jobs": True}, "jobs is True"),
    ],
)
def test_bad_parameters_of_the_fidelity_notebook(given, says):
    with pytest.raises(ConfigError, match=says):
        book.open("fidelity", **given)


def test_nothing_to_draw_is_said(frame):
    page = book.open("fidelity")
    left_out = frame[frame["status"] != PREDICTED]
    for name, other in (("fidelity_families", page), ("results_families", book.open("results"))):
        with pytest.raises(StudyError, match="No row is predicted"):
            other.figure(name, fidelity.errors_by_family(left_out))
    with pytest.raises(StudyError, match="published on both chips"):
        page.figure("fidelity_pairs", fidelity.bow_pairs(frame.head(3)))
    with pytest.raises(StudyError, match="no scaling to draw"):
        page.figure("fidelity_scaling", fidelity.slowdowns(pd.DataFrame()))
    with pytest.raises(StudyError, match="ipusim calibrate"):
        page.figure("fidelity_intervals", frame.head(0))
