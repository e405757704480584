"""Batched matrix products as passes of the accumulating matrix product."""

from __future__ import annotations

import numpy as np

from ipusim.kernel_cache import njit
from ipusim.numerics.kernels.amp import padded, product
from ipusim.numerics.kernels.threads import over_ranges, writable

_ROWS = 128  # rows of one product that one thread works on at a time


@njit(cache=True, nogil=True)
def _multiply_range(a, b, flip_a, flip_b, depth, padded_depth, mode, key, salt, out, start, stop):
    rows, columns = out.shape[1:]
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
                left[i - first, k] = source_a[k, i] if flip_a else source_a[i, k]
        for k in range(depth):
            for j in range(columns):
                right[k, j] = source_b[j, k] if flip_b else source_b[k, j]
        result = out[group, first:last]
        product(left, right, result, mode, key, salt, group * rows + first, 0)


def multiply(
    a: np.ndarray,
    b: np.ndarray,
    mode: int,
    key: tuple[np.uint32, np.uint32],
    *,
    flip_a: bool = False,
    flip_b: bool = False,
) -> np.ndarray:
    """Multiply ``C[g] = A[g] @ B[g]``.

    Parameters
    ----------
    a : float32 (groups or 1, m, k), or (.., k, m) with `flip_a`
    b : float32 (groups or 1, k, n), or (.., n, k) with `flip_b`
        Of two different numbers of groups one must be 1; that operand is used for all.
    mode, key
        How partials are rounded (`ipusim.numerics.kernels.rounding`) and
        the stream of random bits.

    Returns
    -------
    numpy.ndarray
        float32 (groups, m, n): the partials after their last pass.
    """
    depth, rows = (a.shape[1], a.shape[2]) if flip_a else (a.shape[2], a.shape[1])
    columns = b.shape[1] if flip_b else b.shape[2]
    groups = max(a.shape[0], b.shape[0])
    out = np.empty((groups, rows, columns), np.float32)
    items = groups * -(-rows // _ROWS)
    over_ranges(
        items,
        max(1, min(8, items // 8)),
        _multiply_range,
        writable(a),
        writable(b),
        flip_a,
        flip_b,
        depth,
        padded(depth),
        mode,
        *key,
        out,
    )
    return out
