"""Checks of notebook parameters that count something."""

from __future__ import annotations

import pytest

from ipusim.errors import ConfigError
from ipusim.study.book.parameters import check_count, check_counts


@pytest.mark.parametrize("value", [0, -3, 65, True, 2.0, "2", None])
def test_what_is_no_count_is_refused_by_name(value):
    with pytest.raises(ConfigError, match=r"^rows is .*: give a whole number, from 1 to 64\.$"):
        check_count("rows", value, 64)
    with pytest.raises(ConfigError, match="^sizes is .* different whole numbers from 1 to 64"):
        check_counts("sizes", [1, value], 64)


@pytest.mark.parametrize("values", [[], (1, 2), 5, [3, 3]])
def test_counts_are_a_list_without_repeats(values):
    with pytest.raises(ConfigError, match="give a list of different whole numbers"):
        check_counts("sizes", values, 64)


def test_counts_within_the_range_pass():
    check_count("rows", 64, 64)
    check_count("jobs", 10**9)
    check_counts("sizes", [64, 1], 64)
    with pytest.raises(ConfigError, match="1 or more"):
        check_count("jobs", 0)
