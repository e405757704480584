"""ONNX operators that choose by index or sample: lookups, sorts, suppression, interpolation.

Costs come from the vertices of lookups, sorts and elementwise operations; what is assumed is noted.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from ipusim.workload.graph import (
    Elementwise,
    Gather,
    Layout,
    MatMul,
    NonMaxSuppression,
    Reduce,
    Sort,
    Tensor,
)
from ipusim.workload.onnx.context import Handler, ImportContext, Node, has_input
from ipusim.workload.onnx.elementwise import snake
from ipusim.workload.onnx.shapes import Call, axis_of, suppressed

_CORNERS = 4
_POINTS = {"linear": 2, "cubic": 4}
"""Neighbours per axis that interpolation reads."""


def gather_elements(context: ImportContext, node: Node) -> None:
    """GatherElements: single elements by index (PopART flattens data and indices)."""
    data, indices = node.input
    shape = context.shape(data)
    axis = axis_of(node.given.get("axis", 0), len(shape))
    count = prod(context.shape(indices))
    inner = prod(shape[axis + 1 :])
    # Neighbours along the inner axes are taken from one row where the indices are the same for all:
    # that is not known, so every element is looked up by itself.
    params = Gather(rows=max(1, shape[axis] * inner), width=1, indices=max(1, count))
    _lookup(context, node, params, (data, indices))


def _lookup(context: ImportContext, node: Node, params: Gather, names: tuple[str, ...]) -> None:
    if context.is_static(names[-1]) and params.function == "lookup":
        elements = prod(context.shape(node.output[0]))
        view = Layout(function="slice", elements=elements, moves_data=True)
        context.emit(node, view, (context.operand(names[0]),))
        return
    context.emit(node, params, tuple(context.operand(name) for name in names))


def gather_nd(context: ImportContext, node: Node) -> None:
    """GatherND: rows by several indices."""
    data, indices = context.shape(node.input[0]), context.shape(node.input[1])
    outer = node.given.get("batch_dims", 0)
    depth = indices[-1]
    params = Gather(
        rows=max(1, prod(data[outer : outer + depth])),
        width=max(1, prod(data[outer + depth :])),
        indices=max(1, prod(indices[outer:-1])),
        groups=max(1, prod(data[:outer])),
    )
    _lookup(context, node, params, tuple(node.input))


def scatter_nd(context: ImportContext, node: Node) -> None:
    """ScatterND: rows written, or added, by several indices."""
    data, indices = context.shape(node.input[0]), context.shape(node.input[1])
    depth = indices[-1]
    params = Gather(
        rows=max(1, prod(data[:depth])),
        width=max(1, prod(data[depth:])),
        indices=max(1, prod(indices[:-1])),
        function="write",
    )
    _write(context, node, params, node.input[2], node.input[1])


def scatter_elements(context: ImportContext, node: Node) -> None:
    """ScatterElements: single elements written by index."""
    data, indices = node.input[:2]
    params = Gather(
        rows=max(1, prod(context.shape(data))),
        width=1,
        indices=max(1, prod(context.shape(indices))),
        function="write",
    )
    _write(context, node, params, node.input[2], indices)


def _write(context: ImportContext, node: Node, params: Gather, updates: str, indices: str) -> None:
    constant = bool(indices) and context.is_static(indices)
    if constant and node.given.get("reduction", "none") == "none":
        # A slice that is assigned to: both lie side by side, in an order that is known.
        elements = prod(context.shape(node.output[0]))
        join = Layout(function="concat", elements=elements, moves_data=True)
        context.emit(node, join, (context.operand(node.input[0]), context.operand(updates)))
        return
    names = filter(None, (node.input[0], updates, indices))
    context.emit(node, params, tuple(context.operand(name) for name in names))


def tensor_scatter(context: ImportContext, node: Node) -> None:
    """TensorScatter: a cache whose rows are written in place."""
    shape, update = context.shape(node.input[0]), context.shape(node.input[1])
    axis = axis_of(node.given.get("axis", -2), len(shape))
    params = Gather(
        rows=prod(shape[: axis + 1]),
        width=max(1, prod(shape[axis + 1 :])),
        indices=max(1, prod(update[: axis + 1])),
        function="write",
    )
    _write(context, node, params, node.input[1], node.input[2] if has_input(node, 2) else "")


def top_k(context: ImportContext, node: Node) -> None:
    """TopK: rows sorted whole, the indices with them, and cut."""
    context.notes["TopK sorts whole rows"] += 1
    shape = context.shape(node.input[0])
    axis = axis_of(node.given.get("axis", -1), len(shape))
    _parts_of_sorted(context, node, max(1, shape[axis]))


def unique(context: ImportContext, node: Node) -> None:
    """Unique: a sort; as many results as elements."""
    context.notes["results whose number depends on data have their largest size"] += 1
    _parts_of_sorted(context, node, max(1, prod(context.shape(node.input[0]))))


def _parts_of_sorted(context: ImportContext, node: Node, length: int) -> None:
    """Let every result of a node be a part of its data, sorted in rows of a length."""
    shape = context.shape(node.input[0])
    params = Sort(outer=max(1, prod(shape) // length), length=length)
    data = context.operand(node.input[0])
    whole = context.emit_intermediate(node, params, (data,), suffix=".sort", shape=shape)
    for place, name in enumerate(node.output):
        if not name:
            continue
        shape = context.shape(name)
        context.graph.add_tensor(Tensor(name=name, shape=shape, dtype=context.dtype(name, node)))
        view = Layout(function="slice", elements=prod(shape), moves_data=False)
        context.graph.add_op(context.op_name(node, f".part{place}"), view, (whole,), name)


def bounded(context: ImportContext, node: Node) -> None:
    """NonZero and Compress: one move of everything; as many results as elements."""
    context.notes["results whose number depends on data have their largest size"] += 1
    moved(context, node)


def moved(context: ImportContext, node: Node) -> None:
    """Operators that put elements elsewhere: one move of all results."""
    elements = sum(prod(context.shape(name)) for name in node.output if name)
    params = Layout(function=snake(node.op_type), elements=elements, moves_data=True)
    runtime = [x for x in node.input if x and not context.is_static(x)]
    context.emit(node, params, (context.operand(runtime[0]),), every_output=True)


def suppression(context: ImportContext, node: Node) -> None:
    """NonMaxSuppression: one loop for each class of each image, up to its largest result.

    An upper bound: on the chip a loop ends as soon as no box is left, which data decide.
    """
    batch, classes, boxes, kept = suppressed(Call(context, node))
    rows = batch * classes
    context.notes[
        f"NonMaxSuppression takes {kept:,} steps over {boxes:,} boxes, as many as it may keep: an "
        "upper bound, which a smaller max_output_boxes_per_class lowers"
    ] += 1
    corners, scores = (context.operand(name) for name in node.input[:2])
    dtype = context.dtype(node.input[0])
    label = context.op_name(node)

    def tensor(name: str, shape: tuple[int, ...], kind: str = dtype) -> str:
        return context.graph.add_tensor(Tensor(name=f"{label}.{name}", shape=shape, dtype=kind))

    def view(name: str, source: str, shape: tuple[int, ...], function: str) -> str:
        result = tensor(name, shape)
        params = Layout(function=function, elements=prod(shape), moves_data=False)
        context.graph.add_op(f"{label}.{name}", params, (source,), result)
        return result

    flat = view("scores", scores, (rows, boxes), "reshape")
    wide = view("corners", corners, (rows, boxes, _CORNERS), "expand")
    numbers = context.graph.parameter(f"{label}.classes", (rows, boxes), role="constant")
    outputs = (
        tensor("boxes", (rows, kept, _CORNERS)),
        tensor("best", (rows, kept)),
        tensor("class", (rows, kept)),
    )
    params = NonMaxSuppression(batch=rows, boxes=boxes, detections=kept)
    context.graph.add_op(label, params, (flat, numbers, wide), *outputs)
    elements = prod(context.shape(node.output[0]))
    join = Layout(function="concat", elements=elements, moves_data=True)
    context.emit(node, join, outputs[1:], suffix=".selected")


def one_pass(function: str) -> Handler:
    """Return the handler of an operator that costs one function of its first input."""

    def handler(context: ImportContext, node: Node) -> None:
        elements = prod(context.shape(node.output[0]))
        params = Elementwise(function=function, n_inputs=1, elements=elements)
        context.emit(node, params, (context.operand(node.input[0]),))

    return handler


def _sampled(
    context: ImportContext, node: Node, *, groups: int, rows: int, samples: int, points: int
) -> tuple[str, Reduce]:
    """Look up and weigh neighbours of samples; return them, and the operator that adds them up.

    Parameters
    ----------
    groups : int
        Tables of ``rows``, each with so many ``samples``; a row is the channels of one position.
    points : int
        Neighbours of a sample.
    """
    context.notes["samples between positions are lookups of their neighbours"] += 1
    channels = context.shape(node.input[0])[1]
    # The positions are the second input, but in DeformConv, whose second one is the weights.
    where = node.input[2 if node.op_type == "DeformConv" else 1]
    shape = (groups, samples, points, channels)
    lookup = Gather(
        rows=max(1, rows), width=channels, indices=max(1, samples * points), groups=max(1, groups)
    )
    weigh = Elementwise(function="scale", n_inputs=1, elements=prod(shape))
    found = (context.operand(node.input[0]), context.operand(where))
    for params, suffix in ((lookup, ".lookup"), (weigh, ".weigh")):
        found = (context.emit_intermediate(node, params, found, suffix=suffix, shape=shape),)
    total = Reduce(function="sum", outer=groups * samples, reduced=points, inner=channels)
    return found[0], total


def grid_sample(context: ImportContext, node: Node) -> None:
    """GridSample: lookups of 1, 2 or 4 neighbours per axis, weighted and summed."""
    mode = str(node.given.get("mode", "linear")).removeprefix("bi")
    batch, _, *field = context.shape(node.input[0])
    samples = prod(context.shape(node.output[0])[2:])
    points = 1 if mode == "nearest" else _POINTS.get(mode, 2) ** len(field)
    weighed, total = _sampled(
        context, node, groups=batch, rows=prod(field), samples=samples, points=points
    )
    context.emit(node, total, (weighed,))


def roi_align(context: ImportContext, node: Node) -> None:
    """RoiAlign and MaxRoiPool: samples of each bin, by four neighbours, averaged."""
    batch, _, *field = context.shape(node.input[0])
    regions, _, *bins = context.shape(node.output[0])
    points = (node.given.get("sampling_ratio", 0) or 2) ** 2 * _POINTS["linear"] ** 2
    weighed, total = _sampled(
        context,
        node,
        groups=1,
        rows=batch * prod(field),
        samples=regions * prod(bins),
        points=points,
    )
    context.emit(node, replace(total, function="mean"), (weighed,))


def deform_conv(context: ImportContext, node: Node) -> None:
    """DeformConv: four neighbours of each tap are sampled, then one product with the weights."""
    batch, channels, *field = context.shape(node.input[0])
    weights, output = context.shape(node.input[1]), context.shape(node.output[0])
    taps, positions = prod(weights[2:]), prod(output[2:])
    weighed, total = _sampled(
        context,
        node,
        groups=batch,
        rows=prod(field),
        samples=positions * taps,
        points=_POINTS["linear"] ** len(field),
    )
    shape = (batch, positions * taps, channels)
    summed = context.emit_intermediate(node, total, (weighed,), suffix=".sum", shape=shape)
    groups = node.given.get("group", 1)
    product = MatMul(
        groups=groups,
        m=batch * positions,
        k=taps * channels // groups,
        n=output[1] // groups,
        weights_operand=True,
    )
    context.emit(node, product, (summed, context.operand(node.input[1], weight=True)))


def resize(context: ImportContext, node: Node) -> None:
    """Resize and Upsample: to the nearest element a move; else per axis a weighted sum.

    Neighbours along one axis after the other are fetched, scaled and added, as PopART does for
    linear interpolation (willow/src/popx/op/resizex.cpp).
    """
    mode = str(node.given.get("mode", "nearest"))
    data = context.operand(node.input[0])
    before, after = context.shape(node.input[0]), context.shape(node.output[0])
    if mode not in _POINTS or before == after:
        params = Layout(function="resize", elements=prod(after), moves_data=True)
        context.emit(node, params, (data,))
        return
    shape, current = list(before), data
    axes = [axis for axis, size in enumerate(before) if size != after[axis]]
    for place, axis in enumerate(axes):
        shape[axis] = after[axis]
        elements, suffix = prod(shape), f".axis{axis}"
        last = place == len(axes) - 1
        for point in range(_POINTS[mode]):
            fetch = Layout(function="resize", elements=elements, moves_data=True)
            part = context.emit_intermediate(
                node, fetch, (current,), suffix=f"{suffix}.fetch{point}", shape=tuple(shape)
            )
            scale = Elementwise(function="scale", n_inputs=1, elements=elements, in_place_ok=True)
            part = context.emit_intermediate(
                node, scale, (part,), suffix=f"{suffix}.scale{point}", shape=tuple(shape)
            )
            if point == 0:
                total = part
                continue
            add = Elementwise(function="add", n_inputs=2, elements=elements, in_place_ok=True)
            if last and point == _POINTS[mode] - 1:
                context.emit(node, add, (total, part), suffix=f"{suffix}.add{point}")
                return
            total = context.emit_intermediate(
                node, add, (total, part), suffix=f"{suffix}.add{point}", shape=tuple(shape)
            )
        current = total


def affine_grid(context: ImportContext, node: Node) -> None:
    """AffineGrid: one small product with constant coordinates, costed as a scale and a sum."""
    elements = prod(context.shape(node.output[0]))
    scale = Elementwise(function="scale", n_inputs=1, elements=elements)
    grid = Layout(function="expand", elements=elements, moves_data=True)
    wide = context.emit_intermediate(node, grid, (context.operand(node.input[0]),), suffix=".wide")
    context.emit(node, scale, (wide,))


INDEXED_HANDLERS: dict[str, Handler] = {
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "ScatterND": scatter_nd,
    "ScatterElements": scatter_elements,
    "Scatter": scatter_elements,
    "TensorScatter": tensor_scatter,
    "TopK": top_k,
    "Unique": unique,
    "NonZero": bounded,
    "Compress": bounded,
    "NonMaxSuppression": suppression,
    # Trilu keeps or clears single elements; random ones are drawn like the mask of a dropout.
    **dict.fromkeys(("Trilu", "EyeLike"), one_pass("select")),
    **dict.fromkeys(("RandomNormalLike", "RandomUniformLike", "Bernoulli"), one_pass("dropout")),
    "GridSample": grid_sample,
    "RoiAlign": roi_align,
    "MaxRoiPool": roi_align,
    "AffineGrid": affine_grid,
    "DeformConv": deform_conv,
    "Resize": resize,
    "Upsample": resize,
    "MaxUnpool": moved,
    "Col2Im": moved,
    "ReverseSequence": moved,
}
"""Handlers by operator."""
