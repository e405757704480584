"""The chip and pod tables of the Argonne slides, derived from the machine model; the Good computer.

Nothing here is typed: every number follows from data/hardware, and stands beside the slide's.
"""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from ipusim import files
from ipusim.files import read_records
from ipusim.machine import load_system
from ipusim.machine.system import System
from ipusim.study.table import Table
from ipusim.study.verdicts.compare import error_percent, verdict_of

CHIP_SYSTEM = "Bow-2000"
GOOD = "Good computer"
USEFUL_SHARE = 0.2
"""Share of the peak that the best published training runs of large models reach on these chips
(BERT-Large pre-training on the results page, by 6 FLOPs per weight and token)."""
TRAINING_BYTES = {"weights in half": 2, "gradients in half": 2, "two moments in half": 4}
"""Bytes per parameter of training in half precision with Adam."""
TOKENS_PER_PARAMETER = 20
"""Hoffmann et al. 2022, arXiv:2203.15556: tokens per parameter of a compute-optimal training."""

_TERA, _PETA, _EXA = 1e12, 1e15, 1e18
_BIT = 8


def _link_bytes_per_s(system: System) -> float:
    """Return the bandwidth of all IPU-Links of a chip, both directions."""
    return 2 * system.chip.ipu_links * system.ipu_link.bytes_per_s


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
    "IPU-Link bandwidth (all links)": lambda s: _link_bytes_per_s(s) / 1e9,
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
    """Compare every number of the slides on chip, machine and pods with the machine model.

    Returns
    -------
    pandas.DataFrame
        Per number: row_id, component, attribute, unit, published (as printed), derived (text, three
        significant digits), error_percent and verdict (empty where it is not a number), note.

    Raises
    ------
    DataError
        If a data file is damaged.
    """
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
            {
                "row_id": record["row_id"],
                "component": component,
                "attribute": attribute,
                "unit": record["unit"],
                "published": record["value"],
                "derived": value if isinstance(value, str) else f"{value:,.4g}",
                "error_percent": error_percent(value, number) if compared else float("nan"),
                "verdict": verdict_of(value, number) if compared else "",
                "note": "; ".join(filter(None, notes)),
            }
        )
    return pd.DataFrame(lines)


def machine_table(frame: pd.DataFrame) -> Table:
    """Show `machine_frame`."""
    return Table(
        frame,
        caption="Chip, machine and pods: the slides, and what the machine model derives",
        columns={
            "component": "component",
            "attribute": "attribute",
            "published": "slide",
            "derived": "derived",
            "unit": "unit",
            "error_percent": "error %",
            "verdict": "verdict",
            "note": "note",
        },
    )


def good_computer_frame() -> pd.DataFrame:
    """Work out what the announcement of the Good computer means, with Bow chips in its place.

    Returns
    -------
    pandas.DataFrame
        Per quantity: quantity, announced (or what follows from the announcement alone), modelled
        (8,192 Bow IPUs), unit, and how it is computed.
    """
    system = load_system(GOOD)
    announced = {
        record["attribute"]: float(record["value"])
        for record in _published()
        if record["component"] == GOOD
    }
    parameters = announced["model size"] * 1e12
    memory = system.machines * system.streaming_memory_bytes_per_machine
    bow = system.ipus * system.chip.peak_flops_per_s()
    sram = system.ipus * system.chip.sram_bytes
    off_chip = system.ipus * system.buffer_link_bytes_per_s_per_ipu
    state = sum(TRAINING_BYTES.values())
    day = 86_400.0
    per_token = 6 * parameters
    whole = per_token * TOKENS_PER_PARAMETER * parameters

    def row(quantity: str, given: float, ours: float, unit: str, how: str) -> dict[str, object]:
        return {
            "quantity": quantity,
            "announced": given,
            "modelled": ours,
            "unit": unit,
            "how": how,
        }

    none = float("nan")
    flops, bandwidth = announced["AI compute"] * _EXA, announced["memory bandwidth"] * _PETA
    stream = state * parameters
    useful = USEFUL_SHARE
    return pd.DataFrame(
        [
            row("peak", flops / _EXA, bow / _EXA, "exaFLOP/s", "half precision, all chips"),
            row(
                "peak of a chip",
                flops / system.ipus / _TERA,
                system.chip.peak_flops_per_s() / _TERA,
                "teraFLOP/s",
                "over 8,192",
            ),
            row("memory beside the chips", announced["memory"], memory / _PETA, "PB", "up to"),
            row("memory on the chips", none, sram / _TERA, "TB", "SRAM of 8,192 Bow"),
            row(
                "bandwidth of the memory beside the chips",
                bandwidth / _PETA,
                off_chip / _PETA,
                "PB/s",
                "Bow: each chip's link to its machine's buffer",
            ),
            row(
                "bandwidth of the memory on the chips",
                none,
                system.ipus * system.chip.sram_bytes_per_s / _PETA,
                "PB/s",
                "the announced 10 PB/s cannot be this: it is 50 times less",
            ),
            row(
                "memory per parameter",
                memory / parameters,
                memory / parameters,
                "B",
                "of 500 trillion; " + " + ".join(f"{n} ({b} B)" for n, b in TRAINING_BYTES.items()),
            ),
            row(
                "share of the model on the chips",
                none,
                100 * sram / stream,
                "%",
                f"SRAM over {state} B per parameter: all must stream, every step",
            ),
            row(
                "shortest step of a dense model",
                2 * stream / bandwidth,
                2 * stream / off_chip,
                "s",
                "every byte of weights, gradients and moments read and written once",
            ),
            row(
                "tokens per second, dense model",
                useful * flops / per_token,
                useful * bow / per_token,
                "tokens/s",
                f"6 FLOPs per parameter and token at {useful:.0%} of the peak",
            ),
            row(
                "a compute-optimal training, dense model",
                whole / (useful * flops) / day / 365,
                whole / (useful * bow) / day / 365,
                "years",
                f"{TOKENS_PER_PARAMETER} tokens per parameter, at {useful:.0%} of the peak",
            ),
            row(
                "the same with 1 parameter in 1,000 active per token",
                whole / (useful * flops) / day / 365 / 1000,
                whole / (useful * bow) / day / 365 / 1000,
                "years",
                "sparse models are the only ones of that size that can be trained",
            ),
        ]
    )


def good_computer_table(frame: pd.DataFrame) -> Table:
    """Show `good_computer_frame`."""
    return Table(
        frame,
        caption="The Good computer: announced, and with 8,192 Bow IPUs in place of roadmap ones",
        columns={
            "quantity": "quantity",
            "announced": "announced",
            "modelled": "with Bow",
            "unit": "unit",
            "how": "how",
        },
        digits=3,
    )
