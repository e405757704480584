"""What a committed notebook may hold: `problems` names all that keeps one from being committed."""

import ast
from collections.abc import Iterable
from typing import Any

from ipusim.study.book.notebook import CELL_METADATA, PARAMETERS_TAG

CHECK_TAG = "nbval-check-output"
LONGEST_CELL_LINES = 20
_NOTEBOOK_METADATA = {"kernelspec", "language_info"}
_LOGIC = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.For, ast.AsyncFor, ast.While,
          ast.Lambda)  # fmt: skip


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
        for key in sorted(set(cell["metadata"]) - CELL_METADATA):
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
