"""Vertex costs where one operand is a vector repeated along the other (bias, scale, mean).

Sources: BroadcastVectorInner1D and -2D of poplibs lib/popops/popopsCycleEstimators.cpp. A *block*
is one repetition. Vectors of sums and products fill whole data-path vectors, those of divisions
have any length. The estimators mask the remainder of blocks over workers with 3 instead of 7, and
the multiply of era 0 leaves it out; here the slowest worker always takes the quotient rounded up.
"""

from typing import NamedTuple

from ipusim.compiler.eras import ERA_1_0
from ipusim.compiler.tiles import Tile, ceil_div
from ipusim.compiler.vertices.tables import AROUND_VECTOR, SUPERVISOR_CYCLES

OUTER_VECTOR_FUNCTIONS = ("add", "mul", "sub")
"""Functions with a vertex for one value per row (poplibs lib/popops/ElementWise.cpp,
haveOuterVectorBroadcastVertexForOp)."""

# Longest vectors that the vectorised half loops can stride over.
_MAX_ADD_LENGTH = 2048
_MAX_MUL_LENGTH = 2044


# A division of two floats takes 1 or 3 cycles; the estimators take the latter.
_DIVISION = 3


def _add_core(length: int, blocks: int) -> int:
    """Return a worker's cycles for adding a vector of halves to `blocks` blocks."""
    if length > _MAX_ADD_LENGTH:
        return 3 + _add_core_scalar(length, blocks)
    if length % 8 == 0:
        if blocks == 1:
            return 5 + 2 + 3 + 7 * (length // 8) + 1
        return 5 + 2 + 4 + (length // 8) * (15 + 2 * (blocks - 1)) + 1
    if blocks < 2:
        return 7 + _add_core_scalar(length, blocks)
    loop = 7 + 2 * (blocks // 2 - 1) + 1 + blocks % 2 + 5
    return 9 + 5 + (length // 4) * loop + 1


def _add_core_scalar(length: int, blocks: int) -> int:
    return 6 + length * (5 + 9 * blocks)


def _mul_core(length: int, blocks: int, *, pipelined: bool) -> int:
    """Return a worker's cycles for a product; a pipelined loop is not in place."""
    if not pipelined:
        return 5 + 4 + (length // 4) * (7 + 2 * blocks)
    if length > _MAX_MUL_LENGTH:
        return 7 + 4 + (length // 4) * (7 + 2 * blocks)
    if blocks < 2:
        return 9 + 4 + (length // 4) * (7 + 2 * blocks)
    return 9 + 4 + (length // 4) * (9 + blocks)


def _div_core(length: int, blocks: int, dtype: str) -> int:
    """Return a worker's cycles for dividing `blocks` blocks by a vector."""
    pairs, several = length // 2, blocks - 1
    if dtype == "float32":
        if length % 2:
            one = 3 + several * (_DIVISION + 1) + _DIVISION + 3
            return 1 + 5 + 2 + length * one + 1
        return 1 + 5 + 3 + pairs * (2 + _DIVISION + several * 2 * _DIVISION + _DIVISION + 3) + 1
    if length == 1:
        return 1 + 7 + _div_core_single(blocks) + 1
    if length % 2:
        # Of two blocks the second begins in the middle of a word.
        aligned = 3 + 2 * _DIVISION + (pairs - 1) * (3 + 2 * _DIVISION) + 3
        shifted = 5 + 2 * _DIVISION + 1 + (pairs - 1) * (4 + 2 * _DIVISION) + 3 + 2 * _DIVISION + 3
        last = aligned + 2 + _DIVISION + 3 if blocks % 2 else 0
        return 1 + 8 + blocks // 2 * (aligned + shifted) + last + 1
    return 1 + 8 + pairs * (3 + 2 * _DIVISION + several * (2 + 2 * _DIVISION) + 4) + 4 + 1


def _div_core_single(halves: int) -> int:
    """Return a worker's cycles for dividing halves by a single one."""
    if halves == 1:
        return 7 + 2 + _DIVISION + 3
    cycles = 10 + 2 * _DIVISION + (halves // 2 - 1) * (2 + 2 * _DIVISION) + 3
    return cycles + (2 + _DIVISION + 3 if halves % 2 else 0)


class RepeatedVector(NamedTuple):
    """A vector that a function combines with every block of a tile, each as long as the vector.

    The vector is for example the biases of one channel group, and a block is a field position.
    """

    tile: Tile
    function: str
    length: int
    dtype: str
    in_place: bool

    def known(self, era: int) -> bool:
        """Whether an era has vertices for it.

        Sums and products of float16 in whole vectors; float32 ones have vertices that poplibs never
        picks. From SDK 2.0 on divisions of any length (poplibs lib/popops/ElementWise.cpp,
        haveInnerVectorBroadcastVertexForOp and binaryOpBroadcastInnerVector).
        """
        if self.function == "div":
            return era != ERA_1_0 and self.dtype in ("float16", "float32")
        whole = self.length % self.tile.width(self.dtype) == 0
        return self.function in ("add", "mul", "sub") and self.dtype == "float16" and whole

    @property
    def around(self) -> tuple[int, int, int, int]:
        """What vertices take around their blocks (`tables.AROUND_VECTOR`)."""
        name = self.function + ("InPlace" if self.in_place else "")
        return AROUND_VECTOR[self.tile.era][name][self.dtype]

    def core(self, blocks: int) -> int:
        """Return a worker's cycles for some blocks."""
        if self.function == "div":
            return _div_core(self.length, blocks, self.dtype)
        if self.function == "mul":
            # The supervisor vertex of era 0 always takes the in-place loop.
            pipelined = not self.in_place and self.tile.era != ERA_1_0
            return _mul_core(self.length, blocks, pipelined=pipelined)
        return _add_core(self.length, blocks)

    def cycles(self, blocks: int) -> int:
        """Return the cycles of the vertex of all workers, for contiguous blocks."""
        start, supervisor, _, _ = self.around
        return supervisor + self.tile.workers * (start + self.core(self.tile.per_worker(blocks)))

    def cycles_2d(self, blocks: int, regions: int) -> int:
        """Return the cycles where a tile holds regions of so many blocks, each with its own vector.

        Blocks are shared evenly by the workers, one vertex each, so a worker may touch the end of
        one region and the start of the next.
        """
        remaining = per_worker = self.tile.per_worker(regions * blocks)
        touched = min(regions, ceil_div(per_worker, blocks))
        if per_worker % blocks and regions > touched:
            touched += 1
        _, _, worker, per_region = self.around
        for _ in range(touched):
            worker += per_region + self.core(max(1, min(blocks, remaining)))
            remaining -= min(blocks, remaining)
        return self.tile.workers * worker


def vector_outer_cycles(tile: Tile, rows: int, columns: int, dtype: str) -> int:
    """Return the cycles of applying one value per row to a ``rows x columns`` block.

    BroadcastVectorOuterByRow and -ByColumn: workers share rows where a row has no vector for each,
    else its columns (lib/popops/ElementWise.cpp, binaryOpBroadcastOuterVector). A vector takes 2
    cycles; rows that are not whole vectors cost 25 instead of 7 each.
    """
    width = tile.width(dtype)
    overhead = 25 if columns % width else 7
    if columns < tile.workers * width:
        rows = tile.per_worker(rows)
    else:
        columns = tile.per_worker(columns)
    worker = 15 + rows * (overhead + 2 * ceil_div(columns, width))
    return SUPERVISOR_CYCLES[tile.era] + tile.workers * worker
