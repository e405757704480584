"""The tier without adopted choices: what is turned back, where, and that it was recorded."""

from __future__ import annotations

import shutil
import tomllib

import pandas as pd
import pytest

from ipusim.errors import DataError, StudyError
from ipusim.files import data_dir
from ipusim.study.data.published import load_rows
from ipusim.study.fidelity import adopted


@pytest.fixture
def copy(tmp_path):
    return shutil.copytree(data_dir(), tmp_path / "data")


def test_every_switch_turns_something_back(copy):
    known = adopted.decisions()
    back = known.loc[known["switched"], "without"]
    assert len(back) >= 6
    adopted.turn_back(copy, back)
    stacks = tomllib.loads((copy / "stacks.toml").read_text())
    assert stacks["sdk-2.4"]["planned_superstep_cycles"]["value"] == 252
    assert stacks["sdk-2.0"]["planned_superstep_cycles"]["value"] == 450
    assert stacks["sdk-1.0"]["host_work_in_step"]["value"] is False
    systems = tomllib.loads((copy / "hardware" / "systems.toml").read_text())
    assert {one["host_core_bytes_per_s"]["value"] for one in systems.values()} == {1e15}
    # what is not turned back says why
    assert known.loc[~known["switched"], "without"].str.match("not switchable: |moves no ").all()


def test_a_switch_that_names_nothing_is_refused(copy):
    with pytest.raises(StudyError, match="sdk-9"):
        adopted.turn_back(copy, ["stacks.toml: sdk-9: superstep_cycles = 1"])


def test_the_record_is_of_every_row(monkeypatch, tmp_path):
    rows = [row.row_id for row in load_rows()]
    frame = adopted.with_tier(pd.DataFrame({"row_id": rows}))
    modelled = [not row.not_modelled for row in load_rows()]
    assert frame[adopted.TIER].notna().tolist() == modelled
    monkeypatch.setattr(adopted, "RECORD", tmp_path / "nothing.csv")
    with pytest.raises(DataError, match="--adopted"):
        adopted.with_tier(frame)


def test_a_row_is_predicted_as_it_was_recorded():
    row = next(row for row in load_rows() if row.row_id == "results.inference.049")
    ((_, value),) = adopted.without_adopted([row]).items()
    recorded = adopted.with_tier(pd.DataFrame({"row_id": [row.row_id]}))[adopted.TIER][0]
    assert value == pytest.approx(recorded, rel=1e-12)
