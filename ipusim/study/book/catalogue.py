"""Which studies there are, and which parameters their notebooks take."""

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipusim import files
from ipusim.errors import ConfigError, StudyError, check_name, resolve_name
from ipusim.study.book.notebook import PARAMETERS_TAG, read_notebook
from ipusim.study.parameters import read_text
from ipusim.study.specs import load_specs

OUTPUT_PARAMETER = "output_dir"
"""The parameter through which a notebook learns where to write; set by reproduce, not by users."""

_NAME = re.compile(r"^\d\d_[a-z0-9_]+$")
_HEADING = re.compile(r"^# +(.+)\s*((?:.+\n?)*)", re.MULTILINE)
"""The first heading of a notebook, and the paragraph under it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """One notebook."""

    name: str  # of the file without ending, "01_qwant_c2_resnext"
    path: Path
    title: str  # its first heading
    summary: str  # its first paragraph
    rows: str  # which published rows it is about, the study of `PublishedRow`; empty for none

    @property
    def href(self) -> str:
        """Address of its page from the start page."""
        return f"notebooks/{self.name}.html"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter, as papermill reads it from the parameters cell; the default is source text."""

    name: str
    default: str
    help: str

    @property
    def value(self) -> Any:
        """Default as a value."""
        return ast.literal_eval(self.default)

    @property
    def type_name(self) -> str:
        """Type of the default, which that of a given value must be."""
        return type(self.value).__name__


def list_studies() -> tuple[Study, ...]:
    """Return every study."""
    numbers = {spec["notebook"][:2]: spec.get("rows", "") for spec in load_specs().values()}
    studies = []
    for path in sorted(files.notebooks_dir().glob("*.ipynb")):
        if _NAME.match(path.stem):
            cells = read_notebook(path)["cells"]
            texts = ["".join(one["source"]) for one in cells if one["cell_type"] == "markdown"]
            found = next(filter(None, map(_HEADING.search, texts)), ("", path.stem, ""))
            said = {"title": found[1].strip(), "summary": " ".join(found[2].split())}
            rows = numbers.get(path.stem[:2], "")
            studies.append(Study(name=path.stem, path=path, rows=rows, **said))
    return tuple(studies)


def select_studies(names: Sequence[str]) -> tuple[Study, ...]:
    """Return the studies asked for by full name, number or subject; empty means all, each once."""
    studies = list_studies()
    if not studies:
        raise StudyError("There is no notebook to run: restore the notebooks folder.")
    aliases = {
        alias: study.name
        for study in reversed(studies)  # of several that an alias may mean it is the first
        for alias in (study.rows, study.name.split("_")[1], study.name[:2])
        if alias
    }
    known = [study.name for study in studies]
    chosen = {resolve_name("study", name, known, aliases) for name in names or known}
    return tuple(study for study in studies if study.name in chosen)


def study_parameters(study: Study) -> tuple[Parameter, ...]:
    """Return the parameters of a study's notebook, except the output folder."""
    known = declared(study.path)
    return tuple(item for name, item in known.items() if name != OUTPUT_PARAMETER)


def declared(path: Path) -> dict[str, Parameter]:
    """Read the cell tagged ``parameters``: assignments, each with a comment on its last line."""
    found = {}
    for cell in read_notebook(path)["cells"]:
        if PARAMETERS_TAG in cell["metadata"].get("tags", ()):
            source = "".join(cell["source"])
            for node in ast.parse(source).body:
                if isinstance(node, ast.Assign | ast.AnnAssign):
                    target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
                    name = ast.unparse(target)
                    default = ast.get_source_segment(source, node.value) or ""
                    rest = source.splitlines()[node.end_lineno - 1][node.end_col_offset :]
                    words = rest.partition("#")[2].strip()
                    found[name] = Parameter(name=name, default=default, help=words)
    return found


def split_assignments(pairs: Iterable[str]) -> dict[str, str]:
    """Split ``name=value`` texts; a later pair wins."""
    values = {}
    for pair in pairs:
        name, sign, text = pair.partition("=")
        if not sign or not name.strip():
            raise ConfigError(f"The parameter {pair!r} is not of the form name=value: write it so.")
        values[name.strip()] = text
    return values


def parameter_values(study: Study, given: Mapping[str, str]) -> dict[str, Any]:
    """Convert parameters given as text to the types that the notebook declares."""
    known = {parameter.name: parameter for parameter in study_parameters(study)}
    for name in given:
        check_name(f"parameter of {study.name}", name, known)
    return {name: _convert(known[name], text) for name, text in given.items()}


def _convert(parameter: Parameter, text: str) -> Any:
    """Convert one text to the type of its parameter; a whole number is a number too."""
    wanted = parameter.type_name
    if wanted == "str":
        return text
    value = read_text(text)
    found = type(value).__name__
    if found != wanted and (wanted, found) != ("float", "int"):
        raise ConfigError(
            f"The parameter {parameter.name} is {text!r}, which is not of type {wanted}: "
            f"give a value like {parameter.default}."
        )
    return value
