"""ONNX operators that choose by index or sample: lookups, sorts, suppression, interpolation.

Costs come from the vertices of lookups, sorts and elementwise operations; what is assumed is noted.
"""

from __future__ import annotations

from math import prod

from ipusim.workload.graph import (
    Elementwise,
    Gather,
    Layout,
    NonMaxSuppression,
    Reduce,
    Sort,
    Tensor,
)
from ipusim.workload.onnx.context import Handler, ImportContext, Node, has_input
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
    names = (node.input[0], updates, indices)
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
    length = max(1, shape[axis])
    params = Sort(outer=max(1, prod(shape) // length), length=length)
    data = context.operand(node.input[0])
    result = context.emit_intermediate(node, params, (data,), suffix=".sort", shape=shape)
    _cut(context, node, result)


def _cut(context: ImportContext, node: Node, whole: str) -> None:
    """Let every result of a node be a part of one tensor."""
    for place, name in enumerate(node.output):
        if not name:
            continue
        shape = context.shape(name)
        context.graph.add_tensor(Tensor(name=name, shape=shape, dtype=context.dtype(name, node)))
        view = Layout(function="slice", elements=prod(shape), moves_data=False)
        context.graph.add_op(context.op_name(node, f".part{place}"), view, (whole,), name)


def unique(context: ImportContext, node: Node) -> None:
    """Unique: a sort; as many results as elements."""
    context.notes["results whose number depends on data have their largest size"] += 1
    elements = prod(context.shape(node.input[0]))
    data = context.operand(node.input[0])
    result = context.emit_intermediate(
        node,
        Sort(outer=1, length=max(1, elements)),
        (data,),
        suffix=".sort",
        shape=context.shape(node.input[0]),
    )
    _cut(context, node, result)


def bounded(context: ImportContext, node: Node) -> None:
    """NonZero and Compress: one move of everything; as many results as elements."""
    context.notes["results whose number depends on data have their largest size"] += 1
    moved(context, node)


def moved(context: ImportContext, node: Node) -> None:
    """Operators that put elements elsewhere: one move of all results."""
    elements = sum(prod(context.shape(name)) for name in node.output if name)
    params = Layout(function=_function(node), elements=elements, moves_data=True)
    runtime = [x for x in node.input if x and not context.is_static(x)]
    context.emit(node, params, (context.operand(runtime[0]),), every_output=True)


def _function(node: Node) -> str:
    return "".join(
        f"_{c.lower()}" if c.isupper() and place else c.lower()
        for place, c in enumerate(node.op_type)
    )


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


def masked(context: ImportContext, node: Node) -> None:
    """Trilu and other operators that keep or clear single elements: one selection."""
    elements = prod(context.shape(node.output[0]))
    params = Elementwise(function="select", n_inputs=1, elements=elements)
    context.emit(node, params, (context.operand(node.input[0]),))


def random_like(context: ImportContext, node: Node) -> None:
    """Random tensors: drawn like dropout's mask."""
    elements = prod(context.shape(node.output[0]))
    params = Elementwise(function="dropout", n_inputs=1, elements=elements)
    context.emit(node, params, (context.operand(node.input[0]),))


def sampled(context: ImportContext, node: Node, points: int, *, rows: int) -> str:
    """Add lookups of `points` neighbours of each sample and their weighted sum; return it.

    A row is the channels of one position.
    """
    batch, channels, *field = context.shape(node.input[0])
    data, where = context.operand(node.input[0]), context.operand(node.input[1])
    count = max(1, rows * points)
    lookup = Gather(
        rows=max(1, prod(field)), width=max(1, channels), indices=count, groups=max(1, batch)
    )
    found = context.emit_intermediate(
        node, lookup, (data, where), suffix=".lookup", shape=(batch, count, channels)
    )
    weigh = Elementwise(function="scale", n_inputs=1, elements=batch * count * channels)
    weighed = context.emit_intermediate(
        node, weigh, (found,), suffix=".weigh", shape=(batch, count, channels)
    )
    return weighed


def grid_sample(context: ImportContext, node: Node) -> None:
    """GridSample: lookups of 1, 2 or 4 neighbours per axis, weighted and summed."""
    mode = str(node.given.get("mode", "linear")).removeprefix("bi")
    output = context.shape(node.output[0])
    rank = len(output) - 2
    points = 1 if mode == "nearest" else _POINTS.get(mode, 2) ** rank
    _reduced_samples(context, node, points, rows=prod(output[2:]))


def _reduced_samples(
    context: ImportContext, node: Node, points: int, *, rows: int, function: str = "sum"
) -> None:
    context.notes["samples between positions are lookups of their neighbours"] += 1
    batch, channels = context.shape(node.input[0])[:2]
    weighed = sampled(context, node, points, rows=rows)
    params = Reduce(function=function, outer=batch * rows, reduced=points, inner=channels)
    context.emit(node, params, (weighed,))


def roi_align(context: ImportContext, node: Node) -> None:
    """RoiAlign and MaxRoiPool: samples of each bin, by four neighbours, averaged."""
    output = context.shape(node.output[0])
    given = node.given
    ratio = given.get("sampling_ratio", 0) or 2
    bins = output[0] * prod(output[2:])
    context.notes["samples between positions are lookups of their neighbours"] += 1
    batch, channels, *field = context.shape(node.input[0])
    points = ratio**2 * _POINTS["linear"] ** 2
    data, where = context.operand(node.input[0]), context.operand(node.input[1])
    lookup = Gather(rows=max(1, batch * prod(field)), width=channels, indices=max(1, bins * points))
    found = context.emit_intermediate(
        node, lookup, (data, where), suffix=".lookup", shape=(bins, points, channels)
    )
    weigh = Elementwise(function="scale", n_inputs=1, elements=bins * points * channels)
    weighed = context.emit_intermediate(
        node, weigh, (found,), suffix=".weigh", shape=(bins, points, channels)
    )
    params = Reduce(function="mean", outer=bins, reduced=points, inner=channels)
    context.emit(node, params, (weighed,))


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


def deform_conv(context: ImportContext, node: Node) -> None:
    """DeformConv: four neighbours of each tap are sampled, then one product with the weights."""
    from ipusim.workload.graph import MatMul

    context.notes["samples between positions are lookups of their neighbours"] += 1
    batch, channels, *field = context.shape(node.input[0])
    weights, output = context.shape(node.input[1]), context.shape(node.output[0])
    taps, positions = prod(weights[2:]), prod(output[2:])
    groups = node.given.get("group", 1)
    points = _POINTS["linear"] ** len(field)
    data, offsets = context.operand(node.input[0]), context.operand(node.input[2])
    lookup = Gather(
        rows=max(1, prod(field)), width=channels, indices=positions * taps * points, groups=batch
    )
    count = positions * taps
    found = context.emit_intermediate(
        node, lookup, (data, offsets), suffix=".lookup", shape=(batch, count, points, channels)
    )
    total = Reduce(function="sum", outer=batch * count, reduced=points, inner=channels)
    summed = context.emit_intermediate(
        node, total, (found,), suffix=".sum", shape=(batch, count, channels)
    )
    product = MatMul(
        groups=groups,
        m=batch * positions,
        k=taps * channels // groups,
        n=output[1] // groups,
        weights_operand=True,
    )
    context.emit(node, product, (summed, context.operand(node.input[1], weight=True)))


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
    "Trilu": masked,
    "EyeLike": masked,
    "RandomNormalLike": random_like,
    "RandomUniformLike": random_like,
    "Bernoulli": random_like,
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
