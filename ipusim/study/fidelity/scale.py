"""A training step from one chip to 65,536: time, all-reduce, power, and what is assumed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from ipusim.api import simulate
from ipusim.machine import System, load_system
from ipusim.study.book.charts import OKABE_ITO, figure_style

DOUBLINGS = tuple(2**power for power in range(17))
ASSUMPTIONS = (
    "Above the {sold} IPUs of {system} more of its machines are joined by the same GW-Links, in "
    "one ring of machines; no such system exists.",
    "The fitted latency of an all-reduce grows with the machines that take part; it was fitted on "
    "up to 256 IPUs.",
    "There are as many host servers for each machine as the system is sold with at the most.",
    "Micro-batch and accumulation stay, so the global batch grows with the IPUs.",
    "Power is that of the IPU machines, without hosts, switches and cooling.",
)


def scale_table(
    model: str = "resnet50",
    *,
    system: str = "Bow Pod256",
    ipus: Iterable[int] = DOUBLINGS,
    **options: Any,
) -> pd.DataFrame:
    """Predict a training step on ever more chips, far beyond the systems that exist.

    Parameters
    ----------
    model : str
        A zoo name.
    system : str
        The system whose machines are multiplied.
    ipus : iterable of int
        Numbers of chips, each a whole number of replicas.
    **options
        Options of `ipusim.simulate` for training; by default micro_batch = 20 items,
        gradient_accumulation = 8, recompute = "auto" and gradients merged into 64 MiB.

    Returns
    -------
    pandas.DataFrame
        Per number of chips: ipus, exists (whether the system holds them), step_ms, all_reduce_ms,
        all_reduce_percent of the step, throughput_items_per_s, efficiency_percent (throughput per
        chip over that of the first row), power_kw. ``attrs["assumptions"]`` says what it rests on.

    Raises
    ------
    IpuSimError
        As `ipusim.simulate`.
    """
    sold = load_system(system)
    given = {
        "mode": "training",
        "micro_batch": 20,
        "gradient_accumulation": 8,
        "recompute": "auto",
        "merge_gradients_bytes": 1 << 26,
    } | options
    lines = []
    for count in ipus:
        replicas = count // given.get("ipus_per_replica", 1)
        report = simulate(model, system=_of_size(sold, count), replicas=replicas, **given)
        step = report.result.step_s
        reduce_s = report.result.parts_s.get("gradient all-reduce", 0.0)
        lines.append(
            {
                "ipus": count,
                "exists": count <= sold.ipus,
                "step_ms": 1e3 * step,
                "all_reduce_ms": 1e3 * reduce_s,
                "all_reduce_percent": 100.0 * reduce_s / step,
                "throughput_items_per_s": report.throughput.value,
                "power_kw": report.power.value / 1e3,
            }
        )
    frame = pd.DataFrame(lines)
    each = frame["throughput_items_per_s"] / frame["ipus"]
    frame.insert(6, "efficiency_percent", 100.0 * each / each.iloc[0])
    frame.attrs["assumptions"] = [
        text.format(system=sold.name, sold=sold.ipus) for text in ASSUMPTIONS
    ]
    return frame


def _of_size(sold: System, ipus: int) -> System:
    """Return a system with so many of the machines and, at the most, host servers of another."""
    size = max(ipus, sold.ipus_per_machine)
    servers = max(1, sold.host_servers_max * size // sold.ipus)
    return replace(sold, ipus=size, host_servers=servers, host_servers_max=servers)


def scale_figure(frame: pd.DataFrame) -> Figure:
    """Draw time per step, share of the all-reduce and power over the number of chips.

    Parameters
    ----------
    frame : pandas.DataFrame
        From `scale_table`.
    """
    panels = (
        ("step_ms", "time per step [ms]", "log"),
        ("all_reduce_percent", "all-reduce [% of the step]", "linear"),
        ("power_kw", "power [kW]", "log"),
    )
    with figure_style():
        figure = Figure(figsize=(10.0, 3.4), layout="constrained")
        axes = figure.subplots(1, len(panels))
        for axis, (column, label, scale) in zip(axes, panels, strict=True):
            axis.plot(frame["ipus"], frame[column], "o-", color=OKABE_ITO["blue"], markersize=3)
            beyond = frame.loc[~frame["exists"], "ipus"]
            if not beyond.empty:
                axis.axvspan(beyond.min(), frame["ipus"].max(), color="0.9", label="no such system")
            axis.set(xscale="log", yscale=scale, xlabel="IPUs", ylabel=label)
        if not frame["exists"].all():
            axes[0].legend()
    return figure
