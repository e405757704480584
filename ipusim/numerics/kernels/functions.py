"""Functions of single elements in single precision, the same bits on every machine.

Libraries differ in the last place, by machine and by version. The exponential is a polynomial of
IEEE additions and multiplications in single precision: Cody-Waite reduction and the coefficients of
the Cephes library, within 2 units in the last place. The others are computed in double precision by
IEEE additions, multiplications and divisions alone, one numpy call each, and rounded once: within a
unit in the last place.
"""

import numpy as np

_F = np.float32
_LOWEST, _HIGHEST = _F(-87.0), _F(88.0)
_LOG2E = _F(1.44269504088896341)
_LN2_HIGH, _LN2_LOW = _F(0.693359375), _F(-2.12194440e-4)
_C0, _C1, _C2 = _F(1.9875691500e-4), _F(1.3981999507e-3), _F(8.3334519073e-3)
_C3, _C4, _C5 = _F(4.1665795894e-2), _F(1.6666665459e-1), _F(5.0000001201e-1)
_LN2 = float.fromhex("0x1.62e42fefa39efp-1")
_SQRT_HALF = float.fromhex("0x1.6a09e667f3bcdp-1")
_EXP_TERMS = 13
_LOG_TERMS = 9
_TANH_LINEAR = 1e-4
"""Below, tanh(x) is x: x^2 / 3 is less than half a unit in the last place of single precision."""
_TANH_FLAT = 10.0
"""Beyond, tanh(x) is 1 in single precision."""


def exponentials(x: np.ndarray) -> np.ndarray:
    """Return e to the power of every element, between e^-87 and e^88."""
    x = np.clip(x, _LOWEST, _HIGHEST)
    power = np.floor(x * _LOG2E + _F(0.5))
    r = (x - power * _LN2_HIGH) - power * _LN2_LOW
    p = ((((_C0 * r + _C1) * r + _C2) * r + _C3) * r + _C4) * r + _C5
    with np.errstate(invalid="ignore"):  # what is no number stays none
        return np.ldexp((p * r) * r + r + _F(1), power.astype(np.int32))


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
    """Return log(x) = e ln 2 + 2 artanh((m - 1) / (m + 1)) of every element x = m 2^e."""
    wide = x.astype(np.float64)
    mantissa, exponent = np.frexp(np.where(wide > 0, wide, 1.0))
    small = mantissa < _SQRT_HALF
    mantissa, exponent = np.where(small, 2 * mantissa, mantissa), exponent - small
    s = (mantissa - 1) / (mantissa + 1)
    total = np.zeros_like(s)
    for n in range(_LOG_TERMS, -1, -1):
        total = total * (s * s) + 1 / (2 * n + 1)
    result = exponent * _LN2 + 2 * s * total
    # As libraries do, minus infinity for 0 and NaN below.
    return np.where(wide > 0, result, np.where(wide == 0, -np.inf, np.nan)).astype(np.float32)
