"""Attention and what belongs to it: heads, caches, rotary positions, mixtures of experts."""

import math
from functools import partial
from math import prod

from ipusim.workload.onnx.recipes import VENDOR, Parts, by_domain


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
    wide = p("Expand", wide, [batch, own, heads // own, length, size])
    return p.reshape(wide, batch, heads, length, size)


def _scores(p: Parts, q: str, k: str) -> str:
    return p("MatMul", q, p.transpose(_repeat_heads(p, k, p.shape(q)[1]), 0, 1, 3, 2))


def _attend(p: Parts, q: str, k: str, v: str, *, mask: str = "", causal: bool = False) -> str:
    """Return softmax(q k' scale + mask) v, heads joined again unless the node has them apart."""
    batch, heads, length, size = p.shape(q)
    v = _repeat_heads(p, v, heads)
    scores = _scores(p, q, k)
    scores = p("Mul", scores, p.get("scale") or 1 / math.sqrt(size))
    if p.get("softcap"):
        capped = p("Tanh", p("Div", scores, p.get("softcap")))
        scores = p("Mul", capped, p.get("softcap"))
    if mask and p.is_float(mask):
        scores = p("Add", scores, mask)
    elif mask:
        scores = p("Where", mask, scores, -1e4)
    if causal:
        scores = p("Add", scores, p.stored(length, p.shape(k)[2], learnable=False))
    mixed = p("MatMul", p("Softmax", scores, axis=-1), v)
    if len(p.shape()) == 4:
        return mixed
    return p.reshape(p.transpose(mixed, 0, 2, 1, 3), batch, length, heads * p.shape(v)[3])


def _with_past(p: Parts, k: str, v: str, place: int) -> tuple[str, str]:
    """Return keys and values behind those of earlier steps; they are results 1 and 2 as well."""
    results = []
    for output, (current, past) in enumerate(((k, place), (v, place + 1)), start=1):
        if p.has(past):
            current = p("Concat", p.input(past), current, axis=2, out=p.out(output))
        elif p.out(output):
            current = p("Identity", current, out=p.out(output))
        results.append(current)
    return results[0], results[1]


def _attention(p: Parts) -> str:
    """Attention of opset 23: (q, k, v, mask, past key, past value)."""
    numbers = (int(p.get(f"{side}_num_heads", 0)) for side in ("q", "kv", "kv"))
    q, k, v = (_heads(p, p.input(place), heads) for place, heads in enumerate(numbers))
    k, v = _with_past(p, k, v, 4)
    if p.out(3):
        p("Identity", _scores(p, q, k), out=p.out(3))
    return _attend(p, q, k, v, mask=p.input(3), causal=bool(p.get("is_causal")))


def _packed(p: Parts, mask: int, past: int) -> str:
    """Attention of com.microsoft: one product for q, k and v, then attention."""
    heads = int(p.get("num_heads"))
    product = p.sum(p("MatMul", p.input(0), p.floating(1)), p.input(2))
    sizes = list(p.get("qkv_hidden_sizes") or [p.shape(product)[-1] // 3] * 3)
    q, k, v = (_heads(p, x, heads) for x in p.split(product, 2, *sizes))
    if p.has(past):
        before = [p("Gather", p.input(past), i, axis=0) for i in range(2)]
        k, v = (p("Concat", old, new, axis=2) for old, new in zip(before, (k, v), strict=True))
    if p.out(1):
        pair = [p("Unsqueeze", x, [0]) for x in (k, v)]
        p("Concat", *pair, axis=0, out=p.out(1))
    causal = bool(p.get("unidirectional"))
    return _attend(p, q, k, v, mask=_vendor_mask(p, mask), causal=causal)


def _vendor_mask(p: Parts, place: int) -> str:
    if not p.has(place):
        return ""
    p.note("masks of fused attention are one addition to the scores")
    mask = p.input(place)
    shape = p.shape(mask)
    if len(shape) < 2:
        return ""
    numeric, short = p("Cast", mask, to=1), 4 - len(shape)
    return p.reshape(numeric, shape[0], *[1] * short, *shape[1:]) if short > 0 else numeric


def _multi_head(p: Parts, bias: int, mask: int, added: int, past: int) -> str:
    """Attention of (q, k, v) with a bias, a mask of keys, one of scores, and a past."""
    heads = int(p.get("num_heads"))
    names = [p.input(place) for place in range(3) if p.has(place)]
    if len(names) < 3:
        # What is not given lies with the last input.
        packed, missing = p.transpose(names.pop(), 3, 0, 2, 1, 4), 3 - len(names)
        names += [p("Gather", packed, i, axis=0) for i in range(missing)]
    if p.has(bias):
        width = p.shape(bias)[0] // 3
        parts = [p.slice(p.input(bias), 0, i * width, (i + 1) * width) for i in range(3)]
        pairs = zip(names, parts, strict=True)
        names = [p("Add", x, part) if len(p.shape(x)) == 3 else x for x, part in pairs]
    q, k, v = (_heads(p, x, heads) for x in names)
    k, v = _with_past(p, k, v, past)
    masked = p.input(added) or _vendor_mask(p, mask)
    return _attend(p, q, k, v, mask=masked, causal=bool(p.get("unidirectional")))


def _grouped_query(p: Parts) -> str:
    """GroupQueryAttention: (q, k, v, past key, past value, lengths, total, cos, sin)."""
    heads, own = int(p.get("num_heads")), int(p.get("kv_num_heads"))
    q, k, v = (p.input(place) for place in range(3))
    if not p.has(1):
        size = p.shape(q)[2] // (heads + 2 * own)
        q, k, v = p.split(q, 2, heads * size, own * size, own * size)
    q, k, v = _heads(p, q, heads), _heads(p, k, own), _heads(p, v, own)
    if p.get("do_rotary", 0) and p.has(7):
        q, k = (_rotated(p, x, p.input(7), p.input(8)) for x in (q, k))
    k, v = _with_past(p, k, v, 3)
    return _attend(p, q, k, v, causal=p.shape(q)[2] > 1)


def _rotated(p: Parts, x: str, cosine: str, sine: str, dims: int = 0) -> str:
    """Return (batch, heads, length, size) turned by angles: x cos + swapped(x) sin."""
    length, size = p.shape(x)[2:]
    dims = dims or size
    if len(p.shape(cosine)) == 2:
        cosine, sine = (p.slice(table, 0, 0, length) for table in (cosine, sine))
    else:
        cosine, sine = (p("Unsqueeze", table, [1]) for table in (cosine, sine))
    first, second = p.slice(x, 3, 0, dims // 2), p.slice(x, 3, dims // 2, dims)
    real = p("Sub", p("Mul", first, cosine), p("Mul", second, sine))
    imaginary = p("Add", p("Mul", second, cosine), p("Mul", first, sine))
    rest = [p.slice(x, 3, dims, size)] if dims < size else []
    return p("Concat", real, imaginary, *rest, axis=3)


def _rotary(p: Parts, positions: int, cosine: int, sine: int) -> str:
    shape, data = p.shape(), p.input(0)
    tables = [p.input(cosine), p.input(sine)]
    dims = int(p.get("rotary_embedding_dim", 0) or 0)
    if len(shape) == 3:
        heads = p.get("num_heads") or shape[2] // (dims or 2 * p.shape(cosine)[-1])
        data = _heads(p, data, int(heads))
    if p.has(positions) and len(p.shape(positions)) == 2:
        tables = [p("Gather", table, p.input(positions), axis=0) for table in tables]
    result = _rotated(p, data, *tables, dims=dims)
    return result if len(shape) == 4 else p.reshape(p.transpose(result, 0, 2, 1, 3), *shape)


def _experts(p: Parts) -> str:
    """MoE: (x, scores, weights and bias in, weights and bias out, weights and bias of a gate).

    The program is the same whatever rows choose: every expert computes, of few rows one that it has
    nobody asked for. Where their weights lie is quicker than to bring those that are chosen.
    """
    p.note("experts get equal shares of the rows, one at least")
    shape, best = p.shape(), int(p.get("k", 1))
    x = p.reshape(p.input(0), -1, shape[-1])
    rows, hidden = p.shape(x)
    experts = p.shape(1)[-1]
    each = -(-rows * best // experts)
    inner = prod(p.shape(2)) // (p.shape(2)[0] * hidden)
    share, chosen = p.several("TopK", ["", ""], p("Softmax", p.input(1), axis=-1), [best])
    choice = p.reshape(chosen, rows * best)
    copies = -(-each * experts // (rows * best))
    order = p.slice(p("Concat", *[choice] * copies, axis=0), 0, 0, each * experts)
    sent = p.reshape(p("Gather", x, order, axis=0), experts, each, hidden)

    def product(x: str, width: int, out: int, bias: int) -> str:
        y = p("MatMul", x, p.stored(experts, width, out))
        return p("Add", y, p.stored(experts, 1, out)) if p.has(bias) else y

    kind = {"gelu": "Gelu", "silu": "Swish", "swiglu": "Swish"}.get(p.get("activation_type"))
    y = p(kind or "Relu", product(sent, hidden, inner, 3))
    if p.has(6):
        y = p("Mul", y, product(sent, hidden, inner, 7))
    y = p.reshape(product(y, inner, hidden, 5), each * experts, hidden)
    back = p.reshape(p("Gather", y, choice, axis=0), rows, best, hidden)
    mixed = p("Mul", back, p.reshape(share, rows, best, 1))
    return p.reshape(p("ReduceSum", mixed, [1], keepdims=0), *shape)


ATTENTION = by_domain(
    {
        "": {
            "Attention": _attention,
            "RotaryEmbedding": partial(_rotary, positions=3, cosine=1, sine=2),
        },
        VENDOR: {
            "Attention DecoderMaskedSelfAttention": partial(_packed, mask=3, past=4),
            "QAttention": partial(_packed, mask=5, past=8),
            "MultiHeadAttention": partial(_multi_head, bias=3, mask=4, added=5, past=6),
            "DecoderMaskedMultiHeadAttention": partial(
                _multi_head, bias=10, mask=3, added=4, past=5
            ),
            "GroupQueryAttention": _grouped_query,
            "RotaryEmbedding": partial(_rotary, positions=1, cosine=2, sine=3),
            "MoE": _experts,
        },
    }
)
"""Recipes by domain and operator."""
