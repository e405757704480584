"""Lines and columns of tables as data describe them."""

import pandas as pd
import pytest

from ipusim.errors import StudyError
from ipusim.study import book
from ipusim.view import NAMED, values, view

FRAME = pd.DataFrame({"kind": ["a", "b", "a"], "x": [1.0, 2.0, 4.0]})


def test_columns_follow_from_those_before_on_the_lines_that_are_kept():
    shown = view(FRAME, {"only": "x > 1", "with": {"y": "10 * x", "said": "{kind}, {y:.0f}"}})
    assert list(shown["y"]) == [20, 40]
    assert list(shown["said"]) == ["b, 20", "a, 40"]
    assert list(FRAME) == ["kind", "x"]


def test_lines_are_ordered_by_values_and_stay_in_turn_where_these_are_equal():
    shown = view(FRAME, {"sort": ['kind == "b"', "-x"], "with": {"place": "x.notna().cumsum()"}})
    assert list(shown["x"]) == [4, 1, 2]
    assert list(shown["place"]) == [1, 2, 3]
    assert list(view(FRAME, {"sort": ["kind"]})["x"]) == [1, 4, 2]


def test_a_table_that_is_made_has_no_other_columns():
    made = {"with": {"y": "2 * x"}, "make": {"kind": "kind", "z": "y + 1"}, "only": "x > 1"}
    assert view(FRAME, made).to_dict("list") == {"kind": ["b", "a"], "z": [5, 9]}


def test_lines_are_counted_and_values_numbered_as_they_come():
    frame = pd.DataFrame({"kind": ["b", "a", "b", "c"]}, index=[3, 1, 2, 0])
    assert list(values(frame, "@lines(kind)")) == [0, 1, 2, 3]
    assert list(values(frame, "10 * @as_they_come(kind)")) == [0, 10, 0, 20]
    ordered = view(frame, {"sort": ["@as_they_come(kind)"], "with": {"at": "@lines(kind)"}})
    assert list(ordered["kind"]) == ["b", "b", "a", "c"]
    assert list(ordered["at"]) == [0, 1, 2, 3]


def test_without_a_word_the_table_is_itself():
    assert view(FRAME, {"caption": "c"}) is FRAME


def test_a_column_may_be_made_anew():
    assert list(view(FRAME, {"with": {"x": "x / x.max()"}})["x"]) == [0.25, 0.5, 1]


def test_numbers_stay_and_named_ones_are_known():
    assert values(FRAME, 3) == 3
    assert values(FRAME, "@hit") == NAMED["hit"]
    assert values(FRAME, ["{rows} lines of {kind}"]) == ["3 lines of a"]


@pytest.mark.parametrize("wanted", ["y + 1", "x +", "other"])
def test_what_cannot_be_read_is_named_with_the_columns(wanted):
    with pytest.raises(StudyError, match="has the columns kind, x") as caught:
        values(FRAME, wanted)
    assert repr(wanted) in str(caught.value)


def test_a_page_saves_what_it_shows(tmp_path):
    frame = pd.DataFrame({"consistent": [True, False], "table": "T", "label": ["l", "m"]})
    for name in ("throughput_images_per_s", "time_s", "work_error_percent", "time_should_be_s",
                 "throughput_should_be_images_per_s"):  # fmt: skip
        frame[name] = 1.0
    shown = book.open("tamu", tmp_path).table("tamu_audit_rows", frame)
    assert [cells[1] for cells in shown.cells] == ["m"]
    assert list(pd.read_csv(tmp_path / "tables" / "tamu_audit_rows.csv")["label"]) == ["m"]
