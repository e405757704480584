"""How poplibs spreads data over tiles, what copies within a tile cost."""

from functools import lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple

from ipusim.errors import ConfigError
from ipusim.machine import Chip
from ipusim.workload.graph import DTYPE_BYTES

# poplibs lib/poputil/TileMapping.cpp, calcLinearTileMapping: no tile gets less than this.
MIN_BYTES_PER_TILE = 128


class Tile(NamedTuple):
    """A tile of a chip, and the era by whose estimators its vertices are timed (`eras`)."""

    chip: Chip
    era: int

    @property
    def workers(self) -> int:
        """Workers, which issue in turn."""
        return self.chip.workers

    def per_worker(self, items: int) -> int:
        """Return the largest share of one worker."""
        return ceil_div(items, self.chip.workers)

    def width(self, dtype: str) -> int:
        """Return the elements of one vector, `vector_width`."""
        return vector_width(dtype, self.chip)


def ceil_div(numerator: int, denominator: int) -> int:
    """Return the quotient of two positive integers rounded up."""
    return -(-numerator // denominator)


def element_bytes(dtype: str) -> int:
    """Return the bytes of one element."""
    return DTYPE_BYTES[dtype]


def vector_width(dtype: str, chip: Chip) -> int:
    """Return the elements that fit into one access of the data path, at least one."""
    return max(1, chip.data_path_bytes // element_bytes(dtype))


@lru_cache(maxsize=1 << 14)
def split_sizes(total: int, grain: int, max_parts: int, min_part: int = 1) -> tuple[int, ...]:
    """Split a range into at most so many parts of whole grains as evenly as poplibs does.

    Parts have `min_part` elements, unless there are not as many, and the last may hold an
    incomplete grain (poplibs lib/poputil/Util.cpp, splitRegions).
    """
    grains = ceil_div(total, grain)
    parts = _part_count(grains, grain, max_parts, min_part)
    edges = [min(total, (part * grains // parts) * grain) for part in range(parts + 1)]
    return tuple([end - begin for begin, end in pairwise(edges)])


class Runs(NamedTuple):
    """Elements of a tensor on one tile, in contiguous runs of a length; the last may be shorter."""

    elements: int
    length: int

    @property
    def one(self) -> bool:
        """Whether all elements form one contiguous run."""
        return self.length >= self.elements

    def dealt(self, grain: int, workers: int) -> list[list[int]]:
        """Return the lengths of the pieces of runs that each worker gets.

        Workers share the elements of all runs as `split_sizes` has it, two grains at least.
        """
        ends = [*accumulate(split_sizes(self.elements, grain, workers, 2 * grain), initial=0)]
        shares = [pieces_of_rows(*share, self.length) for share in pairwise(ends)]
        return [[end - begin for _, begin, end in pieces] for pieces in shares]


def pieces_of_rows(begin: int, end: int, length: int) -> list[tuple[int, int, int]]:
    """Cut a range of elements at the rows of a length; return (row, begin and end within it)."""
    rows = range(begin // length, ceil_div(end, length)) if begin < end else ()
    return [(row, max(0, begin - row * length), min(length, end - row * length)) for row in rows]


def _part_count(grains: int, grain: int, max_parts: int, min_part: int) -> int:
    most = ceil_div(grains, max_parts)
    parts_at_min = max(1, grains // ceil_div(min_part, grain))
    most = max(most, ceil_div(grains, parts_at_min))
    return ceil_div(grains, most)


def distinct_splits(size: int, most: int) -> list[int]:
    """Return the part counts up to `most` that are the fewest for their largest part, in order."""
    splits: list[int] = []
    split = 1
    while split <= min(size, most):
        splits.append(split)
        part = ceil_div(size, split)
        split = ceil_div(size, part - 1) if part > 1 else size + 1
    return splits


def largest_part(total: int, grain: int, max_parts: int, min_part: int = 1) -> int:
    """Return the largest of the parts of `split_sizes` without listing them.

    The last part holds the incomplete grain; it is one of the larger ones, and the only one where
    one grain is left over.
    """
    grains = ceil_div(total, grain)
    parts = _part_count(grains, grain, max_parts, min_part)
    whole, left = divmod(grains, parts)
    if left > 1:
        return (whole + 1) * grain
    last = total - (parts - 1) * grains // parts * grain
    return max(last, whole * grain) if parts > 1 else total


def tile_share(elements: int, dtype: str, chip: Chip, tiles: int | None = None) -> int:
    """Return the elements of a tensor on the fullest of `tiles` tiles, or of the chip if None.

    It is spread linearly as poplibs lib/poputil/TileMapping.cpp, mapTensorLinearly, has it: in
    grains of one vector, on a whole chip at least 128 B per tile.
    """
    if elements < 1:
        raise ConfigError(
            f"A tensor of {elements} elements cannot be spread over tiles: give at least 1."
        )
    grain = vector_width(dtype, chip)
    if tiles is not None:
        return largest_part(elements, grain, tiles)
    least = ceil_div(MIN_BYTES_PER_TILE, element_bytes(dtype))
    return largest_part(elements, grain, chip.tiles, least)


def copy_cycles(copied_bytes: int, chip: Chip, *, atom_bytes: int | None = None) -> int:
    """Return the cycles of copying bytes within the slowest tile.

    Straight copies run at `memcpy_bytes_per_cycle`. Rearrangements, which move `atom_bytes`
    together, such as one element, use the factor 5/4 and the rate of the atom as the convolution
    planner does (poplibs lib/poplin/ConvModel.cpp).
    """
    if atom_bytes is None:
        return ceil_div(copied_bytes, chip.memcpy_bytes_per_cycle)
    rate = min(atom_bytes, chip.memcpy_bytes_per_cycle)
    return ceil_div(5 * copied_bytes, 4 * rate)


def rearranged_copy_cycles(moved_bytes: int, piece_bytes: int, chip: Chip) -> int:
    """Return the cycles of on-tile copies of a rearrangement in pieces, without its exchange.

    Poplibs' regression over 10,000 random rearrangements (lib/poplin/ConvModel.cpp, tag
    sdk/poplar/2.4.0) gives cycles of exchange and copies together: per byte 0.4404 in pieces of a
    multiple of 8 bytes, 3.125 of another multiple of 4, else 5.1484.
    """
    per_1024 = 451 if piece_bytes % 8 == 0 else 3200 if piece_bytes % 4 == 0 else 5272
    whole = moved_bytes * per_1024 // 1024
    return max(0, whole - ceil_div(moved_bytes, chip.exchange_bytes_per_cycle))


def piece_copy_cycles(pieces: int, chip: Chip) -> int:
    """Return the cycles, without exchange, to load and store pieces of 4 bytes or more."""
    return rearranged_copy_cycles(4 * pieces, 4, chip)
