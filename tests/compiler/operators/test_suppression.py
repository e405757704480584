"""Non-maximum suppression: its loop, step by step, and what it costs."""

import pytest
from emitting import emitted

from ipusim.compiler.lower import lower
from ipusim.compiler.operators.nms import suppression_round
from ipusim.compiler.stacks import load_stack
from ipusim.errors import WorkloadError
from ipusim.machine import load_chip
from ipusim.workload.builder import TensorBuilder
from ipusim.workload.graph import NonMaxSuppression

CHIP = load_chip("GC200")


def detector(batch: int, boxes: int, detections: int, corners: int = 4):
    g = TensorBuilder("detector")
    scores = g.input("scores", (batch, boxes))
    classes = g.input("classes", (batch, boxes))
    places = g.input("corners", (batch, boxes, corners))
    shapes = ((batch, detections, 4), (batch, detections), (batch, detections))
    outputs = [g.add_tensor(f"out{i}", shape, "float32") for i, shape in enumerate(shapes)]
    params = NonMaxSuppression(batch=batch, boxes=boxes, detections=detections)
    g.add_op("nms", params, (scores, classes, places), *outputs)
    return g.finish(*outputs).with_precision("16.16")


def program(**sizes: int):
    return lower(detector(**sizes), CHIP, load_stack("sdk-2.4"), host_dtype=None)


def test_the_loop_runs_once_for_every_detection():
    few, many = (program(batch=2, boxes=20_000, detections=n) for n in (10, 110))
    sizes = NonMaxSuppression(batch=2, boxes=20_000, detections=1)
    loop = emitted(suppression_round, sizes, "float16")
    assert many.supersteps - few.supersteps == 100 * len(loop)
    once = sum(step.cycles // step.repeats for step in many.steps if step.repeats > 1)
    assert many.cycles - few.cycles == pytest.approx(100 * once, rel=0.01)


def test_more_boxes_cost_more():
    cycles = [program(batch=1, boxes=n, detections=50).cycles for n in (1_000, 50_000, 200_000)]
    assert cycles[0] < cycles[1] < cycles[2]
    overlap = [
        next(step for step in program(batch=n, boxes=44_160, detections=5).steps
             if step.name == "drop overlapping")
        for n in (1, 2)
    ]  # fmt: skip
    # 30 boxes a tile, 5 a worker; twice as many for two images: 45 instructions each.
    assert overlap[1].compute_cycles - overlap[0].compute_cycles == 6 * 5 * 45


def test_shapes_are_checked():
    with pytest.raises(WorkloadError, match="corners"):
        detector(1, 100, 10, corners=5)
    with pytest.raises(WorkloadError, match="detections = 0"):
        NonMaxSuppression(batch=1, boxes=10, detections=0)
