"""Reductions of a graph, and the position of the largest element."""

from ipusim.compiler.emitter import SPREAD, Placed, TensorLayout
from ipusim.compiler.operators.argmax import argmax
from ipusim.compiler.state import Lowering, float_dtype, lowers
from ipusim.workload.graph import Reduce

_FUNCTIONS = {
    "max": "max",
    "min": "min",
    "prod": "mul",
    "sumsquare": "square_add",
    "l2": "square_add",
}
"""Vertex function of each reduction; all others add."""


@lowers(Reduce)
def reduce(m: Lowering, op: Reduce, x: Placed, *_: Placed) -> TensorLayout:
    """Lower a reduction over the middle of three dimensions."""
    if op.function == "argmax":
        argmax(m, x.shaped(op.outer, op.reduced))
    else:
        shape = op.shape if op.axes else (op.outer, op.reduced, op.inner)
        x = Placed(shape, float_dtype(x.dtype))
        m.reduce(_FUNCTIONS.get(op.function, "add"), x, *(op.axes or (1,)))
    return SPREAD
