"""A study's page: outputs under their names, words where pictures are not seen, its verdict."""

import pandas as pd
import pytest
from matplotlib.figure import Figure

from ipusim.errors import StudyError, UnknownNameError
from ipusim.study import book
from ipusim.study.specs import load_specs
from ipusim.study.table import Table
from ipusim.study.verdicts.summary import verdict_on


@pytest.fixture
def page(tmp_path):
    return book.open("qwant", tmp_path, batch_sizes="[2, 4]", system="C2")


def test_parameters_are_values_and_changes_are_known(page):
    assert page.batch_sizes == [2, 4]
    assert page.changed == {"batch_sizes": [2, 4]}
    with pytest.raises(AttributeError, match="opened with batch_sizes, system"):
        page.batches  # noqa: B018


def test_what_is_shown_is_saved(page, tmp_path):
    frame = pd.DataFrame({"op": ["conv1"], "kind": ["conv"], "time_us": [1.0],
                          "time_percent": [50.0], "supersteps": [3],
                          "utilisation_percent": [9.5], "plan": ["AMP"]})  # fmt: skip
    table = page.table("qwant_heaviest_layers_last", frame, operations=7)
    assert table.caption == "The 1 longest operations of 7"
    assert table.headings[:4] == ("operation", "kind", "µs", "time %")
    assert (tmp_path / "tables" / "qwant_heaviest_layers_last.csv").is_file()
    picture = page.figure("qwant_figure1_chip", Figure(), system="C2")
    assert repr(picture).startswith("Figure: one chip of C2 with all its tiles")
    content, metadata = picture._repr_png_()
    assert content.startswith(b"\x89PNG")
    assert metadata == {"alt": picture.description}
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    assert names == {"qwant_figure1_chip.png", "qwant_figure1_chip.svg"}


def test_nothing_is_saved_without_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    frame = pd.DataFrame({"batch_size": [2]})
    assert book.open("qwant").table("qwant_parts", frame).headings
    assert list(tmp_path.iterdir()) == []


def test_unknown_names_are_refused(page):
    with pytest.raises(UnknownNameError, match="did you mean 'qwant_parts'"):
        page.table("qwant_part", pd.DataFrame())
    with pytest.raises(UnknownNameError, match="figure of qwant"):
        page.figure("qwant_part", Figure())
    with pytest.raises(UnknownNameError, match="did you mean 'qwant'"):
        book.open("qwnt")


def test_a_table_that_lacks_a_column_says_so(page):
    with pytest.raises(StudyError, match="no column 'op'"):
        page.table("qwant_heaviest_layers_first", pd.DataFrame({"x": [1]}), operations=1)


@pytest.mark.parametrize("name", load_specs())
def test_every_figure_is_described_and_every_table_knows_its_like(name):
    spec = load_specs()[name]
    for kind in ("tables", "figures"):
        for entry in spec[kind].values():
            if "like" in entry:
                study, _, like = entry["like"].rpartition(".")
                assert like in load_specs()[study or name][kind]
            elif kind == "figures":
                assert len(entry["alt"]) > 30


def test_columns_are_optional_starred_and_grouped():
    frame = pd.DataFrame({"low80": [None], "batch_2_error_percent": [1.0], "note": [""]})
    table = Table(frame, columns=["low80?", "note?=remark", "batch_*_error_percent"])
    assert table.headings == ("batch 2",)
    tiers = pd.DataFrame(columns=["tier", "rows", "median_abs_error_percent", "hit", "near", "miss",
                                  "max_abs_error_percent", "bias_percent"])  # fmt: skip
    assert Table(tiers, columns=["@errors"]).headings[2:5] == ("median", "largest", "bias")


# --- the verdict


def rows(**changes):
    frame = pd.DataFrame(
        {
            "row_id": ["a", "b", "c", "d", "e"],
            "study": "own",
            "metric": ["latency", "latency", "latency", "throughput", "latency"],
            "published": [1.0, 1.0, 1.0, 1.0, float("nan")],
            "calibrated": [1.05, 0.8, 3.0, 1.05, 1.0],
            "verdict": ["hit", "near", "miss", "hit", ""],
            "left_out": ["", "", "", "", ""],
        }
    )
    return frame.assign(**changes)


AGAIN = ["", "", "", "restate another (batch over latency)", ""]


def test_only_tests_are_counted():
    verdict = verdict_on([rows(left_out=AGAIN)])
    assert (verdict.rows, verdict.counted) == (5, 3)
    assert (verdict.hit, verdict.near, verdict.miss) == (1, 1, 1)
    assert verdict.typical_percent == pytest.approx(20)
    assert (verdict.worst_percent, verdict.worst_row) == (pytest.approx(200), "c")
    assert "1 restate another (batch over latency)" in verdict.left_out
    assert "1 have no prediction" in verdict.left_out


def test_a_row_that_fixed_a_constant_is_no_hit():
    verdict = verdict_on([rows(left_out=["fixed a constant", "", "", "", ""])])
    assert (verdict.hit, verdict.near, verdict.miss) == (1, 1, 1)
    assert "1 fixed a constant" in verdict.left_out


def test_claims_count_beside_rows():
    claims = pd.DataFrame({"claim_id": ["q"], "error_percent": [-300.0], "verdict": ["miss"]})
    verdict = verdict_on([rows(), claims])
    assert (verdict.rows, verdict.miss, verdict.worst_row) == (6, 2, "q")


def test_the_box_says_the_same_as_the_text(page, tmp_path):
    verdict = page.verdict(rows(left_out=AGAIN))
    assert repr(verdict).splitlines()[1] == "  3 of 5 values are a test: 1 hit, 1 near, 1 miss"
    assert "run with: batch_sizes = [2, 4]" in repr(verdict)
    assert verdict.conclusion not in repr(verdict)  # it was written for other parameters
    for line in verdict.lines():
        assert line.replace("'", "&#x27;") in verdict._repr_html_()
    saved = pd.read_csv(tmp_path / "tables" / "qwant_verdict.csv").iloc[0]
    assert (saved["rows"], saved["hit"], saved["worst_row"]) == (5, 1, "c")


def test_a_page_without_a_test_says_so():
    verdict = verdict_on([rows(verdict=[""] * 5)])
    assert verdict.counted == 0
    assert "no value to compare" in repr(verdict)
