"""A drawn machine: the tiles of one chip, its exchange and links, and the system around it."""

import numpy as np
import pandas as pd

from ipusim.machine.chip import Chip
from ipusim.machine.system import System

_MOST_SHOWN = 4
"""IPUs of a machine, and machines, that are drawn; the rest is counted in words."""
_LEFT, _RIGHT = 13.5, 86.9
_BANDS = ((52.0, 82.5), (11.5, 42.0))
"""Where tiles are drawn: from side to side, above the exchange and below it."""


def chip_diagram(system: System) -> dict[str, pd.DataFrame]:
    """Return what the figure ``tour_chip`` of data/studies draws of a system and its chip."""
    chip, ipus = system.chip, min(system.ipus_per_machine, _MOST_SHOWN)
    facts = {
        "chip": chip,
        "ghz": chip.clock_hz / 1e9,
        "exchange_tb_per_s": chip.exchange_bytes_per_s / 1e12,
        "mib": chip.sram_bytes / 2**20,
        "threads": chip.tiles * chip.workers,
        "kib_per_tile": chip.bytes_per_tile // 1024,
        "system": system,
        "in_machines": f" in {system.machines:,} machines" if system.machines > 1 else "",
        "gb_per_s_of_one": system.host_link_bytes_per_s_per_ipu / 1e9,
        "gb_per_s_of_all": system.host_link_bytes_per_s_per_machine / 1e9,
        "ipus": system.ipus_per_machine,
        "drawn": ipus,
    }
    left = chip.ipu_links // 2
    pitch = 86 / ipus
    centres = pd.Series([4 + pitch * (index + 0.5) for index in range(ipus)])
    half = min(20.0, pitch - 4) / 2
    between = pd.DataFrame({"start": centres + half, "end": centres.shift(-1) - half})
    behind = range(min(system.machines, _MOST_SHOWN) - 1, 0, -1)
    return {
        "facts": pd.DataFrame([facts]),
        "tiles": _tiles(chip),
        "links": pd.concat([_links(left, 3.0), _links(chip.ipu_links - left, 91.5)]),
        "machines": pd.DataFrame({"off": [1.6 * place for place in behind]}),
        "ipus": pd.DataFrame({"x": centres, "half": half}),
        "between": between.dropna(),
        "workers": pd.DataFrame({"worker": range(1, chip.workers + 1), "pitch": 46 / chip.workers}),
    }


def _tiles(chip: Chip) -> pd.DataFrame:
    """Return a square for each tile; supertiles of two by two make a column two wide."""
    across = 2 * chip.tile_columns
    row, column = np.divmod(np.arange(chip.tiles), across)
    lower = -(-chip.tiles // across) // 2
    upper = row[-1] + 1 - lower
    wide = (_RIGHT - _LEFT) / across
    x = _LEFT + (column + np.where(column % 2, -0.02, 0.16)) * wide
    table = pd.DataFrame({"x": x, "width": 0.74 * wide})
    for (bottom, top), count, first in zip(_BANDS, (upper, lower), (0, upper), strict=True):
        inside, high = (row >= first) & (row < first + count), (top - bottom) / count
        table.loc[inside, "y"] = bottom + (row[inside] - first + 0.1) * high
        table.loc[inside, "height"] = 0.8 * high
    return table


def _links(count: int, x: float) -> pd.DataFrame:
    """Return the IPU-Links of one side, with the ends of the lines to the chip."""
    middle = 12 + 72 * (np.arange(count) + 0.5) / count
    start, end = (8.5, 11.0) if x < 50 else (89.0, 91.5)
    return pd.DataFrame({"x": x, "y": middle, "start": start, "end": end})
