"""Recurrent layers against Graphcore's IPUModel; each limit is a promise.

The target is a median of 15 %, forward and in training, on both chips.
"""

import pytest

from ipusim import files
from ipusim.errors import DataError
from ipusim.study.evidence import recurrent as evidence_recurrent


@pytest.fixture(scope="module")
def table():
    return evidence_recurrent.recurrent_table().set_index(["operation", "chip"])


@pytest.mark.parametrize(
    ("operation", "chip", "most"),
    [
        ("lstm, forward", "GC200", 6.0),
        ("lstm, forward", "GC2", 7.0),
        ("lstm, three passes", "GC200", 8.0),
        ("lstm, three passes", "GC2", 5.0),
        ("gru, forward", "GC200", 3.0),
        ("gru, forward", "GC2", 3.0),
        ("gru, three passes", "GC200", 3.0),
        ("gru, three passes", "GC2", 3.0),
    ],
)
def test_layers_against_ipumodel(table, operation, chip, most):
    line = table.loc[(operation, chip)]
    assert line["max_abs_error_percent"] <= most


def test_every_plan_is_the_one_that_ran(table):
    """The worst tile of all 16 rows holds the partials of the predicted plans."""
    found = [tuple(map(int, text.split("/"))) for text in table["fingerprints"]]
    assert sum(exact for exact, _ in found) == sum(of for _, of in found) == 16


def test_a_missing_file_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(files, "data_dir", lambda: tmp_path)
    with pytest.raises(DataError, match=r"ipumodel_layers_dev\.csv"):
        evidence_recurrent.recurrent_rows()
