"""How every figure looks: colour-blind safe, readable in grey, the same bytes for the same data."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ipusim.files import TEMPLATES, read_tables

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


@contextmanager
def sheet(
    width: float,
    height: float,
    *,
    down: int = 1,
    across: int = 1,
    legend: int | None = None,
    last: Sequence[str] = (),
    places: Sequence[tuple[float, float, float, float]] = (),
    **options: Any,
) -> Iterator[tuple[Figure, list[Axes]]]:
    """Open a figure of panels in the workbook's style, closed with one legend for all of them.

    Whatever style the caller has set is neither used nor changed.
    Width and height are in inches; `legend` is how many entries stand side by side (all by default,
    0 for no legend), `last` how the labels begin that stand behind all others, `places` where
    panels stand that are drawings without axes. Yields the figure and its panels, line by line.
    """
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rc_file(TEMPLATES / "figures.mplstyle", use_default_template=False)
        figure = Figure(figsize=(width, height), layout="none" if places else None)
        axes = [figure.add_axes(place) for place in places]
        for axis in axes:
            axis.axis("off")
        axes = axes or list(figure.subplots(down, across, squeeze=False, **options).flat)
        yield figure, axes
        entries: dict[str, Any] = {}
        for axis in axes:
            entries |= dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
        names = sorted(entries, key=lambda name: [name.startswith(start) for start in last])
        if legend != 0 and names:
            handles = [entries[name] for name in names]
            across = min(legend or len(names), len(names))
            figure.legend(handles, names, loc="outside lower center", ncols=across)


_UNDATED = {"svg": {"Date": None}, "png": {"Software": None}, "pdf": {"CreationDate": None}}


def figure_bytes(figure: Figure, kind: str, *, dpi: int = PNG_DPI, **about: str) -> bytes:
    """Render a figure as "png", "svg", ..., without a date and with fixed identifiers.

    What is said `about` it goes with it as metadata.
    """
    buffer, metadata = BytesIO(), {**_UNDATED.get(kind, {}), **about}
    with mpl.rc_context({"svg.hashsalt": _SVG_SALT}):
        figure.savefig(buffer, format=kind, dpi=dpi, metadata=metadata, bbox_inches="tight")
    return buffer.getvalue()
