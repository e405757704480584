"""Softmax along the last axis and its gradient, in the steps that popnn takes.

``lib/popnn/NonLinearity.cpp`` (sdk/poplar/2.4.0): subtract the maximum, exponential, sum in single
precision, reciprocal, cast to the type of the data, multiply; the gradient is two products, a sum
and a subtraction, each stored in the type of the data.
"""

import numpy as np

from ipusim.numerics.kernels.functions import exponentials
from ipusim.numerics.kernels.rounding import Rounding, round_rows


def _row_sums(rows: np.ndarray) -> np.ndarray:
    """Add up every row from its first element on."""
    return np.cumsum(rows, axis=1)[:, -1:]


def softmax(x: np.ndarray, rounding: Rounding) -> np.ndarray:
    """Return the softmax of float32 rows ``(rows, length)``, every step of it rounded."""
    below = round_rows(x - x.max(axis=1, keepdims=True), rounding, 0)
    powers = round_rows(exponentials(below), rounding, 1)
    inverse = round_rows(np.float32(1) / _row_sums(powers), rounding, 2)
    return round_rows(powers * inverse, rounding, 3)


def softmax_gradient(y: np.ndarray, gradient: np.ndarray, rounding: Rounding) -> np.ndarray:
    """Return the gradient of the input from the result and its gradient, all (rows, length)."""
    products = round_rows(y * gradient, rounding, 0)
    total = round_rows(_row_sums(products), rounding, 1)
    return round_rows(products - round_rows(y * total, rounding, 2), rounding, 3)
