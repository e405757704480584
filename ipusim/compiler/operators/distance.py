"""Distances between all rows of two matrices, and their gradient: one vertex per result.

Source: github graphcore/distributed-kge-poplar, src/poplar_extensions/distance.cpp (square blocks
of results on every tile, to which the rows travel) and l1distance.codelet.cpp. The codelets are
C++; their cycles are counted as instructions of the vector loop, two elements of 32 bits or four of
16 at a time [inferred: loads run beside the arithmetic].
"""

from math import isqrt

from ipusim.compiler.emitter import SPREAD, Emitter, Placed, TensorLayout
from ipusim.compiler.state import float_dtype, lowers
from ipusim.compiler.tiles import ceil_div, element_bytes
from ipusim.workload.graph import Distance

_FORWARD_LOOP = 3
"""Subtract, absolute value, add."""
_GRADIENT_LOOP = 7
"""Subtract, compare, mask, copy of the sign in two, multiply, add."""
_AROUND = 20
"""Cycles of a vertex outside its loop: pointers, sum over the vector, store [inferred]."""


@lowers(Distance)
def distance(m: Emitter, op: Distance, x: Placed, *_: Placed) -> TensorLayout:
    """Lower distances of all pairs of rows, or the gradient of the first matrix from both."""
    dtype = float_dtype(x.dtype)
    columns, length = (op.width, op.others) if op.backward else (op.others, op.width)
    results = ceil_div(op.rows * columns, m.chip.tiles)
    side = isqrt(results - 1) + 1
    received = (min(side, op.rows) + min(ceil_div(results, min(side, op.rows)), columns)) * length
    loop = _GRADIENT_LOOP if op.backward else _FORWARD_LOOP
    vertex = _AROUND + loop * ceil_div(length, m.tile.width(dtype))
    m.emit(
        "distance gradient" if op.backward else "distance",
        "L1DistanceGradSingleVertex" if op.backward else "L1DistanceSingleVertex",
        m.tile.workers * m.tile.per_worker(results) * vertex,
        received=received * element_bytes(dtype),
    )
    return SPREAD
