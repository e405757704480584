"""Notebook hygiene: what a committed notebook may hold, and a command that removes the rest.

Outputs and execution counts stay, because nbval compares nothing where they are missing; times,
progress-bar state and tool metadata go, because they change at every run.
"""

import ast
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ipusim.errors import StudyError
from ipusim.files import write_text

CHECK_TAG = "nbval-check-output"
PARAMETERS_TAG = "parameters"
LONGEST_CELL_LINES = 20
_NOTEBOOK_METADATA = {"kernelspec", "language_info"}
_CELL_METADATA = {"tags", "jupyter", "slideshow"}
_LOGIC = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.For, ast.AsyncFor, ast.While,
          ast.Lambda)  # fmt: skip
_KERNELSPEC = {"display_name": "Python 3", "language": "python", "name": "python3"}


def cleaned(notebook: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a notebook (format 4, read from JSON) without what changes at every run."""
    copy = json.loads(json.dumps(notebook))
    copy["metadata"] = {"kernelspec": dict(_KERNELSPEC), "language_info": {"name": "python"}}
    for number, cell in enumerate(copy["cells"]):
        cell["metadata"] = {
            key: value for key, value in cell["metadata"].items() if key in _CELL_METADATA and value
        }
        cell["id"] = f"cell-{number:02d}"
        for output in cell.get("outputs", ()):
            if "metadata" in output:
                output["metadata"] = _described(output["metadata"])
            output.get("data", {}).pop("application/vnd.jupyter.widget-view+json", None)
    return copy


def _described(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return of an output's metadata what its pictures show, for those who cannot see them."""
    return {
        kind: {"alt": values["alt"]}
        for kind, values in metadata.items()
        if isinstance(values, dict) and "alt" in values
    }


def read_notebook(path: Path) -> dict[str, Any]:
    """Read a notebook file as JSON."""
    try:
        notebook = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StudyError(
            f"The notebook {path.name} cannot be read ({error.strerror}): restore it."
        ) from error
    except ValueError as error:
        raise StudyError(
            f"The notebook {path.name} is not valid JSON ({error}): restore it."
        ) from error
    if not isinstance(notebook, dict) or notebook.get("nbformat") != 4:
        raise StudyError(f"The file {path.name} is not a notebook of format 4: restore it.")
    return notebook


def notebook_text(notebook: dict[str, Any]) -> str:
    """Return a notebook as the text of its file, as JupyterLab writes it."""
    import nbformat  # takes two seconds, and notebooks are read without it

    return nbformat.writes(nbformat.from_dict(notebook)) + "\n"


def clean_file(path: Path, *, check: bool = False) -> bool:
    """Clean one notebook file, or only look; return whether it was clean already."""
    notebook = read_notebook(path)
    after = notebook_text(cleaned(notebook))
    clean = after == path.read_text(encoding="utf-8")
    if not clean and not check:
        write_text(path, after)
    return clean


def _tags(cell: dict[str, Any]) -> list[str]:
    return cell["metadata"].get("tags", [])


def _cell_problems(cell: dict[str, Any], name: str) -> Iterable[str]:
    """Yield what is wrong with one code cell."""
    source = "".join(cell["source"])
    if len(source.splitlines()) > LONGEST_CELL_LINES:
        yield f"{name} has more than {LONGEST_CELL_LINES} lines"
    try:
        tree = ast.parse(source)
    except SyntaxError:
        yield f"{name} is not plain Python"
        return
    for node in ast.walk(tree):
        if isinstance(node, _LOGIC):
            yield f"{name} holds logic ({type(node).__name__}, line {node.lineno})"
    for output in cell["outputs"]:
        if output["output_type"] == "error":
            yield f"{name} shows an error ({output.get('ename')})"
        if output["output_type"] == "stream" and output.get("name") == "stderr":
            yield f"{name} shows text on stderr"
    shown = [output.get("data", {}) for output in cell["outputs"]]
    has_table = any("<table" in "".join(data.get("text/html", "")) for data in shown)
    if has_table and CHECK_TAG not in _tags(cell):
        yield f"{name} shows a table but is not tagged {CHECK_TAG}, so nbval would not compare it"
    if "figure(" in source and not any("image/png" in data for data in shown):
        yield f"{name} calls for a figure and shows none"
    if CHECK_TAG in _tags(cell) and not cell["outputs"]:
        yield f"{name} is tagged {CHECK_TAG} but has no output"


def _metadata_problems(notebook: dict[str, Any]) -> Iterable[str]:
    """Yield metadata that should not be committed."""
    for key in sorted(set(notebook["metadata"]) - _NOTEBOOK_METADATA):
        yield f"the notebook has metadata {key!r}"
    for number, cell in enumerate(notebook["cells"]):
        for key in sorted(set(cell["metadata"]) - _CELL_METADATA):
            yield f"cell {number} has metadata {key!r}"
        if "injected-parameters" in _tags(cell):
            yield f"cell {number} was injected by papermill"


def problems(notebook: dict[str, Any]) -> list[str]:
    """Return a phrase for everything that keeps a notebook from being committed.

    Code cells must be run 1 to N in order, hold calls and no logic, show no error, and one at least
    be tagged for nbval to compare. The first code cell, and no other, is tagged ``parameters``.
    """
    found = list(_metadata_problems(notebook))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    counts = [cell.get("execution_count") for cell in code]
    if counts != list(range(1, len(code) + 1)):
        found.append(f"the code cells were not run in order 1..{len(code)} but {counts}")
    tagged = [index for index, cell in enumerate(code) if PARAMETERS_TAG in _tags(cell)]
    if tagged != [0]:
        found.append(f"the tag {PARAMETERS_TAG!r} is on code cells {tagged} instead of the first")
    if not any(CHECK_TAG in _tags(cell) for cell in code):
        found.append(f"no cell is tagged {CHECK_TAG}, so nbval would compare nothing")
    identifiers = [cell.get("id") for cell in notebook["cells"]]
    if None in identifiers or len(set(identifiers)) < len(identifiers):
        found.append("cell identifiers are missing or repeated")
    for index, cell in enumerate(code, start=1):
        found.extend(_cell_problems(cell, f"code cell {index}"))
    return found
