import json
import os
import re
import shutil
import signal
from functools import partial
from pathlib import Path

import nbformat
import pandas as pd
import pytest
from study_small import VERDICT_COLUMNS, SmallPredictor
from toy_study import write_study

from ipusim import files
from ipusim.errors import ConfigError, StudyError, UnknownNameError
from ipusim.files import read_tables
from ipusim.study.book import reproduce as module
from ipusim.study.book.catalogue import (
    Study,
    list_studies,
    parameter_values,
    select_studies,
    split_assignments,
    study_parameters,
)
from ipusim.study.book.execute import Failure, run_notebook
from ipusim.study.book.index import Card, State, index_html
from ipusim.study.book.reproduce import load_state, reproduce, study_key
from ipusim.study.verdicts.compare import verdicts

REPOSITORY = Path(__file__).resolve().parents[3]
GOOD = """\
import pandas as pd
from ipusim.study.book.outputs import save_table
save_table(pd.DataFrame({"x": batch_sizes}), "sizes", output_dir)
print("writing to", output_dir)"""


@pytest.fixture
def notebooks(tmp_path, monkeypatch):
    folder = tmp_path / "notebooks"
    folder.mkdir()
    monkeypatch.setattr(files, "notebooks_dir", lambda: folder)
    monkeypatch.setattr(module, "verdicts", partial(verdicts, predictor=SmallPredictor()))
    write_study(folder, "01_qwant_toy", GOOD, title="First & foremost")
    write_study(folder, "02_tamu_toy", "boom = {}['nothing here']", "after = 1")
    (folder / "scratch.ipynb").write_text("not a study")
    return folder


@pytest.fixture
def kernel_path(monkeypatch):
    """Let kernels import the package from the checkout, installed or not."""
    before = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", f"{REPOSITORY}{os.pathsep}{before}")


@pytest.fixture
def instant(monkeypatch):
    """Replace the kernel by a copy, for tests of what happens around it."""
    runs = []

    def fake_run(source, target, parameters, *, progress):
        runs.append((source.stem, dict(parameters)))
        notebook = nbformat.read(source, as_version=4)
        nbformat.write(notebook, target)
        if "boom" in source.read_text():
            return Failure("KeyError", "failed in code cell 2 (KeyError: 'nothing here')")
        tables = Path(parameters["output_dir"]) / "tables"
        tables.mkdir()
        (tables / "sizes.csv").write_text("x\n2\n")
        return None

    monkeypatch.setattr(module, "run_notebook", fake_run)
    monkeypatch.setattr(module, "notebook_page", lambda path, study, *rest: study.title)
    return runs


def run(notebooks, out, *names, **options):
    return reproduce(names, out=out, **options)


# --- which studies and which parameters


def test_studies_are_found_with_their_heading(notebooks):
    first, second = list_studies()
    assert (first.name, first.title, first.rows) == ("01_qwant_toy", "First & foremost", "qwant")
    assert first.summary == "What it does. In two lines."
    assert second.rows == "tamu"


@pytest.mark.parametrize("name", ["01_qwant_toy", "01", "qwant", "QWANT", "01-Qwant-Toy"])
def test_studies_can_be_named_in_many_ways(notebooks, name):
    assert [study.name for study in select_studies([name])] == ["01_qwant_toy"]


def test_all_studies_by_default_and_each_once(notebooks):
    assert len(select_studies([])) == 2
    assert len(select_studies(["01", "qwant"])) == 1


def test_unknown_study(notebooks):
    with pytest.raises(UnknownNameError, match="did you mean '01_qwant_toy'"):
        select_studies(["qwantt"])


def test_an_empty_folder_has_no_studies(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "notebooks_dir", lambda: tmp_path)
    with pytest.raises(StudyError, match="no notebook"):
        select_studies([])


def test_a_broken_notebook_is_named(notebooks):
    (notebooks / "03_argonne_toy.ipynb").write_text('{"cells": [')
    with pytest.raises(StudyError, match=r"03_argonne_toy\.ipynb is not valid JSON"):
        list_studies()


def test_parameters_have_types_and_help_but_no_output_folder(notebooks):
    (study,) = select_studies(["01"])
    shown = {item.name: (item.type_name, item.help) for item in study_parameters(study)}
    assert shown == {
        "batch_sizes": ("list", "batch sizes"),
        "factor": ("float", "a factor"),
        "repeats": ("int", "how often"),
        "precision": ("str", "number format"),
    }


def test_values_are_typed_as_declared(notebooks):
    (study,) = select_studies(["01"])
    given = {"batch_sizes": "[2, 8]", "factor": "2", "repeats": "4", "precision": "16.32"}
    assert parameter_values(study, given) == {
        "batch_sizes": [2, 8],
        "factor": 2,
        "repeats": 4,
        "precision": "16.32",
    }


def test_types_of_parameters_without_annotation(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "notebooks_dir", lambda: tmp_path)
    write_study(tmp_path, "01_a_b", parameters='n = 3\nname = "x"\nsizes = [1]\nwhole = True')
    (study,) = list_studies()
    assert [item.type_name for item in study_parameters(study)] == ["int", "str", "list", "bool"]
    assert parameter_values(study, {"name": "12"}) == {"name": "12"}


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"batch_sices": "[2]"}, UnknownNameError, "did you mean 'batch_sizes'"),
        ({"output_dir": "x"}, UnknownNameError, "Unknown parameter"),
        ({"repeats": "two"}, ConfigError, "not of type int"),
        ({"repeats": "1.5"}, ConfigError, "not of type int"),
        ({"repeats": "true"}, ConfigError, "not of type int"),
        ({"batch_sizes": "[2"}, ConfigError, "not of type list"),
    ],
)
def test_bad_parameters_are_refused(notebooks, given, error, says):
    (study,) = select_studies(["01"])
    with pytest.raises(error, match=says):
        parameter_values(study, given)


def test_assignments():
    assert split_assignments(["a=1", "b=x=y", "a=2"]) == {"a": "2", "b": "x=y"}
    for wrong in ("a", "=3"):
        with pytest.raises(ConfigError, match="name=value"):
            split_assignments([wrong])


# --- what happens around the kernel


def test_a_good_and_a_failing_study(notebooks, instant, tmp_path):
    out = tmp_path / "build"
    good, bad = run(notebooks, out)
    assert (good.status, bad.status) == ("done", "failed")
    assert "KeyError" in bad.message
    assert (out / good.notebook).is_file()
    assert bad.notebook == "notebooks/02_tamu_toy.partial.ipynb"
    assert (out / bad.notebook).is_file()
    assert not (out / "notebooks" / "02_tamu_toy.ipynb").exists()
    assert (out / "tables" / "sizes.csv").read_text() == "x\n2\n"
    page = (out / "index.html").read_text()
    assert "First &amp; foremost" in page
    assert 'href="notebooks/02_tamu_toy.partial.ipynb"' in page
    assert list(out.rglob("*stage*")) == []
    assert list(out.rglob(".*.*")) == []  # no temporary file stays


def test_verdicts_have_the_promised_columns(notebooks, instant, tmp_path):
    run(notebooks, tmp_path / "build", "01")
    frame = pd.read_csv(tmp_path / "build" / "verdicts.csv")
    assert tuple(frame.columns) == VERDICT_COLUMNS
    assert frame["row_id"].is_unique
    assert (tmp_path / "build" / "figures" / "errors_by_family.svg").is_file()


def test_outputs_are_the_same_bytes_at_a_second_run(notebooks, instant, tmp_path):
    contents = []
    for _ in range(2):
        run(notebooks, tmp_path / "build", "01")
        files = sorted(path for path in (tmp_path / "build").rglob("*") if path.is_file())
        contents.append({path: path.read_bytes() for path in files})
    assert contents[0] == contents[1]


def test_resume_runs_only_what_has_changed(notebooks, instant, tmp_path, monkeypatch):
    out = tmp_path / "build"

    def again(**options):
        instant.clear()
        statuses = [result.status for result in run(notebooks, out, "01", resume=True, **options)]
        return statuses, len(instant)

    assert again() == (["done"], 1)
    assert again() == (["up to date"], 0)
    assert again(given={"repeats": "5"}) == (["done"], 1)
    assert again(given={"repeats": "5"}) == (["up to date"], 0)
    (out / "tables" / "sizes.csv").unlink()
    assert again(given={"repeats": "5"}) == (["done"], 1)
    (out / "tables" / "sizes.csv").write_text("x\n9\n")
    assert again(given={"repeats": "5"}) == (["done"], 1)
    write_study(notebooks, "01_qwant_toy", GOOD + "\nmore = 1")
    assert again(given={"repeats": "5"}) == (["done"], 1)
    monkeypatch.setattr(module, "_tree_digest", lambda: "changed")
    assert again(given={"repeats": "5"}) == (["done"], 1)


def test_resume_repeats_a_failed_study(notebooks, instant, tmp_path):
    for _ in range(2):
        (result,) = run(notebooks, tmp_path / "build", "02", resume=True)
        assert result.status == "failed"
    assert len(instant) == 2


def test_a_repaired_study_loses_its_partial_notebook(notebooks, instant, tmp_path):
    out = tmp_path / "build"
    (bad,) = run(notebooks, out, "02")
    write_study(notebooks, "02_tamu_toy", GOOD)
    (good,) = run(notebooks, out, "02")
    assert good.status == "done"
    assert not (out / bad.notebook).exists()


def test_the_key_ignores_outputs_but_not_code_or_data(notebooks):
    (study,) = select_studies(["01"])
    before = study_key(study, {}, "tree")
    notebook = json.loads(study.path.read_text())
    notebook["cells"][-1]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": "x"}]
    study.path.write_text(json.dumps(notebook))
    assert study_key(study, {}, "tree") == before
    assert study_key(study, {"repeats": 4}, "tree") != before
    assert study_key(study, {}, "changed") != before


def test_a_parameter_must_be_known_to_every_study(notebooks, instant, tmp_path):
    write_study(notebooks, "02_tamu_toy", GOOD, parameters='output_dir: str = ""')
    with pytest.raises(UnknownNameError, match="parameter of 02_tamu_toy 'repeats'"):
        run(notebooks, tmp_path / "build", given={"repeats": "5"})
    assert not (tmp_path / "build").exists()
    assert instant == []


def test_a_file_in_the_way_of_the_output_folder(notebooks, instant, tmp_path):
    (tmp_path / "build").write_text("a file")
    with pytest.raises(StudyError, match="cannot be written to"):
        run(notebooks, tmp_path / "build")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "tables").write_text("a file")
    with pytest.raises(StudyError, match="tables cannot be written to"):
        run(notebooks, tmp_path / "other")
    assert instant == []


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs a folder that root cannot write to")
def test_a_folder_without_write_permission(notebooks, instant):
    with pytest.raises(StudyError, match="cannot be written to"):
        run(notebooks, Path("/proc/ipusim-build"))
    assert instant == []


def contents(out):
    return {path.relative_to(out): path.read_bytes() for path in out.rglob("*") if path.is_file()}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("write", [1, 2, 4, 5, 7])
def test_killed_at_any_write_and_resumed_the_folder_is_the_same(
    notebooks, instant, tmp_path, monkeypatch, write
):
    out = tmp_path / "build"
    run(notebooks, out, "01")
    whole = contents(out)
    shutil.rmtree(out)
    child = os.fork()
    if not child:
        done = []

        def killed(real):
            def write_or_die(path, content):
                done.append(path)
                if len(done) == write:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(path, content)

            return write_or_die

        monkeypatch.setattr(module, "write_text", killed(module.write_text))
        monkeypatch.setattr(module, "write_bytes", killed(module.write_bytes))
        try:
            run(notebooks, out, "01")
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert contents(out) != whole
    run(notebooks, out, "01", resume=True)
    assert contents(out) == whole


def test_two_runs_into_one_folder(notebooks, instant, tmp_path):
    out = tmp_path / "build"
    run(notebooks, out, "01")
    with module._held(out), pytest.raises(StudyError, match="Another run is writing"):
        run(notebooks, out, "01")
    run(notebooks, out, "01")  # the other one has ended


@pytest.mark.parametrize("text", ["", '{"name": "01_qwant_toy", "sta', "[]", '{"other": 1}'])
def test_a_half_written_folder(notebooks, instant, tmp_path, text):
    out = tmp_path / "build"
    run(notebooks, out, "01")
    record = out / ".ipusim" / "01_qwant_toy.json"
    record.write_text(text)
    with pytest.raises(StudyError, match="is damaged"):
        run(notebooks, out, "01", resume=True)
    (result,) = run(notebooks, out, "01")  # making everything anew repairs it
    assert result.status == "done"
    assert load_state(out, "01_qwant_toy").status == "done"


def test_a_failure_of_the_verdicts_is_a_result(notebooks, instant, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise StudyError("No prediction today.")

    monkeypatch.setattr(module, "verdicts", fail)
    study, verdict = run(notebooks, tmp_path / "build", "01")
    assert (study.status, verdict.name, verdict.status) == ("done", "verdicts", "failed")
    assert (tmp_path / "build" / "index.html").is_file()


def test_only_the_rows_of_studies_that_ran_are_judged(notebooks, instant, tmp_path):
    out = tmp_path / "build"
    run(notebooks, out, "01")
    assert set(pd.read_csv(out / "verdicts.csv")["study"]) == {"qwant"}
    run(notebooks, out, "02")
    assert set(pd.read_csv(out / "verdicts.csv")["study"]) == {"qwant", "tamu"}


def test_resuming_with_nothing_to_do_judges_nothing(notebooks, instant, tmp_path, monkeypatch):
    out = tmp_path / "build"
    run(notebooks, out, "01")
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    monkeypatch.setattr(module, "verdicts", None)
    assert {result.status for result in run(notebooks, out, "01", resume=True)} == {"up to date"}
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_the_page_escapes_names_and_needs_no_network():
    names = ("notebooks/01_a_b.html", "tables/t.csv", "figures/f.png", "figures/f.svg")
    names += ("figures/tour_chip.png",)
    state = State(name="01_a_b", status="done", files=dict.fromkeys(names, ""))
    said = {"title": "<b>bold", "summary": "a & b", "rows": ""}
    study = Study(name=state.name, path=Path(), **said)
    page = index_html([Card(study, state, None)], None)
    assert "<b>bold" not in page
    assert "&lt;b&gt;bold" in page
    assert "http" not in page
    assert 'href="figures/f.svg"' in page
    assert 'src="figures/f.png"' in page
    # A figure of data/studies says what it shows, any other its name.
    shown = read_tables("studies/tour.toml")["figures"]["tour_chip"]["alt"].replace(
        " of {system}", ""
    )
    assert re.findall(r'alt="([^"]+)"', page) == ["f", shown]
    assert "prefers-color-scheme: dark" in page


# --- with a real kernel


def test_kernels_get_a_profile_of_their_own(tmp_path, kernel_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "of the user"))
    asks = "import os\nprint(os.environ['IPYTHONDIR'], get_ipython().kernel.parent.log_level)"
    write_study(tmp_path, "01_toy", asks)
    ran = tmp_path / "ran.ipynb"
    assert run_notebook(tmp_path / "01_toy.ipynb", ran, {}, progress=False) is None
    printed = nbformat.read(ran, as_version=4).cells[-1].outputs[0]["text"]
    place, level = printed.rsplit(maxsplit=1)
    assert "of the user" not in place and not Path(place).exists()
    assert level == "50"
    assert os.environ["IPYTHONDIR"] == str(tmp_path / "of the user")


def test_real_kernels_end_to_end(notebooks, kernel_path, tmp_path, capfd):
    out = tmp_path / "build"
    good, bad = run(notebooks, out, given={"batch_sizes": "[2, 6]"})
    assert (good.status, good.message) == ("done", "")
    assert (bad.status, bad.message) == (
        "failed",
        "failed in code cell 3 (KeyError: 'nothing here')",
    )
    assert (out / "tables" / "sizes.csv").read_text() == "x\n2\n6\n"
    text = (out / good.notebook).read_text()
    assert json.loads(text)["metadata"].keys() == {"kernelspec", "language_info"}
    page = (out / good.notebook).with_suffix(".html").read_text()
    assert "stage-" not in text
    assert str(tmp_path) not in text + page
    assert "First &amp; foremost" in page
    assert not re.findall(r'(?:src|href)="(?:https?:)?//', page)
    partial = json.loads((out / bad.notebook).read_text())
    assert any(
        output["output_type"] == "error"
        for cell in partial["cells"]
        for output in cell.get("outputs", ())
    )
    assert "WARNING" not in capfd.readouterr().err
