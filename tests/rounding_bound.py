"""How far two correct computations of one result may lie apart, from the arithmetic alone.

Libraries add in an order that depends on the processor's vectors and on the number of threads, and
fuse products into sums or do not. A comparison with one needs a bound that holds for all of them.
"""

import numpy as np

HALF = 2.0**-11
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


def loose_bound(
    terms: int, expected: np.ndarray, *operands: np.ndarray, unit: float = SINGLE
) -> np.ndarray:
    """Return `sum_bound` where absolute products cannot be had, as of several operators in a row.

    No value on the way is taken to be larger than the largest operand (or 1, as of exponentials)
    and the result together; `terms` counts the roundings on the longest way to a result.
    """
    finite = (np.abs(x[np.isfinite(x)]).max(initial=1) for x in operands if x.dtype.kind == "f")
    return sum_bound(terms, max(finite, default=1) + np.abs(expected.astype(np.float64)), unit)


def assert_within(result: np.ndarray, expected: np.ndarray, bound: float | np.ndarray) -> None:
    """Fail where two results lie further apart than a bound for each element."""
    result, expected = (np.asarray(one, np.float64) for one in (result, expected))
    assert result.shape == expected.shape
    with np.errstate(invalid="ignore"):
        apart = np.abs(result - expected)
        beyond = np.where(apart <= bound, -np.inf, apart - bound)
    # equal infinities, and no numbers where none are expected
    beyond[(result == expected) | (np.isnan(result) & np.isnan(expected))] = -np.inf
    if np.isneginf(beyond).all():
        return
    worst = np.unravel_index(np.argmax(beyond), beyond.shape)
    raise AssertionError(
        f"{result[worst]} and {expected[worst]} at {worst} lie {apart[worst]:.3g} apart, more than "
        f"{np.broadcast_to(bound, apart.shape)[worst]:.3g}."
    )
