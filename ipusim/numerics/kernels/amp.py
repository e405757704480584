"""The accumulating matrix product (AMP) of a tile: passes of 16 inputs into partial sums.

One pass of the vertex multiplies 16 input channels with their weights, adds the products in single
precision, and adds that sum to a partial that is stored as half or single:
poplibs ``lib/poplin/codelets/ConvPartial1x1Out.cpp`` (sdk/poplar/2.4.0), whose portable form sums
one input-channel group in a float and then accumulates in the partials type. Here as there, half
partials are rounded once per pass. What the portable form leaves open and this module chooses:

- within a pass the products are added as four chained dot products of four, the shape of the
  unit's pipeline (depth 4, four halves per cycle) [inferred];
- longer sums are cut into slices of `SLICE_PASSES` passes, as a planner cuts them over tiles;
  slices are reduced in single precision, ``lib/poplin/codelets/ReduceAdd.cpp`` [slice length
  assumed: a real plan depends on the shapes];
- 32-bit operands take the same passes of 16 (hardware: 8), with single partials.
"""

import numpy as np

from ipusim.kernel_cache import njit
from ipusim.numerics.kernels.rounding import Rounding, random_bits, round_part

PASS_DEPTH = 16
"""Inputs per pass."""
SLICE_PASSES = 64
"""Passes that one tile accumulates before slices are reduced [assumed]."""

BEGIN = np.int64(0)
"""Typed: for a literal, numba would compile every function that gets it a second time."""

_U = np.uint32


def padded(depth: int) -> int:
    """Return the length of a sum, filled up with zeros to whole passes."""
    return -(-depth // PASS_DEPTH) * PASS_DEPTH


@njit(cache=True, nogil=True, allocates=True)
def accumulate(
    a: np.ndarray,
    b: np.ndarray,
    out: np.ndarray,
    rounding: Rounding,
    corner: tuple[int, int],
    begin: int,
    end: int,
) -> None:
    """Add ``a[:, begin:end] @ b[begin:end]`` to the partial sums in `out`, pass by pass.

    All float32, ranges in whole passes of 16; partials are rounded after each pass. The block's
    `corner`, its first row and column in the whole result, selects the random bits.
    """
    rows = a.shape[0]
    columns = b.shape[1]
    first_row, first_column = corner
    sums = np.empty((2, columns), np.float32)
    s0, s1 = sums[0], sums[1]
    for start in range(begin, end, PASS_DEPTH):
        number = _U(start // PASS_DEPTH)
        for i in range(0, rows, 2):
            # Two rows share each load of b; an odd last row stands in for its own partner.
            i1 = min(i + 1, rows - 1)
            for k in range(start, start + PASS_DEPTH, 4):
                p0, p1, p2, p3 = a[i, k], a[i, k + 1], a[i, k + 2], a[i, k + 3]
                q0, q1, q2, q3 = a[i1, k], a[i1, k + 1], a[i1, k + 2], a[i1, k + 3]
                if k == start:
                    for j in range(columns):
                        b0, b1, b2, b3 = b[k, j], b[k + 1, j], b[k + 2, j], b[k + 3, j]
                        s0[j] = (p0 * b0 + p1 * b1) + (p2 * b2 + p3 * b3)
                        s1[j] = (q0 * b0 + q1 * b1) + (q2 * b2 + q3 * b3)
                else:
                    for j in range(columns):
                        b0, b1, b2, b3 = b[k, j], b[k + 1, j], b[k + 2, j], b[k + 3, j]
                        s0[j] += (p0 * b0 + p1 * b1) + (p2 * b2 + p3 * b3)
                        s1[j] += (q0 * b0 + q1 * b1) + (q2 * b2 + q3 * b3)
            _store(out[i], s0, rounding, number, first_row + i, first_column)
            if i1 > i:
                _store(out[i1], s1, rounding, number, first_row + i1, first_column)


@njit(cache=True, nogil=True)
def _store(
    partials: np.ndarray,
    sums: np.ndarray,
    rounding: Rounding,
    number: np.uint32,
    row: int,
    column: int,
) -> None:
    mode, key, salt = rounding
    for j in range(partials.size):
        partials[j] += sums[j]
    row_salt = random_bits(_U(row), key, salt)
    base = _U(random_bits(number, row_salt, salt) + _U(column))
    round_part(partials, mode, base, row_salt)


@njit(cache=True, nogil=True, allocates=True)
def product(
    a: np.ndarray, b: np.ndarray, out: np.ndarray, rounding: Rounding, corner: tuple[int, int]
) -> None:
    """Write ``a @ b`` as `accumulate` adds it, cut into slices reduced in single precision."""
    depth = a.shape[1]
    slice_depth = SLICE_PASSES * PASS_DEPTH
    out[:] = 0
    if depth <= slice_depth:
        accumulate(a, b, out, rounding, corner, BEGIN, depth)
        return
    partials = np.empty_like(out)
    for start in range(0, depth, slice_depth):
        stop = min(start + slice_depth, depth)
        partials[:] = 0
        accumulate(a, b, partials, rounding, corner, start, stop)
        out += partials
