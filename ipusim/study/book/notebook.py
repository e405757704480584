"""Notebook hygiene: what of a notebook is kept, and a command that removes the rest.

Outputs and execution counts stay, because nbval compares nothing where they are missing; times,
progress-bar state and tool metadata go, because they change at every run.
"""

import json
from pathlib import Path
from typing import Any

from ipusim.errors import StudyError
from ipusim.files import write_text

PARAMETERS_TAG = "parameters"
CELL_METADATA = {"tags", "jupyter", "slideshow"}
_KERNELSPEC = {"display_name": "Python 3", "language": "python", "name": "python3"}


def cleaned(notebook: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a notebook (format 4, read from JSON) without what changes at every run."""
    copy = json.loads(json.dumps(notebook))
    copy["metadata"] = {"kernelspec": dict(_KERNELSPEC), "language_info": {"name": "python"}}
    for number, cell in enumerate(copy["cells"]):
        cell["metadata"] = {
            key: value for key, value in cell["metadata"].items() if key in CELL_METADATA and value
        }
        cell["id"] = f"cell-{number:02d}"
        for output in cell.get("outputs", ()):
            if "metadata" in output:
                # What pictures show stays, for those who cannot see them.
                output["metadata"] = {
                    kind: {"alt": values["alt"]}
                    for kind, values in output["metadata"].items()
                    if isinstance(values, dict) and "alt" in values
                }
            output.get("data", {}).pop("application/vnd.jupyter.widget-view+json", None)
    return copy


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
