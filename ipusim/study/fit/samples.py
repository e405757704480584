"""What the constants are fitted on: published steps beside what the predicted ones consist of."""

from collections.abc import Iterable
from dataclasses import dataclass

from ipusim.runtime.options.frameworks import DEFAULT_FRAMEWORK
from ipusim.runtime.terms import Line
from ipusim.study.cached import PooledPredictor
from ipusim.study.data.published import PublishedRow
from ipusim.study.predict import request_for


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One published throughput beside the step that is predicted for it."""

    row_id: str
    family: str
    stack: str
    framework: str
    series: str  # empty for a row of none
    ipus: int
    items: int  # of all chips per step
    line: Line  # how the predicted step depends on the fitted costs
    published_s: float  # of the step that the published throughput implies


def samples_of(rows: Iterable[PublishedRow], predictor: PooledPredictor) -> tuple[Sample, ...]:
    """Return a sample of each throughput row, in the same order; a StudyError if one has none."""
    asked = [(row, request_for(row.run, "specification")) for row in rows]
    predictor.prepare(request for _, request in asked)
    return tuple(
        Sample(
            row_id=row.row_id,
            family=row.family,
            stack=row.stack,
            framework=row.run.framework or DEFAULT_FRAMEWORK,
            series=row.run.series,
            ipus=row.run.chips,
            items=row.run.items_per_step,
            line=predictor.answer(request).line,
            published_s=row.run.step_s_at(row.value),
        )
        for row, request in asked
    )
