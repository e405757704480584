"""Programs of compiled networks: counted in public profiles, and lowered here.

Poplar's profile lists the programs of a network (`data/evidence/ipu_network_programs.csv`). A
superstep with an exchange is three of them, exchange, sync and execution; one without is the
execution alone. The body of a loop counts once, as it does in a profile.
"""

from collections import Counter
from dataclasses import replace

import pandas as pd

from ipusim.compiler.lower import lower
from ipusim.compiler.program import Superstep
from ipusim.compiler.stacks import load_stack
from ipusim.files import evidence_records
from ipusim.machine import load_chip
from ipusim.study.evidence.memory import CHIP, PROFILED_STACK
from ipusim.study.evidence.networks import PROFILED

WITH_EXCHANGE = 3
"""Exchange, sync, execution."""


def programs_of(step: Superstep) -> int:
    """Return as how many programs a profile lists a superstep."""
    return WITH_EXCHANGE if step.exchanges else 1


def lowered_programs(network: str) -> Counter[str]:
    """Count the programs of a network of `PROFILED` by phase."""
    profiled, counts = PROFILED[network], Counter[str]()
    graphs, chip, stack = profiled.build(), load_chip(CHIP), load_stack(PROFILED_STACK)
    proportion = profiled.memory_proportion or stack.available_memory_proportion
    stack = replace(stack, partials=profiled.partials, available_memory_proportion=proportion)
    for graph in filter(None, (graphs.micro_batch, graphs.update)):
        program = lower(graph, chip, stack, host_dtype=None)
        for op, lowered in zip(graph.ops, program.ops, strict=True):
            counts[op.phase] += sum(map(programs_of, lowered.steps))
    return counts


def programs_table() -> pd.DataFrame:
    """Set the lowered programs beside the counted ones, with their ratio in percent."""
    frame = pd.DataFrame(evidence_records("ipu_network_programs.csv"))
    lowered = {network: lowered_programs(network) for network in dict.fromkeys(frame["network"])}
    for phases in lowered.values():
        phases["whole"] = phases.total()
    places = zip(frame["network"], frame["part"], strict=True)
    counted = frame["programs"].astype(int)
    found = pd.Series([lowered[network][part] for network, part in places])
    return frame.assign(programs=counted, lowered=found, lowered_percent=100.0 * found / counted)
