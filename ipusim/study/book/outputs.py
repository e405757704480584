"""Tables and figures as files, the same bytes for the same content."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ipusim.files import write_bytes, write_text

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

FLOAT_FORMAT = "%.10g"
"""Digits of the CSV files: more than any table shows, fewer than platforms disagree on."""


def frame_csv(frame: pd.DataFrame) -> str:
    """Return a table as CSV with a fixed number format."""
    return frame.to_csv(index=False, float_format=FLOAT_FORMAT, lineterminator="\n")


def save_table(frame: pd.DataFrame, name: str, output_dir: str | Path) -> None:
    """Save a table as ``tables/<name>.csv``; an empty folder writes none."""
    if str(output_dir):
        write_text(Path(output_dir) / "tables" / f"{name}.csv", frame_csv(frame))


def save_figure(figure: Figure, name: str, output_dir: str | Path) -> None:
    """Save a figure as ``figures/<name>.png`` and ``.svg``; an empty folder writes none."""
    if str(output_dir):
        from ipusim.look import figure_bytes  # matplotlib takes half a second to import

        for kind in ("png", "svg"):
            path = Path(output_dir) / "figures" / f"{name}.{kind}"
            write_bytes(path, figure_bytes(figure, kind))
