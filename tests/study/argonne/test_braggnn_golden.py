"""Weights after ten steps in each arithmetic, against what was recorded."""

import csv

import golden
import pytest


def test_weights_after_ten_steps():
    # Libraries of other processors may round the simulated peaks otherwise in their last bit, and a
    # rounding to half precision may then fall the other way: a unit of half precision is allowed.
    with (golden.FOLDER / "numerics.csv").open() as stream:
        recorded = list(csv.reader(stream))
    found = list(golden.numerics())
    assert [row[:2] for row in found] == [tuple(row[:2]) for row in recorded]
    for row, old in zip(found[1:], recorded[1:], strict=True):
        assert [float(cell) for cell in row[2:]] == pytest.approx(
            [float(cell) for cell in old[2:]], rel=2**-10, abs=2**-10
        )
