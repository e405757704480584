"""Softmax along the last axis and its gradient, in the steps that popnn takes.

``lib/popnn/NonLinearity.cpp`` (sdk/poplar/2.4.0): subtract the maximum, exponential, sum in single
precision, reciprocal, cast to the type of the data, multiply; the gradient is two products, a sum
and a subtraction, each stored in the type of the data.
"""

import numpy as np

from ipusim.kernel_cache import njit
from ipusim.numerics.kernels.functions import exponential
from ipusim.numerics.kernels.rounding import Rounding, random_bits, round_part
from ipusim.numerics.kernels.threads import over_ranges, writable

_F = np.float32
_U = np.uint32
_ROWS = 256
_STAGES = _U(0), _U(1), _U(2), _U(3)  # typed: for literals, a function is compiled for each


@njit(cache=True, nogil=True)
def _round_row(row, mode, key, salt, stage):
    round_part(row, mode, random_bits(stage, key, salt), salt)


@njit(cache=True, nogil=True, allocates=True)
def _softmax_range(x, rounding, start, stop):
    mode, key, salt = rounding
    one = np.empty(1, np.float32)
    for i in range(start, stop):
        row = x[i]
        row_key = random_bits(_U(i), key, salt)
        largest = row[0]
        for j in range(row.size):
            largest = max(largest, row[j])
        for j in range(row.size):
            row[j] = row[j] - largest
        _round_row(row, mode, row_key, salt, _STAGES[0])
        for j in range(row.size):
            row[j] = exponential(row[j])
        _round_row(row, mode, row_key, salt, _STAGES[1])
        total = _F(0)
        for j in range(row.size):
            total += row[j]
        one[0] = _F(1) / total
        _round_row(one, mode, row_key, salt, _STAGES[2])
        for j in range(row.size):
            row[j] = row[j] * one[0]
        _round_row(row, mode, row_key, salt, _STAGES[3])


@njit(cache=True, nogil=True, allocates=True)
def _gradient_range(y, gradient, out, rounding, start, stop):
    mode, key, salt = rounding
    one = np.empty(1, np.float32)
    scaled = np.empty(y.shape[1], np.float32)
    for i in range(start, stop):
        row_key = random_bits(_U(i), key, salt)
        row = out[i]
        for j in range(row.size):
            row[j] = y[i, j] * gradient[i, j]
        _round_row(row, mode, row_key, salt, _STAGES[0])
        total = _F(0)
        for j in range(row.size):
            total += row[j]
        one[0] = total
        _round_row(one, mode, row_key, salt, _STAGES[1])
        for j in range(row.size):
            scaled[j] = y[i, j] * one[0]
        _round_row(scaled, mode, row_key, salt, _STAGES[2])
        for j in range(row.size):
            row[j] = row[j] - scaled[j]
        _round_row(row, mode, row_key, salt, _STAGES[3])


def softmax(x: np.ndarray, rounding: Rounding) -> np.ndarray:
    """Return the softmax of float32 rows ``(rows, length)``, every step of it rounded."""
    out = np.array(x, np.float32, order="C")
    over_ranges(out.shape[0], _ROWS, _softmax_range, out, rounding)
    return out


def softmax_gradient(y: np.ndarray, gradient: np.ndarray, rounding: Rounding) -> np.ndarray:
    """Return the gradient of the input from the result and its gradient, all (rows, length)."""
    out = np.empty(y.shape, np.float32)
    y, gradient = writable(y), writable(gradient)
    over_ranges(out.shape[0], _ROWS, _gradient_range, y, gradient, out, rounding)
    return out
