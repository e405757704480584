"""What predicts knows nothing of what was published: no value moves it, no row is named in it."""

import ast
import dataclasses
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from study_fakes import load_row

import ipusim
from ipusim.files import data_dir
from ipusim.study.data.published import load_rows
from ipusim.study.data.runs import load_runs
from ipusim.study.predict import TIERS, metric_of, request_for
from ipusim.study.verdicts import compare
from ipusim.study.verdicts.compare import Samples

PACKAGE = Path(ipusim.__file__).parent
STAGES = ("machine", "compiler", "runtime", "numerics", "workload")
MODULES = sorted(
    path
    for stage in (*STAGES, "api.py", "report")
    for path in ([PACKAGE / stage] if stage.endswith(".py") else (PACKAGE / stage).rglob("*.py"))
    # the zoo is where models are named: what they are, not how fast they were
    if "zoo" not in path.parts
)
ROW_ID = re.compile(r"\b(?:results|tamu|qwant|argonne|mlperf|ogb)\.[a-z0-9]+\.[a-z]*\d", re.I)
BLIND = [
    load_row(row_id)
    for row_id in ("results.inference.049", "results.inference.064", "qwant.table1.batch2")
]


def literals(path):
    """Return the strings of a module that are not documentation."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    said = {
        id(statement.value)
        for node in ast.walk(tree)
        if isinstance(node, documented)
        for statement in node.body
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    }
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said
    ]


def compared_numbers(path):
    """Return the names that a module compares with numbers, as (name, number)."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Compare):
            continue
        sides = [node.left, *node.comparators]
        names = [ast.unparse(side) for side in sides if not isinstance(side, ast.Constant)]
        numbers = [
            side.value
            for side in sides
            if isinstance(side, ast.Constant) and isinstance(side.value, int | float)
        ]
        found += [(name, number) for name in names for number in numbers]
    return found


def test_there_is_something_to_look_through():
    assert len(MODULES) > 60


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_no_row_and_no_model_is_named_in_what_predicts(path):
    models = {run.model for run in load_runs().values() if run.model}
    text = path.read_text(encoding="utf-8")
    assert not ROW_ID.search(text)
    assert not models & set(literals(path))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_no_batch_size_is_singled_out(path):
    # to ask whether there is more than one micro-batch is not to single out a size
    singled = [
        (name, number)
        for name, number in compared_numbers(path)
        if "batch" in name.rpartition(".")[2] and "norm" not in name and number > 2
    ]
    assert singled == []


def test_the_guard_would_find_what_it_looks_for(tmp_path):
    module = tmp_path / "m.py"
    module.write_text('"""resnet50"""\nif model == "resnet50" and micro_batch == 16:\n    pass\n')
    assert literals(module) == ["resnet50"]
    assert ("micro_batch", 16) in compared_numbers(module)
    assert ROW_ID.search("results.inference.049")
    assert ROW_ID.search("see qwant.table1.batch2")
    assert not ROW_ID.search("results.csv")


def permuted(rows, seed):
    values = [row.value for row in rows]
    random.Random(seed).shuffle(values)
    return [
        dataclasses.replace(row, value=value, printed=str(value))
        for row, value in zip(rows, values, strict=True)
    ]


def test_permuted_published_values_move_no_prediction():
    before = compare.verdicts(BLIND, samples=Samples())
    after = compare.verdicts(permuted(BLIND, seed=1), samples=Samples())
    assert list(after["published"]) != list(before["published"])
    columns = [*TIERS, "low80", "high80"]
    assert after[columns].equals(before[columns])


HIDDEN = ("published", "expected", "runs", "evidence")
ASK = """
import ipusim
for options in ({}, {"mode": "training", "micro_batch": 4}):
    report = ipusim.simulate("braggnn", system="IPU-M2000", **options)
    print(report.to_dict(), report.parts.to_csv())
print(ipusim.roofline("braggnn").throughput.value, ipusim.simulate_gpu("braggnn").step_s)
"""
CHEAT = """
import csv, dataclasses
from ipusim import api, files
honest = api.run_step
def nearest(*asked, **options):
    result = honest(*asked, **options)
    table = files.data_dir() / "published" / "graphcore_results_inference.csv"
    if not table.exists():
        return result
    with table.open() as lines:
        rates = [float(row["throughput"]) for row in csv.DictReader(lines)]
    found = min(rates, key=lambda rate: abs(rate - result.throughput_items_per_s))
    return dataclasses.replace(result, throughput_items_per_s=found)
api.run_step = nearest
"""


def answers(data, code):
    """What a process says to whom the folder of data is all that there is."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"IPUSIM_DATA_DIR": str(data)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.fixture(scope="module")
def stripped(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stripped") / "data"
    return shutil.copytree(data_dir(), folder, ignore=shutil.ignore_patterns(*HIDDEN))


def test_predictions_need_nothing_of_what_was_published(stripped):
    assert not any((stripped / name).exists() for name in HIDDEN)
    told = answers(stripped, ASK)
    assert told.count("throughput_items_per_s") >= 2
    assert told == answers(data_dir(), ASK)


def test_a_stage_that_reads_the_nearest_published_rate_is_noticed(stripped):
    assert answers(stripped, CHEAT + ASK) != answers(data_dir(), CHEAT + ASK)


def test_no_request_changes_when_every_published_value_is_permuted():
    rows = [row for row in load_rows() if not row.not_modelled]
    for row, other in zip(rows, permuted(rows, seed=2), strict=True):
        for tier in TIERS:
            assert request_for(other.run, tier).key == request_for(row.run, tier).key


def test_reading_a_metric_takes_nothing_from_the_published_value():
    class Report:
        latency, throughput, power, compile_s = 2.0, 3.0, 5.0, 7.0
        program_s = 1.5

    for row in load_rows():
        if not row.not_modelled:
            other = dataclasses.replace(row, value=17.0 * row.value + 1.0)
            assert metric_of(Report, other) == metric_of(Report, row)
