"""Parameters of notebooks: read from text, refused by name, with one sentence."""

import pytest

from ipusim.errors import ConfigError, UnknownNameError
from ipusim.study.parameters import checked

ROWS = {"rows": {"kind": "count", "most": 64}}
SIZES = {"sizes": {"kind": "count", "list": True, "most": 64}}


@pytest.mark.parametrize("value", [0, -3, 65, True, 2.0, None, "x"])
def test_what_is_no_count_is_refused_by_name(value):
    with pytest.raises(
        ConfigError, match=r"option rows is .*: give a whole number from 1 to 64\.$"
    ):
        checked(ROWS, {"rows": value})
    with pytest.raises(
        ConfigError, match=r"option sizes is .*: give a whole number from 1 to 64\.$"
    ):
        checked(SIZES, {"sizes": [1, value]})


@pytest.mark.parametrize("values", [[], (1, 2), 5, [3, 3], "[3", "3, 4"])
def test_counts_are_a_list_without_repeats(values):
    with pytest.raises(
        ConfigError,
        match="give a list of at least one value, none twice, each a whole number from 1 to",
    ):
        checked(SIZES, {"sizes": values})


def test_counts_within_the_range_pass():
    assert checked(ROWS, {"rows": 64}) == {"rows": 64}
    assert checked({"jobs": {"kind": "count"}}, {"jobs": 10**9}) == {"jobs": 10**9}
    with pytest.raises(ConfigError, match="1 or more"):
        checked({"jobs": {"kind": "count"}}, {"jobs": 0})


def test_lists_and_numbers_may_come_as_text():
    given = checked(SIZES | ROWS, {"sizes": "[2, 4]", "rows": "3", "other": "[5]"})
    assert given == {"sizes": [2, 4], "rows": 3, "other": "[5]"}
    names = {"systems": {"kind": "system", "list": True}}
    assert checked(names, {"systems": '["C2", "Bow-2000"]'}) == {"systems": ["C2", "Bow-2000"]}
    with pytest.raises(UnknownNameError, match="did you mean"):
        checked(names, {"systems": "[C3]"})


def test_a_rule_may_ask_for_more():
    rule = {"ipus": {"kind": "count", "list": True, "even": "they come in pairs", "holds": 1,
                     "because": "all scale from it"}}  # fmt: skip
    assert checked(rule, {"ipus": [1, 4]}) == {"ipus": [1, 4]}
    with pytest.raises(ConfigError, match="holds 3, but they come in pairs"):
        checked(rule, {"ipus": [1, 3]})
    with pytest.raises(ConfigError, match="add 1, all scale from it"):
        checked(rule, {"ipus": [2]})
