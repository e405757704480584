"""Batched matrix products as passes of the accumulating matrix product."""

import numpy as np

from ipusim.kernel_cache import njit
from ipusim.numerics.kernels.amp import BEGIN, PASS_DEPTH, product
from ipusim.numerics.kernels.rounding import Rounding
from ipusim.numerics.kernels.threads import over_ranges, writable

_ROWS = 128  # rows of one product that one thread works on at a time


@njit(cache=True, nogil=True, allocates=True)
def _multiply_range(a, b, rounding, out, start, stop):
    rows, columns = out.shape[1:]
    depth = a.shape[2]
    padded_depth = (depth + PASS_DEPTH - 1) // PASS_DEPTH * PASS_DEPTH
    blocks = (rows + _ROWS - 1) // _ROWS
    right = np.zeros((padded_depth, columns), np.float32)
    for item in range(start, stop):
        group, first = item // blocks, item % blocks * _ROWS
        last = min(first + _ROWS, rows)
        source_a = a[group % a.shape[0]]
        source_b = b[group % b.shape[0]]
        left = np.zeros((last - first, padded_depth), np.float32)
        for i in range(first, last):
            for k in range(depth):
                left[i - first, k] = source_a[i, k]
        for k in range(depth):
            for j in range(columns):
                right[k, j] = source_b[k, j]
        result = out[group, first:last]
        product(left, right, result, rounding, (group * rows + first, BEGIN))


def multiply(a: np.ndarray, b: np.ndarray, rounding: Rounding) -> np.ndarray:
    """Return ``C[g] = A[g] @ B[g]`` in float32: the partials after their last pass.

    Operands are (groups or 1, m, k) and (groups or 1, k, n); `rounding` is that of partials.
    """
    rows, columns = a.shape[1], b.shape[2]
    groups = max(a.shape[0], b.shape[0])
    out = np.empty((groups, rows, columns), np.float32)
    items = groups * -(-rows // _ROWS)
    chunk = max(1, min(8, items // 8))
    over_ranges(items, chunk, _multiply_range, writable(a), writable(b), rounding, out)
    return out
