import csv
import dataclasses
from pathlib import Path

import pytest
from study_small import load_row

from ipusim import files
from ipusim.errors import DataError, UnknownNameError
from ipusim.machine.system import load_system
from ipusim.runtime.options.spec import OPTIONS
from ipusim.study.data.published import load_claims, load_rows
from ipusim.study.data.runs import load_run, load_runs
from ipusim.workload import zoo
from ipusim.workload.serialization import parse_serial_products, serialise

SIMULATE_OPTIONS = {
    "system", "mode", "micro_batch", "replicas", "ipus_per_replica", "gradient_accumulation",
    "precision", "partials", "host_dtype", "overlap_io", "io_tiles", "batches_in_flight", "stack",
    "instances", "available_memory_proportion",
}  # fmt: skip

CONVOLUTIONAL = ("resnet", "resnext", "efficientnet", "yolo", "efficientdet", "unet")


def modelled_runs():
    return [run for run in load_runs().values() if not run.not_modelled]


@pytest.mark.parametrize(
    ("study", "table", "metric", "count"),
    [
        ("qwant", "Table 1", "latency", 6),
        ("qwant", "Table 2", "throughput", 6),
        ("qwant", "Table 3", "efficiency", 6),
        ("results", "Bow inference", "throughput", 37),
        ("results", "Classic inference", "throughput", 71),
        ("results", "Classic inference", "latency", 69),
        ("results", "Bow training", "throughput", 64),
        ("results", "Classic training", "throughput", 62),
        ("results", "MLPerf v2.0", "time_to_train", 11),
        ("argonne", "benchmarks", "throughput", 13),
        ("tamu", "Table 3", "throughput", 12),
        ("tamu", "Table 4", "throughput", 10),
    ],
)
def test_every_published_number_has_a_row(study, table, metric, count):
    assert len(load_rows(study=study, table=table, metric=metric)) == count


@pytest.mark.parametrize(
    ("row_id", "value", "unit", "line"),
    [
        ("qwant.table1.batch2", 1.36, "ms/batch", "112"),
        ("qwant.table2.batch12", 2526.35, "images/s", "137"),
        ("qwant.table3.batch10", 9.68, "images/s/W", "146"),
        ("results.inference.058", 14321.0, "images/s", "1998"),
        ("results.inference.058.latency", 2.69, "ms", "1998"),
        ("results.training.001", 6044.0, "sequences/s", "86"),
        ("results.mlperf.04", 2.67, "min", "1104"),
        ("tamu.table3.07", 2130.0, "images/s", "229"),
        ("tamu.table3.07.time", 719.4, "s", "229"),
    ],
)
def test_known_rows(row_id, value, unit, line):
    row = load_row(row_id)
    assert (row.value, row.unit, row.source_line) == (value, unit, line)


def test_row_ids_are_unique_and_every_row_has_a_run():
    rows = load_rows()
    assert len({row.row_id for row in rows}) == len(rows)
    assert all(row.run.model or row.run.not_modelled for row in rows)


def test_rounding_comes_from_the_printed_digits():
    assert load_row("qwant.table3.batch4").printed == "7.80"
    assert load_row("qwant.table3.batch4").half_last_digit == pytest.approx(0.005)
    assert load_row("results.inference.058").half_last_digit == pytest.approx(0.5)


@pytest.mark.parametrize("micro_batch", range(1, 7))
def test_qwant_runs_are_as_the_report_says(micro_batch):
    run = load_run(f"qwant.batch{2 * micro_batch}")
    assert run.options() == {
        "system": "C2", "mode": "inference", "micro_batch": micro_batch, "replicas": 2,
        "ipus_per_replica": 1, "precision": "16.16", "host_dtype": "float32",
        "overlap_io": False, "batches_in_flight": 1, "stack": "sdk-1.0", "framework": "popart",
    }  # fmt: skip
    assert run.items_per_step == 2 * micro_batch
    assert set(run.assumed) == {"host_dtype", "overlap_io"}


def test_all_convolutional_inference_rows_are_modelled():
    rows = [row for row in load_rows(metric="throughput") if "inference" in row.table]
    convolutional = [row for row in rows if row.family in CONVOLUTIONAL]
    assert all(not row.run.not_modelled for row in convolutional)
    assert len(convolutional) == 59 + 16 + 5 + 4


def test_all_language_rows_are_modelled():
    families = ("bert", "group-bert", "gpt2")
    rows = [row for row in load_rows(metric="throughput") if row.study == "results"]
    assert not [row.row_id for row in rows if row.family in families and row.not_modelled]


@pytest.mark.parametrize("run", modelled_runs(), ids=lambda run: run.run_id)
def test_modelled_runs_are_complete(run):
    options = run.options()
    given = set(options)
    assert (run.io_tiles is not None) == bool(run.overlap_io)
    ipus = run.replicas * run.ipus_per_replica
    if run.mode == "inference":
        placed = {"pipeline_splits", "stage_ipus", "schedule"}
        own = {
            "loader_item_s",
            "serial_item_s",
            "serial_products",
            "rearrange_on_host",
            "framework",
            "device_iterations",
            "stable_norm",
        }
        assert given <= SIMULATE_OPTIONS | placed | own
        assert (placed <= given) == (run.ipus_per_replica > 1)
        optional = {"gradient_accumulation", "partials", "io_tiles", "instances"}
        optional.add("available_memory_proportion")
        if run.family in ("bert", "gpt2"):
            optional.add("host_dtype")  # token numbers are what they are
        assert not SIMULATE_OPTIONS - given - optional
        assert ipus == load_system(run.system).ipus
        return
    assert given <= set(OPTIONS)
    needed = {"micro_batch", "gradient_accumulation", "optimizer", "framework", "dataset", "stack"}
    assert needed <= given
    assert ipus <= load_system(run.system).ipus
    if "instances" in given:
        assert run.replicas % run.instances == 0
    # What is not known at the tag of the recipe is marked.
    assert set(run.assumed) <= {*given, "model", "reported_per_item"}


def test_a_pipelined_run_names_its_cuts():
    piped = [run for run in modelled_runs() if run.ipus_per_replica > 1]
    assert piped
    for run in piped:
        stages = run.stage_ipus or range(run.ipus_per_replica)
        assert len(run.pipeline_splits) == len(stages) - 1
        assert set(stages) == set(range(run.ipus_per_replica))


@pytest.mark.parametrize(("number", "printed", "real"), [("058", 16, 8), ("059", 32, 16)])
def test_wrong_printed_batches_are_predicted_as_run(number, printed, real):
    row = load_row(f"results.inference.{number}")
    assert row.label.endswith(f"batch {printed}")
    assert row.run.items_per_step == real
    assert "label error" in row.run.note


def test_the_two_frameworks_run_different_resnext():
    models = {
        (row.run.model, "PyTorch" in row.label)
        for row in load_rows(study="results", metric="throughput")
        if row.family == "resnext" and not row.run.not_modelled
    }
    # Group norm is what TensorFlow trains with.
    assert models == {
        ("resnext101_32x8d", True), ("resnext101_32x4d", False), ("resnext101_32x4d_gn", False)
    }  # fmt: skip


def test_queue_depth_follows_the_way_latency_was_taken():
    depth = {row.row_id: row.run.batches_in_flight for row in load_rows(metric="throughput")}
    assert depth["results.inference.049"] == 3  # TensorFlow 1 embedded runtime
    assert depth["results.inference.056"] == 1  # PyTorch, lowest latency
    assert depth["results.inference.057"] == 5  # PyTorch with IO tiles
    assert depth["results.inference.038"] == 1  # PopART
    # PyTorch without IO tiles: one batch once, then two, over 5 or 10 iterations of a call.
    assert depth["results.inference.019"] == pytest.approx((1 + 4 * 2) / 5)
    assert depth["results.inference.020"] == pytest.approx((1 + 9 * 2) / 10)


def test_every_recipe_has_a_configuration():
    folder = files.data_dir() / "runs"
    with (folder / "recipes.csv").open(newline="", encoding="utf-8") as handle:
        recipes = [line["run_id"] for line in csv.DictReader(handle)]
    assert len(recipes) == len(set(recipes)) == 290
    assert set(recipes) <= set(load_runs())


def test_data_files_name_no_machine():
    for path in (*files.data_dir().glob("published/*"), *files.data_dir().glob("runs/*")):
        text = path.read_text(encoding="utf-8")
        assert "/work/" not in text
        assert "/shared" not in text
        assert "http" not in text


@pytest.mark.parametrize("study", ["argonne", "mk2", "qwant", "results", "tamu"])
def test_claims(study):
    claims = load_claims(study)
    assert claims["row_id"].is_unique
    assert claims["row_id"].str.startswith(f"{study}.claims.").all()


@pytest.mark.parametrize(
    ("call", "nearest"),
    [
        (lambda: load_rows(study="qwent"), "qwant"),
        (lambda: load_run("qwant.batch1"), "qwant.batch1"),
        (lambda: load_claims("tamo"), "tamu"),
    ],
)
def test_unknown_names_are_answered_with_the_nearest(call, nearest):
    with pytest.raises(UnknownNameError, match=f"did you mean '{nearest}"):
        call()


def cut_last_line(path: Path) -> None:
    path.write_text(path.read_text(encoding="utf-8")[:-40], encoding="utf-8")


def swap_text(old: str, new: str):
    def change(path: Path) -> None:
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new, 1), encoding="utf-8")

    return change


@pytest.mark.parametrize(
    ("file", "damage", "says"),
    [
        ("published/tamu_table1.csv", Path.unlink, "cannot be read"),
        ("published/tamu_table1.csv", lambda path: path.write_bytes(b"\xff\xfe"), "not a UTF-8"),
        ("published/tamu_table1.csv", lambda path: path.write_text(""), "has no rows"),
        ("published/tamu_table2.csv", cut_last_line, "cells instead of"),
        ("published/tamu_table3.csv", swap_text("throughput_img_s", "speed"), "is missing"),
        ("published/tamu_table3.csv", swap_text(",1181,", ",118l,"), "use a number"),
        ("published/tamu_table3.csv", swap_text(",1181,", ",nan,"), "not a finite"),
        ("published/tamu_table3.csv", swap_text("tamu.table3.02", "tamu.table3.01"), "used twice"),
        ("published/tamu_table3.csv", swap_text("tamu.table3.02", "tamu.table3.99"), "has no line"),
        ("runs/configurations.csv", cut_last_line, "not a UTF-8 CSV"),
        ("runs/configurations.csv", swap_text(",false,", ",perhaps,"), "give true or false"),
        ("runs/configurations.csv", swap_text("resnet,resnet50,Bow Pod128", "resnet,,Bow Pod128"),
         "neither a model"),
        ("runs/configurations.csv", swap_text(",1281167,", ",0,"), "items .* is not above 0"),
        ("runs/configurations.csv", swap_text("results.training.002", "results.training.001"),
         "twice"),
        ("runs/host_times.csv", swap_text("results.training.038", "results.training.036"),
         "no inference and its data set not 'prepared'"),
        ("runs/host_times.csv", swap_text(",0.00213,", ",soon,"), "seconds, 0 or more"),
        ("runs/host_times.csv", swap_text("results.training.032", "qwant.batch2"),
         "no run of known instances"),
        ("runs/host_times.csv", swap_text("results.training.032", "qwant.batch99"), "is no run"),
        ("runs/host_times.csv", swap_text(",false,", ",never,"), "use true or false"),
    ],
)  # fmt: skip
def test_damaged_data_gives_one_sentence(own_data, file, damage, says):
    damage(own_data / file)
    with pytest.raises(DataError, match=says) as caught:
        load_rows()
    assert str(caught.value).count("\n") == 0


def test_a_column_that_is_no_option_is_refused(own_data):
    swap_text("running_mean", "walking_mean")(own_data / "runs" / "configurations.csv")
    with pytest.raises(DataError, match="'walking_mean' of .*: did you mean 'running_mean'"):
        load_runs()


def test_what_is_otherwise_is_an_option(own_data):
    swap_text("batches_in_flight=2", "batches=2")(own_data / "runs" / "configurations.csv")
    with pytest.raises(UnknownNameError, match="019' in configurations.csv 'batches': did you"):
        load_runs()


def test_items_of_a_step_need_a_micro_batch():
    run = dataclasses.replace(load_runs()["qwant.batch2"], micro_batch=None)
    with pytest.raises(DataError, match="'qwant.batch2' has no micro-batch or no replica count"):
        _ = run.items_per_step


def test_timed_loaders_reach_the_simulation_in_seconds():
    runs = load_runs()
    timed = {run_id for run_id, run in runs.items() if run.loader_item_s is not None}
    assert timed == {run_id for run_id, run in runs.items() if run.dataset == "prepared"}
    assert runs["results.training.038"].options()["loader_item_s"] == pytest.approx(2.13e-3)
    assert "loader_item_s" not in runs["results.training.036"].options()
    lines = files.read_records(files.data_dir() / "runs" / "host_times.csv")
    assert all(line["source"] for line in lines)
    alone = {line["run_id"] for line in lines if line["transferable"] == "false"}
    assert alone == {run_id for run_id, run in runs.items() if not run.transferable}


def test_products_in_parts_are_products_of_their_models():
    cut = {run_id: run for run_id, run in load_runs().items() if run.serial_products}
    assert cut["results.training.001"].options()["serial_products"] == (
        "cls.predictions.decoder=5",
    )
    assert "serial_products" not in load_runs()["results.training.011"].options()
    wanted = {(run.model, text) for run in cut.values() for text in run.serial_products}
    for model, text in sorted(wanted):
        graph = zoo.load(model).graph(1)
        (product,) = parse_serial_products([text])
        parts = serialise(graph, [product])
        assert parts.macs == graph.macs
        # A product gains its parts; a lookup eight operators for each, less the first sum.
        lookup = product.op == "embeddings.word_embeddings"
        more = 8 * product.factor - 2 if lookup else product.factor
        assert len(parts.ops) == len(graph.ops) + more


def test_work_between_runs_belongs_to_known_processes():
    working = {run_id: run for run_id, run in load_runs().items() if run.serial_item_s is not None}
    assert {"results.training.032", "results.training.033", "results.training.121"} < set(working)
    assert all(run.options()["serial_item_s"] == run.serial_item_s for run in working.values())
    assert working["results.training.032"].serial_item_s == pytest.approx(986e-6)
    assert all(run.instances for run in working.values())
    assert "serial_item_s" not in load_run("results.training.034").options()


def test_latencies_per_item_are_reciprocals_of_throughput():
    cells = [row for row in load_rows(metric="latency") if row.run.latency_per_item]
    assert len(cells) == 9
    for row in cells:
        throughput = load_row(row.run.run_id).value
        # Two averages over the same run, printed to 0.01 ms.
        assert row.value == pytest.approx(1e3 * row.run.replicas / throughput, abs=0.01)
    others = [row for row in load_rows(metric="latency") if not row.run.latency_per_item]
    queued = [row for row in others if row.study == "results"]
    for row in queued:
        in_flight = load_row(row.run.run_id).value * row.value / 1e3 / row.run.items_per_step
        assert in_flight > 0.9
