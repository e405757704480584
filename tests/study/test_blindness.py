"""What predicts knows nothing of what was published: no value moves it, no row is named in it."""

import ast
import dataclasses
import json
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from study_small import load_row

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
RUNS = {
    "small inference": ("braggnn", {}),
    "small training": ("braggnn", {"mode": "training", "micro_batch": 4}),
    "zoo inference": ("resnet18", {"micro_batch": 2}),
    "pipelined training": (
        "resnet18",
        {
            "mode": "training",
            "micro_batch": 2,
            "ipus_per_replica": 2,
            "gradient_accumulation": 8,
            "replicas": 2,
        },
    ),
}
ONE_CHIP = set(RUNS) - {"pipelined training"}
CHEATS = {
    # a stage, what it hands on instead of what it found, and the runs that this moves
    "step": (
        "ipusim.api.run_step",
        "replace(found, throughput_items_per_s=nearest(found.throughput_items_per_s))",
        set(RUNS),
    ),
    "chip": (
        "ipusim.runtime.terms.OneChip.parts_s",
        "{**found, 'device': nearest(found['device'])}",
        ONE_CHIP,
    ),
    "pipeline": (
        "ipusim.runtime.terms.Work.at",
        "nearest(found)",
        set(RUNS) - ONE_CHIP,
    ),
    "compiler": (
        "ipusim.runtime.compile._program",
        """Program(tuple(op._replace(steps=tuple(
            step._replace(compute_cycles=int(nearest(step.compute_cycles))) for step in op.steps
        )) for op in found.ops))""",
        set(RUNS),
    ),
}
ASK = """
import csv, json, sys
from dataclasses import replace
from pkgutil import resolve_name
import ipusim
from ipusim import files
from ipusim.compiler.program import Program

table, rates = files.data_dir() / "published" / "graphcore_results_inference.csv", []
if table.exists():
    with table.open() as lines:
        rates = [float(row["throughput"]) for row in csv.DictReader(lines)]

def nearest(own):
    return min(rates, key=lambda rate: abs(rate - own), default=own)

def told():
    for name, module in list(sys.modules.items()):
        for one in vars(module).values() if name.startswith("ipusim") else ():
            getattr(one, "cache_clear", int)()
    runs, said = json.loads(sys.argv[1]), {}
    for name, (model, options) in runs.items():
        report = ipusim.simulate(model, system="IPU-M2000", **options)
        said[name] = f"{report.to_dict()} {report.parts.to_csv()}"
    return said

answers = {"honest": told()}
answers["honest"]["others"] = str(
    (ipusim.roofline("braggnn").throughput.value, ipusim.simulate_gpu("braggnn").step_s)
)
for cheat, (place, change) in json.loads(sys.argv[2]).items():
    owner, _, name = place.rpartition(".")
    owner = resolve_name(owner)
    honest, change = getattr(owner, name), compile(change, cheat, "eval")
    def cheating(*asked, honest=honest, change=change, **options):
        return eval(change, globals() | {"found": honest(*asked, **options)})
    setattr(owner, name, cheating)
    answers[cheat] = told()
    setattr(owner, name, honest)
print(json.dumps(answers))
"""


def answers(data):
    """What a process says, honest and with each cheat, to whom a folder of data is all."""
    cheats = {name: (place, change) for name, (place, change, _) in CHEATS.items()}
    done = subprocess.run(
        [sys.executable, "-c", ASK, json.dumps(RUNS), json.dumps(cheats)],
        env=os.environ | {"IPUSIM_DATA_DIR": str(data)},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def stripped(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stripped") / "data"
    shutil.copytree(data_dir(), folder, ignore=shutil.ignore_patterns(*HIDDEN))
    assert not any((folder / name).exists() for name in HIDDEN)
    return answers(folder)


@pytest.fixture(scope="module")
def whole():
    return answers(data_dir())


def test_predictions_need_nothing_of_what_was_published(stripped, whole):
    assert stripped["honest"] == whole["honest"]
    assert all("throughput_items_per_s" in stripped["honest"][name] for name in RUNS)


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_stage_that_reads_the_nearest_published_rate_is_noticed(stripped, whole, cheat):
    assert {name for name in RUNS if stripped[cheat][name] != whole[cheat][name]} == CHEATS[cheat][
        2
    ]
    # without the table there is nothing to read
    assert all(stripped[cheat][name] == stripped["honest"][name] for name in RUNS)


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
