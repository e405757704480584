"""The exponential in single precision, the same bits on every machine.

Libraries differ in the last place, by machine and by version. This one is a polynomial of IEEE
additions and multiplications: Cody-Waite reduction and the coefficients of the Cephes library,
within 2 units in the last place.
"""

import numpy as np

from ipusim.kernel_cache import njit
from ipusim.numerics.kernels.threads import over_ranges

_F = np.float32
_U = np.uint32
_CHUNK = 1 << 16
_LOWEST, _HIGHEST = _F(-87.0), _F(88.0)
_LOG2E = _F(1.44269504088896341)
_LN2_HIGH, _LN2_LOW = _F(0.693359375), _F(-2.12194440e-4)
_C0, _C1, _C2 = _F(1.9875691500e-4), _F(1.3981999507e-3), _F(8.3334519073e-3)
_C3, _C4, _C5 = _F(4.1665795894e-2), _F(1.6666665459e-1), _F(5.0000001201e-1)


@njit(cache=True, inline="always")
def exponential(x: np.float32) -> np.float32:
    """Return e to the power x; below -87 as at -87."""
    x = min(max(x, _LOWEST), _HIGHEST)
    power = np.int32(np.floor(x * _LOG2E + _F(0.5)))
    n = _F(power)
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW
    p = ((((_C0 * r + _C1) * r + _C2) * r + _C3) * r + _C4) * r + _C5
    return ((p * r) * r + r + _F(1)) * _U(_U(power + 127) << _U(23)).view(_F)


@njit(cache=True, nogil=True)
def _exponential_range(values, start, stop):
    part = values[start:stop]
    for i in range(part.size):
        part[i] = exponential(part[i])


def exponentials(x: np.ndarray) -> np.ndarray:
    """Return e to the power of every element, between e^-87 and e^88."""
    out = np.array(x, np.float32, order="C")
    over_ranges(out.size, _CHUNK, _exponential_range, out.reshape(-1))
    return out
