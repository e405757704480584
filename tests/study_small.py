"""A small network in place of published ones: programs that compile at once, priced as any."""

from functools import cache

import pandas as pd

from ipusim.compiler.program_cache import keep_programs
from ipusim.study.cached import PooledPredictor, Prediction, Request
from ipusim.study.data.published import PublishedRow, rows_by_id
from ipusim.study.verdicts.compare import RUN_COLUMNS, verdicts
from ipusim.workload.graph import Graph
from ipusim.workload.model import Model
from ipusim.workload.zoo.registry import GraphBuilder

VERDICT_COLUMNS = (
    *("row_id", "study", "table", "family", "system", "stack", "mode", "kind", "metric", "unit"),
    *("published", "roofline", "specification", "calibrated", "low80", "high80"),
    *("verdict", "status", "note", "parts"),
    *RUN_COLUMNS,
)
"""What `verdicts` promise to say of a row, in this order."""
KEPT = (
    *("system", "stack", "framework", "mode", "micro_batch", "replicas", "tier", "costs"),
    *("batches_in_flight", "device_iterations", "gradient_accumulation", "batch_norm_span"),
    "adopted",
)
"""Options that mean the same for the small network, on one chip a replica."""


def _build(batch: int | None) -> Graph:
    g = GraphBuilder("small")
    x = g.linear("first", g.input("x", (batch or 1, 8, 64)), 128)
    return g.finish(g.linear("last", g.batch_norm("norm", x), 10))


SMALL = Model(name="small", family="small", build=_build, loss="cross_entropy")
ANSWERS: dict = {}
"""What all tests of a process share."""


class SmallPredictor(PooledPredictor):
    """Predicts the small network whatever is asked for, and keeps what was asked."""

    def __init__(self) -> None:
        super().__init__()
        self._known = ANSWERS
        self.asked: list[Request] = []

    def prepare(self, requests: object) -> None:
        """Make nothing in advance."""

    def answer(self, request: Request) -> Prediction:
        """Return what the small network comes to with the same options."""
        self.asked.append(request)
        options = {name: value for name, value in request.options.items() if name in KEPT}
        with keep_programs(False):  # under the name of a model of its own, nothing is
            return super().answer(Request(entry=request.entry, model=SMALL, options=options))


@cache
def small_verdicts(*, sourced: bool = False) -> pd.DataFrame:
    """Compare all published rows with the small network."""
    return verdicts(predictor=SmallPredictor(), sourced=sourced)


def load_row(row_id: str) -> PublishedRow:
    """Return one published row."""
    return rows_by_id()[row_id]
