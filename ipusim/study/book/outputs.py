"""Tables and figures as files, the same bytes for the same content."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from ipusim.files import write_bytes, write_text
from ipusim.look import SVG_SALT

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

FLOAT_FORMAT = "%.10g"
"""Digits of the CSV files: more than any table shows, fewer than platforms disagree on."""
PNG_DPI = 150


def frame_csv(frame: pd.DataFrame) -> str:
    """Return a table as CSV with a fixed number format."""
    return frame.to_csv(index=False, float_format=FLOAT_FORMAT, lineterminator="\n")


def save_table(frame: pd.DataFrame, name: str, output_dir: str | Path) -> Path | None:
    """Save a table as ``tables/<name>.csv``; an empty folder writes none."""
    if not str(output_dir):
        return None
    return write_text(Path(output_dir) / "tables" / f"{name}.csv", frame_csv(frame))


def save_figure(figure: Figure, name: str, output_dir: str | Path) -> tuple[Path, Path] | None:
    """Save a figure as ``figures/<name>.png`` and ``.svg``; an empty folder writes none."""
    if not str(output_dir):
        return None
    folder = Path(output_dir) / "figures"
    png = write_bytes(folder / f"{name}.png", figure_bytes(figure, "png"))
    svg = write_bytes(folder / f"{name}.svg", figure_bytes(figure, "svg"))
    return png, svg


def figure_bytes(figure: Figure, kind: str, *, dpi: int = PNG_DPI) -> bytes:
    """Render a figure as "png" or "svg", without a date and with fixed identifiers."""
    import matplotlib as mpl  # only here: it takes half a second to import

    buffer = BytesIO()
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    with mpl.rc_context({"svg.hashsalt": SVG_SALT}):
        figure.savefig(buffer, format=kind, dpi=dpi, metadata=metadata, bbox_inches="tight")
    return buffer.getvalue()
