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
