"""Non-maximum suppression: detectors drop boxes that overlap a better one."""

from dataclasses import dataclass
from typing import ClassVar

from ipusim.workload.operators.base import Attributes, Op, Positive, Sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class NonMaxSuppression(Attributes):
    """Greedy non-maximum suppression of ``boxes`` boxes in each of ``batch`` images.

    As often as ``detections`` says the best box is taken, and those of its class that overlap it
    are dropped. Inputs are (scores (batch, boxes), classes (batch, boxes), corners (batch, boxes,
    4)), outputs (corners (batch, detections, 4), scores and classes (batch, detections)).
    """

    KIND: ClassVar[str] = "nms"

    batch: Positive
    boxes: Positive
    detections: Positive

    def sizes(self, op: Op) -> Sizes:
        """Elements of scores, classes and corners, then of corners, scores and classes kept."""
        boxes, kept = self.batch * self.boxes, self.batch * self.detections
        elements = (boxes, boxes, 4 * boxes, 4 * kept, kept, kept)
        return tuple(zip((*op.inputs, *op.outputs), elements, strict=True))
