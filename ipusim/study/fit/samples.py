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

    row: PublishedRow
    line: Line  # how the predicted step depends on the fitted costs

    @property
    def framework(self) -> str:
        """Framework of the run, the default where its recipe names none."""
        return self.row.run.framework or DEFAULT_FRAMEWORK

    @property
    def published_s(self) -> float:
        """Seconds per step of the whole system that the published throughput implies."""
        run = self.row.run
        return run.items_per_step * run.reported_per_item / self.row.value


def samples_of(rows: Iterable[PublishedRow], predictor: PooledPredictor) -> tuple[Sample, ...]:
    """Return a sample of each throughput row, in the same order; a StudyError if one has none."""
    asked = [(row, request_for(row.run, "specification")) for row in rows]
    predictor.prepare(request for _, request in asked)
    return tuple(Sample(row=row, line=predictor.answer(request).line) for row, request in asked)
