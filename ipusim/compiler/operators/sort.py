"""Sorting, and the search for the first k, as a network of compare-and-swap steps on all tiles.

Source: poplibs lib/popops/BitonicTopK.cpp, topKImpl, and popopsCycleEstimators.cpp,
CompareAndSwapKeyValueCycleEstimate, tags sdk/poplar/3.1.0 and 3.2.0. Sorting 2^n elements takes
1 + 2 + ... + n steps; before each, the elements are brought to the tile of the one that they are
compared with. PopART finds the first k with their places (willow/src/popx/op/topkx.cpp,
topKWithPermutation), which move with their keys.
"""

from collections.abc import Iterator

from ipusim.compiler.emitter import SPREAD, Emitter, Placed, TensorLayout
from ipusim.compiler.state import lowers
from ipusim.compiler.tiles import ceil_div, element_bytes
from ipusim.compiler.vertices.elementwise import iota_cycles
from ipusim.machine import Chip
from ipusim.workload.graph import Sort

_SUPERVISOR = 19
_CYCLES = {
    (True, False): (40, 17, 3, 13),
    (False, False): (42, 22, 3, 12),
    (True, True): (23, 4, 8, 11),
    (False, True): (43, 30, 5, 17),
}
"""Cycles of a worker, of floats or whole numbers, without places or with them: once, per entry of
its list of work, per run, per comparison. The first comparison of floats with places is 3 cycles
shorter, their run 3 longer."""

_WORD_BYTES = 4


def compare_and_swap_cycles(
    comparisons: int, dtype: str, chip: Chip, *, places: bool = False
) -> int:
    """Return the cycles of one tile for so many comparisons, in one run per worker."""
    once, entry, run, each = _CYCLES[dtype.startswith("float"), places]
    per_worker = ceil_div(comparisons, chip.workers)
    return _SUPERVISOR + chip.workers * (once + entry + run + each * per_worker)


def network(length: int, kept: int) -> Iterator[tuple[int, int]]:
    """Return the elements of a row and the comparisons of each step.

    Sequences of `kept` elements, or of the next power of two, are sorted; then pairs of them are
    merged, the worse half dropped and the rest sorted again. What the last steps drop of a power of
    two, and comparisons that are left out of odd ends, are not counted.
    """
    longest = (kept - 1).bit_length()
    for merge in range((length - 1).bit_length()):
        doubled = min(merge, longest)
        yield length, _comparisons(length, 1 << doubled)
        if doubled == longest and length > 1 << longest:
            pairs, rest = divmod(length, 2 << longest)
            length = (pairs << longest) + min(rest, 1 << longest)
        for step in reversed(range(doubled)):
            yield length, _comparisons(length, 1 << step)


def _comparisons(length: int, distance: int) -> int:
    """Return how many pairs of a row lie at a distance (numComparisonsAtDistance)."""
    pairs, rest = divmod(length, 2 * distance)
    return pairs * distance + max(0, rest - distance)


@lowers(Sort)
def sort(m: Emitter, op: Sort, x: Placed) -> TensorLayout:
    """Lower the sorting of rows, halves as floats."""
    if op.length == 1:
        return SPREAD
    places, kept, chip = op.kept > 0, op.kept or op.length, m.chip
    keys = Placed((op.outer * op.length,), x.dtype)
    narrow = element_bytes(x.dtype) < _WORD_BYTES
    if places:
        _number(m, op, keys)
    if narrow:
        m.cast(keys, "float32")
    for length, compared in network(op.length, kept):
        comparisons = ceil_div(op.outer * compared, chip.tiles)
        moved = 2 * ceil_div(op.outer * (length // 2), chip.tiles) * _WORD_BYTES
        vertex = "popops::CompareAndSwapAtDistance" + ("KeyVal" if places else "")
        cycles = compare_and_swap_cycles(max(1, comparisons), x.dtype, chip, places=places)
        m.emit("compare and swap", vertex, cycles, received=moved * (1 + places))
    if narrow:
        m.cast(keys.shaped(op.outer * kept).of("float32"), x.dtype)
    return SPREAD


def _number(m: Emitter, op: Sort, keys: Placed) -> None:
    """Number the elements: those of one row by a vertex, of several by copies of a constant."""
    numbers = keys.of("float32")
    if op.outer == 1:
        m.emit("number elements", "popops::Iota", iota_cycles(m.tile, m.share(numbers)))
    else:
        m.copy("number elements", m.tile_bytes(numbers))
