"""Supersteps of non-maximum suppression on the chip, one loop over the boxes that are kept.

Which steps the loop has follows the operator that Graphcore's detectors share (graphcore/examples
v3.3.0, vision/efficientdet/tensorflow2/NMS/nms.cpp): boxes are spread linearly over the tiles; the
search for the best score is popnn::maxAndArgMax (`argmax`); the box that belongs to it is brought
to one place by a sum over all tiles, of which all but one hold zeros. Its own vertices are compiled
C++ without an estimate: their instructions are counted from codelet.cpp [inferred].
"""

from __future__ import annotations

from dataclasses import replace

from ipusim.compiler.operators.argmax import argmax_steps
from ipusim.compiler.operators.layout import cast_steps, fill_steps
from ipusim.compiler.operators.reduce import reduce_steps
from ipusim.compiler.program import LoweredOp, Step
from ipusim.compiler.state import LoweringState, TensorLayout
from ipusim.compiler.superstep import ChipLike, Era, Superstep, ceil_div, element_bytes
from ipusim.workload.graph import Op
from ipusim.workload.operators import NonMaxSuppression

CORNERS = 4
INDEX_BYTES = 4

BOX_INSTRUCTIONS = 45
"""Of the inner loop for a box of the same class: 13 for score, class and loop, 32 for the overlap
[inferred from codelet.cpp, NmsVertex<half, int>]."""

GATHER_INSTRUCTIONS, MARK_INSTRUCTIONS, ANSWER_INSTRUCTIONS = 30, 15, 40
CONDITION_INSTRUCTIONS, VERTEX_INSTRUCTIONS = 20, 20
"""Of the vertices that look at one index, of the test that ends the loop, and of any vertex before
its loop [inferred from codelet.cpp]."""


def suppression_loop(
    params: NonMaxSuppression, dtype: str, chip: ChipLike, *, era: str | Era
) -> list[Superstep]:
    """Return the supersteps that find one box of each image and drop what overlaps it.

    Parameters
    ----------
    params : NonMaxSuppression
    dtype : str
        Of scores and corners.
    chip : Chip
    era : str or Era
        Generation of poplibs.

    Returns
    -------
    list of Superstep
        Every box is charged as if it were of the best one's class.
    """
    batch, size = params.batch, element_bytes(dtype)
    workers = chip.workers
    on_tile = ceil_div(batch * params.boxes, chip.tiles)
    found = batch * (CORNERS * size + INDEX_BYTES)

    def vertex(name: str, kind: str, instructions: int, received: int) -> Superstep:
        # One worker of a tile has work; the others leave their turns unused.
        cycles = workers * (VERTEX_INSTRUCTIONS + instructions)
        return Superstep(name=name, vertex=kind, compute_cycles=cycles, exchange_bytes=received)

    def move(name: str, received: int) -> Superstep:
        return Superstep(name=name, vertex="copy", compute_cycles=0, exchange_bytes=received)

    overlap = ceil_div(on_tile, workers) * BOX_INSTRUCTIONS
    steps = argmax_steps(batch, params.boxes, dtype, chip)
    steps += cast_steps(batch, "float32", dtype, chip, era=era)
    steps.append(move("best scores", batch * size))
    steps.append(move("clear candidates", found))
    steps.append(vertex("take the best box", "GatherVertex", GATHER_INSTRUCTIONS, INDEX_BYTES))
    for kind, columns in ((dtype, batch * CORNERS), ("float32", batch)):
        steps += reduce_steps((chip.tiles, columns), (0,), kind, chip, era=era)
    steps.append(move("best box", found))
    steps.append(vertex("mark the best", "UpdateBestVertex", MARK_INSTRUCTIONS, INDEX_BYTES))
    steps.append(vertex("keep the best", "UpdateAnswerVertex", ANSWER_INSTRUCTIONS, found))
    steps.append(vertex("drop overlapping", "NmsVertex", overlap, found // batch))
    steps.append(vertex("count", "popops::BinaryOp1DInPlace", VERTEX_INSTRUCTIONS, 0))
    steps.append(vertex("go on", "ConditionVertex", CONDITION_INSTRUCTIONS, batch * size))
    return steps


def lower_suppression(state: LoweringState, op: Op) -> LoweredOp:
    """Return the supersteps of non-maximum suppression: arrange, then loop over the detections."""
    params: NonMaxSuppression = op.params
    chip, dtype = state.chip, state.dtype(op.inputs[0])
    per_box = (1 + CORNERS) * element_bytes(dtype) + INDEX_BYTES
    held = per_box * ceil_div(params.batch * params.boxes, chip.tiles)
    arrange = Superstep(
        name="spread boxes",
        vertex="copy",
        compute_cycles=0,
        exchange_bytes=held,
        temp_bytes=held,
    )
    results = params.batch * params.detections
    before = [arrange, *fill_steps(results, dtype, chip, era=state.era)]
    lowered = state.finish(op, before, layout=TensorLayout(grouping=1))
    loop = suppression_loop(params, dtype, chip, era=state.era)
    steps: list[Step] = [
        replace(state.step(op.name, step, None), repeats=params.detections) for step in loop
    ]
    return replace(lowered, steps=(*lowered.steps, *steps))
