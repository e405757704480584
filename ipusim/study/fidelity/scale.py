"""A training step from one chip to 65,536: time, all-reduce, power, and what is assumed."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pandas as pd

from ipusim.api import simulate
from ipusim.machine import load_system
from ipusim.study.specs import load_spec

REDUCED = "gradient all-reduce"
DOUBLINGS = tuple(2**power for power in range(17))


def scale_table(
    model: str = "resnet50",
    *,
    system: str = "Bow Pod256",
    ipus: Iterable[int] = DOUBLINGS,
    **options: Any,
) -> pd.DataFrame:
    """Predict a training step on ever more chips, far beyond the systems that exist.

    `system` is the one whose machines are multiplied; each number of chips is a whole number of
    replicas. Options are those of `ipusim.simulate`, by default as data/studies/fidelity.toml has
    them.

    Per number of chips: ipus, exists (whether the system holds them), step_ms, all_reduce_ms,
    all_reduce_percent of the step, throughput_items_per_s, efficiency_percent (throughput per chip
    over that of the first row), power_kw. ``attrs["assumptions"]`` says what it rests on.
    """
    sold = load_system(system)
    told = load_spec("fidelity")["scale"]
    given, lines = told["options"] | options, []
    for count in ipus:
        replicas = count // given.get("ipus_per_replica", 1)
        # as many of the machines, and host servers as another has at the most
        size = max(count, sold.ipus_per_machine)
        servers = max(1, sold.host_servers_max * size // sold.ipus)
        larger = replace(sold, ipus=size, host_servers=servers, host_servers_max=servers)
        report = simulate(model, system=larger, replicas=replicas, **given)
        step_s, reduce_s = report.result.step_s, report.result.parts_s.get(REDUCED, 0.0)
        rates = (report.throughput.value, report.power.value / 1e3)
        lines.append((count, 1e3 * step_s, 1e3 * reduce_s, *rates))
    names = ["ipus", "step_ms", "all_reduce_ms", "throughput_items_per_s", "power_kw"]
    frame = pd.DataFrame(lines, columns=names)
    frame.insert(1, "exists", frame["ipus"] <= sold.ipus)
    frame.insert(4, "all_reduce_percent", 100.0 * frame["all_reduce_ms"] / frame["step_ms"])
    each = frame["throughput_items_per_s"] / frame["ipus"]
    frame.insert(6, "efficiency_percent", 100.0 * each / each.iloc[0])
    words = {"system": sold.name, "sold": sold.ipus}
    frame.attrs["assumptions"] = [text.format(**words) for text in told["assumptions"]]
    return frame
