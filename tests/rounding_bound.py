"""How far two correct computations of one result may lie apart, from the arithmetic alone.

Libraries add in an order that depends on the processor's vectors and on the number of threads, and
fuse products into sums or do not. A comparison with one needs a bound that holds for all of them.
"""

import numpy as np

SINGLE = 2.0**-24
DOUBLE = 2.0**-53
"""Unit roundoff: the largest relative error of one rounding to nearest."""


def sum_bound(
    terms: float | np.ndarray, magnitude: np.ndarray, unit: float = SINGLE
) -> float | np.ndarray:
    """Return the largest distance of two sums of the same products, each in an order of its own.

    ``2 n u / (1 - n u) * sum |a_i b_i|`` (Higham, Accuracy and Stability of Numerical Algorithms,
    2nd ed. 2002, section 3.1: each is off by half of it). `terms` counts n, what is added, and
    `magnitude` is the sum of its absolute values.
    """
    growth = terms * unit
    return 2 * growth / (1 - growth) * magnitude


def assert_within(result: np.ndarray, expected: np.ndarray, bound: float | np.ndarray) -> None:
    """Fail where two results lie further apart than a bound for each element."""
    apart = np.abs(np.asarray(result, np.float64) - np.asarray(expected, np.float64))
    worst = np.unravel_index(np.argmax(apart - bound), apart.shape)
    assert (apart <= bound).all(), (
        f"{result[worst]} and {expected[worst]} at {worst} lie {apart[worst]:.3g} apart, more than "
        f"{np.broadcast_to(bound, apart.shape)[worst]:.3g}."
    )
