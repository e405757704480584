"""A predictor with known arithmetic, so that the study logic can be tested by itself."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ipusim.runtime.calibration import FittedCosts
from ipusim.runtime.terms import Line
from ipusim.study.cached import Prediction, Request
from ipusim.study.data.published import PublishedRow, rows_by_id
from ipusim.study.verdicts.compare import RUN_COLUMNS

VERDICT_COLUMNS = (
    *("row_id", "study", "table", "family", "system", "stack", "mode", "kind", "metric", "unit"),
    *("published", "roofline", "specification", "calibrated", "low80", "high80"),
    *("verdict", "status", "note", "parts"),
    *RUN_COLUMNS,
)
"""What `verdicts` promise to say of a row, in this order."""
DEVICE_S_PER_ITEM = {"resnet50": 4e-4, "resnext101_32x4d": 6e-4, "resnext101_32x8d": 1.2e-3}
OTHER_DEVICE_S_PER_ITEM = 1e-3
REDUCTIONS = 143
IPUS_PER_MACHINE = 4
DEVICE_S_FIXED = 2e-4
POWER_W = 250.0
POWER_PARTS_W = {"static": 110.0, "amp": 10.0, "sram": 20.0, "exchange": 3.0}
CALIBRATED_BY_DEFAULT_S = 1e-4
EXCHANGES, CLOCK_HZ = 500, 1.33e9


@dataclass
class FakePredictor:
    """step = fixed + per item x micro-batch (+ step cost when calibrated); roofline is half.

    A training step is that for every accumulated micro-batch, plus the two latencies of scale-out.
    """

    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def device_s(self, model: str, micro_batch: int) -> float:
        per_item = DEVICE_S_PER_ITEM.get(model, OTHER_DEVICE_S_PER_ITEM)
        return DEVICE_S_FIXED + per_item * micro_batch

    def rates(self, step_s: float, options: dict[str, Any]) -> dict[str, float]:
        items = options["micro_batch"] * options.get("gradient_accumulation", 1)
        return {
            "latency": options.get("batches_in_flight", 1) * step_s,
            "throughput": options["replicas"] * items / step_s,
        }

    def line(self, model: str, options: dict[str, Any]) -> Line:
        training = options.get("mode") == "training"
        accumulation = options.get("gradient_accumulation", 1)
        machines = options["replicas"] / IPUS_PER_MACHINE
        device_s = accumulation * self.device_s(model, options["micro_batch"])
        shared = training and options.get("batch_norm_span", 1) > 1
        return Line(
            base_s=device_s,
            floor_s=0.0,
            exchanges=EXCHANGES,
            reductions=accumulation * REDUCTIONS * shared,
            collectives=machines * (training and machines > 1),
            clock_hz=CLOCK_HZ,
        )

    def prepare(self, requests: Iterable[Request]) -> None:
        """Make nothing in advance."""

    def simulate(self, model: str, **options: Any) -> Prediction:
        return self.answer(Request(entry="simulate", model=model, options=options))

    def answer(self, request: Request) -> Prediction:
        options = request.options
        self.calls.append((request.model, dict(options)))
        if request.entry == "roofline":
            accumulation = options.get("gradient_accumulation", 1)
            step_s = accumulation * self.device_s(request.model, options["micro_batch"]) / 2
            return Prediction(**self.rates(step_s, options))
        costs = options.get("costs") or FittedCosts(step_s=CALIBRATED_BY_DEFAULT_S)
        if options.get("tier", "calibrated") == "specification":
            costs = FittedCosts()
        line = self.line(request.model, options)
        return Prediction(
            **self.rates(line.step_s(costs), options),
            power=POWER_W,
            power_parts_w=POWER_PARTS_W,
            compile_s=400.0,
            parts_s={"chip: compute": 1e-4},
            program_s=1e-4,
            line=line,
        )


def load_row(row_id: str) -> PublishedRow:
    """Return one published row."""
    return rows_by_id()[row_id]
