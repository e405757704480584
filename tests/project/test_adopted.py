"""Decisions taken after seeing residuals are listed, and the list points at what exists."""

import csv
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

import ipusim
from ipusim.compiler.stacks import load_stack, stack_names
from ipusim.machine import load_system

ROOT = Path(__file__).resolve().parents[2]
LABEL = "[A]"


def test_every_adopted_decision_is_listed_with_its_switch():
    with (ROOT / "data" / "adopted.csv").open(newline="") as stream:
        listed = list(csv.DictReader(stream))
    assert all(all(line.values()) for line in listed)
    files = [*(ROOT / "ipusim").rglob("*.py"), *(ROOT / "data").rglob("*.toml")]
    labelled = {
        path.relative_to(ROOT).as_posix() for path in files if LABEL in path.read_text("utf-8")
    }
    # Notes on single runs say it themselves.
    labelled = {name for name in labelled if not name.startswith("data/runs")}
    assert labelled == {line["where"] for line in listed}


def entries():
    """Yield what data/*.toml and data/hardware/*.toml say, with the name of its key."""
    for file in [*(ROOT / "data").glob("*.toml"), *(ROOT / "data" / "hardware").glob("*.toml")]:
        for table in tomllib.loads(file.read_text("utf-8")).values():
            if isinstance(table, dict):
                yield from ((key, it) for key, it in table.items() if isinstance(it, dict))


def test_what_was_adopted_says_what_it_is_otherwise():
    with (ROOT / "data" / "adopted.csv").open(newline="") as stream:
        switches = " ".join(line["switch"] for line in csv.DictReader(stream))
    found = {key: entry for key, entry in entries() if "otherwise" in entry}
    assert len(found) >= 13
    for key, entry in found.items():
        assert entry["otherwise"] != entry["value"]
        assert key in switches
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
