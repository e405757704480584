"""ONNX operators that choose by index or sample: lookups, sorts, suppression, interpolation.

Costs come from the vertices of lookups, sorts and elementwise operations; what is assumed is noted.
"""

from dataclasses import replace
from math import prod

from ipusim.workload.builder import sized
from ipusim.workload.graph import (
    Elementwise,
    Gather,
    Layout,
    MatMul,
    NonMaxSuppression,
    Reduce,
    Sort,
)
from ipusim.workload.onnx.operators.emission import Emission, Handler
from ipusim.workload.onnx.operators.products import product_and_bias
from ipusim.workload.onnx.shapes import LARGEST, Shape, by_names, suppressed

_CORNERS = 4
_POINTS = {"linear": 2, "cubic": 4}
"""Neighbours per axis that interpolation reads."""


def _rows(function: str, rows: int, width: int, indices: int, groups: int = 1) -> Gather:
    """Return a lookup or write; where something is empty, of one."""
    sizes = {"rows": rows, "width": width, "indices": indices, "groups": groups}
    return Gather(function=function, **{name: max(1, size) for name, size in sizes.items()})


def gather_elements(e: Emission) -> None:
    """GatherElements: single elements by index (PopART flattens data and indices), or rows."""
    shape, axis = e.shape(), e.axis(0)
    indices, width = _places(e, e.out)
    rows = shape[axis] if width > 1 else prod(shape[axis:])
    _lookup(e, rows, width, indices)


def _places(e: Emission, chosen: Shape) -> tuple[int, int]:
    """Return how many places choose elements, and how many each: one, or a whole row."""
    indices = prod(e.shape(1))
    return indices, prod(chosen) // max(1, indices)


def _lookup(e: Emission, *sizes: int) -> None:
    if e.is_fixed(1):
        e.emit(Layout.move("slice"), e.operand())
    else:
        e.emit(_rows("lookup", *sizes), *e.operands(0, 1))


def _by_several(e: Emission) -> tuple[int, int, int, int]:
    """Return rows that several indices choose each, their width, the choices, and the groups."""
    data, indices, outer = e.shape(), e.shape(1), e.get("batch_dims", 0)
    end = outer + indices[-1]
    return prod(data[outer:end]), prod(data[end:]), prod(indices[outer:-1]), prod(data[:outer])


def scatter_elements(e: Emission) -> None:
    """ScatterElements: single elements written by index, or rows."""
    indices, width = _places(e, e.shape(2))
    _write(e, prod(e.shape()) // width, width, indices, updates=2, indices=1)


def tensor_scatter(e: Emission) -> None:
    """TensorScatter: a cache whose rows are written in place."""
    shape, update = e.shape(), e.shape(1)
    end = e.axis(-2) + 1
    _write(e, prod(shape[:end]), prod(shape[end:]), prod(update[:end]), updates=1, indices=2)


def _write(e: Emission, *sizes: int, updates: int, indices: int) -> None:
    if e.is_fixed(indices) and e.get("reduction", "none") == "none":
        # A slice that is assigned to: both lie side by side, in an order that is known.
        e.emit(Layout.move("concat"), *e.operands(0, updates))
        return
    e.emit(_rows("write", *sizes), *e.operands(0, updates, indices))


def sorted_parts(e: Emission) -> None:
    """TopK: the first of every row and their places. Unique: parts of all, sorted whole."""
    shape = e.shape()
    if e.node.op_type == "Unique":
        e.note(LARGEST)
        found, length, kept = shape, prod(shape), 0
    else:
        found, axis = e.shape(next(filter(None, e.node.output))), e.axis(-1)
        length, kept = shape[axis], found[axis]
    length = max(1, length)
    params = Sort(outer=max(1, prod(shape) // length), length=length, kept=kept)
    whole = e.step(".sort", params, e.operand(), shape=found)
    for place, name in enumerate(e.node.output):
        if name:
            e.emit(Layout.view("slice"), whole, suffix=f".part{place}", outputs=[name])


def suppression(e: Emission) -> None:
    """NonMaxSuppression: one loop for each class of each image, up to its largest result."""
    # An upper bound: on the chip a loop ends as soon as no box is left, which data decide.
    batch, classes, boxes, kept = suppressed(e)
    rows, label, graph = batch * classes, e.label, e.context.graph
    e.note(
        f"NonMaxSuppression takes {kept:,} steps over {boxes:,} boxes, as many as it may keep: an "
        "upper bound, which a smaller max_output_boxes_per_class lowers"
    )
    corners, scores = e.operands(0, 1)
    sizes, field = (rows, boxes), (rows, boxes, _CORNERS)
    dtype = "float32"  # of boxes and scores in any file, whatever they are computed from
    flat = e.step(".scores", Layout.view("reshape"), scores, shape=sizes, dtype=dtype)
    wide = e.step(".corners", Layout.view("expand"), corners, shape=field, dtype=dtype)
    numbers = graph.constant(f"{label}.classes", sizes)
    shapes = [(rows, kept, _CORNERS), (rows, kept), (rows, kept)]
    params = NonMaxSuppression(batch=rows, boxes=boxes, detections=kept)
    _, *chosen = graph.apply_several(label, params, (flat, numbers, wide), shapes)
    e.emit(Layout.move("concat"), *chosen, suffix=".selected")


def one_pass(function: str) -> Handler:
    """Return the handler of an operator that costs one function of its first input."""
    return lambda e: e.emit(Elementwise(function=function), e.operand())


_OF_REGIONS = ("RoiAlign", "MaxRoiPool")
"""Operators whose positions are boxes, which detectors take as they are."""


def _sampled(
    e: Emission, *, groups: int, rows: int, samples: int, points: int
) -> tuple[str, Reduce]:
    """Look up and weigh `points` neighbours of samples in tables; return them and their sum."""
    e.note("samples between positions are lookups of their neighbours")
    channels = e.shape()[1]
    # The positions are the second input, but in DeformConv, whose second one is the weights.
    where = 2 if e.node.op_type == "DeformConv" else 1
    shape = (groups, samples, points, channels)
    lookup = _rows("lookup", rows, channels, samples * points, groups)
    found = e.step(".lookup", lookup, *e.operands(0, where), shape=shape)
    given = e.context.is_static(e.node.input[where]) or e.node.op_type in _OF_REGIONS
    weigh, factors = Elementwise(function="scale"), []
    if points > 1 and not given:
        # What weighs the neighbours follows from the positions, which learn by it.
        weigh, narrow = Elementwise.in_place("mul", broadcast=True), (groups, samples, 1, 1)
        factors.append(e.step(".near", Layout.view("slice"), e.operand(where), shape=narrow))
    found = e.step(".weigh", weigh, found, *factors, shape=shape)
    total = Reduce(function="sum", outer=groups * samples, reduced=points, inner=channels)
    return found, total


def grid_sample(e: Emission) -> None:
    """GridSample: lookups of 1, 2 or 4 neighbours per axis, weighted and summed."""
    mode = str(e.get("mode", "linear")).removeprefix("bi")
    batch, _, *field = e.shape()
    points = 1 if mode == "nearest" else _POINTS.get(mode, 2) ** len(field)
    weighed, total = _sampled(
        e, groups=batch, rows=prod(field), samples=prod(e.out[2:]), points=points
    )
    e.emit(total, weighed)


def roi_align(e: Emission) -> None:
    """RoiAlign and MaxRoiPool: samples of each bin, by four neighbours, averaged."""
    batch, _, *field = e.shape()
    regions, _, *bins = e.out
    points = (e.get("sampling_ratio", 0) or 2) ** 2 * _POINTS["linear"] ** 2
    samples = regions * prod(bins)
    weighed, total = _sampled(e, groups=1, rows=batch * prod(field), samples=samples, points=points)
    e.emit(replace(total, function="mean"), weighed)


def deform_conv(e: Emission) -> None:
    """DeformConv: four neighbours of each tap are sampled, then one product with the weights."""
    batch, channels, *field = e.shape()
    taps, positions = prod(e.shape(1)[2:]), prod(e.out[2:])
    points, samples = _POINTS["linear"] ** len(field), positions * taps
    weighed, total = _sampled(e, groups=batch, rows=prod(field), samples=samples, points=points)
    summed = e.step(".sum", total, weighed, shape=(batch, samples, channels))
    if e.has(4):
        summed = _masked(e, summed, samples)
    groups = e.get("group", 1)
    product = MatMul(
        groups=groups,
        m=batch * positions,
        k=taps * channels // groups,
        n=e.out[1] // groups,
        weights_operand=True,
    )
    product_and_bias(e, product, summed, e.operand(1, weight=True), at=3)


def _masked(e: Emission, sampled: str, samples: int) -> str:
    """Multiply the samples of DeformConv with their mask, of groups of channels each."""
    batch, channels = e.shape()[:2]
    groups = e.get("offset_group", 1)
    shape = (batch, samples, groups, channels // groups)
    narrow = (*shape[:3], 1)
    parts = e.step(".parts", Layout.view("reshape"), sampled, shape=shape)
    mask = e.step(".mask", Layout.view("reshape"), e.operand(4), shape=narrow)
    multiply = Elementwise.in_place("mul", broadcast=True)
    return e.step(".masked", multiply, parts, mask, shape=shape)


def resize(e: Emission) -> None:
    """Resize and Upsample: to the nearest element a move; else per axis a weighted sum.

    Neighbours along one axis after the other are fetched, scaled and added, as PopART does for
    linear interpolation (willow/src/popx/op/resizex.cpp).
    """
    mode = str(e.get("mode", "nearest"))
    total = e.operand()
    before, after = e.shape(), e.out
    if mode not in _POINTS or before == after:
        e.emit(Layout.move("resize"), total)
        return
    shape, points = before, _POINTS[mode]
    axes = [axis for axis, size in enumerate(before) if size != after[axis]]
    for axis in axes:
        shape = sized(shape, axis, after[axis])
        current, total = total, ""
        for point in range(points):
            name = f".axis{axis}.{{}}{point}".format
            part = e.step(name("fetch"), Layout.move("resize"), current, shape=shape)
            part = e.step(name("scale"), Elementwise.in_place("scale"), part, shape=shape)
            add = Elementwise.in_place("add")
            if (axis, point) == (axes[-1], points - 1):
                e.emit(add, total, part, suffix=name("add"))
            else:
                total = e.step(name("add"), add, total, part, shape=shape) if total else part


def affine_grid(e: Emission) -> None:
    """AffineGrid: one small product with constant coordinates, costed as a scale and a sum."""
    wide = e.step(".wide", Layout.move("expand"), e.operand())
    e.emit(Elementwise(function="scale"), wide)


INDEXED_HANDLERS: dict[str, Handler] = by_names(
    {
        "GatherElements": gather_elements,
        "GatherND": lambda e: _lookup(e, *_by_several(e)),
        "ScatterND": lambda e: _write(e, *_by_several(e), updates=2, indices=1),
        "ScatterElements Scatter": scatter_elements,
        "TensorScatter": tensor_scatter,
        "TopK Unique": sorted_parts,
        "NonMaxSuppression": suppression,
        "Trilu": one_pass("select"),  # keeps or clears single elements
        "RandomNormalLike RandomUniformLike": one_pass("random"),
        "GridSample": grid_sample,
        "RoiAlign MaxRoiPool": roi_align,
        "AffineGrid": affine_grid,
        "DeformConv": deform_conv,
        "Resize Upsample": resize,
    }
)
"""Handlers by operator."""
