"""Writing files that are either whole or absent."""

from __future__ import annotations

import os
import tempfile
from io import BytesIO, StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from ipusim.errors import StudyError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

FLOAT_FORMAT = "%.10g"
"""Digits of the CSV files: more than any table shows, fewer than platforms disagree on."""
SVG_SALT = "ipusim"
PNG_DPI = 150
_FILE_MODE = 0o644


def write_bytes(path: Path, content: bytes) -> Path:
    """Write a file in one step: a reader sees the old content or the new, never a part.

    Parameters
    ----------
    path : pathlib.Path
        Target; its folder is created.
    content : bytes
        What to write.

    Returns
    -------
    pathlib.Path
        `path`.

    Raises
    ------
    StudyError
        If the file cannot be written.
    """
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(descriptor, "wb") as handle:
            handle.write(content)
        Path(temporary).chmod(_FILE_MODE)
        Path(temporary).replace(path)
    except OSError as error:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        raise StudyError(
            f"Cannot write {path} ({error.strerror}): choose a folder that can be written to."
        ) from error
    return path


def write_text(path: Path, content: str) -> Path:
    """Write a UTF-8 text file in one step.

    Parameters
    ----------
    path : pathlib.Path
        Target; its folder is created.
    content : str
        What to write.

    Returns
    -------
    pathlib.Path
        `path`.

    Raises
    ------
    StudyError
        If the file cannot be written.
    """
    return write_bytes(path, content.encode("utf-8"))


def frame_csv(frame: pd.DataFrame) -> str:
    """Return a table as CSV with a fixed number format.

    Parameters
    ----------
    frame : pandas.DataFrame
        The table; its index is not written.

    Returns
    -------
    str
        CSV whose lines end in a plain newline.
    """
    buffer = StringIO()
    frame.to_csv(buffer, index=False, float_format=FLOAT_FORMAT, lineterminator="\n")
    return buffer.getvalue()


def save_table(frame: pd.DataFrame, name: str, output_dir: str | Path) -> Path | None:
    """Save a table as ``tables/<name>.csv``.

    Parameters
    ----------
    frame : pandas.DataFrame
        The table.
    name : str
        File name without its ending.
    output_dir : str or pathlib.Path
        Output folder; an empty string writes nothing.

    Returns
    -------
    pathlib.Path or None
        The file, if one was written.

    Raises
    ------
    StudyError
        If it cannot be written.
    """
    if not str(output_dir):
        return None
    return write_text(Path(output_dir) / "tables" / f"{name}.csv", frame_csv(frame))


def save_figure(figure: Figure, name: str, output_dir: str | Path) -> tuple[Path, Path] | None:
    """Save a figure as ``figures/<name>.png`` and ``figures/<name>.svg``.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
        The figure.
    name : str
        File name without its ending.
    output_dir : str or pathlib.Path
        Output folder; an empty string writes nothing.

    Returns
    -------
    tuple of pathlib.Path or None
        PNG and SVG, if they were written. The SVG is the same bytes for the same figure.

    Raises
    ------
    StudyError
        If they cannot be written.
    """
    if not str(output_dir):
        return None
    folder = Path(output_dir) / "figures"
    png = write_bytes(folder / f"{name}.png", figure_bytes(figure, "png"))
    svg = write_bytes(folder / f"{name}.svg", figure_bytes(figure, "svg"))
    return png, svg


def figure_bytes(figure: Figure, kind: str) -> bytes:
    """Render a figure.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
        The figure.
    kind : str
        ``"png"`` or ``"svg"``.

    Returns
    -------
    bytes
        The file's content, without a date and with fixed identifiers.
    """
    import matplotlib as mpl  # only here: it takes half a second to import

    buffer = BytesIO()
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    with mpl.rc_context({"svg.hashsalt": SVG_SALT}):
        figure.savefig(buffer, format=kind, dpi=PNG_DPI, metadata=metadata, bbox_inches="tight")
    return buffer.getvalue()
