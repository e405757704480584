"""How every figure looks: colour-blind safe, readable in grey, the same bytes for the same data."""

from collections.abc import Mapping
from io import BytesIO
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from ipusim.files import read_tables

PNG_DPI = 150
_SVG_SALT = "ipusim"
"""What matplotlib makes its ids of, so that they are the same in every run."""

LOOKS_FILE = "looks.toml"

OKABE_ITO: dict[str, str] = read_tables(LOOKS_FILE)["palette"]
"""The palette, which people with any colour vision can tell apart."""


def shared_looks(kind: str) -> dict[str, dict[str, Any]]:
    """Return looks of data/looks.toml by name: "series", "parts", "chips" or "places"."""
    return {name: coloured(look) for name, look in read_tables(LOOKS_FILE)[kind].items()}


def coloured(look: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of matplotlib, their colour by its name in the palette."""
    colour = {"color": OKABE_ITO.get(look["color"], look["color"])} if "color" in look else {}
    return {**look, **colour}


_UNDATED = {"svg": {"Date": None}, "png": {"Software": None}, "pdf": {"CreationDate": None}}


def figure_bytes(figure: Figure, kind: str, *, dpi: int = PNG_DPI, **about: str) -> bytes:
    """Render a figure as "png", "svg", ..., without a date and with fixed identifiers.

    What is said `about` it goes with it as metadata.
    """
    buffer, metadata = BytesIO(), {**_UNDATED.get(kind, {}), **about}
    with mpl.rc_context({"svg.hashsalt": _SVG_SALT}):
        figure.savefig(buffer, format=kind, dpi=dpi, metadata=metadata, bbox_inches="tight")
    return buffer.getvalue()
