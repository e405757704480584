"""Values of one node, by onnx's reference evaluator.

The evaluator knows the newest form of most operators alone. Files have older ones, and some that
only onnxruntime takes: they are first written as the newest, after the change logs of onnx's
operators (onnx/docs/Changelog.md).
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator

from ipusim.errors import MISFITS, WorkloadError
from ipusim.workload.onnx.nodes import Node
from ipusim.workload.onnx.shapes import REDUCTIONS, by_names


def reason(error: Exception) -> str:
    """Return in one line what an error says, or is; Python's own words help nobody."""
    if isinstance(error, TypeError | AttributeError):
        return "an attribute or input is missing or of another kind than it takes"
    return " ".join(str(error).split())[:200] or type(error).__name__


def evaluated(node: Node, opset: int, given: Mapping[str, Any], label: str) -> list[Any]:
    """Return the results of a node, None for those without a name; else a `WorkloadError`."""
    try:
        with np.errstate(all="ignore"):
            own = _COMPUTED.get(node.op_type)
            if own is None:
                return _by_reference(node, opset, dict(given))
            return [own(node, *(given[name] if name else None for name in node.input))]
    except MISFITS as error:
        raise WorkloadError(f"{label} cannot be computed ({reason(error)}).") from error


def _by_reference(node: Node, opset: int, given: dict[str, Any]) -> list[Any]:
    """Evaluate a model of one node: operators that are functions of its types need them."""
    if len(node.input) > 1 and node.op_type in _AS_INPUTS:
        schema = onnx.defs.get_schema(node.op_type)
        kept = {name: value for name, value in node.attributes.items() if name in schema.attributes}
        node, opset = replace(node, attributes=kept), max(opset, schema.since_version)
    until, newest = _FORMS.get(node.op_type, (0, None))
    nodes = (newest(node, given) if opset < until else None) or [node]
    graph = helper.make_graph(
        [item.proto() for item in nodes],
        "one node",
        [_typed(name, value) for name, value in given.items()],
        [helper.make_empty_tensor_value_info(name) for name in node.output if name],
    )
    version = opset if until == inf else max(opset, until)
    opsets = [helper.make_opsetid(node.domain, version)]
    evaluator = ReferenceEvaluator(helper.make_model(graph, opset_imports=opsets))
    found = iter(evaluator.run(None, given))
    return [next(found) if name else None for name in node.output]


def _typed(name: str, value: np.ndarray | list[np.ndarray]) -> onnx.ValueInfoProto:
    if isinstance(value, list):
        return helper.make_empty_tensor_value_info(name)
    kind = helper.np_dtype_to_tensor_dtype(np.asarray(value).dtype)
    return helper.make_tensor_value_info(name, kind, np.shape(value))


def _elements(node: Node, data: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Take single elements, of any axis and with fewer indices than data beside it."""
    axis = node.get("axis", 0) % data.ndim
    ends = [data.shape[i] if i == axis else n for i, n in enumerate(places.shape)]
    return np.take_along_axis(data[tuple(map(slice, ends))], places, axis)


def _suppressed(
    node: Node, boxes: np.ndarray, scores: np.ndarray, *limits: np.ndarray | None
) -> np.ndarray:
    """Keep boxes by NonMaxSuppression: (image, class, box) of each, the best of a class first."""
    told = [None if item is None else np.reshape(item, -1)[0] for item in limits]
    most, overlap, least = [*told, None, None, None][:3]
    centred = bool(node.get("center_point_box", 0))
    found = []
    for image, label in np.ndindex(scores.shape[:2]):
        low, high = _corners(boxes[image], centred=centred)
        areas = (high - low).prod(axis=0)
        of_class = scores[image, label]
        left = np.argsort(-of_class, kind="stable")
        left = left if least is None else left[of_class[left] > least]
        kept: list[int] = []
        while left.size and len(kept) < max(0, most or 0):
            best, left = left[0], left[1:]
            kept.append(best)
            height, width = (
                np.minimum(end[best], end[left]) - np.maximum(start[best], start[left])
                for start, end in zip(low, high, strict=True)
            )
            shared = np.maximum(height, 0) * np.maximum(width, 0)
            left = left[~(shared / (areas[best] + areas[left] - shared) > (overlap or 0))]
        found += [(image, label, box) for box in kept]
    return np.array(found, np.int64).reshape(-1, 3)


def _corners(boxes: np.ndarray, *, centred: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the lower and upper corners of boxes, which have two corners or centre and size."""
    first, second = boxes.T[:2].copy(), boxes.T[2:].copy()
    if centred:
        return first - second / 2, first + second / 2
    return np.minimum(first, second), np.maximum(first, second)


def _local_response(node: Node, x: np.ndarray) -> np.ndarray:
    """LRN: divide by a power of the mean square of channels around each one."""
    size, alpha = node.attributes["size"], node.get("alpha", 1e-4)
    before = (size - 1) // 2
    around = [(0, 0)] * x.ndim
    around[1] = (before, size - 1 - before)
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x * x, around), size, axis=1)
    scale = node.get("bias", 1.0) + alpha / size * windows.sum(axis=-1)
    return (x / scale ** node.get("beta", 0.75)).astype(x.dtype)


def _norm(node: Node, x: np.ndarray, axes: int | tuple[int, ...]) -> np.ndarray:
    order = node.get("p", 2)
    return (np.abs(x) ** order).sum(axes, keepdims=True) ** (1 / order)


def _normalised(node: Node, x: np.ndarray) -> np.ndarray:
    """LpNormalization: divide by the norm along an axis, where that is not zero."""
    norm = _norm(node, x, node.get("axis", -1))
    return (x / np.where(norm == 0, 1, norm)).astype(x.dtype)


_COMPUTED: dict[str, Callable[..., np.ndarray]] = {
    "GatherElements": _elements,
    "GlobalLpPool": lambda node, x: _norm(node, x, tuple(range(2, x.ndim))).astype(x.dtype),
    "LRN": _local_response,
    "LpNormalization": _normalised,
    "Mean": lambda node, *given: (sum(given[1:], given[0]) / len(given)).astype(given[0].dtype),
    "NonMaxSuppression": _suppressed,
}
"""Operators that the evaluator does not compute in all forms, or box by box in Python.

Of LRN it computes as many channels as there are items, it adds up LpNormalization without the
signs taken away, and Mean into its first operand (onnx 1.23, reference/ops).
"""


# -- older forms, written as the newest ------------------------------------------------------


def _of_flat_rows(node: Node, given: dict[str, Any]) -> list[Node]:
    """LogSoftmax and Hardmax went over everything from their axis on."""
    (x,), (y,), axis = node.input, node.output, node.get("axis", 1)
    given["shape"] = np.array(np.shape(given[x]), np.int64)
    return [
        Node(op_type="Flatten", input=[x], output=["flat"], attributes={"axis": axis}),
        Node(op_type=node.op_type, input=["flat"], output=["rows"], attributes={"axis": -1}),
        Node(op_type="Reshape", input=["rows", "shape"], output=[y]),
    ]


def _resize(node: Node, given: dict[str, Any]) -> list[Node]:
    """Upsample and the first Resize scaled positions, and took the element before each."""
    own = np.array(node.get("scales", ()), np.float32)
    given["scales"] = given[node.input[1]] if len(node.input) > 1 else own
    where = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    where["mode"] = node.get("mode", "nearest")
    return [replace(node, op_type="Resize", input=[node.input[0], "", "scales"], attributes=where)]


def _grid_sample(node: Node, given: dict[str, Any]) -> list[Node]:
    """Modes of GridSample lost the "bi" of images when it took volumes."""
    mode = node.get("mode", "bilinear").removeprefix("bi")
    return [replace(node, attributes=node.attributes | {"mode": mode})]


def _named(op_type: str, **more: object) -> Callable[..., list[Node]]:
    """Return what writes a node under another name, or with attributes that it had not."""
    return lambda node, given: [replace(node, op_type=op_type, attributes=node.attributes | more)]


def _one_hot(node: Node, given: dict[str, Any]) -> None:
    """The depth of OneHot may be a vector of one."""
    given[node.input[1]] = np.reshape(given[node.input[1]], ())


def _real_signal(node: Node, given: dict[str, Any]) -> None:
    """Signals of STFT that are real may have no axis for that."""
    x = node.input[0]
    given[x] = given[x].reshape(*given[x].shape[:2], -1)


def _pad(node: Node, given: dict[str, Any]) -> None:
    """Negative paddings take elements away."""
    if len(node.input) < 2:
        return
    x, pads = node.input[:2]
    rank = given[x].ndim
    axes = list(given[node.input[3]] % rank) if len(node.input) > 3 else list(range(rank))
    window = [slice(None)] * rank
    for place, axis in enumerate(axes):
        low, high = (max(0, -int(given[pads][place + end])) for end in (0, len(axes)))
        window[axis] = slice(low, given[x].shape[axis] - high)
    given[x], given[pads] = given[x][tuple(window)], np.maximum(given[pads], 0)


def _support_vectors(node: Node, given: dict[str, Any]) -> None:
    """The evaluator couples probabilities of several pairs by sums of all where single ones belong.

    Source: onnx 1.23, reference/ops/aionnxml/op_svm_classifier.py, multiclass_probability.
    """
    if node.get("prob_a") and len(node.get("vectors_per_class", ())) > 2:
        raise ValueError("its probabilities of three classes or more: export it without")


_AS_INPUTS = ("Slice", "TopK", "Clip", "Pad", "Split", "Squeeze", "Unsqueeze", *REDUCTIONS.split())
"""Operators whose attributes became inputs; files and recipes have these before, too, or both."""

_FORMS: dict[str, tuple[float, Callable[..., list[Node] | None]]] = by_names(
    {
        "LogSoftmax Hardmax": (13, _of_flat_rows),
        "Upsample Resize": (11, _resize),
        "GridSample": (20, _grid_sample),
        # Its only mode of coordinates then; "half_pixel" is newer.
        "RoiAlign": (16, _named("RoiAlign", coordinate_transformation_mode="output_half_pixel")),
        "Scatter": (11, _named("ScatterElements")),
        # Those of 19 have the older ones as special cases.
        "QuantizeLinear DequantizeLinear": (19, lambda node, given: None),
        "OneHot": (inf, _one_hot),
        "STFT": (inf, _real_signal),
        "Pad": (inf, _pad),
        "SVMClassifier": (inf, _support_vectors),
    }
)
"""The operator set of the newest form (inf: several forms at once), and what writes a node so.

It returns the nodes that stand for one, or changes what is given to it.
"""
