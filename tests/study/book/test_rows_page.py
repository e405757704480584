"""The page of all rows: what it holds, and that nothing from outside can become markup."""

import json
import re

import pandas as pd
import pytest
from study_small import VERDICT_COLUMNS

from ipusim.study.book.rows import rows_html


def frame_of(**values: object) -> pd.DataFrame:
    numbers = {"published": 100.0, "specification": 95.0, "calibrated": 105.0, "low80": 90.0}
    row = dict.fromkeys(VERDICT_COLUMNS, "") | numbers | {"high80": 120.0, "roofline": float("nan")}
    row |= {"row_id": "x.1", "study": "qwant", "label": "ResNet-50", "verdict": "hit", "chips": 4}
    return pd.DataFrame([row | values], columns=list(VERDICT_COLUMNS))


def rows_of(page: str) -> list[dict]:
    found = re.search(r'<script type="application/json" id="rows">(.*?)</script>', page, re.DOTALL)
    return json.loads(found[1])


def test_a_row_shows_its_values_and_keeps_its_run():
    (row,) = rows_of(rows_html(frame_of(note="with Bow's clock")))
    assert row["shown"]["name"] == "ResNet-50"
    assert row["shown"]["error"] == "+5.0"
    assert row["shown"]["interval"] == "90 to 120"
    assert ["note", "with Bow's clock"] in row["details"]
    assert ["IPUs", "4"] in row["details"]
    assert "roofline" not in dict(row["details"])  # NaN is not a number to show


def test_a_row_says_where_its_time_goes():
    (row,) = rows_of(rows_html(frame_of(parts="chip: compute 3; host work 1")))
    assert row["parts"] == [["chip: compute", "3", 75.0], ["host work", "1", 25.0]]
    (row,) = rows_of(rows_html(frame_of()))
    assert row["parts"] == []


def test_a_row_without_a_prediction_says_so():
    (row,) = rows_of(rows_html(frame_of(calibrated=float("nan"), verdict="")))
    assert row["verdict"] == "not predicted"
    assert "predicted" not in row
    assert row["shown"]["error"] == ""


def test_only_what_is_a_test_is_counted():
    (row,) = rows_of(rows_html(frame_of()))
    assert row["counted"] == "hit"
    (row,) = rows_of(rows_html(frame_of(left_out="fixed a constant")))
    assert (row["verdict"], row["counted"]) == ("hit", "no test of their own")
    assert dict(row["details"])["left out"] == "fixed a constant"


@pytest.mark.parametrize("column", ["label", "note", "family", "system"])
def test_names_are_escaped(column):
    page = rows_html(frame_of(**{column: "</script><script>alert(1)</script>"}))
    assert "<script>alert" not in page
    assert "</script><script>alert" in json.dumps(rows_of(page))


def test_the_page_needs_nothing_from_the_network():
    assert not re.findall(r'(?:src|href)="(?:https?:)?//', rows_html(frame_of()))
