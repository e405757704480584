"""Changes of shape, order and type."""

from __future__ import annotations

from dataclasses import replace

from ipusim.compiler.emitter import SPREAD, Placed, TensorLayout
from ipusim.compiler.state import Lowering, lowers
from ipusim.compiler.superstep import element_bytes
from ipusim.workload.graph import Cast, Layout


@lowers(Layout)
def layout(m: Lowering, op: Layout, *inputs: Placed) -> TensorLayout:
    """Lower a view, which costs nothing, or the move of all elements."""
    before = inputs[0].layout if inputs else SPREAD
    if not op.moves_data:
        # Parts of a tensor do not lie where the whole does.
        whole = sum(x.elements for x in inputs[:1]) == op.elements
        return before if whole else replace(before, mapping="")
    grouping = 1 if op.function == "transpose" else before.grouping
    dtype = m.state.dtype(m.op.outputs[0])
    moved = Placed((op.elements,), dtype, TensorLayout(grouping=grouping))
    m.rearrange(moved, before.grouping)
    return TensorLayout(grouping=before.grouping)


@lowers(Cast)
def cast(m: Lowering, op: Cast, x: Placed) -> TensorLayout:
    """Lower a conversion where the width changes; indices of 64 bits are none on the chip."""
    target = m.state.dtype(m.op.outputs[0])
    if element_bytes(x.dtype) != element_bytes(target) and "int64" not in (x.dtype, target):
        m.cast(x.shaped(op.elements), target)
    return x.layout
