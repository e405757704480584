"""Figures in one style: colour-blind safe, readable in grey, the same bytes for the same data."""

import itertools
from collections.abc import Sequence
from typing import Any

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
