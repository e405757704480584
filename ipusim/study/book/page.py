"""What a notebook cell ends with: a table or a picture that is also saved, if there is a folder."""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from ipusim.study.book.outputs import save_figure, save_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ipusim.study.table import Table

NOTEBOOK_DPI = 105
"""Coarser than the saved files: a committed notebook carries its pictures with it."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawn figure that prints as its description.

    Attributes
    ----------
    figure : matplotlib.figure.Figure
        The figure.
    description : str
        What it shows, for those who cannot see it and for text outputs.
    """

    figure: Figure
    description: str

    def __repr__(self) -> str:
        return f"Figure: {self.description}"

    def _repr_png_(self) -> bytes:
        buffer = BytesIO()
        self.figure.savefig(
            buffer,
            format="png",
            dpi=NOTEBOOK_DPI,
            bbox_inches="tight",
            metadata={"Software": None},
        )
        return buffer.getvalue()


def show_figure(figure: Figure, name: str, output_dir: str | Path, description: str) -> Picture:
    """Save a figure and return what a notebook shows of it.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
        The figure.
    name : str
        File name without its ending.
    output_dir : str or pathlib.Path
        Output folder; an empty string writes nothing.
    description : str
        What the figure shows, as one phrase.

    Returns
    -------
    Picture
        Shown as PNG.

    Raises
    ------
    StudyError
        If the files cannot be written.
    """
    save_figure(figure, name, output_dir)
    return Picture(figure, description)


def show_table(table: Table, name: str, output_dir: str | Path) -> Table:
    """Save the data behind a table and return the table.

    Parameters
    ----------
    table : Table
        The table.
    name : str
        File name without its ending.
    output_dir : str or pathlib.Path
        Output folder; an empty string writes nothing.

    Returns
    -------
    Table
        The same table.

    Raises
    ------
    StudyError
        If the file cannot be written.
    """
    save_table(table.frame, name, output_dir)
    return table
