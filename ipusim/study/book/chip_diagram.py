"""A drawn machine: the tiles of one chip, its exchange and links, and the system around it."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, PathPatch
from matplotlib.path import Path

from ipusim.look import OKABE_ITO, figure_style

if TYPE_CHECKING:
    from ipusim.machine.chip import Chip
    from ipusim.machine.system import System

_TILE = OKABE_ITO["sky"]
_EXCHANGE = OKABE_ITO["orange"]
_LINK = OKABE_ITO["green"]
_HOST = OKABE_ITO["purple"]
_INK = "#22262B"
_PAPER = "#F4F6F8"
Bands = tuple[tuple[float, float], tuple[float, float]]

_SHOWN_IPUS = 4
_SHOWN_MACHINES = 4


def chip_diagram(system: System) -> Figure:
    """Draw a system and one of its chips.

    Left: one chip with every tile, the exchange between them, its IPU-Links and its host link.
    Right: how the system joins its chips (at most four IPUs and four machines are drawn, the rest
    is counted in words), with one tile enlarged below.
    """
    with figure_style():
        figure = Figure(figsize=(11.5, 6.4), layout="none")
        chip_axis = figure.add_axes((0.01, 0.02, 0.60, 0.96))
        system_axis = figure.add_axes((0.63, 0.445, 0.36, 0.535))
        tile_axis = figure.add_axes((0.63, 0.02, 0.36, 0.38))
        for axis, height in ((chip_axis, 100), (system_axis, 82), (tile_axis, 58)):
            axis.set(xlim=(0, 100), ylim=(0, height))
            axis.axis("off")
        _draw_chip(chip_axis, system.chip)
        _draw_system(system_axis, system)
        _draw_tile(tile_axis, system.chip)
    return figure


def _box(axis: Axes, x: float, y: float, width: float, height: float, **look: object) -> None:
    """Draw a box with slightly rounded corners."""
    defaults = {"facecolor": _PAPER, "edgecolor": _INK, "linewidth": 1.0}
    shape = {"boxstyle": "round,pad=0,rounding_size=1.2"} | defaults | look
    axis.add_patch(FancyBboxPatch((x, y), width, height, **shape))


def _text(axis: Axes, x: float, y: float, text: str, **look: object) -> None:
    """Write centred text."""
    defaults = {"ha": "center", "va": "center", "fontsize": 9, "color": _INK}
    axis.text(x, y, text, **(defaults | look))


def _tiles_path(chip: Chip, left: float, right: float, bands: Bands) -> Path:
    """Return one path with a square per tile; supertiles of two by two make a column two wide."""
    across = 2 * chip.tile_columns
    rows = math.ceil(chip.tiles / across)
    per_band = (rows - rows // 2, rows // 2)
    pitch_x = (right - left) / across
    corners: list[tuple[float, float]] = []
    remaining = chip.tiles
    for (bottom, top), count in zip(bands, per_band, strict=True):
        pitch_y = (top - bottom) / count
        for row in range(count):
            drawn = min(across, remaining)
            remaining -= drawn
            for index in range(drawn):
                x = left + (index + (0.16 if index % 2 == 0 else -0.02)) * pitch_x
                y = bottom + (row + 0.1) * pitch_y
                wide, high = x + 0.74 * pitch_x, y + 0.8 * pitch_y
                corners += [(x, y), (wide, y), (wide, high), (x, high), (x, y)]
    square = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY]
    return Path(corners, square * chip.tiles)


def _draw_chip(axis: Axes, chip: Chip) -> None:
    """Draw one chip with all its tiles."""
    axis.set_title(
        f"{chip.name}: {chip.tiles:,} tiles, {chip.clock_hz / 1e9:.2f} GHz", x=0.02, y=0.961
    )
    _box(axis, 11, 9, 78, 76, linewidth=1.6)
    tiles = _tiles_path(chip, 13.5, 86.9, ((52.0, 82.5), (11.5, 42.0)))
    axis.add_patch(PathPatch(tiles, facecolor=_TILE, edgecolor="none"))
    _box(axis, 13.0, 43.6, 74, 6.8, facecolor=_EXCHANGE, edgecolor="none")
    rate = f"exchange: any tile to any tile, {chip.exchange_bytes_per_cycle} B per cycle and tile"
    rate += f" ({chip.exchange_bytes_per_s / 1e12:.1f} TB/s)"
    _text(axis, 50, 47, rate, fontsize=9.5, fontweight="bold")
    for x in (3.0, 91.5):
        side = chip.ipu_links // 2 if x < 50 else chip.ipu_links - chip.ipu_links // 2
        for index in range(side):
            y = 12 + 72 * (index + 0.5) / side
            _box(axis, x, y - 3.2, 5.5, 6.4, facecolor=_LINK, edgecolor="none")
            axis.plot([8.5, 11] if x < 50 else [89, 91.5], [y, y], color=_LINK, linewidth=2.2)
        _text(axis, x + 2.75, 88, "IPU-\nLinks", fontsize=8, color=_LINK, fontweight="bold")
    _box(axis, 34, 0.8, 32, 5.4, facecolor=_HOST, edgecolor="none")
    axis.plot([50, 50], [6.2, 9], color=_HOST, linewidth=2.6)
    _text(axis, 50, 3.5, "host link", fontweight="bold")
    memory = f"{chip.sram_bytes / 2**20:,.0f} MiB of memory, all of it inside the tiles; "
    _text(axis, 50, 88, f"{memory}{chip.tiles * chip.workers:,} worker threads")


def _draw_system(axis: Axes, system: System) -> None:
    """Draw how the system joins its IPUs, its machines and the host."""
    ipus = system.ipus_per_machine
    shown = min(ipus, _SHOWN_IPUS)
    machines = "machine" if system.machines == 1 else "machines"
    title = f"{system.name}: {system.ipus:,} x {system.chip.name}"
    if system.machines > 1:
        title += f" in {system.machines:,} {machines}"
    axis.set_title(title, x=0.0, y=0.93)
    for behind in range(min(system.machines, _SHOWN_MACHINES) - 1, 0, -1):
        _box(axis, 2 + 1.6 * behind, 30 + 1.6 * behind, 90, 38, facecolor="white", linewidth=0.8)
    _box(axis, 2, 30, 90, 38, facecolor="white")
    pitch = 86 / shown
    width = min(20.0, pitch - 4)
    centres = [4 + pitch * (index + 0.5) for index in range(shown)]
    for centre in centres:
        _box(axis, centre - width / 2, 42, width, 18, facecolor=_TILE)
        _text(axis, centre, 51, "IPU", fontweight="bold")
        axis.plot([centre, centre], [24, 42], color=_HOST, linewidth=2)
    for left, right in itertools.pairwise(centres):
        axis.plot([left + width / 2, right - width / 2], [51, 51], color=_LINK, linewidth=4)
    if shown > 1:
        _text(axis, 48, 64.5, "IPU-Links", color=_LINK, fontweight="bold")
    if ipus > shown:
        _text(axis, 90, 33, f"{ipus} IPUs in all", fontsize=8, ha="right")
    _box(axis, 2, 6, 90, 18, facecolor=_HOST, edgecolor="none")
    rates = (system.host_link_bytes_per_s_per_ipu, system.host_link_bytes_per_s_per_machine)
    one, all_ipus = (f"{rate / 1e9:.2f} GB/s" for rate in rates)
    _text(axis, 47, 18.5, "host", fontweight="bold", fontsize=10)
    _text(axis, 47, 11.5, f"{one} from one IPU, {all_ipus} from all of them")


def _draw_tile(axis: Axes, chip: Chip) -> None:
    """Draw one tile enlarged: its memory and its worker threads."""
    axis.set_title("one tile", x=0.0, y=0.86)
    _box(axis, 2, 6, 90, 42, linewidth=1.4)
    _box(axis, 5, 10, 34, 34, facecolor=_TILE)
    _text(axis, 22, 30, f"{chip.bytes_per_tile // 1024} KiB", fontweight="bold", fontsize=12)
    _text(axis, 22, 21, "memory:\ncode, weights,\nactivations", fontsize=8, va="center")
    pitch = 46 / chip.workers
    for worker in range(chip.workers):
        _box(axis, 43 + worker * pitch, 27, pitch - 1.6, 17, facecolor="white", linewidth=0.8)
        _text(axis, 43 + (worker + 0.5) * pitch - 0.8, 35.5, f"{worker + 1}", fontsize=8)
    _text(axis, 66, 22.5, f"{chip.workers} worker threads, taking turns", fontsize=8.5)
    _box(axis, 43, 10, 45.4, 8.5, facecolor=_EXCHANGE, edgecolor="none")
    _text(axis, 66, 14.2, f"exchange: {chip.exchange_bytes_per_cycle} B per cycle", fontsize=8.5)
