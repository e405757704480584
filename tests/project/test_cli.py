import json
import re
import sys
import types
from dataclasses import dataclass

import pandas as pd
import pytest
from study_small import small_verdicts
from toy_study import write_study

import ipusim
from ipusim import cli, sweeps
from ipusim.compiler.program_cache import keeps_programs
from ipusim.errors import ConfigError, UnknownNameError
from ipusim.files import write_text
from ipusim.numerics.kernels.amp import _accumulate
from ipusim.runtime.calibration import Ran
from ipusim.runtime.options.spec import OPTIONS
from ipusim.study.book.index import State
from ipusim.study.verdicts import validate
from ipusim.workload import zoo

KEYS = {"model": "resnet50", "latency_s": 1e-3, "interval80": None}


@dataclass
class Report:
    options: dict

    def to_dict(self):
        return KEYS | {"options": self.options}

    def to_perfetto(self, path):
        write_text(path, "{}")

    to_html = to_perfetto

    def __str__(self):
        return "latency 1.000 ms"


@pytest.fixture
def api(monkeypatch):
    """Put a fake `ipusim.api` in place, which records what it is asked."""

    def simulate(model, **options):
        if model == "resnet5":
            raise UnknownNameError("Unknown model 'resnet5': did you mean 'resnet50'?")
        if options.get("gradient_accumulation") and "mode" not in options:
            raise ConfigError("Inference has no gradient accumulation:\n  drop the option.")
        return Report({"model": model, **options})

    def sweep(model, *, system, micro_batch, jobs, chip, client):
        assert jobs >= 1 and not chip and client is None
        system = [system] if isinstance(system, str) else system
        lines = [(name, size, 0.1 * size) for name in system for size in micro_batch]
        return pd.DataFrame(lines, columns=["system", "micro_batch", "latency_ms"])

    fake = types.ModuleType("ipusim.api")
    fake.simulate = simulate
    monkeypatch.setitem(sys.modules, "ipusim.api", fake)
    monkeypatch.setattr(sweeps, "sweep", sweep)
    monkeypatch.setattr(ipusim, "api", fake, raising=False)
    return fake


def run(capsys, *arguments):
    code = cli.main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def assert_one_sentence(code, out, err):
    assert code == 2
    assert out == ""
    assert err.startswith("ipusim: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err


def test_simulate_prints_the_report(capsys, api):
    assert run(capsys, "simulate", "resnet50") == (0, "latency 1.000 ms\n", "")


def test_simulate_passes_options_of_training(capsys, api):
    code, out, _ = run(
        capsys, "simulate", "resnet50", "--mode", "training", "--gradient-accumulation", "8",
        "--optimizer", "lars", "--recompute", "layer1.2.add", "--recompute", "layer2.3.add",
        "--batch-norm-span", "2", "--pipeline-splits", "layer2.3.add", "--merge-gradients-bytes",
        "0", "--instances", "4", "--dataset", "imagenet_jpeg", "--json",
    )  # fmt: skip
    assert code == 0
    assert json.loads(out)["options"] == {
        "model": "resnet50", "mode": "training", "gradient_accumulation": 8,
        "optimizer": "lars", "recompute": ["layer1.2.add", "layer2.3.add"], "batch_norm_span": 2,
        "pipeline_splits": ["layer2.3.add"], "merge_gradients_bytes": 0, "instances": 4,
        "dataset": "imagenet_jpeg",
    }  # fmt: skip


def test_every_option_of_a_run_is_one_of_the_command_line(capsys):
    flags = {name for one in cli.simulate.params for name in one.opts if name.startswith("--")}
    assert flags >= {f"--{name.replace('_', '-')}" for name in OPTIONS}
    _, out, _ = run(capsys, "simulate", "--help")
    assert all(choice in out for option in OPTIONS.values() for choice in option.choices)


def test_a_loader_that_is_timed_can_be_asked_for_from_the_shell(capsys):
    arguments = ("simulate", "mcmc_bnn", "--mode", "training", "--dataset", "prepared")
    code, out, err = run(capsys, *arguments, "--loader-item-s", "0.5", "--json")
    assert (code, err) == (0, "")
    # 14 workers of one process prepare an item each in half a second.
    assert json.loads(out)["throughput_items_per_s"] <= 14 / 0.5 * 4 * (1 + 1e-9)
    assert_one_sentence(*run(capsys, *arguments, "--loader-item-s", "-1"))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("resnet18", "--gradient-accumulation", "4"), "use the mode 'training'"),
        (("resnet18", "--mode", "training", "--replicas", "9"), "has 4"),
        (("resnet18", "--mode", "training", "--optimizer", "adamm"), "'adam'"),
        (("resnet18", "--mode", "training", "--recompute", "layer9"), "layer"),
    ],
)
def test_bad_training_options_end_with_one_sentence(capsys, arguments, says):
    code, out, err = run(capsys, "simulate", *arguments)
    assert_one_sentence(code, out, err)
    assert says in err


def test_simulate_passes_every_option_by_its_python_name(capsys, api):
    code, out, _ = run(
        capsys, "simulate", "resnet50", "--system", "C2", "--mode", "training", "--micro-batch",
        "4", "--replicas", "2", "--ipus-per-replica", "1", "--precision", "16.32", "--partials",
        "float", "--host-dtype", "uint8", "--no-overlap-io", "--batches-in-flight", "3",
        "--stack", "sdk-1.0", "--json",
    )  # fmt: skip
    assert code == 0
    assert json.loads(out)["options"] == {
        "model": "resnet50", "system": "C2", "mode": "training", "micro_batch": 4, "replicas": 2,
        "ipus_per_replica": 1, "precision": "16.32", "partials": "float", "host_dtype": "uint8",
        "overlap_io": False, "batches_in_flight": 3, "stack": "sdk-1.0",
    }  # fmt: skip


def test_options_that_are_not_given_are_left_to_the_defaults(capsys, api):
    _, out, _ = run(capsys, "simulate", "resnet50", "--json")
    assert json.loads(out)["options"] == {"model": "resnet50"}


@pytest.mark.parametrize(
    "arguments",
    [
        ("simulate",),
        ("simulate", "resnet5"),
        ("simulate", "resnet50", "--micro-batch", "0"),
        ("simulate", "resnet50", "--micro-batch", "-3"),
        ("simulate", "resnet50", "--micro-batch", "1.5"),
        ("simulate", "resnet50", "--micro-batch", "many"),
        ("simulate", "resnet50", "--micro-batch"),
        ("simulate", "resnet50", "--replicas", "0"),
        ("simulate", "resnet50", "--batches-in-flight", "0"),
        ("simulate", "resnet50", "--precision", "8.8"),
        ("simulate", "resnet50", "--mode", "dreaming"),
        ("simulate", "resnet50", "--partials", "double"),
        ("simulate", "resnet50", "--host-dtype", "int4"),
        ("simulate", "resnet50", "--gradient-accumulation", "2"),
        ("simulate", "resnet50", "--speed", "high"),
        ("simulate", "resnet50", "resnet18"),
        ("simulate", "resnet50", "--trace", f"{__file__}/trace.json"),
        ("fly",),
        ("reproduce", "-p", "batch"),
        ("sweep", "resnet50", "--micro-batch", "0"),
    ],
)
def test_bad_input_is_one_sentence_on_stderr(capsys, api, arguments):
    assert_one_sentence(*run(capsys, *arguments))


def test_no_arguments_shows_help_and_is_bad_input(capsys):
    code, out, err = run(capsys)
    assert (code, out) == (2, "")
    assert "Usage" in err


def test_help_is_no_error(capsys):
    for arguments in (["--help"], ["simulate", "-h"], ["reproduce", "--help"]):
        code, out, err = run(capsys, *arguments)
        assert (code, err) == (0, "")
        assert "Usage" in out


def test_trace_file(capsys, api, tmp_path):
    code, _, _ = run(capsys, "simulate", "resnet50", "--trace", str(tmp_path / "t.json"))
    assert code == 0
    assert (tmp_path / "t.json").is_file()


def test_sweep_prints_a_table_or_csv(capsys, api):
    arguments = ["sweep", "resnet50", "--system", "C2", "--micro-batch", "1", "--micro-batch", "2"]
    code, out, _ = run(capsys, *arguments)
    assert code == 0
    assert out.splitlines()[0].split() == ["system", "micro-batch", "latency", "ms"]
    assert (
        run(capsys, *arguments, "--csv")[1] == "system,micro_batch,latency_ms\nC2,1,0.1\nC2,2,0.2\n"
    )


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("ipusim.cli", {"pandas", "matplotlib", "papermill", "numba"}),
        ("ipusim.study.book.page", {"nbformat", "jsonschema", "papermill", "numba"}),
    ],
)
def test_starting_is_cheap(module, heavy):
    """The heavy libraries are imported by what needs them, not at the start."""
    import subprocess

    code = f"import sys; import {module}; print(*{heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


# --- reproduce


@pytest.fixture
def reproduced(monkeypatch):
    """Replace the runner; return what it was asked and what it should answer."""
    asked, answer = {}, []

    def fake(names, **options):
        asked.update(options, names=list(names))
        for result in answer:
            options["tell"](result)
        return tuple(answer)

    monkeypatch.setattr("ipusim.study.book.reproduce.reproduce", fake)
    return asked, answer


def test_reproduce_reports_success(capsys, reproduced, tmp_path):
    asked, answer = reproduced
    done = {"status": "done", "message": "", "cells": 31, "seconds": 62.6}
    answer.append(State(name="01_a", **done, notebook="01_a.ipynb"))
    code, out, err = run(
        capsys, "reproduce", "01", "-p", "a=1", "-p", "b=x", "--out", str(tmp_path), "--resume"
    )
    assert (code, err) == (0, "")
    first, *_, last = out.splitlines()
    assert first == "01_a: done, 31 cells in 63 s"
    assert last.endswith("index.html")
    assert asked["names"] == ["01"]
    assert asked["given"] == {"a": "1", "b": "x"}
    assert asked["resume"]
    assert not asked["progress"]  # stderr is no terminal here


def test_reproduce_reports_failure_with_the_partial_notebook(capsys, reproduced, tmp_path):
    _, answer = reproduced
    partial = tmp_path / "01_a.partial.ipynb"
    answer.append(
        State(name="01_a", status="failed", message="failed in cell 3", notebook=partial.name)
    )
    code, _, err = run(capsys, "reproduce", "--out", str(tmp_path))
    assert code == 1
    assert f"01_a failed in cell 3; see {partial}" in err


def test_reproduce_an_unknown_study(capsys, monkeypatch, tmp_path):
    write_study(tmp_path, "01_qwant_toy", "x = 1")
    monkeypatch.setattr("ipusim.files.notebooks_dir", lambda: tmp_path)
    out = tmp_path / "build"
    for arguments in (["nothing"], ["01", "-p", "speed=3"], ["01", "-p", "repeats=x"]):
        assert_one_sentence(*run(capsys, "reproduce", *arguments, "--out", str(out)))
        assert not out.exists()


def test_params_lists_type_default_and_meaning(capsys, monkeypatch, tmp_path):
    write_study(tmp_path, "01_qwant_toy", "x = 1")
    monkeypatch.setattr("ipusim.files.notebooks_dir", lambda: tmp_path)
    code, out, _ = run(capsys, "params", "qwant")
    assert code == 0
    assert "repeats" in out
    assert "how often" in out
    assert_one_sentence(*run(capsys, "params", "kwant2"))


# --- validate


@pytest.fixture
def validated(monkeypatch, tmp_path):
    """Validate against a small network, without the evidence of the predicting stages."""
    frame = small_verdicts(sourced=True)
    evidence = types.ModuleType("ipusim.study.evidence.operations")
    evidence.ALL = {"gemm": "Products", "reduce": "Others", "lstm": "Recurrent"}
    evidence.operations_table = lambda group: pd.DataFrame({"operation": [group], "median": [1.0]})
    evidence.vertices_table = lambda: pd.DataFrame({"vertex": ["AMP 1x1"], "mean": [0.5]})
    evidence.mk1_layers_table = lambda: pd.DataFrame({"stage": [5], "median": [9.0]})
    monkeypatch.setitem(sys.modules, "ipusim.study.evidence.operations", evidence)
    monkeypatch.setattr("ipusim.study.evidence.operations", evidence, raising=False)
    asked = "ipusim.study.verdicts.compare.verdicts"
    monkeypatch.setattr(asked, lambda *, predictor, sourced: frame)
    monkeypatch.setattr("ipusim.study.fit.samples.samples_of", lambda rows, predictor: ())
    compiled = Ran(programs=2, over={"qwant.table1.batch2": 0.1})
    monkeypatch.setattr("ipusim.study.fit.ran.ran", lambda predictor: compiled)
    monkeypatch.setattr(
        "ipusim.study.evidence.memory.network_memory_table",
        lambda: pd.DataFrame({"category": ["vertex code"], "median": [15.0]}),
    )
    monkeypatch.setattr(validate, "expected_path", lambda: tmp_path / "validate.csv")
    return frame, tmp_path / "validate.csv"


def test_validate_prints_all_tiers_and_the_evidence(capsys, validated):
    code, out, err = run(capsys, "validate", "--record")
    assert (code, err) == (0, "")
    names = ("gemm", "AMP 1x1", "80 % intervals", "vertex code", "1 of 2 published programs")
    for text in ("roofline", "without adopted", "specification", "calibrated", *names):
        assert text in out
    code, out, err = run(capsys, "validate", "--rows")
    assert (code, err) == (0, "")
    assert "qwant.table1.batch2" in out
    assert re.fullmatch(
        r"PASS: \d+ of \d+ values are a test: \d+ hit, \d+ near, \d+ miss", out.splitlines()[-1]
    )


def test_validate_fails_when_a_count_falls(capsys, validated):
    _, path = validated
    run(capsys, "validate", "--record")
    counts = pd.read_csv(path)
    counts.loc[(counts["study"] == "qwant") & (counts["tier"] == "calibrated"), "hit"] += 1
    counts.to_csv(path, index=False)
    code, out, err = run(capsys, "validate")
    assert code == 1
    assert out.splitlines()[-1].startswith("FAIL: ")
    assert "qwant, calibrated: hits fell from" in err


@pytest.mark.parametrize(
    "text", ["", "study,tier", "study,tier,rows,hit,near\nqwant,calibrated,6,many,1\n"]
)
def test_validate_with_a_damaged_record(capsys, validated, text):
    _, path = validated
    path.write_text(text)
    code, _, err = run(capsys, "validate")
    assert code == 2
    assert "run 'ipusim validate --record'" in err
    assert err.count("\n") == 1


def test_a_near_that_becomes_a_hit_is_no_decline():
    place = pd.MultiIndex.from_tuples([("qwant", "calibrated")])
    before, after = (
        pd.DataFrame({"rows": [6], "hit": [hit], "near": [6 - hit]}, place) for hit in (2, 5)
    )
    assert validate.declines(after, before) == []
    assert validate.declines(before, after) == ["qwant, calibrated: hits fell from 5 to 2."]
    assert validate.declines(before[:0], before) == [
        "qwant, calibrated: predicted rows fell from 6 to 0.",
        "qwant, calibrated: hits fell from 2 to 0.",
        "qwant, calibrated: hits and nears fell from 6 to 0.",
    ]


def test_warmup_compiles_kernels_and_plans_what_is_asked_for(capsys, api, monkeypatch):
    asked = []
    monkeypatch.setattr(api, "simulate", lambda **options: asked.append(options))
    cli._warm_training()
    assert _accumulate.signatures
    monkeypatch.setattr(cli, "_warm_training", list)
    assert run(capsys, "warmup", "uno", "--system", "C2") == (0, "", "")
    assert asked[-1] == {"model": "uno", "system": "C2"}
    assert {"inference", "training"} == {one.get("mode", "inference") for one in asked}


def test_warmup_keeps_programs_of_the_zoo(capsys, api, monkeypatch):
    kept = set()

    def simulate(model, **options):
        if keeps_programs():
            kept.add(model)

    monkeypatch.setattr(api, "simulate", simulate)
    monkeypatch.setattr(cli, "_warm_training", list)
    assert run(capsys, "warmup") == (0, "", "")
    assert {"resnet50", "bert_large_squad", "gpt2_small"} <= kept <= set(zoo.names())
    assert "lstm_2_layers" not in kept


@pytest.mark.parametrize(
    ("arguments", "why"), [(["uno", "unno"], "'unno'"), (["--system", "C3"], "'C3'")]
)
def test_warmup_refuses_names_before_it_compiles(capsys, monkeypatch, arguments, why):
    monkeypatch.setattr(cli, "_WARMING", None)  # nothing is begun
    code, out, err = run(capsys, "warmup", *arguments)
    assert_one_sentence(code, out, err)
    assert why in err


def test_a_price_that_is_none_is_refused_before_anything_is_written(capsys, tmp_path):
    out = tmp_path / "trace.json"
    asked = run(capsys, "simulate", "uno", "--trace", str(out), "--price-per-hour", "-1")
    assert_one_sentence(*asked)
    assert not out.exists()


@pytest.mark.parametrize("file", ["plot", "plot.nope", ""])
def test_a_picture_of_no_kind_is_refused_before_the_search(capsys, monkeypatch, file):
    monkeypatch.setattr("ipusim.planning.plan", None)
    code, out, err = run(capsys, "plan", "uno", "--plot", file)
    assert_one_sentence(code, out, err)
    assert "kind of picture" in err


def test_a_picture_is_drawn_with_its_folder_or_refused(capsys, tmp_path):
    asked = ["plan", "uno", "--system", "C2", "--micro-batch", "1", "--plot"]
    picture = tmp_path / "new" / "plan.SVG"
    assert run(capsys, *asked, str(picture))[0] == 0
    assert b"<svg" in picture.read_bytes()
    code, out, err = run(capsys, *asked, str(picture / "below.png"))
    assert_one_sentence(code, out, err)
    assert "Cannot write" in err


@pytest.mark.parametrize("span", ["4:1", "1:4:0", "1,4:2", "1:2000000", f"0:{10**30}:1"])
def test_a_range_without_numbers_or_with_too_many_is_refused(capsys, span):
    code, out, err = run(capsys, "sweep", "uno", "--micro-batch", span)
    assert_one_sentence(code, out, err)
    assert "FIRST:LAST" in err
    assert run(capsys, "sweep", "uno", "--chip", f"tiles={span}")[0] == 2


def test_a_name_has_one_value(capsys):
    for option, one, two in (("--dim", "n=4", "n=5"), ("--chip", "tiles=4", "tiles=5")):
        code, out, err = run(capsys, "sweep", "uno", option, one, option, two)
        assert_one_sentence(code, out, err)
        assert "is given as 4 and as 5" in err
