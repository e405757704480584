"""Figures in one style: colour-blind safe, readable in grey, the same bytes for the same data."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from ipusim.files import read_tables
from ipusim.look import OKABE_ITO, figure_style
from ipusim.machine.system import load_system
from ipusim.study.verdicts.compare import PREDICTED

LOOKS_FILE = "looks.toml"


def looks(kind: str) -> dict[str, dict[str, Any]]:
    """Return looks of data/looks.toml by name: "series", "parts", "chips" or "places"."""
    return {name: coloured(look) for name, look in read_tables(LOOKS_FILE)[kind].items()}


def coloured(look: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of matplotlib, their colour by its name in the palette."""
    colour = {"color": OKABE_ITO.get(look["color"], look["color"])} if "color" in look else {}
    return {**look, **colour}


def system_looks(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return a look per system: the colour of its chip, mark and line by place."""
    chips, places = looks("chips"), itertools.cycle(looks("places").values())
    return {
        name: chips.get(load_system(name).chip.name, chips["another"]) | next(places)
        for name in dict.fromkeys(names)
    }


INTERVAL = "80 % interval"
PUBLISHED_MARK = {"color": OKABE_ITO["black"], "linestyle": "none", "markersize": 5.5, "zorder": 5}
OFF_SCALE = 1.6
"""A roofline that starts beyond this multiple of everything else is stated, not drawn."""


@contextmanager
def sheet(
    width: float,
    height: float,
    *,
    down: int = 1,
    across: int = 1,
    legend: int | None = None,
    last: Sequence[str] = (),
    **options: Any,
) -> Iterator[tuple[Figure, list[Axes]]]:
    """Open a figure of panels in the workbook's style, closed with one legend for all of them.

    Width and height are in inches; `legend` is how many entries stand side by side (all by
    default, 0 for no legend), `last` how the labels begin that stand behind all others. Yields the
    figure and its panels, line by line; further options are those of ``Figure.subplots``.
    """
    with figure_style():
        figure = Figure(figsize=(width, height))
        axes = list(figure.subplots(down, across, squeeze=False, **options).flat)
        yield figure, axes
        entries: dict[str, Any] = {}
        for axis in axes:
            entries |= dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
        names = sorted(entries, key=lambda name: [name.startswith(start) for start in last])
        if legend != 0 and names:
            handles = [entries[name] for name in names]
            across = min(legend or len(names), len(names))
            figure.legend(handles, names, loc="outside lower center", ncols=across)


def name_places(
    axis: Axes,
    names: Sequence[object],
    *,
    vertical: bool = False,
    places: Sequence[float] | None = None,
) -> None:
    """Name places of an axis, by default 0, 1, 2, ...; downwards on the vertical one."""
    side = "y" if vertical else "x"
    where = range(len(names)) if places is None else places
    getattr(axis, f"set_{side}ticks")(where, [str(name) for name in names])
    axis.grid(axis=side, visible=False)
    if vertical:
        axis.set_ylim(len(names) - 0.4, -0.6)


def log_axis(axis: Axes, side: str, ticks: Sequence[float] = (), *, unit: str = "") -> None:
    """Make the axis "x" or "y" logarithmic, with plain numbers where `ticks` are."""
    getattr(axis, f"set_{side}scale")("log")
    line = getattr(axis, f"{side}axis")
    line.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.12g}{unit}"))
    line.set_minor_formatter(NullFormatter())
    if len(ticks):
        line.set_ticks(list(ticks))
        line.set_minor_locator(NullLocator())


def panel(data: pd.DataFrame, x: str, title: str, unit: str) -> pd.DataFrame:
    """Return published and predicted values of a table over its column `x`, with title and unit.

    An interval is drawn where all of it is known; a roofline beyond `OFF_SCALE` is stated.
    """
    series = list(looks("series"))
    names = [x, *series, "low80", "high80"]
    lines = data.reindex(columns=names).astype(float).sort_values(x).rename(columns={x: "x"})
    if not np.isfinite(lines[["low80", "high80"]]).all(axis=None):
        lines[["low80", "high80"]] = np.nan
    bound = lines["roofline"].min()
    off = bound > OFF_SCALE * lines[[name for name in series if name != "roofline"]].max(axis=None)
    if off:
        lines["roofline"] = np.nan
    top = 1.07 * max(0.0, lines[[*series, "high80"]].max(axis=None)) or 1.0
    words = f"roofline: {bound:,.0f}, off the scale" if off else ""
    return lines.assign(title=title, unit=unit, off=words, top=top)


def grouped_bars(
    axis: Axes,
    frame: pd.DataFrame,
    group: str,
    bar: str,
    *,
    looks: Mapping[str, Mapping[str, Any]],
) -> None:
    """Draw predictions as groups of bars with their intervals, published values as black marks.

    The columns `group` and `bar` say what is named below a group and what tells its bars apart;
    `looks` gives the order of the bars. Intervals and published values are NaN where there is none.
    """
    start, ticks = 0.0, {}
    for name, rows in frame.groupby(group, sort=False):
        own = rows.set_index(bar)
        shown = [key for key in looks if key in own.index]
        for place, key in enumerate(shown):
            line, at = own.loc[key], start + place
            axis.bar(at, line["predicted"], width=0.9, label=key, edgecolor="white", **looks[key])
            if np.isfinite(line["low80"]):
                ends = {"color": "#4A5058", "linewidth": 1.6, "zorder": 4, "label": INTERVAL}
                axis.vlines(at, line["low80"], line["high80"], **ends)
            if np.isfinite(line["published"]):
                axis.plot(at, line["published"], marker="o", label="published", **PUBLISHED_MARK)
        ticks[start + (len(shown) - 1) / 2] = f"{name}"
        start += len(shown) + 1.2
    axis.set_xticks(list(ticks), list(ticks.values()))
    axis.grid(axis="x", visible=False)


def published_against_predicted(frame: pd.DataFrame, *, metric: str = "throughput") -> pd.DataFrame:
    """Return every predicted row of one metric of `verdicts`."""
    return frame[(frame["status"] == PREDICTED) & (frame["metric"] == metric)]
