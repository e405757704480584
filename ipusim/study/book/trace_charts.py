"""Bulk-synchronous execution as PopVision shows it, from simulated traces."""

import pandas as pd

from ipusim.report import Report
from ipusim.report.page import phase_slices


def execution_trace(report: Report, *, bins: int = 80) -> dict[str, pd.DataFrame]:
    """Return the passes of a training micro-batch, and what tiles do in slices of its time.

    The weight update that follows is a program of its own and left out.
    """
    layers = report.layers.head(len(report.result.program.ops))
    cycles = layers["cycles"]
    start = 1e6 * (cycles.cumsum() - cycles) / report.config.system.chip.clock_hz
    said = {"items": report.config.items, "chip": report.chip}
    backward = (layers["phase"] != "forward").astype(int)
    passes = layers.assign(backward=backward, start_us=start, **said)
    return {"passes": passes[cycles > 0], "slices": phase_slices(report.trace, bins)}
