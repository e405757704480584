"""Lookups in parts of a table, one after the other, and the parts themselves.

TensorFlow's `embedding_lookup` with a `serialization_factor` (graphcore/tensorflow:tensorflow/
python/ipu/ops/embedding_ops.py) looks every index up in every part of the table, masks the rows
that lie in other parts, and adds the results up. The gradient stays one addition into a whole
table.
"""

from dataclasses import replace

from ipusim.workload.graph import Attributes, Cast, Elementwise, Gather, Op, Tensor


def even_part(whole: int, factor: int, part: int) -> int:
    """Return the size of a part; the last parts are smaller by one where it does not divide."""
    least, over = divmod(whole, factor)
    return least + (part < over)


def stored_part(tensors: dict[str, Tensor], name: str, label: str, elements: int) -> str:
    """Add a part of a parameter, which shares its memory, and return its name."""
    whole = tensors[name]
    own = f"{name}.{label}"
    root = whole.alias_of or name
    tensors[own] = replace(whole, name=own, shape=(elements,), alias_of=root)
    return own


def lookup_in_parts(op: Op, factor: int, tensors: dict[str, Tensor]) -> list[Op]:
    """Return the operators of a lookup in a parameter in parts; tensors they need are added."""
    params: Gather = op.params
    table, indices = op.inputs
    like = tensors[op.outputs[0]]
    ids = tensors[indices]
    ops: list[Op] = []

    def step(suffix: str, attributes: Attributes, inputs: tuple[str, ...], of: Tensor) -> str:
        name = f"{op.name}.{suffix}"
        tensors[name] = replace(of, name=name, role="activation", alias_of=None)
        ops.append(replace(op, name=name, params=attributes, inputs=inputs, outputs=(name,)))
        return name

    mask = replace(ids, dtype="bool")
    total, first = "", 0
    for part in range(factor):
        rows = even_part(params.rows, factor, part)
        bounds = []
        for end, value in (("first", first), ("stop", first + rows)):
            bounds.append(f"{op.name}.{end}{value}")
            tensors[bounds[-1]] = Tensor(name=bounds[-1], shape=(), dtype="int32", role="constant")
        own = stored_part(tensors, table, f"rows{factor}.{part}", rows * params.width)
        compare = Elementwise(function="less", n_inputs=2, elements=ids.elements, broadcast=True)
        above = replace(compare, function="greater_or_equal")
        moved = step(f"index{part}", replace(compare, function="sub"), (indices, bounds[0]), ids)
        found = step(f"part{part}", replace(params, rows=rows), (own, moved), like)
        below = step(f"below{part}", compare, (indices, bounds[1]), mask)
        above_name = step(f"above{part}", above, (indices, bounds[0]), mask)
        both = replace(compare, function="and", broadcast=False)
        inside = step(f"in{part}", both, (below, above_name), mask)
        cast = Cast(to=like.dtype, elements=ids.elements)
        factor_name = step(f"mask{part}", cast, (inside,), replace(ids, dtype=like.dtype))
        masked = Elementwise.in_place("mul", like.elements, broadcast=True)
        result = step(f"masked{part}", masked, (found, factor_name), like)
        add = Elementwise.in_place("add", like.elements)
        total = step(f"sum{part}", add, (total, result), like) if part else result
        first += rows
    last = ops.pop()
    del tensors[total]
    ops.append(replace(last, name=op.name, outputs=op.outputs))
    return ops
