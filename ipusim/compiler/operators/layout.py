"""Changes of shape and order."""

from ipusim.compiler.emitter import SPREAD, Placed, TensorLayout
from ipusim.compiler.state import Lowering, lowers
from ipusim.compiler.tiles import copy_cycles
from ipusim.workload.graph import Layout


@lowers(Layout)
def layout(m: Lowering, op: Layout, *inputs: Placed) -> TensorLayout:
    """Lower a view, which costs nothing, or the move of all elements."""
    before = inputs[0].layout if inputs else SPREAD
    elements = sum(result.elements for result in m.task.results)
    if op.viewed_on_ipu:
        # Parts of a tensor do not lie where the whole does.
        whole = sum(x.elements for x in inputs[:1]) == elements
        return before if whole else before._replace(mapping=None)
    if op.function in ("dynamic_slice", "dynamic_update"):
        # The slice of a loop's round is read, or written, on its own tiles: a sliceable tensor is
        # laid out so that every slice is spread over all tiles (poplibs
        # lib/popops/DynamicSlice.cpp, createSliceableTensor, createSliceableTensorFromSlice).
        share = m.share(Placed((m.made.elements,), m.made.dtype, before))
        m.slice(op.function, share, m.dtype, write=op.function == "dynamic_update")
        return before._replace(mapping=None)
    if op.function == "carry":
        # The result of a loop's round is copied within its tiles, before it moves to the next one.
        kept = m.tile_bytes(m.made)
        m.copy("set aside", temp=kept, cycles=copy_cycles(kept, m.chip))
    spread = Placed((elements,), m.made.dtype, TensorLayout(grouping=before.grouping))
    copied = m.piece_copies(spread, before) if op.function == "copy" else 0
    m.copy("move", m.tile_bytes(spread), cycles=copied)
    return spread.layout
