"""Operators that are written as several simpler ones, as a framework or onnx's definition does.

Each recipe visits the simpler nodes in turn and returns the result: shapes, constants and costs
follow by themselves. What it leaves out or bounds from above is said in the notes of the import.
"""

from functools import partial
from math import prod

import numpy as np
from onnx import helper

from ipusim.workload.onnx.operators.recurrent import ACTIVATIONS
from ipusim.workload.onnx.reader import is_kept
from ipusim.workload.onnx.recipes import BATCH_FIRST, BOTH_WAYS, VENDOR, Parts, Recipe, by_domain
from ipusim.workload.onnx.shapes import FLOAT, axis_of, dft_axis, frame_length, require

NCHWC = "com.microsoft.nchwc"
"""Domain of onnxruntime's convolutions in blocks of channels."""

LARGEST_TRIANGLE = 4096
"""Longest axis whose running sum is a product with a triangle of ones."""

LARGEST_UNROLL = 20_000
"""Steps of a plain recurrent layer, which are unrolled."""

LONGEST_TEXT = 32
"""Words of a text, whose number only the host knows."""

_AS_FLOAT = "quantised operators are computed as float, with the integers' bytes on the host only"
_ON_HOST = "texts are split and looked up on the host"

_BYTES = (2, 3)
"""Element types of packed numbers."""


def same_as(
    op_type: str = "", *places: int, quantised: bool = False, zero: int = 0, **more: object
) -> Recipe:
    """Return the recipe of an operator that is another one, with inputs at these places.

    Without a name it is the one that it is called after, be it with QLinear in front. At ``zero``,
    if not 0, is the zero of its quantised results; it has ``more`` attributes.
    """

    def recipe(p: Parts) -> str:
        if p.get("channels_last"):  # in data, but not in weights
            return _channels_last(p, recipe)
        if quantised:
            p.note(_AS_FLOAT)
        chosen = [place for place in places or range(len(p.node.input)) if p.has(place)]
        operands = [p.floating(place) if quantised else p.input(place) for place in chosen]
        own = p.reading({}, channels_last=None).node
        kind = op_type or own.op_type.removeprefix("QLinear")
        result = p(kind, *operands, **own.attributes, **more)
        return _rectified(p, result, zero) if zero else result

    return recipe


_BEFORE_RELU = ("Conv", "ConvTranspose", "Gemm", "MatMul", "Add", "BatchNormalization")
"""Operators whose results have both signs, behind which quantisers drop a Relu as their own."""


def _rectified(p: Parts, x: str, zero: int) -> str:
    """Return what a node's quantisation makes of x: a Relu if its zero is the smallest number."""
    node = next((node for node in reversed(p.context.nodes) if x in node.output), None)
    if node is None or node.op_type not in _BEFORE_RELU:
        return x
    # A sum with one number is a piece of a function, such as 1 + erf(x).
    zero_array, inputs = p.known(zero), p.context.inputs(node)
    if zero_array is None or any(value.static and value.elements == 1 for value in inputs):
        return x
    smallest = zero_array.dtype.kind in "iu" and zero_array == np.iinfo(zero_array.dtype).min
    return p("Relu", x) if np.all(smallest) else x


# -- arithmetic ---------------------------------------------------------------------------


def _hyperbolic(p: Parts, op_type: str) -> str:
    x = p.input(0)
    return p("Mul", p(op_type, p("Exp", x), p("Exp", p("Neg", x))), 0.5)


def _inverse_hyperbolic(p: Parts) -> str:
    x = p.input(0)
    root = p("Sqrt", p("Add", p("Mul", x, x), 1.0))
    return p("Log", p("Add", x, root))


def _inverse_tangent(p: Parts) -> str:
    x = p.input(0)
    ratio = p("Div", p("Add", x, 1.0), p("Sub", x, 1.0))
    return p("Mul", p("Log", ratio), 0.5)


def _inverse_circular(p: Parts) -> str:
    p.note("inverse trigonometric functions cost what a tangent does")
    return p("Tan", p.input(0))


def _cumulative(p: Parts) -> str:
    """Running sum: the product with a triangle of ones (popart willow/src/popx/op/cumsumx.cpp)."""
    x, shape = p.input(0), p.shape()
    axis = axis_of(p.ints("", 1)[0], len(shape))
    if not p.is_float(x) or shape[axis] > LARGEST_TRIANGLE:
        p.note("running sums of integers or long axes are one addition per element")
        return p("Add", x, 1.0)
    order = [i for i in range(len(shape)) if i != axis] + [axis]
    triangle = p.stored(shape[axis], shape[axis], learnable=False)
    if order == sorted(order):
        return p("MatMul", x, triangle)
    result = p("MatMul", p.transpose(x, *order), triangle)
    return p.transpose(result, *np.argsort(order).tolist())


def _determinant(p: Parts) -> str:
    """The product of the diagonal that n - 1 steps of elimination leave."""
    diagonal = p("ReduceMax", _eliminated(p, p.shape()[-1] - 1), [-1], keepdims=0)
    return p("ReduceProd", diagonal, [-1], keepdims=0)


def _eliminated(p: Parts, steps: int) -> str:
    """Take a scaled row from all others in each step, without pivots.

    An inverse takes as many steps as there are rows, each also upwards (Gauss and Jordan).
    """
    p.note("determinants and inverses are eliminations without a choice of pivots")
    x = p.input(0)
    for _ in range(min(steps, LARGEST_UNROLL)):
        row = p.slice(x, -2, 0, 1)
        x = p("Sub", x, p("Mul", row, p("Div", p.slice(x, -1, 0, 1), 2.0)))
    return x


def _einsum(p: Parts) -> str:
    """Einsum: operands from left to right, each pair one (batched) matrix product."""
    equation = str(p.get("equation")).replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    shapes = [p.shape(name) for name in p.node.input]
    spare = [c for c in map(chr, range(0x391, 0x3A9)) if c not in equation]
    pairs = zip(terms, shapes, strict=True)
    extra = [len(shape) - len(term.replace("...", "")) for term, shape in pairs]
    longest = max(extra, default=0)
    terms = [
        term.replace("...", "".join(spare[longest - more : longest]))
        for term, more in zip(terms, extra, strict=True)
    ]
    if not arrow:
        joined = "".join(terms)
        once = sorted(c for c in set(joined) if joined.count(c) == 1 and c not in spare)
        right = "".join(["..." * ("..." in left), *once])
    result = right.replace("...", "".join(spare[:longest]))
    operands = [_diagonal(p, x, t) for x, t in zip(p.node.input, terms, strict=True)]
    current, labels = operands[0]
    for place, (other, term) in enumerate(operands[1:], start=1):
        later = set(result).union(*(t for _, t in operands[place + 1 :]))
        current, labels = _pair(p, current, labels, other, term, later)
    current, labels = _summed(p, current, labels, set(result))
    return p.transpose(current, *map(labels.index, result))


def _diagonal(p: Parts, x: str, term: str) -> tuple[str, str]:
    """Return an operand of Einsum without repeated letters."""
    require(len(term) == len(p.shape(x)), f"term {term!r} for shape {p.shape(x)}")
    for letter in dict.fromkeys(term):
        while term.count(letter) > 1:
            axis = term.rindex(letter)
            x = p("ReduceMax", x, [axis], keepdims=0)
            term = term[:axis] + term[axis + 1 :]
    return x, term


def _summed(p: Parts, x: str, labels: str, kept: set[str]) -> tuple[str, str]:
    gone = [axis for axis, c in enumerate(labels) if c not in kept]
    x = p("ReduceSum", x, gone, keepdims=0) if gone else x
    return x, "".join(c for c in labels if c in kept)


def _pair(p: Parts, a: str, left: str, b: str, right: str, later: set[str]) -> tuple[str, str]:
    a, left = _summed(p, a, left, later | set(right))
    b, right = _summed(p, b, right, later | set(left))
    of_a = dict(zip(left, p.shape(a), strict=True))
    of_b = dict(zip(right, p.shape(b), strict=True))
    # What an operand has once stands beside every item of the other.
    sizes = {c: max(of_a.get(c, 1), of_b.get(c, 1)) for c in left + right}
    batch = [c for c in left if c in right and c in later]
    inner = [c for c in left if c in right and c not in later]
    rows = [c for c in left if c not in right]
    columns = [c for c in right if c not in left]
    wide = [*batch, *rows, *columns]

    def lengths(labels: list[str], sizes: dict[str, int] = sizes) -> list[int]:
        return [sizes[c] for c in labels]

    first = p.transpose(a, *map(left.index, [*batch, *rows, *inner]))
    if not inner:
        first = p.reshape(first, *lengths([*batch, *rows], of_a), *[1 for _ in columns])
    second = p.transpose(b, *map(right.index, [*batch, *inner, *columns]))
    if not inner:
        ones = [1 for _ in rows]
        second = p.reshape(second, *lengths(batch, of_b), *ones, *lengths(columns))
        return p("Mul", first, second), "".join(wide)
    m, k, n = (prod(lengths(part)) for part in (rows, inner, columns))
    first = p.reshape(first, *lengths(batch, of_a), m, k)
    second = p.reshape(second, *lengths(batch, of_b), k, n)
    return p.reshape(p("MatMul", first, second), *lengths(wide)), "".join(wide)


# -- normalisation and activations ---------------------------------------------------------


def _skip_norm(p: Parts) -> str:
    """Skip(Simplified)LayerNormalization: x + skip (+ bias), then the norm."""
    simple = "Simplified" in p.node.op_type
    total = p.sum(p.input(0), p.input(1), p.input(3 if simple else 4))
    if p.out(3):
        p("Identity", total, out=p.out(3))
    return _norm(p, total, 2, 0 if simple else 3)


def _norm(p: Parts, x: str, scale: int, shift: int) -> str:
    """Visit the norm of x with a scale, and if it has one a shift, at these places."""
    along = {"axis": -1, "epsilon": p.get("epsilon", 1e-5)}
    if not shift:
        return p("RMSNormalization", x, p.input(scale), **along)
    return p("LayerNormalization", x, *filter(None, (p.input(scale), p.input(shift))), **along)


def _embed_norm(p: Parts) -> str:
    """EmbedLayerNormalization: words, positions and segments looked up, added and normalised."""
    batch, length = p.shape()
    words = p("Gather", p.input(2), p.input(0), axis=0)
    segments = p("Gather", p.input(4), p.input(1), axis=0) if p.has(1) and p.has(4) else ""
    total = p.sum(words, p.slice(p.input(3), 0, 0, length), segments)
    if p.out(1):
        p("ConstantOfShape", [batch], out=p.out(1))
    if p.out(2):
        p("Identity", total, out=p.out(2))
    return _norm(p, total, 5, 6)


def _halves_gelu(p: Parts) -> str:
    """BiasSplitGelu: the first half of x + bias times the GELU of the second."""
    total = p.sum(p.input(0), p.input(1))
    half = p.shape(total)[-1] // 2
    left, right = p.split(total, -1, half, half)
    return p("Mul", left, p("Gelu", right))


def _channels_last(p: Parts, recipe: Recipe) -> str:
    """An operator whose channels are last: the usual recipe, turned and back."""
    turned = p.reading({0: _channels_second(p, p.input(0))}, channels_last=None)
    return _channels_behind(turned, recipe(turned))


def _channels_second(p: Parts, x: str) -> str:
    last = len(p.shape(x)) - 1
    return p.transpose(x, 0, last, *range(1, last))


def _channels_behind(p: Parts, x: str, out: str = "") -> str:
    return p.transpose(x, 0, *range(2, len(p.shape(x))), 1, out=out)


def _group_norm(p: Parts) -> str:
    """GroupNorm (x, scale, shift), or SkipGroupNorm, which adds a skip and a bias before it."""
    x = p.input(0)
    if p.has(3):
        skip, sizes = p.input(3), p.shape(3)
        wide = p.reshape(skip, *sizes, 1, 1) if len(sizes) == 2 else _channels_second(p, skip)
        x = p.sum(x, wide)
        if p.has(4):
            x = p("Add", x, p.reshape(p.input(4), -1, 1, 1))
        if p.out(1):
            _channels_behind(p, x, p.out(1))
    y = p("GroupNormalization", x, p.input(1), p.input(2), num_groups=int(p.get("groups")))
    return p("Swish", y) if p.get("activation") else y


def _lp_norm(p: Parts) -> str:
    kind = "ReduceL1" if p.get("p", 2) == 1 else "ReduceL2"
    return p("Div", p.input(0), p(kind, p.input(0), [int(p.get("axis", -1))]))


def _lp_pool(p: Parts) -> str:
    kind = p.node.op_type.replace("Lp", "Average")
    return p("Sqrt", p(kind, p("Square", p.input(0)), **p.reading({}, p=None).node.attributes))


def _eye(p: Parts) -> str:
    """EyeLike: a constant, whatever the values of its input."""
    kind = int(p.get("dtype", p.kind()))
    if not is_kept(p.shape(), kind):
        return p.stored(*p.shape(), learnable=False)
    eye = np.eye(*p.shape(), int(p.get("k", 0)), dtype=helper.tensor_dtype_to_np_dtype(kind))
    return p.context.constant(f"{p.label}.ones", eye)


def _hardmax(p: Parts) -> str:
    best = p("ReduceMax", p.input(0), [p.axis(-1)])
    return p("Cast", p("Equal", p.input(0), best), to=p.kind())


# -- products -----------------------------------------------------------------------------


def _fused_matmul(p: Parts) -> str:
    """FusedMatMul: transBatch lets the first axis be the rows, behind the ones of the batch."""
    operands = []
    for place, side in ((0, "A"), (1, "B")):
        name = p.input(place)
        order = list(range(len(p.shape(name))))
        if p.get(f"transBatch{side}", 0):
            order.insert(-1, order.pop(0))
        if p.get(f"trans{side}", 0):
            order[-2:] = order[:-3:-1]
        operands.append(name if order == sorted(order) else p.transpose(name, *order))
    product = p("MatMul", *operands)
    alpha = float(p.get("alpha", 1.0))
    return product if alpha == 1.0 else p("Mul", product, alpha)


def _fused(p: Parts, op_type: str) -> str:
    """A product with an addition and an activation."""
    kind = str(p.get("activation", ""))
    inner = {k: v for k, v in p.node.attributes.items() if not k.startswith("activation")}
    result = p.sum(p(op_type, *filter(None, p.node.input[:3]), **inner), p.input(3))
    return p(kind, result) if kind else result


def _block_conv(p: Parts) -> str:
    """Conv of onnxruntime's blocks, whose weights may have channels that fill up a block."""
    channels, groups = p.shape()[1], int(p.get("group", 1))
    if groups == 1 and p.shape(1)[1] > channels:
        p = p.reading({1: p.slice(p.input(1), 1, 0, channels)})
    elif groups > channels:
        # One for each channel: those that fill up are groups of their own.
        filled = [place for place in (1, 2) if p.has(place)]
        own = {place: p.slice(p.input(place), 0, 0, channels) for place in filled}
        p = p.reading(own, group=channels)
    return _fused(p, "Conv")


def _last_kernel(p: Parts) -> str:
    """NhwcConv: weights are (out, field, in)."""
    return _fused(p.reading({1: _channels_second(p, p.input(1))}), "Conv")


def _from_blocks(p: Parts) -> str:
    """ReorderOutput: the channels there really are, last or not."""
    y = p.slice(p.input(0), 1, 0, int(p.get("channels")))
    return _channels_behind(p, y) if p.get("channels_last") else y


def _few_bits(p: Parts) -> str:
    """A product with packed weights of K rows and N columns; MatMulNBits may have a bias."""
    p.note(_AS_FLOAT)
    product = p("MatMul", p.input(0), p.stored(int(p.get("K")), int(p.get("N"))))
    return p.sum(product, p.input(5))


def _packed_lookup(p: Parts) -> str:
    """GatherBlockQuantized: a lookup in rows of packed numbers."""
    p.note(_AS_FLOAT)
    *rows, width = p.shape()
    per_byte = 8 // int(p.get("bits", 4)) if p.kind() in _BYTES else 1
    table = p.stored(*rows, width * per_byte)
    return p("Gather", table, p.input(1), axis=int(p.get("gather_axis", 0)))


# -- integers -----------------------------------------------------------------------------


def _as_float(p: Parts) -> str:
    """Quantisation and its reverse: nothing moves where everything is float."""
    p.note(_AS_FLOAT)
    for place in (1, 2):
        if p.out(place):
            p.context.constant(p.out(place), np.array(1, np.float32))
    x = p.input(0)
    if p.node.op_type == "QuantizeLinear":
        x = _rectified(p, x, 2)
    elif p.context.values[x].elem_type != FLOAT:
        p.table_as_float(x)
    p("Identity", x, out=p.out())
    p.context.values[p.out()].elem_type = 1


def _quantised_concat(p: Parts) -> str:
    """QLinearConcat: (scale, zero, then data, scale, zero of each)."""
    p.note(_AS_FLOAT)
    parts = [p.floating(place) for place in range(2, len(p.node.input), 3)]
    return p("Concat", *parts, axis=int(p.get("axis")))


# -- indices, samples, texts -----------------------------------------------------------------


def _one_hot(p: Parts) -> str:
    """OneHot: one comparison with the numbers of the classes, one selection."""
    depth, rank = p.ints("", 1)[0], len(p.shape())
    axis = axis_of(int(p.get("axis", -1)), rank + 1)
    wide = p("Unsqueeze", p.input(0), [axis])
    shape = [-1 if a == axis else 1 for a in range(rank + 1)]
    classes = p.reshape(p("Range", 0, depth, 1), *shape)
    return p("Cast", p("Equal", wide, classes), to=p.kind(2))


def _words(p: Parts) -> str:
    """Tokenizer: words that the host sends."""
    p.note(f"{_ON_HOST}, {LONGEST_TEXT} words of each")
    wide = p("Unsqueeze", p.input(0), [-1])
    return p("Expand", wide, [*p.shape(), LONGEST_TEXT])


def _counts(p: Parts) -> str:
    """TfIdfVectorizer: counts that the host sends."""
    p.note(_ON_HOST)
    *rows, _ = p.shape()
    first = p("Cast", p.slice(p.input(0), -1, 0, 1), to=1)
    return p("Expand", first, [*rows, 1 + max(p.get("ngram_indexes"))])


def _spectrum(p: Parts) -> str:
    """DFT and STFT: the product with the matrix of sines and cosines, as PopART has no other."""
    p.note("Fourier transforms are products with the matrix of sines and cosines")
    (result, _), *_ = p.results()
    x = p.input(0)
    shape = p.shape(x)
    if p.node.op_type == "STFT":
        _, frames, bins, _ = result
        length, step = frame_length(p), p.ints("", 1)[0]
        signal = p.reshape(x, shape[0], 1, shape[1] * prod(shape[2:]))
        if prod(shape[2:]) > 1:
            signal = p.slice(signal, 2, 0, shape[1])
        weights = p.stored(2 * bins, 1, length, learnable=False)
        y = p("Conv", signal, weights, strides=[step])
        y = p.transpose(y, 0, 2, 1)
        return p.reshape(y, shape[0], frames, bins, 2)
    axis, last = dft_axis(p), len(shape) - 1
    order = [*(a for a in range(last) if a != axis), axis, last]
    outer, ends = [shape[a] for a in order[:-2]], (result[axis], result[-1])
    flat = p.reshape(p.transpose(x, *order), prod(outer), shape[axis] * shape[-1])
    y = p("MatMul", flat, p.stored(shape[axis] * shape[-1], prod(ends), learnable=False))
    return p.transpose(p.reshape(y, *outer, *ends), *np.argsort(order).tolist())


def _real_spectrum(p: Parts) -> str:
    """Rfft and Irfft: of the last dimension one side, of those before it all."""
    inverse = int(p.node.op_type == "Irfft")
    x = p.input(0) if inverse else p.reshape(p.input(0), *p.shape(), 1)
    sides = [1, *[0] * (int(p.get("signal_ndim", 1)) - 1)]
    for place, one_sided in sorted(enumerate(sides), reverse=bool(inverse)):
        x = p("DFT", x, axis=-2 - place, onesided=one_sided, inverse=inverse)
    return p.reshape(x, *p.shape(x)[:-1]) if inverse else x


# -- recurrent layers -----------------------------------------------------------------------


_OF_STATES = {name.lower(): name for name in ["Tanh", "Relu", "Sigmoid", "Softsign", "Softplus"]}
"""Operators of an RNN's functions, which ONNX names in any case."""


def _rnn(p: Parts) -> None:
    """RNN: one product for all inputs, then a product, a sum and a function in each step."""
    x = p.input(0)
    steps, batch, features = p.shape(x)
    hidden = p.shape(2)[2]
    if steps > LARGEST_UNROLL:
        raise p.node.error(
            f"has {steps} steps, more than the {LARGEST_UNROLL} that are unrolled; use an LSTM or "
            "GRU, which run as loops"
        )
    function, *_ = (name.lower() for name in p.get("activations", ACTIVATIONS["RNN"]))
    if function not in _OF_STATES:
        p.note("functions of an RNN with numbers of their own cost what a tanh does")
    w, r = (
        p.transpose(p.reshape(p.input(i), hidden, width), 1, 0)
        for i, width in ((1, features), (2, hidden))
    )
    ahead = p("MatMul", x, w)
    if p.has(3):
        ahead = p("Add", ahead, p.reshape(p.slice(p.input(3), 1, 0, hidden), hidden))
    state = p.reshape(p.input(5), batch, hidden) if p.has(5) else ""
    outputs, reverse = [], p.get("direction") == "reverse"
    for step in reversed(range(steps)) if reverse else range(steps):
        current = p.reshape(p.slice(ahead, 0, step, step + 1), batch, hidden)
        if state:
            current = p("Add", p("MatMul", state, r), current)
        state = p(_OF_STATES.get(function, "Tanh"), current)
        outputs.append(p.reshape(state, 1, 1, batch, hidden))
    if p.out(0):
        p("Concat", *(outputs[::-1] if reverse else outputs), axis=0, out=p.out(0))
    if p.out(1):
        p.reshape(state, 1, batch, hidden, out=p.out(1))


def _both_ways(p: Parts) -> None:
    """Recurrent layers of both directions: a layer each, whose results are put side by side."""
    sides, stated = [], p.get("activations", [])
    for place, direction in enumerate(("forward", "reverse")):
        parts = (i for i in (1, 2, 3, 5, 6, 7) if p.has(i))
        own = {i: p.slice(p.input(i), 0, place, place + 1) for i in parts}
        functions = stated[len(stated) // 2 * place :][: len(stated) // 2]
        layer = p.reading(own, direction=direction, activations=functions or None).node
        outs = [""] * len(layer.output)
        sides.append(p.several(layer.op_type, outs, *layer.input, **layer.attributes))
    for place, pair in enumerate(zip(*sides, strict=True)):
        if p.out(place):
            p("Concat", *pair, axis=0 if place else 1, out=p.out(place))


def _batch_first(p: Parts) -> None:
    """LSTM and GRU with the batch as first axis: the usual form between transposes."""
    batched = [place for place in (0, 5, 6) if p.has(place)]
    p = p.reading({i: p.transpose(p.input(i), 1, 0, 2) for i in batched}, layout=None)
    outs = [""] * len(p.node.output)
    for place, x in enumerate(p.several(p.node.op_type, outs, *p.node.input, **p.node.attributes)):
        if p.out(place):
            p.transpose(x, *((1, 0, 2) if place else (2, 0, 1, 3)), out=p.out(place))


def _quantised_lstm(p: Parts) -> None:
    """DynamicQuantizeLSTM: an LSTM whose weights are stored transposed."""
    p.note(_AS_FLOAT)
    shapes = {place: p.shape(place) for place in (1, 2)}
    stored = {place: p.stored(sides, n, m) for place, (sides, m, n) in shapes.items()}
    operands = p.reading(stored).node.input[:8]
    p.several("LSTM", p.node.output, *operands, **p.node.attributes)


COMPOSITES = by_domain(
    {
        "": {
            "Sinh": partial(_hyperbolic, op_type="Sub"),
            "Cosh": partial(_hyperbolic, op_type="Add"),
            "Asinh Acosh": _inverse_hyperbolic,
            "Atanh": _inverse_tangent,
            "Asin Acos Atan": _inverse_circular,
            "Erfc": lambda p: p("Sub", 1.0, p("Erf", p.input(0))),
            "CumSum CumProd": _cumulative,
            "Det": _determinant,
            "Einsum": _einsum,
            "LpNormalization": _lp_norm,
            "LpPool GlobalLpPool": _lp_pool,
            "EyeLike": _eye,
            "Hardmax": _hardmax,
            "SimplifiedLayerNormalization": same_as("RMSNormalization", 0, 1),
            "OneHot": _one_hot,
            "DFT STFT": _spectrum,
            "RNN": _rnn,
            "QuantizeLinear DequantizeLinear DynamicQuantizeLinear": _as_float,
            "QLinearConv": same_as("Conv", 0, 3, 8, quantised=True, zero=7),
            "ConvInteger": same_as("Conv", 0, 1, quantised=True, integers=1),
            "MatMulInteger": same_as("MatMul", 0, 1, quantised=True, integers=1),
            "QLinearMatMul": same_as("MatMul", 0, 3, quantised=True, zero=7),
            "StringNormalizer": same_as("Identity", 0),
            "TfIdfVectorizer": _counts,
        },
        VENDOR: {
            "QuantizeLinear DequantizeLinear DynamicQuantizeLinear": _as_float,
            "SimplifiedLayerNormalization": same_as("RMSNormalization", 0, 1),
            "SkipSimplifiedLayerNormalization SkipLayerNormalization": _skip_norm,
            "EmbedLayerNormalization": _embed_norm,
            "GroupNorm SkipGroupNorm": partial(_channels_last, recipe=_group_norm),
            "Gelu": same_as("Gelu", 0),
            "BiasGelu FastGelu": lambda p: p("Gelu", p.sum(p.input(0), p.input(1))),
            "QuickGelu": lambda p: p(
                "Mul", p.input(0), p("Sigmoid", p("Mul", p.input(0), p.get("alpha", 1.702)))
            ),
            "Rfft Irfft": _real_spectrum,
            "BiasSplitGelu": _halves_gelu,
            "BiasSoftmax": lambda p: p("Softmax", p.sum(p.input(0), p.input(1)), axis=-1),
            "BiasAdd BiasDropout": lambda p: p.sum(*(p.input(place) for place in range(3))),
            "FusedMatMul TransposeMatMul": _fused_matmul,
            "FusedConv": partial(_fused, op_type="Conv"),
            "FusedGemm": partial(_fused, op_type="Gemm"),
            "GemmFastGelu": lambda p: p(
                "Gelu", p.sum(p("MatMul", p.input(0), p.input(1)), p.input(2))
            ),
            "NhwcConv NhwcFusedConv": partial(_channels_last, recipe=_last_kernel),
            "NhwcMaxPool": partial(_channels_last, recipe=same_as("MaxPool", 0)),
            "MatMulNBits MatMulBnb4": _few_bits,
            "GatherBlockQuantized": _packed_lookup,
            "DynamicQuantizeLSTM": _quantised_lstm,
            "MatMulIntegerToFloat DynamicQuantizeMatMul": same_as("MatMul", 0, 1, quantised=True),
            "QLinearConv": same_as("Conv", 0, 3, 8, quantised=True, zero=7),
            "QGemm": same_as("Gemm", 0, 3, 6, quantised=True, zero=8),
            "QLinearAdd": same_as("Add", 0, 3, quantised=True, zero=7),
            "QLinearMul": same_as("Mul", 0, 3, quantised=True),
            "QLinearWhere": same_as("Where", 0, 1, 4, quantised=True),
            "QLinearConcat": _quantised_concat,
            "QLinearSigmoid QLinearLeakyRelu QLinearSoftmax QLinearReduceMean QLinearAveragePool "
            "QLinearGlobalAveragePool": same_as("", 0, quantised=True),
            "LayerNormalization Trilu Pad Range GridSample Unique": same_as(),
            "ExpandDims": same_as("Unsqueeze"),
            "Inverse": lambda p: _eliminated(p, p.shape()[-1]),
            "Tokenizer": _words,
        },
        NCHWC: {
            "Conv": _block_conv,
            "ReorderInput": lambda p: (
                _channels_second(p, p.input(0)) if p.get("channels_last") else p.input(0)
            ),
            "ReorderOutput": _from_blocks,
            "MaxPool AveragePool GlobalMaxPool GlobalAveragePool Upsample": same_as(),
        },
        BATCH_FIRST: {"RNN LSTM GRU": _batch_first},
        BOTH_WAYS: {"RNN LSTM GRU": _both_ways},
    }
)
"""Recipes by domain and operator."""
