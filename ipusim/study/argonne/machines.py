"""The chip and pod tables of the Argonne slides, derived from the machine model; the Good computer.

Nothing here is typed: every number follows from data/hardware, and stands beside the slide's.
"""

import math
from collections.abc import Callable

import pandas as pd

from ipusim import files
from ipusim.files import read_records, read_tables
from ipusim.machine import load_system
from ipusim.machine.system import System
from ipusim.study.verdicts.errors import error_percent, verdict_of

CHIP_SYSTEM = "Bow-2000"
GOOD = "Good computer"
GOOD_FILE = "runs/good_computer.toml"
_TERA, _PETA, _EXA = 1e12, 1e15, 1e18
_BIT = 8


def fabric_bytes_per_s(system: System) -> float:
    """Return the bandwidth of all links that leave a machine, both directions.

    Of the ladder's chips the upper pair has its rails upwards free, the lower pair its rails
    downwards; GW-Links come on top.
    """
    rails = 4 * system.rail_links
    return 2 * (
        rails * system.ipu_link.bytes_per_s
        + system.gw_links_per_machine * system.gw_link.bytes_per_s
    )


_CHIP: dict[str, Callable[[System], float]] = {
    "AI compute": lambda s: s.chip.peak_flops_per_s() / _TERA,
    "In-Processor-Memory": lambda s: s.chip.sram_bytes / 1e9,
    "memory bandwidth": lambda s: s.chip.sram_bytes_per_s / _TERA,
    "processor cores": lambda s: s.chip.tiles,
    "parallel programs": lambda s: s.chip.tiles * s.chip.workers,
    "IPU-Links": lambda s: s.chip.ipu_links,
    # both directions
    "IPU-Link bandwidth (all links)": lambda s: 2 * s.chip.ipu_links * s.ipu_link.bytes_per_s / 1e9,
}
_MACHINE: dict[str, Callable[[System], float]] = {
    "IPUs": lambda s: s.ipus,
    "AI compute": lambda s: s.ipus * s.chip.peak_flops_per_s() / _PETA,
    "Streaming Memory": lambda s: s.streaming_memory_bytes_per_machine / 1e9,
    "IPU-Fabric": lambda s: _BIT * fabric_bytes_per_s(s) / _TERA,
    "In-Processor-Memory": lambda s: s.ipus * s.chip.sram_bytes / 1e9,
    "In-Processor-Memory bandwidth": lambda s: s.ipus * s.chip.sram_bytes_per_s / _TERA,
    "Bow-2000 machines": lambda s: s.machines,
}
_NOTES = {
    "form factor": "a property of the case",
    "IPU-Fabric": "IPU-Links and GW-Links that leave the machine, both directions; the slide does "
    "not say which links it counts",
    "CPU servers": "taken over from the slides, so no test",
    "Streaming Memory": "taken over from the slides, so no test",
    "IPUs": "taken over from the slides, so no test",
}


def _derived(component: str, attribute: str) -> float | str:
    """Return what the machine model says of one cell of the slides; nothing where it does not."""
    if component == "Bow IPU":
        return _CHIP[attribute](load_system(CHIP_SYSTEM))
    system = load_system(component)
    if attribute == "CPU servers":
        least, most = system.host_servers, system.host_servers_max
        return f"{least}" if least == most else f"{least}-{most}"
    return _MACHINE[attribute](system) if attribute in _MACHINE else ""


def _published() -> list[dict[str, str]]:
    """Return the slides' hardware numbers as they stand in the file."""
    columns = ("row_id", "component", "attribute", "value", "unit", "qualifier")
    return read_records(files.data_dir() / "published" / "argonne_hardware.csv", columns)


def machine_frame() -> pd.DataFrame:
    """Compare every number of the slides on chip, machine and pods with the machine model."""
    lines = []
    for record in _published():
        component, attribute = record["component"], record["attribute"]
        if component == GOOD:
            continue
        value = _derived(component, attribute)
        number = pd.to_numeric(record["value"], errors="coerce")
        compared = not isinstance(value, str) and not pd.isna(number)
        notes = (record["qualifier"], _NOTES.get(attribute, ""))
        lines.append(
            {name: record[name] for name in ("row_id", "component", "attribute", "unit")}
            | {
                "published": record["value"],
                "derived": value if isinstance(value, str) else f"{value:,.4g}",
                "error_percent": error_percent(value, number) if compared else math.nan,
                "verdict": verdict_of(value, number) if compared else "",
                "note": "; ".join(filter(None, notes)),
            }
        )
    return pd.DataFrame(lines)


def good_computer_frame() -> pd.DataFrame:
    """Work out what the announcement of the Good computer means, with Bow chips in its place."""
    system, spec = load_system(GOOD), read_tables(GOOD_FILE)
    announced = {
        record["attribute"]: float(record["value"])
        for record in _published()
        if record["component"] == GOOD
    }
    memory = system.machines * system.streaming_memory_bytes_per_machine
    links = system.ipus * system.buffer_link_bytes_per_s_per_ipu
    both = pd.DataFrame(
        {
            "flops": [announced["AI compute"] * _EXA, system.ipus * system.chip.peak_flops_per_s()],
            "memory": [announced["memory"] * _PETA, memory],
            "bandwidth": [announced["memory bandwidth"] * _PETA, links],
            "sram": [math.nan, system.ipus * system.chip.sram_bytes],
            "sram_bandwidth": [math.nan, system.ipus * system.chip.sram_bytes_per_s],
            "ipus": system.ipus,
            "parameters": announced["model size"] * _TERA,
            **spec["assumed"],
        },
        index=["announced", "modelled"],
    )
    rows = pd.DataFrame(spec["quantity"])
    values = pd.DataFrame(both.eval(value, engine="python") for value in rows.pop("value"))
    how = rows["how"].map(lambda text: text.format(**spec["assumed"]))
    return rows.assign(how=how).join(values.reset_index(drop=True))
