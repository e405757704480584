"""The Argonne study beside its dataflows: machines, other claims, recorded training, pictures."""

import math
import runpy
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ipusim.api import simulate
from ipusim.errors import ConfigError, DataError, StudyError
from ipusim.machine import load_chip
from ipusim.study import book, claims as engine
from ipusim.study.argonne import (
    machines as argonne_machines,
    study as argonne,
    training as bragg_training,
)
from ipusim.study.argonne.braggnn import training as bragg
from ipusim.study.book import trace_charts as bsp_figures
from ipusim.study.breakdown import phase_shares
from ipusim.study.claims import load_specs
from ipusim.study.data.published import load_claims
from ipusim.study.parameters import checked
from ipusim.study.specs import load_spec
from ipusim.workload import zoo

BRAGG = "BraggNN: "
"""How the titles of BraggNN's claims begin."""


# -- machines ----------------------------------------------------------------------------


def test_every_number_of_the_slides_has_a_line():
    frame = argonne_machines.machine_frame()
    assert len(frame) == 30  # all but the five of the Good computer
    assert not (frame["verdict"] == "miss").any()
    judged = frame[frame["verdict"] != ""]
    assert len(judged) >= 20
    compute = frame[(frame["component"] == "Bow IPU") & (frame["attribute"] == "AI compute")]
    bow = load_chip("Bow")
    # 4 half conv units x 16 channels / 4 cycles ... 64 multiply-accumulates a cycle and tile
    assert float(compute["derived"].iloc[0]) == pytest.approx(
        2 * 64 * bow.tiles * bow.clock_hz / 1e12, rel=1e-3
    )
    text = repr(book.open("argonne").table("argonne_machines", frame))
    assert "1U blade" in text


def test_the_good_computer_is_arithmetic_on_the_announcement():
    frame = argonne_machines.good_computer_frame().set_index("quantity")
    announced = frame["announced"]
    assert announced["peak of a chip"] == pytest.approx(10e18 / 8192 / 1e12)
    assert announced["memory per parameter"] == pytest.approx(4e15 / 500e12)
    assert announced["shortest step of a dense model"] == pytest.approx(2 * 8 * 500e12 / 10e15)
    assert announced["tokens per second, dense model"] == pytest.approx(0.2 * 10e18 / (6 * 500e12))
    years = 6 * 500e12 * 20 * 500e12 / (0.2 * 10e18) / 86400 / 365
    assert announced["a compute-optimal training, dense model"] == pytest.approx(years)
    assert frame.loc["peak", "modelled"] < announced["peak"]
    shown = book.open("argonne").table("argonne_good", frame.reset_index())
    assert "Bow" in repr(shown)


# -- other claims ------------------------------------------------------------------------


def test_every_ratio_of_the_slides_is_answered():
    claims = load_claims("argonne")
    ratios = claims[claims["metric"].str.contains("ratio|speedup") & claims["value"].ne("")]
    specs = load_specs("argonne")
    assert set(ratios["claim_id"]) <= {spec.claim_id for spec in specs}
    for spec in specs:
        assert spec.not_modelled or (spec.source and spec.note), spec.key
        bragg = spec.title.startswith(BRAGG)
        assert bragg or spec.not_modelled or spec.assumed, spec.key
        for part in spec.parts:
            assert bragg or "run" in part.ipu or part.ipu["model"] in zoo.names()


@pytest.fixture
def small(monkeypatch):
    """One claim on a network that is simulated in a moment, and ten published GPU rows."""
    (spec,) = (item for item in load_specs("argonne") if item.key == "AR36")
    rates = [80.0, 100.0, 125.0, 90.0, 110.0, 100.0, 100.0, 100.0, 100.0, 100.0]
    gpus = pd.DataFrame(
        {
            "row_id": [f"gpu.{number}" for number in range(len(rates))],
            "gpu": "A100 SXM 40GB",
            "gpus": 1,
            "batch": 256,
            "mode": "training",
            "left_out": "",
            "published": rates,
            "specification": 100.0,
            "predicted": 100.0,
        }
    )
    monkeypatch.setattr(engine, "gpu_compare", lambda: gpus)

    def use(*more, **changes):
        (part,) = spec.parts
        made = replace(spec, **changes, parts=(replace(part, gpus=(*part.gpus, *more)),))
        monkeypatch.setattr(engine, "load_specs", lambda study: (made,))
        return made

    return use


def test_a_ratio_is_ipu_over_gpu(small):
    claim = small({"row": "gpu.3"})
    frame = argonne.compare_claims()
    own = simulate(**claim.parts[0].ipu).throughput
    assert list(frame["ipu_rate"]) == [own.value] * 2
    assert frame["predicted"].iloc[0] == pytest.approx(own.value / frame["gpu_rate"].iloc[0])
    assert frame["predicted"].iloc[1] == pytest.approx(own.value / 90)
    assert "published" in frame["gpu"].iloc[1] and "modelled" in frame["gpu"].iloc[0]
    low, value, high = (frame[name].iloc[0] for name in ("low80", "predicted", "high80"))
    assert low < value < high
    assert frame["claimed"].iloc[0] == 5
    page = book.open("argonne")
    assert "5.00" in repr(page.table("argonne_claims", frame))
    assert claim.note in repr(page.table("argonne_reasons", frame.drop_duplicates("key")))


def test_prices_and_programs(small):
    small()
    plain = argonne.compare_claims()["predicted"].iloc[0]
    small(prices=("AR05", "AR04"))
    assert argonne.compare_claims()["predicted"].iloc[0] == pytest.approx(plain * 299_000 / 149_995)
    claim = small(quantity="program_ratio")
    line = argonne.compare_claims().iloc[0]
    parts = simulate(**claim.parts[0].ipu).result.parts_s
    assert line["ipu_rate"] == pytest.approx(1 / (parts["device"] + parts["weight update"]))


def test_gains_and_machines_beside_each_other(small):
    small()
    plain = argonne.compare_claims().iloc[0]
    small(quantity="gain")
    line = argonne.compare_claims().iloc[0]
    assert line["predicted"] == pytest.approx(100 * (plain["predicted"] - 1))
    assert line["low80"] == pytest.approx(100 * (plain["low80"] - 1))
    claim = small()
    eight = claim.parts[0].gpus[0] | {"machines": 8}
    small(eight)
    rates = argonne.compare_claims()["gpu_rate"]
    assert rates.iloc[1] == pytest.approx(8 * rates.iloc[0])


def test_a_row_that_does_not_exist_is_named(small):
    small({"row": "gpu.nowhere"})
    with pytest.raises(DataError, match=r"gpu\.nowhere"):
        argonne.compare_claims()


def test_the_weather_network_has_the_published_ends():
    graph = zoo.load("weather_mlp").graph(4)
    widths = [191, *[95] * 6, 126]
    weights = sum(a * b + b for a, b in pairwise(widths))
    assert graph.parameters == weights == 75_936
    assert graph.tensors[graph.outputs[0]].shape == (4, 126)


# -- training ----------------------------------------------------------------------------

GOOD = {"schedule": "quick", "seed": 0, "checkpoint_dir": "", "progress": False, "ipus": [1, 16]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schedule": "fast"}, "schedule is 'fast': give one of quick, standard, full"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": True}, "seed is True"),
        ({"checkpoint_dir": None}, "checkpoint_dir is None"),
        ({"progress": "yes"}, "progress is 'yes'"),
        ({"ipus": []}, r"ipus is \[\]"),
        ({"ipus": [1, 3]}, "of 1, 2, 4, 8, 16"),
        ({"ipus": [32]}, "of 1, 2, 4, 8, 16"),
        ({"ipus": [2, 2]}, "none twice"),
    ],
)
def test_bad_parameters_are_one_sentence(changes, message):
    rules = load_spec("argonne")["parameters"]
    assert checked(rules, GOOD) == GOOD
    with pytest.raises(ConfigError, match=message) as caught:
        checked(rules, GOOD | changes)
    assert str(caught.value).count(". ") == 0


@pytest.fixture
def tiny(monkeypatch):
    plan = bragg.Schedule(
        train_peaks=64,
        test_peaks=40,
        batch=16,
        steps=2,
        learning_rate=1e-3,
        final_learning_rate=1e-4,
    )
    monkeypatch.setattr(bragg, "named_schedule", lambda name: plan)
    return plan


def test_a_run_is_recorded_in_place_of_the_older_one(tiny, tmp_path):
    record = tmp_path / "deep" / "record.csv"
    common = ["--folder", str(tmp_path / "runs"), "--record", str(record)]
    script = Path(__file__).resolve().parents[3] / "docs" / "record_braggnn.py"
    main = runpy.run_path(str(script))["main"]
    assert main(["--seeds", "1", "0", *common]) == 0
    first = pd.read_csv(record)
    assert list(first["seed"]) == [0] * 4 + [1] * 4
    assert list(first["steps"].unique()) == [2]
    assert main(["--seeds", "1", *common]) == 0
    pd.testing.assert_frame_equal(pd.read_csv(record), first)
    assert main(["--seeds", "1", "--rounding-seed", "3", *common]) == 0
    added = pd.read_csv(record)
    assert len(added) == 10
    assert list(added[added["rounding_seed"] == 3]["method"]) == [
        "16.32, float partials, stochastic rounding",
        "16.16, half partials, stochastic rounding",
    ]


def test_tables_of_a_run(tiny):
    runs, held_out = bragg_training.train("quick", 0, progress=False)
    errors = bragg_training.all_errors(runs, held_out)
    assert len(errors) == 7
    page = book.open("argonne")
    text = repr(page.table("bragg_errors", bragg_training.accuracy_frame(errors), schedule="tiny"))
    assert "published, real frames" in text and "0.57" in text
    goals = bragg_training.goals_frame({"good": np.full(9, 0.1), "bad": np.full(9, 0.4)})
    assert list(goals["75 % within 0.29 px"]) == [True, False]
    assert list(goals["95 % within 0.57 px"]) == [True, True]
    assert "saturated" in repr(page.table("bragg_peaks", bragg_training.peaks_frame(held_out)))
    patches, centres, found = bragg_training.shown_peaks(runs, held_out)
    assert patches.shape[0] == len(centres) == 12
    assert len(found) == 3


def test_the_record_answers_the_question():
    frame = bragg_training.recorded_frame().set_index("method")
    assert frame.loc["32.32", "median_change_percent"] == 0
    for (error, share), column in zip(bragg_training.PUBLISHED, ("p75_px", "p95_px"), strict=True):
        assert column == f"p{share:.0f}_px"
        assert (frame[column] < error).all()
    rows = bragg_training.recorded()
    base = rows[rows["method"] == "32.32"].set_index("seed")["p75_px"]
    half = rows[rows["method"] == "16.16, half partials, stochastic rounding"]
    change = 100 * (half["p75_px"] / half["seed"].map(base) - 1)
    label = "16.16, half partials, stochastic rounding"
    assert frame.loc[label, "median_change_percent"] == pytest.approx(change.median())
    assert "32.32" in repr(
        book.open("argonne").table("bragg_recorded", bragg_training.recorded_frame())
    )


# -- pictures ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def report():
    return simulate("weather_mlp", mode="training", replicas=1, micro_batch=64, optimizer="adam")


def test_supersteps_are_drawn_from_the_trace(report):
    op = report.layers["op"].iloc[0]
    window = report.trace[report.trace["op"] == op].iloc[1:]  # later than the first phase
    figure = book.open("argonne").figure("bragg_bsp", window).figure
    assert min(patch.get_x() for patch in figure.axes[0].patches) == 0
    assert figure.axes[0].get_title(loc="left") == f"Supersteps of {op}, forwards"
    assert len(figure.axes[0].patches) == len(window)
    widths = sorted(patch.get_width() for patch in figure.axes[0].patches)
    np.testing.assert_allclose(widths, sorted(window["duration_us"]))
    lanes = {round(patch.get_y() + patch.get_height() / 2) for patch in figure.axes[0].patches}
    order = ["sync", "exchange", "copy", "compute"]
    assert lanes == {order.index(phase) for phase in window["phase"]}
    with pytest.raises(StudyError, match="no operation"):
        book.open("argonne").figure("bragg_bsp", window.head(0))


def test_the_trace_is_covered_from_end_to_end(report):
    tables = bsp_figures.execution_trace(report, bins=20)
    upper, lower = book.open("argonne").figure("bragg_trace", tables).figure.axes
    drawn = sum(bar.get_width() for bar in upper.patches)
    assert drawn == pytest.approx(report.layers.query("phase != 'update'")["time_us"].sum())
    heights = np.zeros(20)
    for container in lower.containers:
        heights += [patch.get_height() for patch in container]
    np.testing.assert_allclose(heights, 100, rtol=1e-9)
    shares = phase_shares({"a": report}).iloc[0]
    phases = ("sync", "exchange", "copy", "compute")
    assert sum(shares[f"{name}_percent"] for name in phases) == pytest.approx(100)
    assert shares["cycles"] == report.cycles_per_step


def test_views_show_what_the_frames_hold():
    page = book.open("argonne")
    assert "label 48.3" in repr(page.table("bragg_flows", argonne.flows_frame()))
    text = repr(page.table("bragg_reference", argonne.reference_frame()))
    assert "72.7" in text and "1,760" in text
    phases = page.table("bragg_phases", argonne.phases_frame()).frame
    assert math.isclose(float(phases["compute_percent"].iloc[0]), 48, abs_tol=5)
