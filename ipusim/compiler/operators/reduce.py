"""Reductions of a graph, and the position of the largest element of every row.

Source of the latter: poplibs lib/popnn/Loss.cpp (argMinMaxSplitFirstReduction, maxMinArgMaxMin) and
lib/popnn/popnnCycleEstimators.cpp (ReduceMaxClassGather, ReduceMaxClassSparse), the same at tags
1.0.136, sdk/poplar/2.4.0 and 3.2.0. The elements, row after row, are cut into equal shares; each
worker keeps the largest of its part of a row, and further steps compare 32 of those at a time.
"""

from collections import Counter

from ipusim.compiler.emitter import SPREAD, Emitter, Placed, TensorLayout
from ipusim.compiler.state import Lowering, float_dtype, lowers
from ipusim.compiler.tiles import ceil_div, copy_cycles, element_bytes
from ipusim.compiler.vertices.training import Expression
from ipusim.machine import Chip
from ipusim.workload.graph import Reduce

_FUNCTIONS = {
    "max": "max",
    "min": "min",
    "prod": "mul",
    "sumsquare": "square_add",
    "l2": "square_add",
}
"""Vertex function of each reduction; all others add."""

_OF_RESULTS = {"l2": "sqrt", "logsum": "log"}
"""Functions of the sums, which are overwritten (popart willow/src/popx/op/reducel2x.cpp and
reducelogsumx.cpp)."""
_SHIFTED = Expression(operations=2, slow=("exp",))
_SHIFTED_BACK = Expression(operations=2, slow=("log",))
"""e^(x - m), and log(s) + m: each one expression of popops::map (reducelogsumexpx.cpp)."""

_WORKER_ELEMENTS = 32
"""Elements that a worker gets at least, and partials that one compares."""
_MOST_WORKER_ELEMENTS = 4095
"""Iterations that the repeat instruction counts (Target::getRptCountMax)."""
_SUPERVISOR = 9
_GATHER, _SPARSE = 27, 24
"""Cycles of a worker besides 3 for each of its elements, in floats."""
_PARTIAL_BYTES = 8
"""A float or integer and its position."""


@lowers(Reduce)
def reduce(m: Lowering, op: Reduce, x: Placed, *_: Placed) -> TensorLayout:
    """Lower a reduction over the middle of three dimensions."""
    if op.function == "argmax":
        argmax(m, x.shaped(op.outer, op.reduced))
    else:
        shape = op.shape if op.axes else (op.outer, op.reduced, op.inner)
        x, axes = Placed(shape, float_dtype(x.dtype)), op.axes or (1,)
        result = x.shaped(m.made.elements)
        if op.function == "l1":
            m.unary("abs", x)
        elif op.function == "logsumexp":
            m.reduce("max", x, *axes)
            m.generated("exponentials", x, _SHIFTED)
        m.reduce(_FUNCTIONS.get(op.function, "add"), x, *axes)
        if op.function in _OF_RESULTS:
            m.unary(_OF_RESULTS[op.function], result, in_place=True)
        elif op.function == "logsumexp":
            m.generated("logarithms", result, _SHIFTED_BACK)
    return SPREAD


def argmax(m: Emitter, x: Placed) -> None:
    """Find the largest element of each row of a matrix.

    Types other than floats are compared by compiled C++. Vertices read contiguous elements, so a
    tile first copies those of a scattered row one by one.
    """
    (rows, length), chip = x.shape, m.chip
    # Elements are cut into equal shares.
    least = max(chip.workers * _WORKER_ELEMENTS, ceil_div(rows * length, chip.tiles))
    shares = ceil_div(rows * length, least)
    compute, cut, whole = 0, Counter[int](), Counter[int]()
    for share in range(shares):
        begin, end = (rows * length * edge // shares for edge in (share, share + 1))
        cycles = 0
        for row, elements, count in _pieces(begin, end, length):
            worker, workers = _split(elements, chip)
            cycles += count * _gather_cycles(elements, worker, x.dtype, chip)
            if count == 1:
                cut[row] += workers
            else:
                whole[workers] += count
        compute = max(compute, cycles)
    element = element_bytes(x.dtype)
    moved = ceil_div(rows * length, shares) * element
    copied = copy_cycles(moved, chip, atom_bytes=element) if x.layout.rows else 0
    vertex = "popnn::ReduceMaxClassGather"
    m.emit("largest of each worker", vertex, compute, received=moved, copy=copied)
    _compare_partials(m, whole + Counter(cut.values()), x.dtype)


def _pieces(begin: int, end: int, length: int) -> list[tuple[int, int, int]]:
    """Return (first row, elements of each, number of rows) of the pieces of rows in a share."""
    first, last = ceil_div(begin, length), end // length
    if first > last:
        return [(last, end - begin, 1)]
    cut = (first - 1, first * length - begin, 1), (last, end - last * length, 1)
    pieces = cut[0], (first, length, last - first), cut[1]
    return [piece for piece in pieces if min(piece[1:]) > 0]


def _split(elements: int, chip: Chip) -> tuple[int, int]:
    """Return the elements of a worker and the partials that all workers leave."""
    if elements // chip.workers < _WORKER_ELEMENTS:
        return _WORKER_ELEMENTS, ceil_div(elements, _WORKER_ELEMENTS)
    vertices = ceil_div(elements, chip.workers * _MOST_WORKER_ELEMENTS)
    return ceil_div(elements, chip.workers * vertices), chip.workers * vertices


def _gather_cycles(elements: int, worker: int, dtype: str, chip: Chip) -> int:
    """Return the cycles of the vertices that read `elements` of one row on a tile."""
    vertices = ceil_div(elements, chip.workers * worker)
    if dtype.startswith("float"):
        cycles = _GATHER + 3 * min(worker, elements)
    else:
        # One worker does the work of all.
        cycles = 22 + min(chip.workers, ceil_div(elements, worker)) * (25 + 6 * worker)
    return vertices * (_SUPERVISOR + chip.workers * cycles)


def _compare_partials(m: Emitter, rows: Counter[int], dtype: str) -> None:
    """Compare the partials of workers; `rows` has the number of rows by partials of a row."""
    chip = m.chip
    while max(rows) > 1:
        vertices = sum(
            count * ceil_div(size, _WORKER_ELEMENTS) for size, count in rows.items() if size > 1
        )
        largest = min(max(rows), _WORKER_ELEMENTS)
        floats = dtype.startswith("float")
        cycles = _SPARSE + 3 * largest if floats else 23 + 6 * largest
        per_tile = ceil_div(vertices, chip.tiles)
        m.emit(
            "compare the largest",
            "popnn::ReduceMaxClassSparse",
            m.tile.workers * m.tile.per_worker(per_tile) * cycles,
            received=per_tile * largest * _PARTIAL_BYTES,
        )
        left: Counter[int] = Counter()
        for size, count in rows.items():
            left[ceil_div(size, _WORKER_ELEMENTS)] += count
        rows = left
