"""Figures from data: marks draw the lines they are given, panels divide them, faults are named."""

import pandas as pd
import pytest

from ipusim.drawing import _MARKS, _TOGETHER, drawn
from ipusim.errors import StudyError, UnknownNameError
from ipusim.study.specs import load_specs
from ipusim.study.verdicts.errors import HIT_PERCENT, NEAR_PERCENT

FRAME = pd.DataFrame(
    {"kind": ["b", "a", "b"], "x": [1, 1, 2], "y": [3.0, 4.0, 5.0], "far": [False, False, True]}
)
LOOKS = {"kinds": {"a": {"color": "blue"}, "b": {"color": "green", "marker": "s"}}}


def figure(*marks, frame=FRAME, **spec):
    return drawn({"size": [4, 3], "marks": list(marks), **spec}, {"all": frame}, LOOKS)


def lines(axis):
    return {line.get_label(): list(line.get_ydata()) for line in axis.lines}


def test_every_mark_of_the_studies_is_known():
    kinds = set()
    for spec in load_specs().values():
        for entry in spec.get("figures", {}).values():
            entry = {} if isinstance(entry, str) else entry
            panels = [entry, *entry.get("panels", [])]
            kinds |= {next(iter(mark)) for panel in panels for mark in panel.get("marks", [])}
    assert len(kinds) > 10
    assert kinds <= {*_MARKS, *_TOGETHER}


def test_bands_of_the_verdicts_have_names():
    (axis,) = figure({"at_x": ["1 + @near / 100"]}, {"at_y": ["@hit"]}).axes
    assert [line.get_xdata()[0] for line in axis.lines] == [1 + NEAR_PERCENT / 100, 0]
    assert axis.lines[1].get_ydata()[0] == HIT_PERCENT
    with pytest.raises(UnknownNameError, match="band"):
        figure({"equal": [["x", "y"]], "ends": [0.9, 1.1], "within": ["hits"]})


def test_values_of_a_column_are_drawn_apart_in_their_looks():
    (axis,) = figure({"line": ["x", "10 * y"], "by": "kind", "looks": "kinds"}).axes
    assert lines(axis) == {"b": [30.0, 50.0], "a": [40.0]}
    assert axis.lines[0].get_color() == "#009E73"
    assert axis.lines[0].get_marker() == "s"


def test_a_panel_holds_its_lines_and_counts_them():
    mark = {"points": ["y", "place"], "only": "~far", "label": "near of {kind}"}
    figures = figure(mark, across="kind", title="{kind}: {rows}", y={"names": "{x}"})
    left, right = figures.axes
    assert left.get_title(loc="left") == "b: 2"
    assert lines(left) == {"near of b": [0]}
    assert lines(right) == {"near of a": [0]}
    assert [tick.get_text() for tick in left.get_yticklabels()] == ["1", "2"]


def test_panels_of_their_own_share_marks_over_a_column():
    panels = [{"column": "x", "y": {"ends": [0, "x.max()"]}}, {"column": "y", "of": "other"}]
    spec = {"size": [4, 3], "marks": [{"line": ["x", "*"], "label": "l"}], "panels": panels}
    one, two = drawn(spec, {"all": FRAME, "other": 2 * FRAME[["x", "y"]]}, {}).axes
    assert lines(one) == {"l": [1, 1, 2]}
    assert one.get_ylim() == (0, 2)
    assert lines(two) == {"l": [6.0, 8.0, 10.0]}


def test_a_table_without_lines_or_without_the_column_is_named():
    with pytest.raises(StudyError, match="nothing to draw"):
        figure({"line": ["x", "y"]}, frame=FRAME.head(0))
    with pytest.raises(StudyError, match="'z'.*kind, x, y"):
        figure({"line": ["x", "z"]})


@pytest.mark.parametrize(
    ("mark", "says"),
    [
        ({"lines": ["x", "y"]}, "mark of a figure.*'line'"),
        ({"line": ["x", "y"], "of": "al"}, "table of a figure.*'all'"),
        ({"line": ["x", "y"], "by": "kind", "looks": "kind"}, "look of a figure.*'kinds'"),
    ],
)
def test_a_name_that_does_not_exist_is_named(mark, says):
    with pytest.raises(UnknownNameError, match=says):
        figure(mark)
