import math
import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, strategies as st
from study_small import SmallPredictor

from ipusim.drawing import drawn
from ipusim.errors import ConfigError, StudyError, UnknownNameError
from ipusim.files import write_text
from ipusim.look import figure_bytes
from ipusim.machine.system import load_system, system_names
from ipusim.runtime.calibration import FittedCosts
from ipusim.study import audit, book
from ipusim.study.book.chip_diagram import chip_diagram
from ipusim.study.book.outputs import frame_csv, save_figure, save_table
from ipusim.study.predict import request_for
from ipusim.study.qwant import study as qwant
from ipusim.study.table import Table, format_cell, format_number, format_percent
from ipusim.study.verdicts.compare import Samples, verdicts

BATCHES = [2, 4, 6, 8, 10, 12]


@pytest.fixture(scope="module")
def qwant_frame():
    return verdicts(qwant.rows_for(BATCHES), predictor=SmallPredictor())


# --- audit: the figures of the published tables, checked by hand


def test_implied_power_and_its_dip():
    frame = audit.table("qwant_power").set_index("batch_size")
    expected = [226.4, 264.5, 270.8, 265.7, 250.2, 266.2]
    assert list(frame["implied_power_w"].round(1)) == expected
    assert ((frame["high_w"] - frame["low_w"]) / 2 < 0.2).all()
    assert list(frame.index[frame["falls_beyond_rounding"]]) == [8, 10]
    assert frame.loc[10, "change_w"] == pytest.approx(-15.5, abs=0.05)


def test_one_digit_would_remove_the_dip():
    frame = audit.qwant_digit_slip().set_index("reading")
    assert frame.loc["one digit changed", "implied_power_w"] == pytest.approx(266.7, abs=0.05)
    assert frame["neighbours_w"].iloc[0] == pytest.approx(265.9, abs=0.1)


def test_throughput_is_batch_over_latency_in_every_row():
    frame = audit.table("qwant_throughput")
    assert frame["inside"].all()
    assert frame["batch_over_latency_per_s"].round(1).iloc[0] == 1470.6


def test_alternation_and_line():
    frame = audit.table("qwant_alternation")
    added = frame["added_image_ms"]
    assert math.isnan(added.iloc[0])
    assert list(added.iloc[1:].round(2)) == [0.58, 0.88, 0.50, 0.81, 0.62]
    assert frame["residual_ms"].abs().max() == pytest.approx(0.11, abs=0.005)
    assert frame["residual_ms"].sum() == pytest.approx(0, abs=1e-9)


def test_littles_law_finds_the_wrong_labels():
    frame = audit.table("littles_law").set_index("row_id")
    assert len(frame) == 104
    for number in ("058", "059", "105", "106"):
        assert frame.loc[f"results.inference.{number}", "label_differs"]
    assert frame.loc["results.inference.058", "batches_by_printed_label"] == pytest.approx(
        2.41, abs=0.005
    )
    embedded = frame[frame["batches_stated"] == 3]
    assert len(embedded) == 25
    assert embedded["batches_as_run"].between(2.96, 3.0).all()


# --- tables


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.36, "1.360"),
        (52345.6, "52,346"),
        (0.00012345, "0.0001234"),
        (9.99996, "10.00"),
        (0.0, "0"),
        (-12.3456, "-12.35"),
        (7, "7"),
        (np.int64(12345), "12,345"),
        (math.nan, "-"),
        (math.inf, "inf"),
        (1.5e20, "1.500e+20"),
        (2e-9, "2.000e-09"),
    ],
)
def test_numbers_print_with_fixed_digits(value, text):
    assert format_number(value) == text


@given(st.floats(min_value=1e-5, max_value=9e5), st.floats(min_value=-1, max_value=1))
def test_printed_numbers_keep_their_value(value, _):
    printed = float(format_number(value).replace(",", ""))
    assert printed == pytest.approx(value, rel=6e-4)


@pytest.mark.parametrize(
    ("value", "text"),
    [(True, "yes"), (np.bool_(False), "no"), (None, "-"), ("hit", "● hit"), ("other", "other")],
)
def test_cells(value, text):
    assert format_cell(value) == text


def test_percent_is_signed_and_has_no_negative_zero():
    assert [format_percent(v) for v in (3.04, -11.26, -0.01, math.nan)] == [
        "+3.0", "-11.3", "0.0", "-",
    ]  # fmt: skip


def test_table_prints_the_same_text_and_escapes_html():
    frame = pd.DataFrame({"name": ["<a & b>"], "bias_percent": [-3.21], "latency_ms": [1.36]})
    table = Table(frame, caption="One")
    assert repr(table) == repr(Table(frame.copy(), caption="One"))
    assert repr(table).splitlines() == [
        "One",
        "name     bias %  latency ms",
        "-------  ------  ----------",
        "<a & b>    -3.2       1.360",
    ]
    page = table._repr_html_()
    assert "&lt;a &amp; b&gt;" in page
    assert not re.search(r"0x[0-9a-f]+| id=|T_[0-9a-f]{5}", page)


def test_table_with_an_unknown_column():
    with pytest.raises(StudyError, match="no column 'b'"):
        Table(pd.DataFrame({"a": [1]}), columns=["b"])


def test_table_hides_noise_but_not_a_change():
    texts = [repr(Table(pd.DataFrame({"x": [value]}))) for value in (1.36, 1.36 + 1e-12, 1.37)]
    assert texts[0] == texts[1] != texts[2]


# --- files


def power_figure():
    power = audit.table("qwant_power").assign(predicted_power_w=250.0)
    return book.open("qwant").figure("qwant_power_audit", power).figure


def test_nothing_is_written_without_an_output_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_table(pd.DataFrame({"a": [1]}), "t", "")
    save_figure(power_figure(), "f", "")
    assert list(tmp_path.iterdir()) == []


def test_tables_and_figures_are_the_same_bytes_twice(tmp_path):
    written = []
    for name in ("one", "two"):
        out = tmp_path / name
        frame = audit.table("qwant_power")
        save_table(frame, "power", out)
        save_figure(power_figure(), "f", out)
        names = ("tables/power.csv", "figures/f.png", "figures/f.svg")
        written.append([(out / name).read_bytes() for name in names])
    assert written[0] == written[1]
    assert b"dc:date" not in written[0][2]


def test_csv_uses_fixed_digits():
    assert frame_csv(pd.DataFrame({"x": [0.1 + 0.2, math.nan]})) == 'x\n0.3\n""\n'


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path):
    target = tmp_path / "folder"
    target.mkdir()
    with pytest.raises(StudyError, match="Cannot write"):
        write_text(target, "text")  # a folder is in the way
    assert list(tmp_path.iterdir()) == [target]
    (tmp_path / "file").write_text("")
    with pytest.raises(StudyError, match="Cannot write"):
        write_text(tmp_path / "file" / "below.csv", "text")


# --- figures


def drawn_chip(system):
    tables = chip_diagram(system)
    return book.open("tour").figure("tour_chip", tables, system=system.name).figure


@pytest.mark.parametrize("name", system_names())
def test_every_system_can_be_drawn(name):
    system = load_system(name)
    figure = drawn_chip(system)
    texts = " ".join(text.get_text() for axis in figure.axes for text in axis.texts)
    titles = " ".join(axis.get_title(loc="left") for axis in figure.axes)
    assert f"{system.chip.tiles:,} tiles" in titles
    assert f"{system.ipus:,} x" in titles
    for part in ("exchange", "IPU-Links" if system.ipus > 1 else "host", "host link"):
        assert part in texts.replace("IPU-\nLinks", "IPU-Links")


def test_the_drawing_has_one_square_per_tile_and_is_deterministic():
    system = load_system("C2")
    figure = drawn_chip(system)
    squares = max(len(patch.get_path().codes) for patch in figure.axes[0].patches) // 5
    assert squares == system.chip.tiles
    assert figure_bytes(figure, "svg") == figure_bytes(drawn_chip(system), "svg")


def test_panels_show_what_they_are_given(qwant_frame):
    panels = qwant.panels(qwant_frame)
    figure = book.open("qwant").figure("qwant_tables_1_to_3", panels).figure
    latency = figure.axes[0]
    lines = {line.get_label(): line for line in latency.lines}
    assert set(lines) == {"published", "roofline", "specification", "calibrated"}
    assert list(lines["published"].get_ydata()) == [1.36, 1.94, 2.82, 3.32, 4.13, 4.75]
    assert "roofline" not in {line.get_label() for line in figure.axes[2].lines}


def test_scatter_marks_every_predicted_row(qwant_frame):
    page = book.open("fidelity")
    figure = page.figure("fidelity_scatter", qwant_frame).figure
    marks = [line for line in figure.axes[0].lines if line.get_label() == "calibrated"]
    assert len(marks[0].get_xdata()) == 6
    with pytest.raises(StudyError, match="No throughput is predicted"):
        latency = qwant_frame[qwant_frame["metric"] == "latency"]
        page.figure("fidelity_scatter", latency)


def test_figures_leave_the_users_style_alone():
    import matplotlib as mpl

    mpl.rcParams["font.size"] = 21
    marks = [{"labels": [0, 0, ["a"]]}]
    spec = {"size": [4, 3], "marks": marks, "x": {"label": "x"}}
    figure = drawn(spec, {"rows": pd.DataFrame({"a": [1]})}, {})
    assert figure.axes[0].xaxis.label.get_size() != 21
    assert mpl.rcParams["font.size"] == 21
    mpl.rcdefaults()


# --- the Qwant study


def test_tables_show_published_beside_predicted(qwant_frame):
    data = qwant.metric_frame(qwant_frame, "throughput")
    assert list(data["published"]) == [1474.16, 2063.03, 2131.01, 2409.79, 2421.82, 2526.35]
    assert list(data["micro_batch"]) == [1, 2, 3, 4, 5, 6]
    text = repr(book.open("qwant").table("qwant_table2_throughput", data))
    assert text.startswith("Table 2: throughput, images/s")
    assert "2,063" in text


def test_unpublished_batches_are_predicted_but_not_judged():
    frame = verdicts(qwant.rows_for([2, 14]), predictor=SmallPredictor())
    data = qwant.metric_frame(frame, "latency").set_index("batch_size")
    assert data.loc[14, "calibrated"] > data.loc[2, "calibrated"]
    assert math.isnan(data.loc[14, "published"])
    assert data.loc[14, "verdict"] == ""


def test_another_precision_or_system_says_so():
    predictor = SmallPredictor()
    frame = verdicts(
        qwant.rows_for([4], system="ipu m2000", precision="32.32"),
        predictor=predictor,
        samples=Samples(),
    )
    assert all(note.startswith("published on C2") for note in frame["note"])
    assert {one.options["stack"] for one in predictor.asked} == {"sdk-2.4"}
    assert {one.options["precision"] for one in predictor.asked} == {"32.32"}


def test_predicted_power_is_that_of_the_report():
    rows, engine = qwant.rows_for(BATCHES), SmallPredictor()
    power = qwant.power_frame(verdicts(rows, predictor=engine, samples=Samples()))["calibrated"]
    runs, costs = dict.fromkeys(row.run for row in rows), FittedCosts()
    reports = [engine.answer(request_for(run, "calibrated", costs=costs)) for run in runs]
    assert list(power) == pytest.approx([report.power for report in reports])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"batch_sizes": []}, "each a whole number, 2 or more"),
        ({"batch_sizes": "2,4"}, "batch_sizes is ','"),
        ({"batch_sizes": [3]}, "two IPUs share a batch"),
        ({"batch_sizes": [0]}, "batch_sizes is 0"),
        ({"batch_sizes": [-2]}, "batch_sizes is -2"),
        ({"batch_sizes": ["x"]}, "batch_sizes is 'x'"),
        ({"batch_sizes": [2.0]}, "batch_sizes is 2.0"),
        ({"batch_sizes": [2, 2]}, "none twice"),
        ({"precision": "8.8"}, "precision is '8.8'"),
    ],
)
def test_bad_parameters_give_one_sentence(changes, says):
    with pytest.raises(ConfigError, match=says):
        qwant.rows_for(**({"batch_sizes": BATCHES} | changes))


def test_unknown_system():
    with pytest.raises(UnknownNameError, match="did you mean"):
        qwant.rows_for(BATCHES, system="C3 card")


def test_shares_are_a_bar_per_run():
    parts = pd.DataFrame({"part": ["compute", "sync"], "share_percent": [97.0, 3.0]})
    work = pd.concat([parts.assign(label=f"micro-batch {size}") for size in (1, 6)])
    figure = book.open("tamu").figure("tamu_device_work", work).figure
    axis = figure.axes[0]
    assert [tick.get_text() for tick in axis.get_yticklabels()] == [
        "micro-batch 1",
        "micro-batch 6",
    ]
    assert [(bar.get_x(), bar.get_width()) for bar in axis.patches] == [(0, 97)] * 2 + [(97, 3)] * 2
    # Shares below 4 % are not labelled.
    assert [text.get_text() for text in axis.texts if text.get_text()] == ["97", "97"]


def test_what_if_uses_every_ipu_and_the_systems_own_stack(monkeypatch):
    asked, sweep = [], qwant.sweep
    monkeypatch.setattr(
        qwant, "sweep", lambda *model, **run: asked.append(run) or sweep(*model, **run)
    )
    frame = qwant.what_if(["C2", "IPU-M2000"], [1, 6])
    shown = book.open("qwant").table("qwant_what_if", frame).frame
    assert list(shown["batch_size"]) == [2, 12, 4, 24]
    assert ["stack" in run for run in asked] == [False]


def test_machine_rows_are_the_published_resnext_rows():
    rows = qwant.machine_rows()
    assert len(rows) == 18
    assert {row.run.model for row in rows} == {"resnext101_32x4d", "resnext101_32x8d"}
