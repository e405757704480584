"""What predicts knows nothing of what was published: no value moves it, no row is named in it."""

from __future__ import annotations

import ast
import dataclasses
import random
import re
from pathlib import Path

import pytest

import ipusim
from ipusim.study.data.published import load_row, load_rows
from ipusim.study.data.runs import load_runs
from ipusim.study.predict import TIERS, metric_of, request_for
from ipusim.study.verdicts import compare
from ipusim.study.verdicts.compare import Samples

PACKAGE = Path(ipusim.__file__).parent
STAGES = ("machine", "compiler", "runtime", "numerics", "workload")
MODULES = sorted(
    path
    for stage in (*STAGES, "api.py", "report.py")
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


def test_no_request_changes_when_every_published_value_is_permuted():
    rows = [row for row in load_rows() if not row.not_modelled]
    for row, other in zip(rows, permuted(rows, seed=2), strict=True):
        for tier in TIERS:
            assert request_for(other.run, tier).key == request_for(row.run, tier).key


def test_reading_a_metric_takes_nothing_from_the_published_value():
    class Report:
        latency, throughput, power, compile_s = 2.0, 3.0, 5.0, 7.0

    for row in load_rows():
        if not row.not_modelled:
            other = dataclasses.replace(row, value=17.0 * row.value + 1.0)
            assert metric_of(Report, other) == metric_of(Report, row)
