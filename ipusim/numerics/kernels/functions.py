"""Logarithm and hyperbolic tangent in single precision, the same bits on every machine.

numpy's differ in the last place between processors with other vectors. These are computed in double
precision by IEEE additions, multiplications and divisions alone, one numpy call each, and rounded
once: within a unit in the last place.
"""

import numpy as np

_LN2 = float.fromhex("0x1.62e42fefa39efp-1")
_SQRT_HALF = float.fromhex("0x1.6a09e667f3bcdp-1")
_EXP_TERMS = 13
_LOG_TERMS = 9
_TANH_LINEAR = 1e-4
"""Below, tanh(x) is x: x^2 / 3 is less than half a unit in the last place of single precision."""
_TANH_FLAT = 10.0
"""Beyond, tanh(x) is 1 in single precision."""


def _exp(x: np.ndarray) -> np.ndarray:
    """e^x = 2^n e^r, n = round(x / ln 2), by the Taylor series of e^r, |r| < 0.35."""
    power = np.rint(x / _LN2)
    r = x - power * _LN2
    total = np.ones_like(r)
    for n in range(_EXP_TERMS, 0, -1):
        total = 1 + r * total / n
    return np.ldexp(total, power.astype(np.int32))


def tanh(x: np.ndarray) -> np.ndarray:
    """Return tanh(x) = (e^2x - 1) / (e^2x + 1) of every element."""
    wide = np.clip(x.astype(np.float64), -_TANH_FLAT, _TANH_FLAT)
    grown = _exp(2 * wide)
    return np.where(np.abs(wide) < _TANH_LINEAR, x, (grown - 1) / (grown + 1)).astype(np.float32)


def log(x: np.ndarray) -> np.ndarray:
    """Return log(x) = e ln 2 + 2 artanh((m - 1) / (m + 1)) of every element x = m 2^e.

    As libraries do, it returns minus infinity for 0 and NaN below.
    """
    wide = x.astype(np.float64)
    mantissa, exponent = np.frexp(np.where(wide > 0, wide, 1.0))
    small = mantissa < _SQRT_HALF
    mantissa, exponent = np.where(small, 2 * mantissa, mantissa), exponent - small
    s = (mantissa - 1) / (mantissa + 1)
    total = np.zeros_like(s)
    for n in range(_LOG_TERMS, -1, -1):
        total = total * (s * s) + 1 / (2 * n + 1)
    result = exponent * _LN2 + 2 * s * total
    return np.where(wide > 0, result, np.where(wide == 0, -np.inf, np.nan)).astype(np.float32)
