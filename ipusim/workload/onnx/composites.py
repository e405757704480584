"""Operators that are written as several simpler ones, as a framework or onnx's definition does.

Each rule visits the simpler nodes in turn: shapes, constants and costs follow by themselves. What a
rule leaves out or bounds from above is said in the notes of the import.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from math import prod

import numpy as np

from ipusim.errors import WorkloadError
from ipusim.workload.onnx.context import Node, Value, has_input, node_label
from ipusim.workload.onnx.shapes import Call, axis_of
from ipusim.workload.onnx.walk import BATCH_FIRST, VENDOR, Walk

Composite = Callable[[Walk, Node], None]

LARGEST_TRIANGLE = 4096
"""Longest axis whose running sum is a product with a triangle of ones."""

LARGEST_UNROLL = 20_000
"""Steps of a plain recurrent layer, which are unrolled."""


class Parts:
    """Writes the nodes that a composite stands for."""

    def __init__(self, walk: Walk, node: Node) -> None:
        self.walk, self.node, self.context = walk, node, walk.context
        self.label = node.name or node.output[0]
        self._count = 0

    def __call__(
        self, op_type: str, *inputs: str | np.ndarray, out: str = "", outs: int = 1, **given: object
    ) -> str:
        """Visit a node; return the name of its first result (the others get .1, .2, ...)."""
        self._count += 1
        stem = f"{self.label}.{op_type}{self._count}"
        names = [out or f"{stem}.out", *(f"{stem}.out.{place}" for place in range(1, outs))]
        operands = [
            self.context.constant(f"{stem}.in{place}", item)
            if isinstance(item, np.ndarray)
            else item
            for place, item in enumerate(inputs)
        ]
        self.walk.visit(
            Node(op_type=op_type, input=operands, output=names, given=dict(given), name=stem)
        )
        return names[0]

    def has(self, place: int) -> bool:
        """Whether the composite has an input."""
        return has_input(self.node, place)

    def input(self, place: int) -> str:
        """Return the name of an input of the composite."""
        return self.node.input[place]

    def out(self, place: int = 0) -> str:
        """Return the name of a result of the composite, empty if nobody asks for it."""
        return self.node.output[place] if place < len(self.node.output) else ""

    def get(self, name: str, default: object = None) -> object:
        """Return an attribute of the composite."""
        return self.node.given.get(name, default)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a value."""
        return self.context.shape(name)

    def scalar(self, like: str, value: float) -> np.ndarray:
        """Return a number in the type of a value."""
        return np.asarray(value, np.float32)

    def reshape(self, x: str, *shape: int, out: str = "") -> str:
        """Visit a Reshape."""
        return self("Reshape", x, np.array(shape, np.int64), out=out)

    def transpose(self, x: str, *order: int, out: str = "") -> str:
        """Visit a Transpose."""
        return self("Transpose", x, out=out, perm=list(order))

    def slice(self, x: str, axis: int, start: int, end: int, out: str = "") -> str:
        """Visit a Slice along one axis."""
        bounds = [np.array([value], np.int64) for value in (start, end, axis)]
        return self("Slice", x, *bounds, out=out)

    def stored(self, *shape: int) -> str:
        """Add weights whose values do not matter; return their name."""
        self._count += 1
        name = f"{self.label}.weights{self._count}"
        value = Value(shape=shape, elem_type=1, static=True, learnable=True, root=name)
        self.context.record(self.node, name, value)
        return name

    def note(self, text: str) -> None:
        """Count an assumption."""
        self.context.notes[text] += 1


# -- arithmetic ---------------------------------------------------------------------------


def _expression(recipe: Callable[[Parts, str, str], None]) -> Composite:
    """Turn a recipe of one operand and the name of its result into a composite."""

    def composite(walk: Walk, node: Node) -> None:
        parts = Parts(walk, node)
        recipe(parts, node.input[0], node.output[0])

    return composite


def _sinh(p: Parts, x: str, out: str) -> None:
    p("Mul", p("Sub", p("Exp", x), p("Exp", p("Neg", x))), p.scalar(x, 0.5), out=out)


def _cosh(p: Parts, x: str, out: str) -> None:
    p("Mul", p("Add", p("Exp", x), p("Exp", p("Neg", x))), p.scalar(x, 0.5), out=out)


def _inverse_hyperbolic(p: Parts, x: str, out: str) -> None:
    if p.node.op_type == "Atanh":
        ratio = p("Div", p("Add", x, p.scalar(x, 1)), p("Sub", x, p.scalar(x, 1)))
        p("Mul", p("Log", ratio), p.scalar(x, 0.5), out=out)
    else:
        root = p("Sqrt", p("Add", p("Mul", x, x), p.scalar(x, 1)))
        p("Log", p("Add", x, root), out=out)


def _inverse_circular(p: Parts, x: str, out: str) -> None:
    p.note("inverse trigonometric functions cost what a tangent does")
    p("Tan", x, out=out)


def _cumulative(p: Parts, x: str, out: str) -> None:
    """Running sum: the product with a triangle of ones (popart willow/src/popx/op/cumsumx.cpp)."""
    shape = p.shape(x)
    axis = axis_of(int(Call(p.context, p.node).array(1).reshape(-1)[0]), len(shape))
    length = shape[axis]
    if p.context.dtype(x) not in ("float16", "float32") or length > LARGEST_TRIANGLE:
        p.note("running sums of integers or long axes are one addition per element")
        p("Add", x, p.scalar(x, 1), out=out)
        return
    order = [i for i in range(len(shape)) if i != axis] + [axis]
    moved = order != sorted(order)
    source = p.transpose(x, *order) if moved else x
    triangle = p("ConstantOfShape", np.array([length, length], np.int64))
    result = p("MatMul", source, triangle, out="" if moved else out)
    if moved:
        p.transpose(result, *[order.index(i) for i in range(len(order))], out=out)


def _einsum(walk: Walk, node: Node) -> None:
    """Einsum: operands from left to right, each pair one (batched) matrix product."""
    p = Parts(walk, node)
    equation = str(node.given["equation"]).replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    shapes = [p.shape(name) for name in node.input]
    letters = set(equation) - set(",.->")
    spare = [c for c in map(chr, range(0x391, 0x3A9)) if c not in letters]
    longest = max(
        (
            len(shape) - len(term.replace("...", ""))
            for term, shape in zip(terms, shapes, strict=True)
        ),
        default=0,
    )
    terms = [
        term.replace(
            "...",
            "".join(spare[longest - (len(shape) - len(term.replace("...", ""))) : longest]),
        )
        for term, shape in zip(terms, shapes, strict=True)
    ]
    if not arrow:
        joined = "".join(terms)
        right = "...".join([""] * (1 + ("..." in left))) + "".join(
            sorted(c for c in set(joined) if joined.count(c) == 1 and c not in spare)
        )
    result = right.replace("...", "".join(spare[:longest]))
    operands = [_diagonal(p, x, t) for x, t in zip(node.input, terms, strict=True)]
    current, labels = operands[0]
    for place, (other, term) in enumerate(operands[1:], start=1):
        later = set(result).union(*(t for _, t in operands[place + 1 :]))
        current, labels = _pair(p, current, labels, other, term, later)
    current, labels = _summed(p, current, labels, set(result))
    order = [labels.index(c) for c in result]
    p.transpose(current, *order, out=node.output[0])


def _diagonal(p: Parts, x: str, term: str) -> tuple[str, str]:
    """Return an operand of Einsum without repeated letters."""
    if len(term) != len(p.shape(x)):
        raise ValueError(f"term {term!r} for shape {p.shape(x)}")
    for letter in dict.fromkeys(term):
        while term.count(letter) > 1:
            axis = term.rindex(letter)
            x = p("ReduceMax", x, np.array([axis], np.int64), keepdims=0)
            term = term[:axis] + term[axis + 1 :]
    return x, term


def _summed(p: Parts, x: str, labels: str, kept: set[str]) -> tuple[str, str]:
    gone = [axis for axis, c in enumerate(labels) if c not in kept]
    if not gone:
        return x, labels
    axes = np.array(gone, np.int64)
    x = p("ReduceSum", x, axes, keepdims=0, axes=gone)
    return x, "".join(c for c in labels if c in kept)


def _pair(p: Parts, a: str, left: str, b: str, right: str, later: set[str]) -> tuple[str, str]:
    """Contract two operands of Einsum."""
    a, left = _summed(p, a, left, later | set(right))
    b, right = _summed(p, b, right, later | set(left))
    sizes = dict(zip(left, p.shape(a), strict=True)) | dict(zip(right, p.shape(b), strict=True))
    shared = [c for c in left if c in right]
    batch = [c for c in shared if c in later]
    inner = [c for c in shared if c not in later]
    rows = [c for c in left if c not in right]
    columns = [c for c in right if c not in left]
    if not inner:
        wide = [*batch, *rows, *columns]
        first = p.transpose(a, *[left.index(c) for c in [*batch, *rows]])
        first = p.reshape(first, *[sizes[c] for c in [*batch, *rows]], *[1 for _ in columns])
        second = p.transpose(b, *[right.index(c) for c in [*batch, *columns]])
        second = p.reshape(
            second, *[sizes[c] for c in batch], *[1 for _ in rows], *[sizes[c] for c in columns]
        )
        return p("Mul", first, second), "".join(wide)
    first = p.transpose(a, *[left.index(c) for c in [*batch, *rows, *inner]])
    second = p.transpose(b, *[right.index(c) for c in [*batch, *inner, *columns]])
    groups = [sizes[c] for c in batch]
    m, k, n = (prod(sizes[c] for c in part) for part in (rows, inner, columns))
    product = p("MatMul", p.reshape(first, *groups, m, k), p.reshape(second, *groups, k, n))
    wide = [*batch, *rows, *columns]
    return p.reshape(product, *[sizes[c] for c in wide]), "".join(wide)


# -- normalisation and activations ---------------------------------------------------------


def _skip_norm(walk: Walk, node: Node) -> None:
    """Skip(Simplified)LayerNormalization: x + skip (+ bias), then the norm."""
    p = Parts(walk, node)
    simple = "Simplified" in node.op_type
    total = p("Add", p.input(0), p.input(1))
    bias = 3 if simple else 4
    if p.has(bias):
        total = p("Add", total, p.input(bias))
    if p.out(3):
        p("Identity", total, out=p.out(3))
    _final_norm(p, total, 2, None if simple else 3, simple)


def _final_norm(p: Parts, x: str, scale: int, shift: int | None, simple: bool) -> None:
    given = {"axis": -1, "epsilon": p.get("epsilon", 1e-5)}
    operands = [x, p.input(scale)]
    if simple:
        p("RMSNormalization", *operands, out=p.out(), **given)
        return
    if shift is not None and p.has(shift):
        operands.append(p.input(shift))
    p("LayerNormalization", *operands, out=p.out(), **given)


def _embed_norm(walk: Walk, node: Node) -> None:
    """EmbedLayerNormalization: words, positions and segments looked up, added and normalised."""
    p = Parts(walk, node)
    batch, length = p.shape(p.input(0))
    total = p("Gather", p.input(2), p.input(0), axis=0)
    positions = p.slice(p.input(3), 0, 0, length)
    total = p("Add", total, positions)
    if p.has(1) and p.has(4):
        total = p("Add", total, p("Gather", p.input(4), p.input(1), axis=0))
    _final_norm(p, total, 5, 6, False)
    if p.out(1):
        p("ConstantOfShape", np.array([batch], np.int64), out=p.out(1))
    if p.out(2):
        p("Identity", total, out=p.out(2))


def _bias_gelu(walk: Walk, node: Node) -> None:
    p = Parts(walk, node)
    x = p("Add", p.input(0), p.input(1)) if p.has(1) else p.input(0)
    p("Gelu", x, out=p.out())


def _lp_norm(p: Parts, x: str, out: str) -> None:
    axis = [int(p.get("axis", -1))]
    kind = "ReduceL1" if p.get("p", 2) == 1 else "ReduceL2"
    p("Div", x, p(kind, x, np.array(axis, np.int64), axes=axis), out=out)


def _lp_pool(p: Parts, x: str, out: str) -> None:
    """LpPool: power, windowed sum, root."""
    kept = {
        name: p.node.given[name]
        for name in ("kernel_shape", "strides", "pads", "auto_pad", "dilations", "ceil_mode")
        if name in p.node.given
    }
    powered = p("Square", x)
    if p.node.op_type == "GlobalLpPool":
        pooled = p("GlobalAveragePool", powered)
    else:
        pooled = p("AveragePool", powered, **kept)
    p("Sqrt", pooled, out=out)


def _hardmax(p: Parts, x: str, out: str) -> None:
    axis = axis_of(int(p.get("axis", -1)), len(p.shape(x)))
    best = p("ReduceMax", x, np.array([axis], np.int64), axes=[axis])
    p("Cast", p("Equal", x, best), to=p.context.values[x].elem_type, out=out)


# -- products and attention ---------------------------------------------------------------


def _fused_matmul(walk: Walk, node: Node) -> None:
    p = Parts(walk, node)
    operands = []
    for place, flag in ((0, "transA"), (1, "transB")):
        name = p.input(place)
        rank = len(p.shape(name))
        if p.get(flag, 0) and rank > 1:
            name = p.transpose(name, *range(rank - 2), rank - 1, rank - 2)
        operands.append(name)
    scaled = float(p.get("alpha", 1.0)) != 1.0
    product = p("MatMul", *operands, out="" if scaled else p.out())
    if scaled:
        p("Mul", product, p.scalar(product, float(p.get("alpha", 1.0))), out=p.out())


def _fused_conv(walk: Walk, node: Node) -> None:
    """FusedConv and FusedGemm: the product and an activation."""
    p = Parts(walk, node)
    kind = str(p.get("activation", ""))
    inner = {k: v for k, v in node.given.items() if not k.startswith("activation")}
    more = p.has(3)
    plain = not kind and not more
    name = "Conv" if "Conv" in node.op_type else "Gemm"
    result = p(name, *node.input[:3], out=p.out() if plain else "", **inner)
    if more:
        result = p("Add", result, p.input(3), out="" if kind else p.out())
    if kind:
        p(kind, result, out=p.out())


def _heads(p: Parts, x: str, heads: int) -> str:
    """Return (batch, length, heads x size) as (batch, heads, length, size)."""
    shape = p.shape(x)
    if len(shape) == 4:
        return x
    batch, length, width = shape
    split = p.reshape(x, batch, length, heads, width // heads)
    return p.transpose(split, 0, 2, 1, 3)


def _repeat_heads(p: Parts, x: str, heads: int) -> str:
    """Let groups of query heads share the keys or values of one head."""
    batch, own, length, size = p.shape(x)
    if own == heads:
        return x
    wide = p.reshape(x, batch, own, 1, length, size)
    wide = p("Expand", wide, np.array([batch, own, heads // own, length, size], np.int64))
    return p.reshape(wide, batch, heads, length, size)


def _attend(
    p: Parts,
    q: str,
    k: str,
    v: str,
    *,
    mask: str = "",
    causal: bool = False,
    scale: float | None = None,
    cap: float = 0.0,
    out: str = "",
    flat: bool = True,
) -> str:
    """Return softmax(q k' scale + mask) v, heads joined again if `flat`."""
    batch, heads, length, size = p.shape(q)
    k, v = _repeat_heads(p, k, heads), _repeat_heads(p, v, heads)
    total = p.shape(k)[2]
    scores = p("MatMul", q, p.transpose(k, 0, 1, 3, 2))
    scores = p("Mul", scores, p.scalar(scores, scale or 1 / math.sqrt(size)))
    if cap:
        scores = p("Tanh", p("Div", scores, p.scalar(scores, cap)))
        scores = p("Mul", scores, p.scalar(scores, cap))
    if mask:
        numeric = p.context.dtype(mask) in ("float16", "float32")
        if numeric:
            scores = p("Add", scores, mask)
        else:
            scores = p("Where", mask, scores, p.scalar(scores, -1e4))
    if causal:
        triangle = p("ConstantOfShape", np.array([length, total], np.int64))
        scores = p("Add", scores, triangle)
    weights = p("Softmax", scores, axis=-1)
    mixed = p("MatMul", weights, v, out="" if flat else out)
    if not flat:
        return mixed
    joined = p.transpose(mixed, 0, 2, 1, 3)
    return p.reshape(joined, batch, length, heads * p.shape(v)[3], out=out)


def _attention(walk: Walk, node: Node) -> None:
    """Attention of opset 23: (q, k, v, mask, past key, past value)."""
    p = Parts(walk, node)
    q, k, v = (p.input(place) for place in range(3))
    flat = len(p.shape(q)) == 3
    if flat:
        heads, own = int(p.get("q_num_heads")), int(p.get("kv_num_heads"))
        q, k, v = _heads(p, q, heads), _heads(p, k, own), _heads(p, v, own)
    k, v = _with_past(p, k, v, 4, (1, 2))
    scale = p.get("scale")
    mask = p.input(3) if p.has(3) else ""
    _attend(
        p,
        q,
        k,
        v,
        mask=mask,
        causal=bool(p.get("is_causal", 0)),
        scale=None if scale is None else float(scale),
        cap=float(p.get("softcap", 0.0)),
        out=p.out(),
        flat=flat,
    )
    if p.out(3):
        p("MatMul", q, p.transpose(_repeat_heads(p, k, p.shape(q)[1]), 0, 1, 3, 2), out=p.out(3))


def _with_past(p: Parts, k: str, v: str, place: int, outputs: tuple[int, int]) -> tuple[str, str]:
    """Return keys and values behind those of earlier steps."""
    results = []
    for current, past, output in ((k, place, outputs[0]), (v, place + 1, outputs[1])):
        if p.has(past):
            current = p("Concat", p.input(past), current, axis=2, out=p.out(output))
        elif p.out(output):
            current = p("Identity", current, out=p.out(output))
        results.append(current)
    return results[0], results[1]


def _packed_attention(walk: Walk, node: Node) -> None:
    """com.microsoft.Attention: one product for q, k and v, then attention."""
    p = Parts(walk, node)
    heads = int(p.get("num_heads"))
    product = p("MatMul", p.input(0), p.input(1))
    if p.has(2):
        product = p("Add", product, p.input(2))
    sizes = list(p.get("qkv_hidden_sizes") or [p.shape(product)[-1] // 3] * 3)
    given = np.array(sizes, np.int64)
    q = p("Split", product, given, outs=3, axis=2)
    stem = q.removesuffix(".out")
    q, k, v = (_heads(p, x, heads) for x in (q, f"{stem}.out.1", f"{stem}.out.2"))
    mask = _vendor_mask(p, 3)
    _attend(p, q, k, v, mask=mask, causal=bool(p.get("unidirectional", 0)), out=p.out())


def _vendor_mask(p: Parts, place: int) -> str:
    if not p.has(place):
        return ""
    p.note("masks of fused attention are one addition to the scores")
    mask = p.input(place)
    shape = p.shape(mask)
    if len(shape) < 2:
        return ""
    numeric = p("Cast", mask, to=1)
    if len(shape) == 2:
        numeric = p.reshape(numeric, shape[0], 1, 1, shape[1])
    elif len(shape) == 3:
        numeric = p.reshape(numeric, shape[0], 1, *shape[1:])
    return numeric


def _multi_head(walk: Walk, node: Node) -> None:
    """com.microsoft.MultiHeadAttention: (q, k, v, bias, key mask, score bias, past key, value)."""
    p = Parts(walk, node)
    heads = int(p.get("num_heads"))
    q = p.input(0)
    if not p.has(1):
        q = p.transpose(q, 3, 0, 2, 1, 4)
        q, k, v = (p("Gather", q, np.array(i, np.int64), axis=0) for i in range(3))
    elif not p.has(2):
        k = p.transpose(p.input(1), 3, 0, 2, 1, 4)
        k, v = (p("Gather", k, np.array(i, np.int64), axis=0) for i in range(2))
    else:
        k, v = p.input(1), p.input(2)
    if p.has(3):
        width = p.shape(p.input(3))[0] // 3
        biased = []
        for place, x in enumerate((q, k, v)):
            bias = p.slice(p.input(3), 0, place * width, (place + 1) * width)
            biased.append(p("Add", x, bias) if len(p.shape(x)) == 3 else x)
        q, k, v = biased
    q, k, v = _heads(p, q, heads), _heads(p, k, heads), _heads(p, v, heads)
    k, v = _with_past(p, k, v, 6, (1, 2))
    scale = p.get("scale")
    mask = p.input(5) if p.has(5) else _vendor_mask(p, 4)
    _attend(
        p,
        q,
        k,
        v,
        mask=mask,
        causal=bool(p.get("unidirectional", 0)),
        scale=float(scale) if scale else None,
        out=p.out(),
    )


def _grouped_query(walk: Walk, node: Node) -> None:
    """GroupQueryAttention: (q, k, v, past key, past value, lengths, total, cos, sin)."""
    p = Parts(walk, node)
    heads, own = int(p.get("num_heads")), int(p.get("kv_num_heads"))
    q = p.input(0)
    if not p.has(1):
        size = p.shape(q)[2] // (heads + 2 * own)
        given = np.array([heads * size, own * size, own * size], np.int64)
        q = p("Split", q, given, outs=3, axis=2)
        stem = q.removesuffix(".out")
        k, v = f"{stem}.out.1", f"{stem}.out.2"
    else:
        k, v = p.input(1), p.input(2)
    q, k, v = _heads(p, q, heads), _heads(p, k, own), _heads(p, v, own)
    if p.get("do_rotary", 0) and p.has(7):
        q, k = (_rotated(p, x, p.input(7), p.input(8)) for x in (q, k))
    k, v = _with_past(p, k, v, 3, (1, 2))
    scale = p.get("scale")
    length = p.shape(q)[2]
    _attend(p, q, k, v, causal=length > 1, scale=float(scale) if scale else None, out=p.out())


def _rotated(p: Parts, x: str, cosine: str, sine: str, out: str = "", dims: int = 0) -> str:
    """Return (batch, heads, length, size) turned by angles: x cos + swapped(x) sin."""
    size = p.shape(x)[-1]
    dims = dims or size
    turned = p.slice(x, 3, 0, dims) if dims < size else x
    length = p.shape(x)[2]
    if len(p.shape(cosine)) == 2:
        cosine, sine = (p.slice(table, 0, 0, length) for table in (cosine, sine))
    else:
        cosine, sine = (
            p("Unsqueeze", t, np.array([1], np.int64), axes=[1]) for t in (cosine, sine)
        )
    half = p.shape(turned)[-1] // 2
    first, second = p.slice(turned, 3, 0, half), p.slice(turned, 3, half, 2 * half)
    real = p("Sub", p("Mul", first, cosine), p("Mul", second, sine))
    imaginary = p("Add", p("Mul", second, cosine), p("Mul", first, sine))
    if dims == size:
        return p("Concat", real, imaginary, axis=3, out=out)
    rest = p.slice(x, 3, dims, size)
    return p("Concat", real, imaginary, rest, axis=3, out=out)


def _rotary(walk: Walk, node: Node) -> None:
    """com.microsoft.RotaryEmbedding (x, positions, cos, sin)."""
    p = Parts(walk, node)
    x = p.input(0)
    cosine, sine, positions = p.input(2), p.input(3), p.input(1)
    shape = p.shape(x)
    heads = int(p.get("num_heads", 0) or 0)
    dims = int(p.get("rotary_embedding_dim", 0) or 0)
    if len(shape) == 3:
        heads = heads or shape[2] // (dims or 2 * p.shape(cosine)[-1])
        x = _heads(p, x, heads)
    if positions and len(p.shape(positions)) == 2:
        cosine, sine = (p("Gather", table, positions, axis=0) for table in (cosine, sine))
    flat = len(shape) == 3
    result = _rotated(p, x, cosine, sine, out="" if flat else p.out(), dims=dims)
    if flat:
        p.reshape(p.transpose(result, 0, 2, 1, 3), *shape, out=p.out())


# -- integers -----------------------------------------------------------------------------

_AS_FLOAT = "quantised operators are computed as float, with the integers' bytes on the host only"


def _as_float(walk: Walk, node: Node) -> None:
    """Quantisation and its reverse: nothing moves where everything is float."""
    p = Parts(walk, node)
    p.note(_AS_FLOAT)
    p("Identity", p.input(0), out=p.out())
    kind = 1
    for name in p.node.output[:1]:
        p.context.values[name].elem_type = kind
    for place in (1, 2):
        if p.out(place):
            p.context.constant(p.out(place), np.array(1, np.float32))


def _renamed(op_type: str, *places: int) -> Composite:
    """Return the rule of an operator that is another one, with inputs at these places."""

    def composite(walk: Walk, node: Node) -> None:
        p = Parts(walk, node)
        p.note(_AS_FLOAT)
        operands = [_floating(p, p.input(place)) for place in places if p.has(place)]
        kept = {k: v for k, v in node.given.items() if k != "channels_last"}
        p(op_type, *operands, out=p.out(), **kept)

    return composite


def _floating(p: Parts, name: str) -> str:
    value = p.context.values[name]
    if value.elem_type not in (1, 10, 11, 16):
        value.elem_type = 1
        if value.array is not None:
            value.array = value.array.astype(np.float32)
    return name


def same_as(op_type: str, *places: int) -> Composite:
    """Return the rule of an operator that is another one of the same attributes."""

    def composite(walk: Walk, node: Node) -> None:
        p = Parts(walk, node)
        chosen = places or range(len(node.input))
        operands = [p.input(place) for place in chosen if p.has(place)]
        p(op_type, *operands, out=p.out(), **node.given)

    return composite


def _nbits(walk: Walk, node: Node) -> None:
    """MatMulNBits: the product with unpacked weights."""
    p = Parts(walk, node)
    p.note(_AS_FLOAT)
    weights, bias = p.stored(int(p.get("K")), int(p.get("N"))), p.has(5)
    product = p("MatMul", p.input(0), weights, out="" if bias else p.out())
    if bias:
        p("Add", product, p.input(5), out=p.out())


# -- indices, samples, windows --------------------------------------------------------------


def _quantised_lstm(walk: Walk, node: Node) -> None:
    """DynamicQuantizeLSTM: an LSTM whose weights are stored transposed."""
    p = Parts(walk, node)
    p.note(_AS_FLOAT)
    operands = [*node.input[:8], *[""] * (8 - len(node.input))]
    for place in (1, 2):
        directions, rows, columns = p.shape(p.input(place))
        operands[place] = p.stored(directions, columns, rows)
    walk.visit(
        Node(
            op_type="LSTM",
            input=operands,
            output=node.output,
            given=node.given,
            name=node.name,
        )
    )


def _one_hot(walk: Walk, node: Node) -> None:
    """OneHot: one comparison with the numbers of the classes, one selection."""
    p = Parts(walk, node)
    call = Call(p.context, node)
    depth = int(call.array(1).reshape(-1)[0])
    rank = len(p.shape(p.input(0)))
    axis = axis_of(int(p.get("axis", -1)), rank + 1)
    wide = p("Unsqueeze", p.input(0), np.array([axis], np.int64), axes=[axis])
    classes = np.arange(depth).reshape([-1 if a == axis else 1 for a in range(rank + 1)])
    hit = p("Equal", wide, classes)
    p("Cast", hit, to=p.context.values[p.input(2)].elem_type, out=p.out())


def _spectrum(walk: Walk, node: Node) -> None:
    """DFT and STFT: the product with the matrix of sines and cosines, as PopART has no other."""
    p = Parts(walk, node)
    p.note("Fourier transforms are products with the matrix of sines and cosines")
    call = Call(p.context, node)
    from ipusim.workload.onnx.shapes import RULES

    (result, _), *_ = RULES[node.op_type](call)
    x = p.input(0)
    shape = p.shape(x)
    if node.op_type == "STFT":
        _, frames, bins, _ = result
        length = p.shape(p.input(2))[0] if p.has(2) else call.ints("", 3)[0]
        step = call.ints("", 1)[0]
        signal = p.reshape(x, shape[0], 1, shape[1] * prod(shape[2:]))
        if prod(shape[2:]) > 1:
            signal = p.slice(signal, 2, 0, shape[1])
        weights = p("ConstantOfShape", np.array([2 * bins, 1, length], np.int64))
        y = p("Conv", signal, weights, strides=[step])
        y = p.transpose(y, 0, 2, 1)
        p.reshape(y, shape[0], frames, bins, 2, out=p.out())
        return
    axis = int(call.array(2)) if p.has(2) else int(p.get("axis", 1 if call.opset < 20 else -2))
    axis = axis_of(axis, len(shape))
    order = [a for a in range(len(shape)) if a != axis and a != len(shape) - 1]
    moved = p.transpose(x, *order, axis, len(shape) - 1)
    rows = prod(shape[a] for a in order)
    flat = p.reshape(moved, rows, shape[axis] * shape[-1])
    outs = result[axis] * result[-1]
    matrix = p("ConstantOfShape", np.array([shape[axis] * shape[-1], outs], np.int64))
    y = p("MatMul", flat, matrix)
    y = p.reshape(y, *[shape[a] for a in order], result[axis], result[-1])
    back = [(*order, axis, len(shape) - 1).index(a) for a in range(len(shape))]
    p.transpose(y, *back, out=p.out())


def _rnn(walk: Walk, node: Node) -> None:
    """RNN: one product for all inputs, then a product, a sum and a tanh in each step."""
    p = Parts(walk, node)
    x = p.input(0)
    steps, batch, features = p.shape(x)
    directions, hidden, _ = p.shape(p.input(1))
    if steps * directions > LARGEST_UNROLL:
        raise WorkloadError(
            f"The {node_label(node)} has {steps} steps, more than the {LARGEST_UNROLL} that are "
            "unrolled; use an LSTM or GRU, which run as loops."
        )
    finals, sequences = [], []
    for direction in range(directions):
        w, r = (
            p.transpose(
                p.reshape(p.slice(p.input(i), 0, direction, direction + 1), hidden, width), 1, 0
            )
            for i, width in ((1, features), (2, hidden))
        )
        ahead = p("MatMul", x, w)
        if p.has(3):
            bias = p.slice(p.input(3), 0, direction, direction + 1)
            bias = p.slice(bias, 1, 0, hidden)
            ahead = p("Add", ahead, p.reshape(bias, hidden))
        state = ""
        if p.has(5):
            state = p.reshape(p.slice(p.input(5), 0, direction, direction + 1), batch, hidden)
        outputs = []
        reverse = p.get("direction", "forward") == "reverse" or direction == 1
        for step in reversed(range(steps)) if reverse else range(steps):
            current = p.reshape(p.slice(ahead, 0, step, step + 1), batch, hidden)
            if state:
                current = p("Add", p("MatMul", state, r), current)
            state = p("Tanh", current)
            outputs.append(p.reshape(state, 1, 1, batch, hidden))
        finals.append(p.reshape(state, 1, batch, hidden))
        ordered = outputs[::-1] if reverse else outputs
        sequences.append(p("Concat", *ordered, axis=0))
    if p.out(0):
        _joined(p, sequences, 1, 0)
    if p.out(1):
        _joined(p, finals, 0, 1)


def _joined(p: Parts, names: list[str], axis: int, output: int) -> None:
    if len(names) == 1:
        p("Identity", names[0], out=p.out(output))
    else:
        p("Concat", *names, axis=axis, out=p.out(output))


def _batch_first(walk: Walk, node: Node) -> None:
    """LSTM and GRU with the batch as first axis: the usual form between transposes."""
    p = Parts(walk, node)
    operands = list(node.input)
    operands[0] = p.transpose(p.input(0), 1, 0, 2)
    for place in (5, 6):
        if p.has(place):
            operands[place] = p.transpose(p.input(place), 1, 0, 2)
    given = {k: v for k, v in node.given.items() if k != "layout"}
    first = p(node.op_type, *operands, outs=len(node.output), **given)
    p.transpose(first, 2, 0, 1, 3, out=p.out(0) or f"{first}.unread")
    for place in range(1, len(node.output)):
        if p.out(place):
            p.transpose(f"{first}.{place}", 1, 0, 2, out=p.out(place))


def _quick_gelu(p: Parts, x: str, out: str) -> None:
    p("Mul", x, p("Sigmoid", p("Mul", x, p.scalar(x, float(p.get("alpha", 1.702))))), out=out)


COMPOSITES: dict[tuple[str, str], Composite] = {
    **{
        ("", name): _expression(recipe)
        for name, recipe in {
            "Sinh": _sinh,
            "Cosh": _cosh,
            "Asinh": _inverse_hyperbolic,
            "Acosh": _inverse_hyperbolic,
            "Atanh": _inverse_hyperbolic,
            "Asin": _inverse_circular,
            "Acos": _inverse_circular,
            "Atan": _inverse_circular,
            "CumSum": _cumulative,
            "CumProd": _cumulative,
            "LpNormalization": _lp_norm,
            "LpPool": _lp_pool,
            "GlobalLpPool": _lp_pool,
            "Hardmax": _hardmax,
        }.items()
    },
    ("", "Einsum"): _einsum,
    ("", "SimplifiedLayerNormalization"): same_as("RMSNormalization", 0, 1),
    (VENDOR, "SimplifiedLayerNormalization"): same_as("RMSNormalization", 0, 1),
    (VENDOR, "SkipSimplifiedLayerNormalization"): _skip_norm,
    (VENDOR, "SkipLayerNormalization"): _skip_norm,
    (VENDOR, "EmbedLayerNormalization"): _embed_norm,
    (VENDOR, "BiasGelu"): _bias_gelu,
    (VENDOR, "FastGelu"): _bias_gelu,
    (VENDOR, "FusedMatMul"): _fused_matmul,
    (VENDOR, "TransposeMatMul"): _fused_matmul,
    (VENDOR, "FusedConv"): _fused_conv,
    (VENDOR, "FusedGemm"): _fused_conv,
    (VENDOR, "Attention"): _packed_attention,
    (VENDOR, "MultiHeadAttention"): _multi_head,
    (VENDOR, "GroupQueryAttention"): _grouped_query,
    (VENDOR, "RotaryEmbedding"): _rotary,
    (VENDOR, "MatMulNBits"): _nbits,
    (VENDOR, "DynamicQuantizeLSTM"): _quantised_lstm,
    ("", "Attention"): _attention,
    **{
        (domain, name): _as_float
        for name in ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")
        for domain in ("", VENDOR)
    },
    ("", "QLinearConv"): _renamed("Conv", 0, 3, 8),
    ("", "ConvInteger"): _renamed("Conv", 0, 1),
    ("", "MatMulInteger"): _renamed("MatMul", 0, 1),
    ("", "QLinearMatMul"): _renamed("MatMul", 0, 3),
    (VENDOR, "MatMulIntegerToFloat"): _renamed("MatMul", 0, 1),
    (VENDOR, "DynamicQuantizeMatMul"): _renamed("MatMul", 0, 1),
    (VENDOR, "QGemm"): _renamed("Gemm", 0, 3, 6),
    (VENDOR, "QLinearAdd"): _renamed("Add", 0, 3),
    (VENDOR, "QLinearMul"): _renamed("Mul", 0, 3),
    (VENDOR, "QLinearSigmoid"): _renamed("Sigmoid", 0),
    (VENDOR, "QLinearLeakyRelu"): _renamed("LeakyRelu", 0),
    (VENDOR, "QLinearSoftmax"): _renamed("Softmax", 0),
    (VENDOR, "QLinearGlobalAveragePool"): _renamed("GlobalAveragePool", 0),
    (VENDOR, "QLinearAveragePool"): _renamed("AveragePool", 0),
    (VENDOR, "Gelu"): same_as("Gelu", 0),
    (VENDOR, "QuickGelu"): _expression(_quick_gelu),
    (VENDOR, "LayerNormalization"): same_as("LayerNormalization"),
    (VENDOR, "Inverse"): same_as("Identity"),
    ("", "OneHot"): _one_hot,
    ("", "DFT"): _spectrum,
    ("", "STFT"): _spectrum,
    ("", "RNN"): _rnn,
    (BATCH_FIRST, "RNN"): _batch_first,
    (BATCH_FIRST, "LSTM"): _batch_first,
    (BATCH_FIRST, "GRU"): _batch_first,
}
"""Rules by domain and operator."""
