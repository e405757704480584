"""Figures in one style: colour-blind safe, readable in grey, the same bytes for the same data."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ipusim.look import shared_looks
from ipusim.machine.system import load_system


def system_looks(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return a look per system: the colour of its chip, mark and line by place."""
    chips, places = shared_looks("chips"), itertools.cycle(shared_looks("places").values())
    return {
        name: chips.get(load_system(name).chip.name, chips["another"]) | next(places)
        for name in dict.fromkeys(names)
    }


OFF_SCALE = 1.6
"""A roofline that starts beyond this multiple of everything else is stated, not drawn."""


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


def panel(data: pd.DataFrame, x: str, title: str, unit: str) -> pd.DataFrame:
    """Return published and predicted values over the column `x`, with title, unit and top."""
    series = list(shared_looks("series"))
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
