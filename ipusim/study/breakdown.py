"""Breakdowns of any report: its layers added up under names of one's own, and its phases."""

from collections.abc import Mapping, Sequence

import pandas as pd

from ipusim.report import Report

PHASES = ("compute", "copy", "exchange", "sync")
"""Phases of a superstep, as `by_group` orders them."""


def by_group(layers: pd.DataFrame, groups: Sequence[str]) -> pd.DataFrame:
    """Add up `report.layers` by the group of each; utilisation is of the conv units' peak."""
    us_per_cycle = layers["time_us"].sum() / max(1, layers["cycles"].sum())
    # work / utilisation is what the chip could have done in the same cycles
    useful = layers["utilisation_percent"] / 100.0 * layers["cycles"]
    cycles = [f"{phase}_cycles" for phase in PHASES]
    named = layers.assign(group=groups, useful=useful).groupby("group", sort=False)
    summed = named[["cycles", "useful", "macs", "time_us", *cycles]].sum().reset_index()
    phases = {f"{phase}_us": us_per_cycle * summed[f"{phase}_cycles"] for phase in PHASES}
    return pd.DataFrame(
        {
            "group": summed["group"],
            **phases,
            "time_us": summed["time_us"],
            "macs": summed["macs"],
            "utilisation_percent": 100.0 * summed["useful"] / summed["cycles"],
            "share_percent": 100.0 * summed["time_us"] / summed["time_us"].sum(),
        }
    )


def phase_shares(reports: Mapping[str, Report]) -> pd.DataFrame:
    """Return how the cycles of a micro-batch divide into phases, in percent, by label."""
    lines = []
    for label, report in reports.items():
        phases = report.result.program.phase_cycles()
        total = report.cycles_per_step
        shares = {f"{name}_percent": 100 * phases[name] / total for name in PHASES}
        lines.append({"label": label, "supersteps": report.supersteps, "cycles": total, **shares})
    return pd.DataFrame(lines)
