"""Figures of error: hand values, missing values, order."""

import math

import pytest

from ipusim.study.verdicts.errors import error_figures


def test_figures_of_known_errors_and_what_is_not_a_number_does_not_count():
    found = error_figures([-10.0, 2.0, math.nan, 4.0, -6.0, 8.0], "median", "mean", "p90", "max")
    assert found == {
        "median_abs_error_percent": 6.0,
        "mean_abs_error_percent": 6.0,
        "p90_abs_error_percent": pytest.approx(9.2),
        "max_abs_error_percent": 10.0,
    }
    assert error_figures([-10.0, 2.0, 5.0], "bias") == {"bias_percent": -1.0}


def test_order_is_as_asked_and_no_errors_give_no_number():
    found = error_figures([], "max", "median")
    assert list(found) == ["max_abs_error_percent", "median_abs_error_percent"]
    assert all(math.isnan(value) for value in found.values())
