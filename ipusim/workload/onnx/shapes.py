"""Types and shapes of results, one rule per ONNX operator, and values of small constants.

Rules are written here and not taken from onnx, whose native inference aborts the interpreter on
some damaged files, knows nothing of com.microsoft's operators, and gives up where a size depends on
data: here such a size takes its upper bound, and the import says so. The rules follow
onnx/docs/Operators.md; the tests hold them to the shapes of onnx's own test cases. Values are those
of onnx's reference evaluator.
"""

from collections.abc import Callable, Mapping
from math import ceil, floor, prod
from typing import Any

import numpy as np
import onnx

from ipusim.workload.builder import sized
from ipusim.workload.onnx.context import ImportContext
from ipusim.workload.onnx.nodes import Node
from ipusim.workload.onnx.reader import ELEMENT_TYPES, FLOATS

_PROTO = onnx.TensorProto
BOOL, INT64, FLOAT = _PROTO.BOOL, _PROTO.INT64, _PROTO.FLOAT

Shape = tuple[int, ...]
Results = list[tuple[Shape, int]]
"""Shape and element type of each output."""

LARGEST = "results whose number depends on data have their largest size"


class Call:
    """One node as its rule sees it."""

    def __init__(self, context: ImportContext, node: Node) -> None:
        self.context, self.node = context, node
        self.label, self.opset = node.label, context.opset

    def has(self, place: int) -> bool:
        """Whether an optional input is given."""
        return self.node.has(place)

    def shape(self, which: int | str = 0) -> Shape:
        """Return the shape of an input by its place, or of any value by its name."""
        return self.context.shape(self.node.input[which] if isinstance(which, int) else which)

    def kind(self, place: int = 0) -> int:
        """Return the element type of an input."""
        return self.context.values[self.node.input[place]].elem_type

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute."""
        return self.node.get(name, default)

    def axis(self, default: int) -> int:
        """Return the attribute "axis", counted from the front of the first input."""
        return axis_of(self.get("axis", default), len(self.shape()))

    def note(self, text: str) -> None:
        """Count an assumption."""
        self.context.notes[text] += 1

    def repeated(self) -> Shape:
        """Return the shape that all inputs repeat to."""
        given = (self.shape(i) for i in range(len(self.node.input)) if self.has(i))
        return np.broadcast_shapes(*given)

    def results(self) -> Results | None:
        """Return shape and element type of each output, absent ones perhaps left out at the end."""
        rule = None if self.node.domain else RULES.get(self.node.op_type)
        found = None if rule is None else rule(self)
        return [(found, self.kind())] if isinstance(found, tuple) else found

    def known(self, place: int) -> np.ndarray | None:
        """Return the values of an input if it is given, constant and small; else None."""
        return self.context.values[self.node.input[place]].array if self.has(place) else None

    def array(self, place: int) -> np.ndarray | None:
        """Return an input that is constant and small, None if it is absent; refuse one of data."""
        if not self.has(place):
            return None
        name = self.node.input[place]
        value = self.context.values[name]
        if value.array is None:
            why = "lies in external data that is not there; put that file beside the model"
            if not value.learnable:
                why = f"depends on data; {self._advice(self.source(name))}"
            result = self.node.output[0]
            raise self.node.error(f"gives {result!r} no fixed shape, because {name!r} {why}")
        return value.array

    def _advice(self, source: str) -> str:
        """Say what to do about a value on which a shape depends: nobody types an image."""
        if self.is_image(source):
            return f"it is computed from {source!r}: export the model up to the step before"
        return f"give the input it comes from, such as '--value {source}=...'"

    def is_image(self, name: str) -> bool:
        """Whether a value is data in several dimensions, which nobody types."""
        value = self.context.values[name]
        return len(value.shape) > 1 and value.elem_type in FLOATS

    def unknown(self, *places: int) -> bool:
        """Whether one of these inputs is computed from images or the like: note the upper bound."""
        names = [self.node.input[place] for place in places if self.has(place)]
        found = any(self.is_image(self.source(name)) for name in self.context.running(names))
        if found:
            self.note(LARGEST)
        return found

    def source(self, name: str) -> str:
        """Return an input of the file on which a value depends, the last one added first."""
        made = {out: node for node in self.context.nodes for out in node.output}
        seen, waiting = {name}, [name]
        while waiting:
            current = waiting.pop()
            if current not in made:
                return current
            runs = self.context.running(made[current].input)
            waiting += [x for x in runs if x not in seen]
            seen.update(runs)
        return name

    def ints(self, name: str, place: int) -> list[int] | None:
        """Return whole numbers that are an attribute in some opsets and an input in others."""
        array = self.array(place)
        given = self.get(name) if array is None else array
        return None if given is None else [int(n) for n in np.asarray(given).reshape(-1)]


def by_names(rows: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table by operator; a row may have several, with blanks between."""
    return {name: rule for names, rule in rows.items() for name in names.split()}


Rule = Callable[[Call], Shape | Results]
"""Returns what the outputs are; a mere shape is that of one output of the first input's type."""


def axis_of(axis: int, rank: int) -> int:
    """Return an axis counted from the front."""
    require(-rank <= axis < max(rank, 1), f"axis {axis} of {rank} dimensions")
    return axis % max(rank, 1)


def require(fits: bool, what: str) -> None:
    """Refuse a node that does not fit its inputs: a `ValueError` says what is wrong."""
    if not fits:
        raise ValueError(what)


def view(shape: Shape) -> np.ndarray:
    """Return an array of a shape whose elements are one, of which numpy knows every view."""
    return np.broadcast_to(np.int8(0), shape)


def _cast(c: Call) -> Results:
    to = c.kind(1) if c.node.op_type == "CastLike" else int(c.get("to"))
    require(to in ELEMENT_TYPES, f"element type {to}")
    return [(c.shape(), to)]


def product(c: Call) -> tuple[dict[str, Any], Shape]:
    """Return the attributes of a product, and its shape; a batch of A alone joins the rows."""
    flips = [bool(c.get(flag, 0)) for flag in ("transA", "transB")]
    stored = (c.shape(0), c.shape(1))
    a, b = ((*x[:-2], *x[:-3:-1]) if flip else x for x, flip in zip(stored, flips, strict=True))
    left, right = (a if len(a) > 1 else (1, *a)), (b if len(b) > 1 else (*b, 1))
    fits = bool(a and b) and left[-1] == right[-2]
    require(fits, f"inner sizes of {stored[0]} and {stored[1]} differ")
    batch = np.broadcast_shapes(left[:-2], right[:-2])
    rows, groups = (prod(left[:-1]), 1) if prod(right[:-2]) == 1 else (left[-2], prod(batch))
    sizes = {"groups": groups, "m": rows, "k": left[-1], "n": right[-1]}
    columns = b[-1:] if len(b) > 1 else ()
    flags = {"transpose_a": flips[0], "transpose_b": flips[1]}
    return sizes | flags, (*batch, *a[-2:-1], *columns)


def _gemm(c: Call) -> Shape:
    m, n = product(c)[1]
    added = c.shape(2) if c.has(2) else ()
    fits = np.broadcast_shapes((m, n), added) == (m, n)
    require(fits, f"C of shape {added} is larger than {(m, n)}")
    return (m, n)


SAME = ("SAME_UPPER", "SAME_LOWER")
"""Modes that pad until a window fits as often as its stride says."""


def sliding(given: Mapping[str, Any], field: Shape, kernel: Shape) -> tuple[str, list[np.ndarray]]:
    """Return the padding mode of a window, then what each axis has, in numbers of any size.

    That is its field, kernel, stride, dilation and stated paddings at both ends.
    """
    ones, none, mode = (1,) * len(field), (0,) * 2 * len(field), given.get("auto_pad", "NOTSET")
    pads = given.get("pads", none) if mode == "NOTSET" else none
    stride, dilation = (tuple(given.get(name, ones)) for name in ("strides", "dilations"))
    ends = (field, kernel, stride, dilation, pads[: len(field)], pads[len(field) :])
    fits = {*map(len, ends)} == {len(field)} and min((*stride, *dilation), default=1) > 0
    require(fits, f"stride {stride}, dilation {dilation}, pads {tuple(pads)}")
    return mode, [np.array(end, object) for end in ends]


def window(given: Mapping[str, Any], field: Shape, kernel: Shape) -> tuple[dict[str, Shape], Shape]:
    """Return a sliding window, its auto_pad and ceil_mode as paddings, and its positions."""
    rounds_up = bool(given.get("ceil_mode", 0))
    mode, (size, taps, hop, step, low, high) = sliding(given, field, kernel)
    reach = step * (taps - 1) + 1
    if mode in SAME:
        out = -(-size // hop)
        both = np.maximum(0, (out - 1) * hop + reach - size)
        low = both // 2 if mode == "SAME_UPPER" else both - both // 2
    else:
        padded = size + low + high
        for one, room in zip(reach, padded, strict=True):
            require(one <= room, f"a window over {one} is larger than the padded {room}")
        out = (-((reach - padded) // hop) if rounds_up else (padded - reach) // hop) + 1
        # Windows that would start beyond the data are left out, as ceil_mode's documentation,
        # PyTorch and onnxruntime do.
        out = out - (rounds_up & (out > 1) & ((out - 1) * hop >= size + low))
    if mode in SAME or rounds_up:
        high = np.maximum(0, (out - 1) * hop + reach - size - low)
    place = {"kernel": kernel, "field": field, "dilation": tuple(step), "stride": tuple(hop)}
    return {**place, "padding_lower": tuple(low), "padding_upper": tuple(high)}, tuple(out)


def spread(given: Mapping[str, Any], field: Shape, kernel: Shape) -> tuple[dict[str, Shape], Shape]:
    """Return the window of a transposed convolution, and the field that it spreads its data to.

    It is a convolution of the zero-spread input with the mirrored kernel. Whatever rule gives the
    result its size, lower and upper padding add up to it.
    """
    mode, (size, taps, hop, step, low, high) = sliding(given, field, kernel)
    stated, more = given.get("output_shape"), given.get("output_padding", (0,) * len(field))
    wanted = (stated or field)[-len(field) :]
    fits = len(wanted) == len(more) == len(field)
    require(fits, f"output_shape {stated}, output_padding {more}")
    reach = step * (taps - 1)
    whole = hop * (size - 1) + 1 + reach
    out = size * hop if mode in SAME else whole + np.array(more, object) - low - high
    out = np.array(wanted, object) if stated else out
    crop = whole - out
    if stated or mode != "NOTSET":
        low = crop // 2 if mode == "SAME_UPPER" else crop - crop // 2
    place = {"kernel": kernel, "field": field, "dilation": tuple(step), "stride": (1,) * len(field)}
    place |= {"padding_lower": tuple(reach - low), "padding_upper": tuple(reach - crop + low)}
    return {**place, "input_dilation": tuple(hop)}, tuple(out)


def convolution(c: Call) -> tuple[dict[str, Any], Shape]:
    """Return the attributes of a Conv or ConvTranspose of any rank, and the shape of its result."""
    data, weights, groups = c.shape(0), c.shape(1), c.get("group", 1)
    require(len(data) == len(weights) > 2, "data and weights differ in rank")
    slide, first, second = window, weights[1] * groups, weights[0]
    if c.node.op_type == "ConvTranspose":
        slide, first, second = spread, weights[0], weights[1] * groups
    stated = tuple(c.get("kernel_shape", weights[2:]))
    fits = stated == weights[2:] and data[1] == first
    require(fits, f"data and weights do not fit: {groups} groups, kernel_shape {stated}")
    place, field = slide(c.node.attributes, data[2:], weights[2:])
    counts = {"batch": data[0], "in_channels": first, "out_channels": second, "groups": groups}
    return counts | place, (data[0], second, *field)


def pool(c: Call) -> tuple[dict[str, Any], Shape]:
    """Return the attributes of a MaxPool or AveragePool, and the shape of its result."""
    batch, channels, *field = c.shape()
    place, positions = window(c.node.attributes, tuple(field), tuple(c.get("kernel_shape")))
    padding = bool(c.get("count_include_pad", 0))
    counts = {"batch": batch, "channels": channels, "include_padding": padding}
    return counts | place, (batch, channels, *positions)


def _layer_norm(c: Call) -> Results:
    shape, axis = c.shape(), c.axis(-1)
    rows = ((*shape[:axis], *(1 for _ in shape[axis:])), FLOAT)
    return [(shape, c.kind()), rows, rows]


def reduction(c: Call) -> tuple[dict[str, Any], Shape]:
    """Return the attributes of a reduction over any axes, and the shape of its result."""
    shape, chosen = c.shape(), reduced_axes(c)
    ones = tuple(1 if axis in chosen else size for axis, size in enumerate(shape))
    rest = tuple(size for axis, size in enumerate(shape) if axis not in chosen)
    neighbours = bool(chosen) and chosen == list(range(chosen[0], chosen[-1] + 1))
    inner = prod(shape[chosen[-1] + 1 :]) if neighbours else 1
    reduced = prod(shape[axis] for axis in chosen)
    sizes = {"outer": prod(rest) // max(1, inner), "reduced": reduced, "inner": inner}
    apart = {"shape": shape, "axes": tuple(chosen)} if chosen and not neighbours else {}
    return sizes | apart, ones if c.get("keepdims", 1) else rest


def reduced_axes(c: Call) -> list[int]:
    """Return the axes that a reduction goes over, sorted."""
    rank = len(c.shape())
    if c.node.op_type.startswith("Arg"):
        return [c.axis(0)]
    axes = c.ints("axes", 1)
    if not axes:
        return [] if c.get("noop_with_empty_axes", 0) else list(range(rank))
    return sorted({axis_of(axis, rank) for axis in axes})


def _reshape(c: Call) -> Shape:
    shape, target = c.shape(), c.ints("shape", 1)
    require(target is not None, "no target shape")
    if not c.get("allowzero", 0):
        target = [shape[axis] if size == 0 else size for axis, size in enumerate(target)]
    require(target.count(-1) < 2 and min(target, default=0) > -2, f"target {target}")
    known = prod(size for size in target if size != -1)
    rest = prod(shape) // known if known else 0
    target = [rest if size == -1 else size for size in target]
    require(prod(target) == prod(shape), f"{shape} does not have the elements of {target}")
    return tuple(target)


def _flatten(c: Call) -> Shape:
    shape, axis = c.shape(), c.get("axis", 1)
    require(-len(shape) <= axis <= len(shape), f"axis {axis}")
    return (prod(shape[:axis]), prod(shape[axis:]))


def _squeeze(c: Call) -> Shape:
    axes = c.ints("axes", 1)
    return view(c.shape()).squeeze(None if axes is None else tuple({*axes})).shape


def sliced(c: Call) -> list[tuple[int, range]]:
    """Return the axes along which a Slice cuts, and the places that it leaves of each."""
    names = ("starts", "ends", "axes", "steps")
    starts, ends, axes, steps = (c.ints(name, place) for place, name in enumerate(names, 1))
    axes, steps = axes or list(range(len(starts))), steps or [1] * len(starts)
    found = []
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        axis = axis_of(axis, len(c.shape()))
        found.append((axis, range(c.shape()[axis])[start:end:step]))
    return found


def _slice(c: Call) -> Shape:
    shape = c.shape()
    for axis, places in () if c.unknown(1, 2) else sliced(c):
        shape = sized(shape, axis, len(places))
    return shape


def _split(c: Call) -> Results:
    shape, axis, sizes = c.shape(), c.axis(0), c.ints("split", 1)
    parts = len(c.node.output)
    if sizes is None:
        chunk = -(-shape[axis] // parts)
        sizes = [chunk] * (parts - 1)
        sizes.append(shape[axis] - sum(sizes))
    fits = parts == len(sizes) == c.get("num_outputs", parts) and sum(sizes) == shape[axis]
    require(fits, f"{parts} parts of sizes {sizes}")
    return [(sized(shape, axis, size), c.kind()) for size in sizes]


def _concat(c: Call) -> Shape:
    shapes = [c.shape(i) for i in range(len(c.node.input))]
    shapes = [shape for shape in shapes if shape != (0,)] or shapes[:1]
    axis = axis_of(c.get("axis"), len(shapes[0]))
    rest = {(shape[:axis], shape[axis + 1 :]) for shape in shapes}
    require(len(rest) < 2, "sizes beside the axis differ")
    return sized(shapes[0], axis, sum(shape[axis] for shape in shapes))


def _pad(c: Call) -> Shape:
    shape, pads = list(c.shape()), c.ints("pads", 1)
    axes = c.ints("axes", 3) or list(range(len(shape)))
    for place, axis in enumerate(axes):
        shape[axis_of(axis, len(shape))] += pads[place] + pads[len(axes) + place]
    return tuple(shape)


def _gather(c: Call) -> Shape:
    data, indices, axis = c.shape(0), c.shape(1), c.axis(0)
    return (*data[:axis], *indices, *data[axis + 1 :])


def _gather_elements(c: Call) -> Shape:
    require(len(c.shape()) == len(c.shape(1)), "ranks differ")
    return c.shape(1)


def _gather_nd(c: Call) -> Shape:
    data, indices, outer = c.shape(0), c.shape(1), c.get("batch_dims", 0)
    require(outer + indices[-1] <= len(data), "more indices than dimensions")
    return (*indices[:-1], *data[outer + indices[-1] :])


def _scatter(c: Call) -> Shape:
    require(bool(c.shape()), "scalar data")
    return c.shape()


def _blocks(c: Call) -> Shape:
    """Return what DepthToSpace gives, or its reverse."""
    batch, channels, height, width = c.shape()
    block = c.get("blocksize")
    if c.node.op_type == "SpaceToDepth":
        return (batch, channels * block**2, height // block, width // block)
    require(channels % block**2 == 0, f"{channels} channels, blocks of {block}")
    return (batch, channels // block**2, height * block, width * block)


def _resize(c: Call) -> Shape:
    shape = list(c.shape())
    old = c.node.op_type == "Upsample" or c.opset < 11
    scales, sizes = c.array(1 if old else 2), c.ints("", 3)
    if scales is None or not scales.size:
        scales = c.get("scales")
    axes = [axis_of(axis, len(shape)) for axis in c.get("axes", range(len(shape)))]
    policy = c.get("keep_aspect_ratio_policy", "stretch")
    if not sizes:
        pairs = zip(axes, np.asarray(scales, float), strict=True)
        sizes = [floor(shape[axis] * float(np.float32(scale)) + 1e-6) for axis, scale in pairs]
    elif policy != "stretch":
        ratios = [size / shape[axis] for axis, size in zip(axes, sizes, strict=True)]
        ratio = min(ratios) if policy == "not_larger" else max(ratios)
        sizes = [floor(shape[axis] * ratio + 0.5) for axis in axes]
    for axis, size in zip(axes, sizes, strict=True):
        shape[axis] = size
    return tuple(shape)


def _range(c: Call) -> Shape:
    start, limit, delta = (c.array(i).item() for i in range(3))
    return (max(0, ceil((limit - start) / delta)),)


def _top_k(c: Call) -> Results:
    shape, axis = c.shape(), c.axis(-1)
    count = shape[axis] if c.unknown(1) else c.ints("k", 1)[0]
    # A bound on the detections that are kept may be larger than what there is.
    kept = sized(shape, axis, count if 0 <= count <= shape[axis] else shape[axis])
    return [(kept, c.kind()), (kept, INT64)]


def _unique(c: Call) -> Results:
    shape, axis = c.shape(), c.get("axis")
    length = prod(shape) if axis is None else shape[axis]
    data = (length,) if axis is None else shape
    return [(data, c.kind()), *[((length,), INT64)] * 3]


def _compress(c: Call) -> Shape:
    shape, axis = c.shape(), c.get("axis")
    return (prod(shape),) if axis is None else sized(shape, axis, min(shape[axis], c.shape(1)[0]))


def suppressed(c: Call) -> tuple[int, int, int, int]:
    """Return images, classes, boxes, and boxes kept per class at most, of a NonMaxSuppression."""
    batch, boxes = c.shape(0)[:2]
    classes = c.shape(1)[1]
    limit = c.ints("", 2) or [0]
    return batch, classes, boxes, max(0, min(boxes, limit[0]))


def _affine_grid(c: Call) -> Shape:
    batch, _, *field = c.ints("size", 1)
    return (batch, *field, len(field))


def _max_unpool(c: Call) -> Shape:
    shape, stated = c.shape(), c.ints("", 2)
    if stated:
        return tuple(stated)
    return (*shape[:2], *spread(c.node.attributes, shape[2:], c.get("kernel_shape"))[1])


def _col2im(c: Call) -> Shape:
    image, block = c.ints("", 1), c.ints("", 2)
    return (c.shape()[0], c.shape()[1] // prod(block), *image)


def _recurrent(c: Call) -> Results:
    steps, batch, _ = c.shape()
    directions, rows, inputs = c.shape(1)
    hidden = c.shape(2)[2]
    weights = (c.shape()[2], directions, rows), (inputs, *c.shape(2)[:2])
    require(weights[0] == weights[1] and rows % hidden == 0, "weights do not fit the sequence")
    last = ((directions, batch, hidden), c.kind())
    states = [c.shape(place) for place in (5, 6) if c.has(place)]
    fits = all(np.broadcast_shapes(shape, last[0]) == last[0] for shape in states)
    require(fits, "states do not fit the sequence")
    return [((steps, directions, batch, hidden), c.kind()), last, last]


def dft_axis(c: Call) -> int:
    """Return the axis that a DFT goes along, counted from the front."""
    axis = c.array(2) if c.has(2) else c.get("axis", 1 if c.opset < 20 else -2)
    return axis_of(int(axis), len(c.shape()))


def frame_length(c: Call) -> int:
    """Return how long the frames of an STFT are."""
    return c.shape(2)[0] if c.has(2) else c.ints("", 3)[0]


def _dft(c: Call) -> Shape:
    shape = list(c.shape())
    axis = dft_axis(c)
    length = c.ints("", 1)
    one_sided, inverse = c.get("onesided", 0), c.get("inverse", 0)
    whole = 2 * (shape[axis] - 1) if one_sided and inverse else shape[axis]
    shape[axis] = length[0] if length else whole
    if one_sided and not inverse:
        shape[axis] = shape[axis] // 2 + 1
    return (*shape[:-1], 1 if one_sided and inverse else 2)


def _stft(c: Call) -> Shape:
    step = c.ints("", 1)[0]
    length, signal = frame_length(c), c.shape()
    frames = (signal[1] - length) // step + 1
    bins = length // 2 + 1 if c.get("onesided", 1) else length
    return (signal[0], frames, bins, 2)


def _mel_weights(c: Call) -> Results:
    bands, length = (c.ints("", place)[0] for place in (0, 1))
    require(min(bands, length) > 0, f"{bands} bands of {length} samples")
    return [((length // 2 + 1, bands), c.get("output_datatype", FLOAT))]


UNARY = (
    "Relu LeakyRelu ThresholdedRelu Elu Selu Celu Gelu Mish Clip Sigmoid HardSigmoid HardSwish "
    "Softplus Softsign Tanh Erf Exp Log Sqrt Reciprocal Sin Cos Tan Abs Neg Sign Floor Ceil Round "
    "Not Swish BitwiseNot Square Rsqrt"
)
"""Functions of one tensor, with results of its type."""

N_ARY = (
    "Add Sub Mul Div Sum Mean Min Max Pow Mod PRelu Where BitwiseAnd BitwiseOr BitwiseXor BitShift"
)
"""Functions of tensors that are repeated to one shape."""

TRUTHS = "Equal Less Greater LessOrEqual GreaterOrEqual And Or Xor"
"""Those whose results are truths."""

REDUCTIONS = (
    "ReduceMean ReduceSum ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceSumSquare "
    "ReduceLogSum ReduceLogSumExp"
)

RULES: dict[str, Rule] = by_names(
    {
        f"{UNARY} Identity carry dynamic_update Softmax LogSoftmax LRN InstanceNormalization "
        "GroupNormalization RMSNormalization Trilu ReverseSequence": lambda c: c.shape(),
        f"{TRUTHS} IsNaN IsInf": lambda c: [(c.repeated(), BOOL)],
        N_ARY: lambda c: [(c.repeated(), c.kind(c.node.op_type == "Where"))],
        "Cast CastLike": _cast,
        "Dropout": lambda c: [(c.shape(), c.kind()), (c.shape(), BOOL)],
        "MatMul": lambda c: product(c)[1],
        "Gemm": _gemm,
        "Conv ConvTranspose DeformConv": lambda c: convolution(c)[1],
        "MaxPool AveragePool": lambda c: [(pool(c)[1], kind) for kind in (c.kind(), INT64)],
        "GlobalAveragePool GlobalMaxPool": lambda c: (*c.shape()[:2], *(1 for _ in c.shape()[2:])),
        "BatchNormalization": lambda c: [(c.shape(), c.kind()), *[(c.shape(3), c.kind(3))] * 4],
        "LayerNormalization": _layer_norm,
        REDUCTIONS: lambda c: reduction(c)[1],
        "ArgMax ArgMin": lambda c: [(reduction(c)[1], INT64)],
        "Reshape": _reshape,
        "Flatten": _flatten,
        "Squeeze": _squeeze,
        "Unsqueeze": lambda c: np.expand_dims(view(c.shape()), c.ints("axes", 1) or ()).shape,
        "Transpose": lambda c: view(c.shape()).transpose(c.get("perm")).shape,
        "Expand": lambda c: np.broadcast_shapes(c.shape(), c.ints("shape", 1)),
        "Tile": lambda c: tuple(n * k for n, k in zip(c.shape(), c.ints("", 1), strict=True)),
        "Slice": _slice,
        "Split": _split,
        "Concat": _concat,
        "Pad": _pad,
        "Gather dynamic_slice": _gather,
        "GatherElements": _gather_elements,
        "GatherND": _gather_nd,
        "Scatter ScatterElements ScatterND TensorScatter": _scatter,
        "DepthToSpace SpaceToDepth": _blocks,
        "Resize Upsample": _resize,
        "ConstantOfShape": lambda c: [
            (tuple(c.ints("", 0)), getattr(c.get("value"), "data_type", FLOAT))
        ],
        "Range": _range,
        "RandomNormal RandomUniform": lambda c: [(tuple(c.get("shape")), c.get("dtype", FLOAT))],
        "RandomNormalLike RandomUniformLike Bernoulli": lambda c: [
            (c.shape(), c.get("dtype", c.kind()))
        ],
        "TopK": _top_k,
        "NonZero": lambda c: [((len(c.shape()), prod(c.shape())), INT64)],
        "Unique": _unique,
        "Compress": _compress,
        "NonMaxSuppression": lambda c: [((prod(suppressed(c)[i] for i in (0, 1, 3)), 3), INT64)],
        "RoiAlign": lambda c: (
            *(c.shape(1)[0], c.shape()[1]),
            *(c.get("output_height", 1), c.get("output_width", 1)),
        ),
        "MaxRoiPool": lambda c: (c.shape(1)[0], c.shape()[1], *c.get("pooled_shape")),
        "GridSample": lambda c: (*c.shape()[:2], *c.shape(1)[1:-1]),
        "AffineGrid": _affine_grid,
        "MaxUnpool": _max_unpool,
        "Col2Im": _col2im,
        "LSTM GRU RNN": _recurrent,
        "DFT": _dft,
        "STFT": _stft,
        "MelWeightMatrix": _mel_weights,
        "BitCast": lambda c: [(c.shape(), int(c.get("to")))],
    }
)
"""Rules of standard operators, and of those that fusion puts in their place."""
