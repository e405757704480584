"""Bulk-synchronous execution as pictures, drawn from simulated traces."""

import itertools

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ipusim.look import sheet
from ipusim.report import Report
from ipusim.report.page import BESIDE, draw_phases
from ipusim.study.book.drawing import name_places


def execution_trace(report: Report, *, title: str, bins: int = 80) -> Figure:
    """Draw a training micro-batch as PopVision does: passes, and what tiles do over time.

    The weight update that follows is a program of its own and not drawn.
    """
    passes = _passes(report)
    kinds = dict(zip(dict.fromkeys(passes["kind"]), itertools.cycle(_KINDS), strict=False))
    options = {"down": 2, "legend": 0, "sharex": True, "height_ratios": (2, 3)}
    with sheet(9.6, 4.6, **options) as (figure, (upper, lower)):
        for line in passes.itertuples():
            look = {"color": kinds[line.kind], "edgecolor": "white", "linewidth": 0.5}
            span = {"left": line.start_us, "height": 0.75}
            upper.barh(_PASSES.index(line.phase), line.time_us, **span, **look)
        name_places(upper, _PASSES, vertical=True)
        upper.set_title(title)
        marks = [Patch(color=colour, label=kind) for kind, colour in kinds.items()]
        upper.legend(handles=marks, **BESIDE)
        draw_phases(lower, report.trace, bins)
    return figure


_KINDS = ("#0B3C5D", "#D55E00", "#009E73", "#56B4E9", "#CC79A7", "#7A5C00", "#9ADBC5", "#B8BEC6")
"""Colours of kinds of operations: none of them that of a phase."""
_PASSES = ("forward", "backward")


def _passes(report: Report) -> pd.DataFrame:
    """Return the layers of the micro-batch that take time, with their pass and start."""
    layers = report.layers.head(len(report.result.program.ops))
    cycles = layers["cycles"]
    start = 1e6 * (cycles.cumsum() - cycles) / report.config.system.chip.clock_hz
    phase = layers["phase"].where(layers["phase"].isin(_PASSES), "backward")
    return layers.assign(phase=phase, start_us=start)[cycles > 0]
