"""A study's page: what its notebook shows, each table and figure named once in data/studies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from ipusim import files
from ipusim.errors import check_name
from ipusim.study.book.catalogue import declared
from ipusim.study.book.outputs import save_figure, save_table
from ipusim.study.parameters import checked
from ipusim.study.specs import load_spec
from ipusim.study.table import DEFAULT_DIGITS, FoldedTable, Table
from ipusim.study.verdicts.summary import Verdict, verdict_on
from ipusim.view import view

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Data = pd.DataFrame | Mapping[str, pd.DataFrame]
NOTEBOOK_DPI = 105
"""Coarser than the saved files: a committed notebook carries its pictures with it."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawn figure that prints as its description."""

    figure: Figure
    description: str  # what it shows, for those who cannot see it and for text outputs

    def __repr__(self) -> str:
        return f"Figure: {self.description}"

    def _repr_png_(self) -> tuple[bytes, dict[str, str]]:
        """Return the picture with its alternative text, which nbconvert and Lab read."""
        from ipusim.look import figure_bytes

        png = figure_bytes(self.figure, "png", dpi=NOTEBOOK_DPI)
        return png, {"alt": self.description}


class Page:
    """The page of one study; its parameters are attributes (``page.batch_sizes``).

    ``given`` holds the parameters as values, ``changed`` those that differ from what the notebook
    declares.
    """

    def __init__(
        self, study: str, output_dir: str | Path = "", parameters: Mapping[str, Any] | None = None
    ) -> None:
        self._spec = load_spec(study)
        self.study = study
        self.output_dir = output_dir
        self.given = checked(self._spec.get("parameters", {}), parameters or {})
        defaults = declared(files.notebooks_dir() / f"{self._spec['notebook']}.ipynb")
        self.changed = {
            name: value
            for name, value in self.given.items()
            if name in defaults and value != defaults[name].value
        }

    def __getattr__(self, name: str) -> Any:
        given = self.__dict__.get("given", {})
        if name in given:
            return given[name]
        raise AttributeError(
            f"The page has no parameter {name!r}: it was opened with {', '.join(given) or 'none'}."
        )

    def table(self, name: str, data: pd.DataFrame, **words: object) -> Table | FoldedTable:
        """Show a table and save the data behind it as ``tables/<name>.csv``.

        The study's ``tables`` in data/studies give caption, columns and digits by name, which
        lines to show and more columns (`ipusim.view`), and in ``fold`` the column that
        divides a long one. `words` fill the braces of the caption, where ``{rows}`` is the number
        of lines. An UnknownNameError if the study has no such table, a StudyError if the file
        cannot be written.
        """
        spec = self._named("tables", name)
        data = view(data, spec)
        look = {
            "caption": spec.get("caption", "").format(rows=len(data), **words),
            "columns": spec.get("columns"),
            "digits": spec.get("digits", DEFAULT_DIGITS),
        }
        fold = spec.get("fold")
        shown = FoldedTable(data, fold, **look) if fold else Table(data, **look)
        save_table(data, name, self.output_dir)
        return shown

    def figure(self, name: str, data: Figure | Data, **words: object) -> Picture:
        """Show a figure and save it as ``figures/<name>.png`` and ``.svg``.

        The study's ``figures`` in data/studies say by name in words what it shows, with `words` in
        their braces, and how a table, or several by name, are drawn (`ipusim.drawing`).
        An UnknownNameError if the study has no such figure, a StudyError if there is nothing to
        draw, a column is missing, or the files cannot be written.
        """
        from ipusim.drawing import drawn  # matplotlib takes half a second to import

        spec = self._named("figures", name)
        if isinstance(data, pd.DataFrame | Mapping):
            tables = {name: data} if isinstance(data, pd.DataFrame) else data
            data = drawn(spec, tables, self._spec.get("looks", {}))
        save_figure(data, name, self.output_dir)
        return Picture(data, spec["alt"].format(**words))

    def verdict(self, *frames: pd.DataFrame) -> Verdict:
        """Show what verdicts come to, and save it as ``tables/<study>_verdict.csv``.

        Of rows or claims those are not counted that have no prediction or published number, that a
        constant was fitted on, or that restate another. A StudyError if the file cannot be written.
        """
        spec = self._spec["verdict"]
        changed = ", ".join(f"{name} = {value!r}" for name, value in self.changed.items())
        words = {name: spec.get(name, "") for name in ("rests_on", "conclusion")}
        verdict = verdict_on(frames, changed=changed, **words)
        save_table(pd.DataFrame([asdict(verdict)]), f"{self.study}_verdict", self.output_dir)
        return verdict

    def _named(self, kind: str, name: str, study: str = "") -> Any:
        entries = (load_spec(study) if study else self._spec).get(kind, {})
        check_name(f"{kind.removesuffix('s')} of {self.study}", name, entries)
        entry = entries[name]
        if "like" not in entry:
            return entry
        other, _, like = entry["like"].rpartition(".")
        return self._named(kind, like, other or study) | entry
