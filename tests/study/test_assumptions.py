"""What a prediction rests on: stack, run, constants, and how much hangs on each assumption."""

import math

import pytest

import ipusim
from ipusim.compiler.stacks import load_stack
from ipusim.errors import UnknownNameError
from ipusim.runtime.calibration import fitted_costs
from ipusim.study import assumptions, book
from ipusim.study.data.runs import load_run
from ipusim.study.qwant import breakdown, study as qwant

BATCHES = [2, 12]


@pytest.fixture(scope="module")
def changes():
    return assumptions.sensitivity(qwant.latency_rows(BATCHES))


def test_every_property_of_the_stack_has_a_basis_and_a_source():
    data = assumptions.stack_frame(load_stack("sdk-1.0"))
    assert len(data) == 16
    assert set(data["basis"].str.split().str[0]) <= {"settled", "supported", "adopted"}
    assert (data["source"].str.len() > 10).all()
    assert not data["source"].str.contains(r"^\[[A-Z]\]").any()


def test_what_no_source_gives_is_marked():
    data = assumptions.run_frame(load_run("qwant.batch2")).set_index("option")
    assert data.loc["host dtype", "basis"] == "assumed"
    assert data.loc["replicas", "basis"] == "source"


def test_doubted_constants_name_the_host_rate():
    data = assumptions.doubted_constants("c2").set_index("name")
    assert data.loc["core_bytes_per_s", "label"] == "weak"
    assert "verified" not in set(data["label"])
    with pytest.raises(UnknownNameError):
        assumptions.doubted_constants("C3 card")


def test_fitted_constants_are_those_in_use():
    data = assumptions.fitted_constants("C2").set_index("constant")
    costs = [name for name in data.index if name.startswith(("host call", "each exchange"))]
    energies = [name for name in data.index if name.startswith("energy of")]
    assert {*costs, *energies} == set(data.index)
    assert len(energies) == 3
    report = ipusim.simulate(
        "resnet18", system="IPU-M2000", stack="sdk-2.4", framework="tensorflow"
    )
    fixed_us = 1e6 * report.result.parts_s["fixed"]
    assert data.loc["host call per step, tensorflow", "in_use"] == pytest.approx(fixed_us, rel=1e-4)
    in_use = fitted_costs("sdk-2.4", "popart").exchange_cycles
    assert in_use > 0
    assert data.loc["each exchange superstep, sdk-2.4", "in_use"] == pytest.approx(in_use, rel=1e-4)
    used = data.loc[energies]
    assert list(used["in_use"]) == pytest.approx(list(used["sourced"] * used["factor"]))


def test_changing_an_assumption_changes_the_latency(changes):
    first = changes[changes["batch_size"] == 12].set_index("assumption")
    assert first.loc["as modelled", "change_percent"] == 0
    assert (first.drop(index="as modelled")["change_percent"].abs() > 0.1).all()
    expected = {
        "host prepares nothing inside the timed step": -1,
        "host memory rate of half the assumed one": 1,
        "host memory rate of double the assumed one": -1,
        "half partial sums": -1,
        "batch norm folded": -1,
        "350 cycles per superstep": -1,
        "550 cycles per superstep": 1,
    }
    for label, sign in expected.items():
        assert math.copysign(1, first.loc[label, "change_percent"]) == sign, label


def test_modelled_run_is_the_specification_tier(changes):
    parts = breakdown.latency_parts(BATCHES)
    modelled = changes[changes["assumption"] == "as modelled"]
    assert list(modelled["latency_ms"]) == pytest.approx(list(parts["latency_ms"]))


def test_sensitivity_table_has_one_line_per_assumption_and_one_column_per_batch(changes):
    wide = assumptions.sensitivity_by_batch(changes)
    table = book.open("qwant").table("qwant_sensitivity", wide)
    assert len(table.cells) == changes["assumption"].nunique()
    assert table.headings[2:] == ("batch 2", "batch 12")
    assert table.cells[0][0] == "as modelled"
    assert "-" not in [cell for line in table.cells for cell in line[2:]]
