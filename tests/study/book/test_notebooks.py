"""Guards on the committed notebooks, and proof that the guards and nbval can fail."""

import copy
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pandas as pd
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output
from notebook_guards import problems

from ipusim import cli
from ipusim.errors import StudyError
from ipusim.study.book.notebook import clean_file, cleaned, notebook_text, read_notebook
from ipusim.study.table import Table

REPOSITORY = Path(__file__).resolve().parents[3]
NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))
TABLE_CELL = """\
import pandas as pd
from ipusim.study.table import Table
Table(pd.DataFrame({"batch": [2, 4], "latency_ms": [1.36, 1.94]}))"""


def good_notebook():
    table = Table(pd.DataFrame({"batch": [2, 4], "latency_ms": [1.36, 1.94]}))
    shown = {"text/plain": repr(table), "text/html": table._repr_html_()}
    cells = [
        new_code_cell("size: int = 2", execution_count=1, metadata={"tags": ["parameters"]}),
        new_code_cell(
            TABLE_CELL,
            execution_count=2,
            metadata={"tags": ["nbval-check-output"]},
            outputs=[new_output("execute_result", data=shown, execution_count=2)],
        ),
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return cleaned(new_notebook(cells=cells, metadata={"kernelspec": kernel}))


def with_tag(notebook, number, *tags):
    notebook["cells"][number]["metadata"]["tags"] = list(tags)


def with_source(notebook, source):
    notebook["cells"][1]["source"] = source


def with_output(notebook, **output):
    notebook["cells"][1]["outputs"].append(output)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_committed_notebook_is_fit_to_be_committed(path):
    assert problems(read_notebook(path)) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_committed_notebook_is_clean(path):
    assert clean_file(path, check=True), "run 'ipusim clean-notebooks'"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_committed_notebook_shows_no_path_of_this_machine(path):
    text = path.read_text(encoding="utf-8")
    assert str(REPOSITORY) not in text
    assert str(Path.home()) + os.sep not in text


def test_there_is_a_notebook_of_the_first_study():
    assert "01_qwant_c2_resnext" in [path.stem for path in NOTEBOOKS]


def test_a_good_notebook_has_no_problem():
    assert problems(good_notebook()) == []


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda nb: nb["cells"][1].update(execution_count=None), "not run in order"),
        (lambda nb: nb["cells"][1].update(execution_count=7), "not run in order"),
        (lambda nb: with_tag(nb, 0), "instead of the first"),
        (lambda nb: with_tag(nb, 1, "parameters", "nbval-check-output"), "instead of the first"),
        (lambda nb: with_tag(nb, 1), "nbval would compare nothing"),
        (lambda nb: with_tag(nb, 1), "nbval would not compare it"),
        (lambda nb: with_source(nb, "page.figure('x')"), "shows none"),
        (lambda nb: nb["cells"][1].update(outputs=[]), "has no output"),
        (lambda nb: with_output(nb, output_type="error", ename="KeyError"), "shows an error"),
        (lambda nb: with_output(nb, output_type="stream", name="stderr", text="x"), "stderr"),
        (lambda nb: with_source(nb, "def f():\n    pass"), "FunctionDef"),
        (lambda nb: with_source(nb, "class A:\n    pass"), "ClassDef"),
        (lambda nb: with_source(nb, "for i in (1, 2):\n    print(i)"), "For"),
        (lambda nb: with_source(nb, "while False:\n    pass"), "While"),
        (lambda nb: with_source(nb, "f = lambda: 1"), "Lambda"),
        (lambda nb: with_source(nb, "%matplotlib inline"), "not plain Python"),
        (lambda nb: with_source(nb, "x = 1\n" * 21), "more than 20 lines"),
        (lambda nb: nb["metadata"].update(papermill={}), "metadata 'papermill'"),
        (lambda nb: nb["metadata"].update(widgets={}), "metadata 'widgets'"),
        (lambda nb: nb["cells"][1]["metadata"].update(execution={}), "metadata 'execution'"),
        (lambda nb: with_tag(nb, 1, "injected-parameters", "nbval-check-output"), "injected"),
        (lambda nb: nb["cells"][1].update(id="cell-00"), "repeated"),
    ],
)
def test_every_guard_can_fail(spoil, says):
    notebook = copy.deepcopy(good_notebook())
    spoil(notebook)
    assert any(says in problem for problem in problems(notebook)), problems(notebook)


def test_cleaning_keeps_outputs_and_drops_times(tmp_path):
    notebook = copy.deepcopy(good_notebook())
    notebook["metadata"]["papermill"] = {"start_time": "2020"}
    notebook["cells"][1]["metadata"]["execution"] = {"iopub.status.busy": "2020"}
    path = tmp_path / "n.ipynb"
    path.write_text(notebook_text(notebook))
    assert not clean_file(path, check=True)
    assert "2020" in path.read_text()
    assert not clean_file(path)
    assert clean_file(path, check=True)
    assert path.read_text() == notebook_text(good_notebook())
    nbformat.validate(nbformat.read(path, as_version=4))


def test_clean_command(tmp_path, capsys):
    notebook = copy.deepcopy(good_notebook())
    notebook["metadata"]["widgets"] = {}
    path = tmp_path / "n.ipynb"
    path.write_text(notebook_text(notebook))
    assert cli.main(["clean-notebooks", "--check", str(path)]) == 1
    assert capsys.readouterr().out == "n.ipynb: it needs cleaning\n"
    assert cli.main(["clean-notebooks", str(path)]) == 0
    assert cli.main(["clean-notebooks", "--check", str(path)]) == 0
    path.write_text("{")
    capsys.readouterr()
    assert cli.main(["clean-notebooks", str(path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_what_is_no_notebook_is_refused(tmp_path):
    for text in ("", "[]", '{"nbformat": 3}'):
        path = tmp_path / "n.ipynb"
        path.write_text(text)
        with pytest.raises(StudyError):
            read_notebook(path)


def run_nbval(path):
    before = os.environ.get("PYTHONPATH", "")
    environment = os.environ | {"PYTHONPATH": f"{REPOSITORY}{os.pathsep}{before}"}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--nbval-lax", "--nbval-current-env", "-c",
         os.devnull, "--rootdir", str(path.parent), "-p", "no:cacheprovider",
         "--nbval-sanitize-with", str(REPOSITORY / "tests" / "nbval_sanitize.cfg"), str(path)],
        capture_output=True, text=True, check=False, env=environment, timeout=600,
    )  # fmt: skip


def changed_number(notebook, old, new):
    """Alter one number in a checked table, in text and HTML alike."""
    notebook = copy.deepcopy(notebook)
    changes = 0
    for cell in notebook["cells"]:
        if "nbval-check-output" not in cell["metadata"].get("tags", ()):
            continue
        for output in cell["outputs"]:
            for kind, text in output.get("data", {}).items():
                whole = text if isinstance(text, str) else "".join(text)
                if kind.startswith("text/") and old in whole:
                    output["data"][kind] = whole.replace(old, new, 1)
                    changes += 1
    assert changes, f"no checked table shows {old}"
    return notebook


@pytest.mark.slow
def test_nbval_bites(tmp_path):
    path = tmp_path / "n.ipynb"
    path.write_text(notebook_text(good_notebook()))
    assert run_nbval(path).returncode == 0
    path.write_text(notebook_text(changed_number(good_notebook(), "1.360", "1.361")))
    done = run_nbval(path)
    assert done.returncode == 1
    assert "1.361" in done.stdout


@pytest.mark.slow
def test_nbval_bites_on_the_first_study(tmp_path):
    source = REPOSITORY / "notebooks" / "01_qwant_c2_resnext.ipynb"
    path = tmp_path / source.name
    path.write_text(notebook_text(changed_number(read_notebook(source), "1.360", "1.361")))
    assert run_nbval(path).returncode == 1
