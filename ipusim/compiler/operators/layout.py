"""Changes of shape and order."""

from ipusim.compiler.emitter import SPREAD, Placed, TensorLayout
from ipusim.compiler.state import Lowering, lowers
from ipusim.workload.graph import Layout


@lowers(Layout)
def layout(m: Lowering, op: Layout, *inputs: Placed) -> TensorLayout:
    """Lower a view, which costs nothing, or the move of all elements."""
    before = inputs[0].layout if inputs else SPREAD
    if not op.moves_data or (op.function == "transpose" and before.rows):
        # A transpose is a view, and what reads it rearranges (graphcore/popart
        # willow/src/popx/op/transposex.cpp, TransposeInplaceOpx).
        # Parts of a tensor do not lie where the whole does.
        whole = sum(x.elements for x in inputs[:1]) == op.elements
        return before if whole else before._replace(mapping="")
    grouping = 1 if op.function == "transpose" else before.grouping
    moved = Placed((op.elements,), m.made.dtype, TensorLayout(grouping=grouping))
    m.rearrange(moved, before.grouping)
    return TensorLayout(grouping=before.grouping)
