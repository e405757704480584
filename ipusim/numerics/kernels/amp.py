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

from functools import reduce
from operator import add

import numpy as np

from ipusim.kernel_cache import njit
from ipusim.numerics.kernels.rounding import Rounding, random_bits, round_part
from ipusim.numerics.kernels.threads import over_ranges, writable

PASS_DEPTH = 16
"""Inputs per pass."""
SLICE_PASSES = 64
"""Passes that one tile accumulates before slices are reduced [assumed]."""
SLICE_DEPTH = SLICE_PASSES * PASS_DEPTH

_U = np.uint32
_ROWS = 128  # rows of one product that one thread works on at a time


def padded(depth: int) -> int:
    """Return the length of a sum, filled up with zeros to whole passes."""
    return -(-depth // PASS_DEPTH) * PASS_DEPTH


def product(
    a: np.ndarray, b: np.ndarray, rounding: Rounding, corner: tuple[int, int] = (0, 0)
) -> np.ndarray:
    """Return ``A[g] @ B[g]`` of each group, its slices reduced in single precision.

    Operands are float32, (groups or 1, m, k) and (groups or 1, k, n), k in whole passes; partials
    are rounded after each pass. The `corner` is the place of the first element in the whole result,
    in which the rows of all groups follow each other: it selects the random bits.
    """
    shape, depth = (max(len(a), len(b)), a.shape[1], b.shape[2]), a.shape[2]
    sums = np.empty((2, b.shape[2]), np.float32)
    slices = []
    for start in range(0, depth, SLICE_DEPTH):
        slices.append(np.zeros(shape, np.float32))
        span = (start, min(start + SLICE_DEPTH, depth))
        _accumulate(a, b, slices[-1], sums, rounding, corner, span)
    return reduce(add, slices)


def multiply(a: np.ndarray, b: np.ndarray, rounding: Rounding) -> np.ndarray:
    """Return ``C[g] = A[g] @ B[g]`` in float32: the partials after their last pass.

    Operands are (groups or 1, m, k) and (groups or 1, k, n); `rounding` is that of partials.
    """
    (_, rows, depth), columns = a.shape, b.shape[2]
    none, fill = (0, 0), (0, padded(depth) - depth)
    left = writable(np.pad(a, (none, none, fill)))
    right = writable(np.pad(b, (none, fill, none)))
    groups = max(len(a), len(b))
    out = np.empty((groups, rows, columns), np.float32)

    def of_groups(start: int, stop: int) -> None:
        pair = (one if len(one) == 1 else one[start:stop] for one in (left, right))
        out[start:stop] = product(*pair, rounding, (start * rows, 0))

    def of_rows(start: int, stop: int) -> None:
        out[:, start:stop] = product(left[:, start:stop], right, rounding, (start, 0))

    if groups > 1:
        over_ranges(groups, max(1, min(8, groups // 8)), of_groups)
    else:
        over_ranges(rows, _ROWS, of_rows)
    return out


@njit(cache=True, nogil=True)
def _accumulate(a, b, out, sums, rounding, corner, span):
    """Add the `span` of ``A[g] @ B[g]`` to the partial sums in `out`; `sums` are two spare rows."""
    (groups, rows, columns), (begin, end) = out.shape, span
    s0, s1 = sums[0], sums[1]
    for group in range(groups):
        left, right, partials = a[group % len(a)], b[group % len(b)], out[group]
        first_row = corner[0] + group * rows
        for start in range(begin, end, PASS_DEPTH):
            number = _U(start // PASS_DEPTH)
            for i in range(0, rows, 2):
                # Two rows share each load of b; an odd last row stands in for its own partner.
                i1 = min(i + 1, rows - 1)
                p, q = left[i], left[i1]
                for k in range(start, start + PASS_DEPTH, 4):
                    p0, p1, p2, p3 = p[k], p[k + 1], p[k + 2], p[k + 3]
                    q0, q1, q2, q3 = q[k], q[k + 1], q[k + 2], q[k + 3]
                    r0, r1, r2, r3 = right[k], right[k + 1], right[k + 2], right[k + 3]
                    if k == start:
                        for j in range(columns):
                            b0, b1, b2, b3 = r0[j], r1[j], r2[j], r3[j]
                            s0[j] = (p0 * b0 + p1 * b1) + (p2 * b2 + p3 * b3)
                            s1[j] = (q0 * b0 + q1 * b1) + (q2 * b2 + q3 * b3)
                    else:
                        for j in range(columns):
                            b0, b1, b2, b3 = r0[j], r1[j], r2[j], r3[j]
                            s0[j] += (p0 * b0 + p1 * b1) + (p2 * b2 + p3 * b3)
                            s1[j] += (q0 * b0 + q1 * b1) + (q2 * b2 + q3 * b3)
                _store(partials[i], s0, rounding, number, first_row + i, corner[1])
                if i1 > i:
                    _store(partials[i1], s1, rounding, number, first_row + i1, corner[1])


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
