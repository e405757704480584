"""Sorting as a network of compare-and-swap steps over the whole chip.

Source: poplibs lib/popops/BitonicTopK.cpp and popopsCycleEstimators.cpp
(CompareAndSwapKeyValueCycleEstimate), tag sdk/poplar/3.2.0. Sorting 2^n elements takes 1 + 2 + ...
+ n steps; before each, the elements are brought to the tile of the one that they are compared with.
"""

from ipusim.compiler.emitter import SPREAD, Emitter, Placed, TensorLayout
from ipusim.compiler.state import lowers
from ipusim.compiler.tiles import ceil_div, element_bytes
from ipusim.machine import Chip
from ipusim.workload.graph import Sort

_SUPERVISOR = 19
_WHOLE_NUMBERS = (42, 22, 3, 12)
_FLOATS = (40, 17, 3, 13)
"""Cycles of a worker: once, per entry of its list of work, per run, per comparison; keys only. Half
keys are sorted as floats."""


def compare_and_swap_cycles(comparisons: int, dtype: str, chip: Chip) -> int:
    """Return the cycles of one tile for so many comparisons, in one run per worker."""
    once, entry, run, each = _FLOATS if dtype.startswith("float") else _WHOLE_NUMBERS
    per_worker = ceil_div(comparisons, chip.workers)
    return _SUPERVISOR + chip.workers * (once + entry + run + each * per_worker)


@lowers(Sort)
def sort(m: Emitter, op: Sort, x: Placed) -> TensorLayout:
    """Lower the sorting of rows; elements of 16 bits are taken as 32 bits wide."""
    doublings = (op.length - 1).bit_length()
    comparisons = ceil_div(op.outer * (op.length // 2), m.chip.tiles)
    moved = 2 * comparisons * max(4, element_bytes(x.dtype))
    cycles = compare_and_swap_cycles(max(1, comparisons), x.dtype, m.chip)
    for _ in range(doublings * (doublings + 1) // 2):
        m.emit("compare and swap", "popops::CompareAndSwapAtDistance", cycles, received=moved)
    return SPREAD
