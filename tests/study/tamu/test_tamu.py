"""The TAMU study: tables, parts, scaling, memory, GPUs beside IPUs, audit, figures."""

import math

import numpy as np
import pandas as pd
import pytest
from study_small import VERDICT_COLUMNS

from ipusim.errors import ConfigError, UnknownNameError
from ipusim.files import read_tables
from ipusim.look import shared_looks
from ipusim.machine.system import load_system
from ipusim.report.trace import PHASES
from ipusim.study import audit, book
from ipusim.study.book.catalogue import select_studies, study_parameters
from ipusim.study.data.runs import load_run
from ipusim.study.predict import first_epoch_items_per_s, report_of
from ipusim.study.specs import load_spec
from ipusim.study.tamu import (
    breakdown as tamu_inside,
    gpus as tamu_gpus,
    memory as tamu_memory,
    scaling as tamu_scaling,
    study as tamu,
)
from ipusim.study.verdicts.compare import (
    NOT_MODELLED,
    PREDICTED,
    RUN_COUNTS,
    tier_summary,
    verdict_of,
)
from ipusim.view import NAMED

TOO_SLOW = 0.95
PARTS = (
    "device",
    "transfers",
    "host work",
    "batch-norm reductions",
    "gradient all-reduce",
    "weight update",
    "optimiser state",
    "fixed",
    "waiting for the host",
)
"""Parts of a training step (``report.parts``), all of which have a look."""
PARAMETERS = {
    "tier": "calibrated",
    "ipus": [1, 2, 64],
    "breakdown_ipus": [1, 16],
    "memory_micro_batches": [2, 20],
    "autoencoder_micro_batches": [10],
    "images_per_epoch": 1_281_167,
}


@pytest.fixture(scope="module")
def frame():
    """Verdicts as they would be if every rate were predicted 5 % too low."""
    lines = []
    for row in tamu.study_rows():
        value = math.nan if row.not_modelled else TOO_SLOW * row.value
        lines.append(
            dict.fromkeys(VERDICT_COLUMNS, math.nan)
            | {
                "row_id": row.row_id,
                "study": row.study,
                "table": row.table,
                "metric": row.metric,
                "unit": row.unit,
                "published": row.value,
                "specification": value,
                "calibrated": value,
                "verdict": verdict_of(value, row.value),
                "status": NOT_MODELLED if row.not_modelled else PREDICTED,
                "note": row.run.note,
                **{name: getattr(row.run, name) for name in RUN_COUNTS},
                "label": row.label,
                "series": row.run.series,
            }
        )
    frame = pd.DataFrame(lines, columns=list(VERDICT_COLUMNS))
    return frame.astype(dict.fromkeys(RUN_COUNTS, "Int64"))


@pytest.fixture(scope="module")
def parts():
    return tamu_inside.parts_by_ipus([1, 2, 16, 64])


@pytest.fixture(scope="module")
def gpus():
    return tamu_gpus.table4_gpus()


@pytest.fixture(scope="module")
def tensorflow_bars(frame):
    return tamu_gpus.bars(frame, "tensorflow")


# --- parameters and rows


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"tier": "roofline"}, "tier is 'roofline'"),
        ({"ipus": []}, "ipus is"),
        ({"ipus": [1, 1]}, "none twice, each a whole number"),
        ({"ipus": [1, 512]}, "from 1 to 256"),
        ({"ipus": [2, 4]}, "add 1"),
        ({"ipus": [1, 3]}, "pairs of IPUs"),
        ({"breakdown_ipus": 16}, "breakdown_ipus is 16"),
        ({"memory_micro_batches": [0]}, "from 1 to 64"),
        ({"autoencoder_micro_batches": [True]}, "autoencoder_micro_batches is"),
        ({"images_per_epoch": 0}, "images_per_epoch is 0"),
        ({"images_per_epoch": 1e6}, "whole number"),
    ],
)
def test_bad_parameters_give_one_sentence(changed, says):
    book.open("tamu", **PARAMETERS)
    with pytest.raises(ConfigError, match=says) as caught:
        book.open("tamu", **(PARAMETERS | changed))
    assert "\n" not in str(caught.value)


def test_the_notebook_is_a_study_with_described_parameters():
    (study,) = select_studies(["tamu"])
    assert study.name == "02_tamu_scaling"
    parameters = study_parameters(study)
    assert {parameter.name for parameter in parameters} == set(PARAMETERS)
    assert all(parameter.help for parameter in parameters)


def test_rows_go_on_to_256_ipus(frame):
    counts = list(tamu_scaling.scaling_frame(frame)["ipus"])
    assert max(counts) == 256
    assert len(counts) == 6 + 6 + 5


@pytest.mark.parametrize(
    ("table", "count"), [("Table 1", 6), ("Table 2", 5), ("Table 3", 12), ("Table 4", 10)]
)
def test_tables_hold_every_published_row(frame, table, count):
    data = tamu.table_frame(frame, table)
    assert len(data) == count
    predicted = data[data["calibrated"].notna()]
    assert list(predicted["error_percent"]) == pytest.approx([-5.0] * len(predicted))
    shown = book.open("tamu").table(f"tamu_{table.lower().replace(' ', '')}", data)
    assert len(shown.cells) == count
    assert table in shown.caption


def test_an_unknown_table_is_refused(frame):
    with pytest.raises(UnknownNameError, match="Table 1"):
        tamu.table_frame(frame, "Table 5")


def test_what_is_assumed_is_said():
    shown = tamu.run_frame(tamu.RUNS)
    cells = {line[0]: line[1:] for line in shown.itertuples(index=False)}
    assert all("(assumed)" in cell for cell in cells["gradient accumulation"])
    assert cells["model"][2] == "tamu_autoencoder (assumed)"
    assert cells["recompute"][1] == "7 segments"


def test_every_row_of_the_assumed_network_says_so(frame, gpus):
    filled = tamu_gpus.with_gpus(frame, gpus)
    notes = tamu.table_frame(filled, "Table 4")["note"]
    assert notes.str.contains("assumed").all()


# --- first epoch


def test_first_epochs_wait_for_one_compilation(frame):
    assert first_epoch_items_per_s(1000, 100, 10) == pytest.approx(50)
    data = tamu.first_epoch_frame(frame)
    assert data["compile_s"].nunique() == 1
    assert data["compile_s"].iloc[0] > 0
    assert data["published_difference_s"].between(460, 531).all()
    second = TOO_SLOW * np.array([1862.9, 3717.2, 7078.1, 13931.7, 23082.9, 18532.6])
    seconds = tamu.IMAGENET_IMAGES / data["predicted"].to_numpy()
    assert seconds - tamu.IMAGENET_IMAGES / second == pytest.approx(data["compile_s"].to_numpy())


def test_a_longer_epoch_hides_the_compilation(frame):
    short, long = (tamu.first_epoch_frame(frame, images) for images in (10**6, 10**8))
    assert (long["predicted"] > short["predicted"]).all()


# --- scaling


def test_published_runs_are_used_as_they_are():
    assert tamu_scaling.run_at(16).run_id == "tamu.table3.11"
    # two runs on 16 IPUs: the one with 8 instances is the better
    assert tamu_scaling.run_at(16, tamu.PYTORCH_SERIES).run_id == "tamu.table1.05"


@pytest.mark.parametrize(
    ("ipus", "system"), [(32, "IPU-POD64"), (128, "IPU-POD128"), (256, "IPU-POD256")]
)
def test_runs_are_carried_on_to_the_smallest_system_that_holds_them(ipus, system):
    run = tamu_scaling.run_at(ipus)
    assert (run.replicas, run.system) == (ipus, system)
    assert load_system(run.system).ipus >= ipus
    assert run.replicas % run.instances == 0
    assert "not measured" in run.note


def test_efficiency_starts_at_a_hundred_and_falls():
    line = tamu_scaling.scaling_line([64, 1, 16, 256])
    assert list(line["ipus"]) == [1, 16, 64, 256]
    efficiency = line["efficiency_percent"].to_numpy()
    assert efficiency[0] == pytest.approx(100.0)
    assert (np.diff(efficiency) < 0).all()
    assert efficiency[-1] > 40
    assert list(line["published"]) == [True, True, True, False]


def test_an_error_of_level_is_no_error_of_scaling(frame):
    data = tamu_scaling.scaling_frame(frame)
    assert list(data["slowdown_error_percent"]) == pytest.approx([0.0] * len(data), abs=1e-9)
    own = tamu_scaling.of_series(data, tamu.TENSORFLOW_SERIES).set_index("ipus")
    assert own.loc[2, "published_efficiency_percent"] == pytest.approx(91.4, abs=0.05)
    assert own.loc[64, "published_efficiency_percent"] == pytest.approx(78.9, abs=0.05)
    beside = tamu_scaling.of_series(data, tamu.RESULTS_SERIES).set_index("ipus")
    assert beside.loc[256, "published_efficiency_percent"] == pytest.approx(66.9, abs=0.05)


def test_the_rate_of_the_host_moves_rows_that_wait_for_it_alone(frame):
    rows = tamu_scaling.scaling_frame(frame)
    held = rows[rows["row_id"].isin(["tamu.table1.06", "tamu.table3.08"])]
    other = tamu_scaling.with_other_host(held).set_index("row_id")
    moved = other["other_host"] / other["predicted"]
    assert moved["tamu.table1.06"] == pytest.approx(233 / 290, rel=0.01)  # images a core decodes
    assert moved["tamu.table3.08"] == 1.0
    efficiency = other["other_host_efficiency_percent"] / other["predicted_efficiency_percent"]
    assert list(efficiency) == pytest.approx(list(moved))


def test_parts_are_those_of_the_report(parts):
    for count, group in parts.groupby("ipus"):
        run = tamu_scaling.run_at(count)
        report = report_of(run)
        per_micro_batch = 1e3 * float(report.latency) / run.gradient_accumulation
        assert group["time_ms"].sum() == pytest.approx(per_micro_batch)
        assert group["share_percent"].sum() == pytest.approx(100.0)
    assert set(parts["part"]) <= set(PARTS)


def test_mechanisms_add_up_to_the_slowdown(frame, parts):
    published = tamu_scaling.of_series(tamu_scaling.scaling_frame(frame), tamu.TENSORFLOW_SERIES)
    data = tamu_inside.mechanisms(parts, published).set_index("ipus")
    mechanisms = list(load_spec("tamu")["mechanisms"])
    total = data[mechanisms].sum(axis=1)
    assert list(total) == pytest.approx(list(data["predicted_slowdown_percent"]), abs=1e-9)
    assert not data.loc[1, mechanisms].any()
    assert data.loc[2, "published_slowdown_percent"] == pytest.approx(9.4, abs=0.05)
    # one pair or many: batch norm costs the same; collectives weigh more with more machines
    batch_norm = data["batch_norm_percent"].loc[[2, 16, 64]]
    assert list(batch_norm) == pytest.approx([batch_norm[2]] * 3, rel=1e-12)
    assert data["all_reduce_percent"].is_monotonic_increasing
    assert data["device_percent"].abs().max() < 1


def test_pytorch_has_no_distributed_batch_norm():
    parts = tamu_inside.parts_by_ipus([1, 2], series=tamu.PYTORCH_SERIES)
    assert "batch-norm reductions" not in set(parts["part"])


def test_work_of_the_device_adds_up():
    data = tamu_inside.device_work([20])
    assert data["share_percent"].sum() == pytest.approx(100.0)
    kinds = load_spec("tamu")["work"]
    assert list(data["part"]) == [name for name in kinds if name in set(data["part"])]
    report = report_of(load_run("tamu.table3.07"))
    device_ms = 1e3 * report.result.device_s
    assert data["time_ms"].sum() == pytest.approx(device_ms, rel=1e-6)
    shown = tamu_inside.device_work_frame(data)
    assert shown["work"].iloc[-1] == "together"
    assert shown.iloc[-1, 1] == pytest.approx(data["time_ms"].sum())


# --- memory


def test_memory_grows_with_the_micro_batch():
    data = tamu_memory.memory_by_micro_batch([20, 2])
    assert list(data["micro_batch"]) == [2, 20]
    assert data["peak_tile_bytes"].is_monotonic_increasing
    assert (data["fits"] == (data["peak_tile_bytes"] <= data["tile_bytes"])).all()


@pytest.mark.parametrize(
    ("fits", "largest", "says"),
    [
        ({16: True, 20: True, 22: False}, 20, "agrees within two"),
        ({16: True, 20: False}, 16, "4 images fewer"),
        ({20: True, 24: True, 28: False}, 24, "4 images more"),
        ({20: True, 24: True}, 24, "more room"),
        ({16: False, 20: True}, 0, "none of those tried"),
    ],
)
def test_the_statement_says_it_either_way(fits, largest, says):
    data = pd.DataFrame(
        {
            "run_id": tamu_memory.RESNET_RUN,
            "micro_batch": list(fits),
            "fits": list(fits.values()),
            "used_percent": 50.0,
        }
    )
    (line,) = tamu_memory.largest_fits([data]).to_dict("records")
    assert (line["stated"], line["simulated"]) == (20, largest)
    assert says in line["reading"]


# --- GPUs


def test_figure_2_holds_ipus_and_gpus(tensorflow_bars):
    platforms = [tamu_gpus.IPU, *read_tables(tamu_gpus.FILE)["platform"]]
    assert list(dict.fromkeys(tensorflow_bars["platform"])) == platforms
    own = tensorflow_bars[tensorflow_bars["platform"] == tamu_gpus.IPU].set_index("devices")
    assert list(own.index) == [1, 2, 4, 8, 16, 64]
    assert own.loc[64, "published"] == 107_535
    assert not tensorflow_bars.duplicated(["platform", "devices"]).any()
    gpus = tensorflow_bars[tensorflow_bars["platform"] != tamu_gpus.IPU]
    assert (gpus["low80"] < gpus["high80"]).all()


def test_figure_1_takes_the_better_of_two_runs(frame):
    data = tamu_gpus.ipu_bars(frame, "pytorch").set_index("devices")
    assert data.loc[16, "published"] == 23082.9


def test_an_unknown_framework_is_refused(frame):
    with pytest.raises(UnknownNameError, match="pytorch"):
        tamu_gpus.bars(frame, "pytorhc")


def test_watts_are_those_that_the_paper_quotes(tensorflow_bars):
    data = tamu_gpus.per_watt({"tensorflow": tensorflow_bars}).set_index("machine")
    assert data["quoted_w"].to_dict() == {"one GC200": 300, "IPU-POD16": 6000, "DGX A100": 6500}
    assert data.loc["IPU-POD16", "published"] == pytest.approx(30_170 / 6000)
    assert data["host_in_it"].to_dict()["DGX A100"] == "yes"


def test_gpu_rows_of_table_4_share_the_printed_batch(gpus):
    assert list(gpus["boards"]) == [2, 2, 2, 2, 1]
    assert list(gpus["batch_per_board"]) == [256, 128, 64, 5, 10]
    parts = gpus[["launch_ms", "memory_ms", "compute_ms", "all_reduce_ms"]].sum(axis=1)
    assert list(parts) == pytest.approx(list(gpus["step_ms"]))
    # the paper's order: the larger the batch, the more images per second
    assert gpus["predicted"].iloc[:4].is_monotonic_decreasing


def test_gpu_rows_are_filled_in_and_others_left_alone(frame, gpus):
    filled = tamu_gpus.with_gpus(frame, gpus)
    changed = (filled["status"] != frame["status"]).to_numpy()
    assert changed.sum() == 10
    first = filled.set_index("row_id").loc[["tamu.table4.01", "tamu.table4.01.time"], "calibrated"]
    assert math.prod(first) == pytest.approx(70_000)
    same = filled[~changed].reset_index(drop=True)
    pd.testing.assert_frame_equal(same, frame[~changed].reset_index(drop=True))
    shown = tamu_gpus.crossover(filled)
    assert shown["ratio"].iloc[0] == pytest.approx(2954 / 270)


# --- audit


def test_table_3_counts_the_same_work_but_for_64_ipus():
    data = audit.tamu_work("Table 3").set_index("row_id")
    assert data["usual_images"].iloc[0] == pytest.approx(1.532e6, rel=1e-3)
    assert list(data.index[~data["consistent"]]) == ["tamu.table3.12"]
    last = data.loc["tamu.table3.12"]
    assert last["work_error_percent"] == pytest.approx(-17.2, abs=0.05)
    assert last["time_should_be_s"] == pytest.approx(14.2, abs=0.05)
    assert last["images"] == pytest.approx(0.990 * tamu.IMAGENET_IMAGES, rel=1e-3)
    assert not data.loc["tamu.table3.11", "within_rounding"]


def test_table_4_mixes_two_runs_in_one_row():
    data = audit.tamu_work("Table 4").set_index("row_id")
    assert data["usual_images"].iloc[0] == pytest.approx(70_000, rel=1e-3)
    last = data.loc["tamu.table4.10"]
    assert last["work_error_percent"] == pytest.approx(50.8, abs=0.1)
    assert last["throughput_should_be_images_per_s"] == pytest.approx(14_286, rel=1e-3)
    assert data["within_rounding"].sum() == 9


def test_two_rows_need_a_correction():
    data = audit.table("tamu_work")
    assert book.open("tamu").table("tamu_audit_rows", data).frame["row_id"].to_list() == [
        "tamu.table3.12",
        "tamu.table4.10",
    ]
    data = data[~data["consistent"]]
    assert list(data["row_id"]) == ["tamu.table3.12", "tamu.table4.10"]
    with pytest.raises(UnknownNameError, match="Table 3"):
        audit.tamu_work("Table 1")


# --- verdicts and figures


def test_summary_names_the_tables(frame):
    errors = tier_summary(frame, ("study", "table", "metric"))
    data = book.open("tamu").table("tamu_summary", errors).frame
    assert (data["rows"] > 0).all()
    assert {"TAMU Table 3", "results page"} < set(data["source"])


def test_figures_show_what_they_are_given(frame, parts, tensorflow_bars):
    scaling = tamu_scaling.with_other_host(tamu_scaling.scaling_frame(frame))
    line = tamu_scaling.scaling_line([1, 16, 64])
    memory = tamu_memory.memory_by_micro_batch([2, 20])
    drawn, one_ipu = {}, tamu.micro_batch_panels(frame)
    watts = tamu_gpus.per_watt({"tensorflow": tensorflow_bars})
    page, figure2 = book.open("tamu"), "Figure 2: ResNet-50, TensorFlow 1.15, mixed precision"
    for title, name, tables in (
        ("Throughput of one IPU", "micro_batch", one_ipu),
        ("A micro-batch on every IPU", "parts", parts),
        ("Efficiency against one IPU", "scaling", {"rows": scaling, "line": line}),
        (
            "The fullest tile of one GC200, ResNet-50 training",
            "memory",
            memory.assign(stated=tamu_memory.STATED_LARGEST[tamu_memory.RESNET_RUN]),
        ),
        (figure2, "figure2", tensorflow_bars),
        ("ResNet-50 training by the quoted design powers", "per_watt", watts),
        ("Table 3: median 1,531,880 images", "audit", audit.table("tamu_work")),
    ):
        drawn[title] = page.figure(f"tamu_{name}", tables).figure
    for title, figure in drawn.items():
        axes = figure.get_axes()
        assert axes[0].get_title(loc="left") == title
        assert all(axis.get_xlabel() or axis.get_ylabel() for axis in axes)
        assert figure.legends
        figure.canvas.draw()
    bars = drawn[figure2].get_axes()[0].patches
    assert len(bars) == len(tensorflow_bars)


def test_heading_of_the_audit_names_its_band():
    (within,) = (
        name for name in load_spec("tamu")["tables"]["tamu_audit_table3"]["columns"]
        if name.startswith("consistent=")
    )  # fmt: skip
    assert within == f"consistent=within {NAMED['tolerance_percent']:g} %"


def test_parts_and_platforms_can_be_told_apart():
    parts = {name: shared_looks("parts")[name] for name in PARTS}
    own = load_spec("tamu")["looks"]
    platforms, series = own["platforms"], own["scaling"]
    assert list(platforms) == [tamu_gpus.IPU, *read_tables(tamu_gpus.FILE)["platform"]]
    assert list(series) == list(tamu_scaling.SERIES_NAMES.values())
    phases = {name: shared_looks("parts")[name] for name in PHASES}
    for looks in (parts, phases, platforms, series):
        assert len({tuple(sorted(look.items())) for look in looks.values()}) == len(looks)
    published = shared_looks("series")["published"]["color"]
    assert published not in {look["color"] for look in platforms.values()}
