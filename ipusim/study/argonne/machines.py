"""The chip and pod tables of the Argonne slides, derived from the machine model; the Good computer.

Nothing here is typed: every number follows from data/hardware, by the expressions of
``data/runs/argonne_machines.toml``, and stands beside the slide's.
"""

import math

import pandas as pd

from ipusim import files
from ipusim.files import read_records, read_tables
from ipusim.machine import load_system
from ipusim.machine.system import System
from ipusim.study.verdicts.errors import error_percent, verdict_of
from ipusim.view import values, view

CHIP_SYSTEM = "Bow-2000"
GOOD = "Good computer"
GOOD_FILE = "runs/good_computer.toml"
MACHINES_FILE = "runs/argonne_machines.toml"


def facts(system: System) -> pd.DataFrame:
    """Return in a line what a system comes to: numbers of parts, FLOP/s in half, bytes, bytes/s.

    ``link`` is one IPU-Link in one direction, ``fabric`` all links that leave one machine, in both;
    all else is in all.
    """
    # Of the ladder's chips the upper pair has its rails upwards free, the lower pair its rails
    # downwards; GW-Links come on top.
    rails = 4 * system.rail_links * system.ipu_link.bytes_per_s
    gateways = system.gw_links_per_machine * system.gw_link.bytes_per_s
    chip, least, most = system.chip, system.host_servers, system.host_servers_max
    known = {
        "ipus": system.ipus,
        "machines": system.machines,
        "servers": f"{least}" if least == most else f"{least}-{most}",
        "tiles": chip.tiles,
        "workers": chip.workers,
        "links": chip.ipu_links,
        "link": system.ipu_link.bytes_per_s,
        "fabric": 2 * (rails + gateways),
        "flops": system.ipus * chip.peak_flops_per_s(),
        "sram": system.ipus * chip.sram_bytes,
        "sram_bandwidth": system.ipus * chip.sram_bytes_per_s,
        "memory": system.machines * system.streaming_memory_bytes_per_machine,
        "bandwidth": system.ipus * system.buffer_link_bytes_per_s_per_ipu,
    }
    return pd.DataFrame([known])


def _published() -> list[dict[str, str]]:
    """Return the slides' hardware numbers as they stand in the file."""
    return read_records(files.data_dir() / "published" / "argonne_hardware.csv")


def machine_frame() -> pd.DataFrame:
    """Compare every number of the slides on chip, machine and pods with the machine model."""
    spec, lines = read_tables(MACHINES_FILE), []
    for record in _published():
        component, attribute = record["component"], record["attribute"]
        if component == GOOD:
            continue
        chip = component == "Bow IPU"
        expression = spec["chip" if chip else "machine"].get(attribute)
        known = facts(load_system(CHIP_SYSTEM if chip else component))
        value = next(iter(values(known, expression))) if expression else ""
        number = pd.to_numeric(record["value"], errors="coerce")
        compared = not isinstance(value, str) and not pd.isna(number)
        notes = (record["qualifier"], spec["notes"].get(attribute, ""))
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
    said = view(pd.DataFrame([announced]), {"with": spec["announced"]})
    both = pd.concat([said, facts(system)]).assign(**spec["assumed"]).ffill()
    both.index = ["announced", "modelled"]
    rows = pd.DataFrame(spec["quantity"])
    found = pd.DataFrame(values(both, value) for value in rows.pop("value"))
    how = rows["how"].map(lambda text: text.format(**spec["assumed"]))
    return rows.assign(how=how).join(found.reset_index(drop=True))
