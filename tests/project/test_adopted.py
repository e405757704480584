"""Decisions taken after seeing residuals are listed, and the list points at what exists."""

import csv
import importlib
import operator
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

import ipusim
from ipusim.compiler.stacks import load_stack, stack_names
from ipusim.files import read_records
from ipusim.machine import load_system
from ipusim.study.data.runs import load_runs
from ipusim.study.predict import SOURCED, request_for

ROOT = Path(__file__).resolve().parents[2]
LABEL = "[A]"


def listed():
    with (ROOT / "data" / "adopted.csv").open(newline="") as stream:
        return list(csv.DictReader(stream))


def switches(line):
    """Return the names before the words that say what is otherwise."""
    return line["switch"].partition(":")[0].split(", ")


def test_every_adopted_decision_is_listed_with_its_switch():
    assert all(all(line.values()) for line in listed())
    files = [*(ROOT / "ipusim").rglob("*.py"), *(ROOT / "data").rglob("*.toml")]
    files += (ROOT / "data" / "runs").glob("*.csv")
    labelled = {
        path.relative_to(ROOT).as_posix() for path in files if LABEL in path.read_text("utf-8")
    }
    # The reader of data/runs knows the mark; it has taken nothing itself.
    assert labelled - {"ipusim/study/data/runs.py"} == {line["where"] for line in listed()}


@pytest.mark.parametrize("line", listed(), ids=lambda line: line["decision"])
def test_each_switch_exists_and_says_what_undoes_it(line):
    where = ROOT / line["where"]
    undone = {key for key, entry in entries() if "otherwise" in entry}
    for name in switches(line):
        if line["undone_by"] == "--no-adopted":
            assert name in undone
            assert name in where.read_text("utf-8")
        elif line["undone_by"] == "tier alone":
            assert where.parent.name == "runs"
            assert name in where.read_text("utf-8").partition("\n")[0].split(",")
        elif where.suffix == ".py":
            found = importlib.import_module(line["where"].removesuffix(".py").replace("/", "."))
            operator.attrgetter(name)(found)
            assert name not in undone
        else:
            assert f"{name} = " in where.read_text("utf-8")
            assert line["undone_by"] == "nothing"


def test_without_it_a_run_has_what_it_had_before():
    runs, named = load_runs(), {one for line in listed() for one in switches(line)}
    marked = {line["run_id"] for line in read_records(ROOT / "data/runs/host_times.csv")}
    marked |= {name for name, run in runs.items() if LABEL in run.note}
    for name, run in runs.items():
        given, without = run.options(), run.options(adopted=False)
        assert not without.pop("adopted")
        assert (given != without) == (name in marked) == bool(run.otherwise)
        assert {one.partition("=")[0] for one in run.otherwise} <= named
        assert ("loader_item_s" in without) == (without.get("dataset") == "prepared")
    assert "serial_item_s" not in runs["results.training.032"].options(adopted=False)
    asked = request_for(runs["results.training.093"], SOURCED)
    assert (asked.model, asked.options["adopted"]) == ("bert_base_squad", False)


def entries():
    """Yield what data/*.toml and data/hardware/*.toml say, with the name of its key."""
    for file in [*(ROOT / "data").glob("*.toml"), *(ROOT / "data" / "hardware").glob("*.toml")]:
        for table in tomllib.loads(file.read_text("utf-8")).values():
            if isinstance(table, dict):
                yield from ((key, it) for key, it in table.items() if isinstance(it, dict))


def test_what_was_adopted_says_what_it_is_otherwise():
    named = {name for line in listed() for name in switches(line)}
    found = {key: entry for key, entry in entries() if "otherwise" in entry}
    assert len(found) >= 13
    for key, entry in found.items():
        assert entry["otherwise"] != entry["value"]
        assert key in named
    for key, entry in entries():
        if str(entry.get("source", "")).startswith(LABEL):
            assert "otherwise" in entry, key


def test_without_it_every_part_of_a_machine_and_its_software_is_otherwise():
    system = load_system("Bow Pod16", adopted=False)
    assert system.host.core_bytes_per_s == 1e15
    assert system.host.decoded_images_per_s_per_core == 330.0
    assert load_system("Bow Pod16").host.decoded_images_per_s_per_core == 410.0
    for name in stack_names():
        with_it, without = load_stack(name), load_stack(name, adopted=False)
        changed = {
            item.name
            for item in fields(without)
            if getattr(with_it, item.name) != getattr(without, item.name)
        }
        assert "operands_in_order" in changed - {"constants"}
        assert changed - {"constants"} == {
            key for key, found in with_it.constants.items() if found.otherwise is not None
        }


PIPELINE = {
    "mode": "training",
    "micro_batch": 2,
    "ipus_per_replica": 2,
    "gradient_accumulation": 8,
    "framework": "tensorflow",
    "pipeline_splits": ["encoder.layer.5.mlp.norm"],
}


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("resnet50", {"micro_batch": 1}),
        ("bert_base_squad_sl128", {"micro_batch": 4}),
        ("bert_base_pretraining_sl128", PIPELINE),
    ],
)
def test_predictions_hang_on_it(model, options):
    given = {"system": "IPU-M2000", "tier": "specification", "as_if_it_fits": True} | options
    with_it, without = (
        ipusim.simulate(model, adopted=adopted, **given) for adopted in (True, False)
    )
    assert without.result.step_s < with_it.result.step_s


def test_operands_of_products_stay_where_they_are_without_it():
    run = {"system": "IPU-M2000", "micro_batch": 4}
    supersteps = [
        ipusim.simulate("bert_base_squad_sl128", adopted=adopted, **run).layers["supersteps"].sum()
        for adopted in (True, False)
    ]
    assert supersteps[1] < supersteps[0]


def test_chips_of_a_pipeline_do_not_wait_for_the_host_without_it():
    run = PIPELINE | {"system": "IPU-M2000", "tier": "specification", "as_if_it_fits": True}
    parts = [
        ipusim.simulate("bert_base_pretraining_sl128", adopted=adopted, **run).parts_s
        for adopted in (True, False)
    ]
    assert ["transfers" in own for own in parts] == [True, False]
