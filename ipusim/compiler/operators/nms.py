"""Supersteps of non-maximum suppression on the chip, one loop over the boxes that are kept.

Which steps the loop has follows the operator that Graphcore's detectors share (graphcore/examples
v3.3.0, vision/efficientdet/tensorflow2/NMS/nms.cpp): boxes are spread linearly over the tiles; the
search for the best score is popnn::maxAndArgMax (`argmax`); the box that belongs to it is brought
to one place by a sum over all tiles, of which all but one hold zeros. Its own vertices are compiled
C++ without an estimate: their instructions are counted from codelet.cpp [inferred].
"""

from ipusim.compiler.emitter import Emitter, Placed, TensorLayout
from ipusim.compiler.operators.reduce import argmax
from ipusim.compiler.state import Lowering, lowers
from ipusim.compiler.tiles import ceil_div, element_bytes
from ipusim.workload.graph import NonMaxSuppression

CORNERS = 4
INDEX_BYTES = 4

BOX_INSTRUCTIONS = 45
"""Of the inner loop for a box of the same class: 13 for score, class and loop, 32 for the overlap
[inferred from codelet.cpp, NmsVertex<half, int>]."""

GATHER_INSTRUCTIONS, MARK_INSTRUCTIONS, ANSWER_INSTRUCTIONS = 30, 15, 40
CONDITION_INSTRUCTIONS, VERTEX_INSTRUCTIONS = 20, 20
"""Of the vertices that look at one index, of the test that ends the loop, and of any vertex before
its loop [inferred from codelet.cpp]."""


@lowers(NonMaxSuppression)
def non_max_suppression(
    m: Lowering, op: NonMaxSuppression, scores: Placed, *_: Placed
) -> TensorLayout:
    """Lower non-maximum suppression: arrange, then loop over the detections."""
    per_box = (1 + CORNERS) * element_bytes(scores.dtype) + INDEX_BYTES
    m.copy("spread boxes", received=per_box * ceil_div(op.batch * op.boxes, m.chip.tiles))
    m.fill(Placed((op.batch * op.detections,), scores.dtype))
    with m.loop(op.detections, tiles=m.chip.tiles):
        suppression_round(m, op, scores.dtype)
    return TensorLayout(grouping=1)


def suppression_round(m: Emitter, op: NonMaxSuppression, dtype: str) -> None:
    """Find one box of each image and drop what overlaps it.

    Every box is charged as if it were of the best one's class.
    """
    batch, size = op.batch, element_bytes(dtype)
    workers, tiles = m.chip.workers, m.chip.tiles
    found = batch * (CORNERS * size + INDEX_BYTES)

    def vertex(name: str, kind: str, instructions: int, received: int) -> None:
        # One worker of a tile has work; the others leave their turns unused.
        m.emit(name, kind, workers * (VERTEX_INSTRUCTIONS + instructions), exchange=received)

    overlap = ceil_div(ceil_div(batch * op.boxes, tiles), workers) * BOX_INSTRUCTIONS
    argmax(m, Placed((batch, op.boxes), dtype))
    m.cast(Placed((batch,), "float32"), dtype)
    m.copy("best scores", batch * size)
    m.copy("clear candidates", found)
    vertex("take the best box", "GatherVertex", GATHER_INSTRUCTIONS, INDEX_BYTES)
    m.reduce("add", Placed((tiles, batch * CORNERS), dtype), 0)
    m.reduce("add", Placed((tiles, batch), "float32"), 0)
    m.copy("best box", found)
    vertex("mark the best", "UpdateBestVertex", MARK_INSTRUCTIONS, INDEX_BYTES)
    vertex("keep the best", "UpdateAnswerVertex", ANSWER_INSTRUCTIONS, found)
    vertex("drop overlapping", "NmsVertex", overlap, found // batch)
    vertex("count", "popops::BinaryOp1DInPlace", VERTEX_INSTRUCTIONS, 0)
    vertex("go on", "ConditionVertex", CONDITION_INSTRUCTIONS, batch * size)
