"""Batched matrix products as passes of the accumulating matrix product."""

import numpy as np

from ipusim.numerics.kernels.amp import padded, product
from ipusim.numerics.kernels.rounding import Rounding
from ipusim.numerics.kernels.threads import over_ranges, writable

_ROWS = 128  # rows of one product that one thread works on at a time


def multiply(a: np.ndarray, b: np.ndarray, rounding: Rounding) -> np.ndarray:
    """Return ``C[g] = A[g] @ B[g]`` in float32: the partials after their last pass.

    Operands are (groups or 1, m, k) and (groups or 1, k, n); `rounding` is that of partials.
    """
    (_, rows, depth), columns = a.shape, b.shape[2]
    none, fill = (0, 0), (0, padded(depth) - depth)
    left = writable(np.pad(a, (none, none, fill)))
    right = writable(np.pad(b, (none, fill, none)))
    out = np.empty((max(len(a), len(b)), rows, columns), np.float32)
    blocks = -(-rows // _ROWS)

    def work(start: int, stop: int) -> None:
        for item in range(start, stop):
            group, first = item // blocks, item % blocks * _ROWS
            part, other = (one[group % len(one)][None] for one in (left, right))
            part = part[:, first : first + _ROWS]
            corner = (group * rows + first, 0)
            out[group, first : first + _ROWS] = product(part, other, rounding, corner)[0]

    items = len(out) * blocks
    over_ranges(items, max(1, min(8, items // 8)), work)
    return out
