"""Rounding to half precision, to nearest or stochastically, with a counter-based generator.

Half-precision values are kept in 32-bit arrays: every half is a single exactly, so arithmetic on
them is plain single precision followed by one of the roundings below.

Stochastic rounding moves a value to one of its two neighbours, to the upper one with the
probability of its distance from the lower one (Gupta et al., "Deep learning with limited numerical
precision", arXiv 1502.02551). The IPU does it in the data path, with random bits of its own per
tile; here the bits are a hash of (key, position), so they depend neither on the number of threads
nor on the machine. All kernels use integer operations and IEEE additions and multiplications only.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ipusim.kernel_cache import njit
from ipusim.numerics.kernels.threads import over_ranges

NONE, NEAREST, STOCHASTIC = 0, 1, 2
"""Rounding modes: keep single precision, round to the nearest half (ties to even), at random."""

_U = np.uint32
_F = np.float32
_SIGN = _U(0x80000000)
_MAGNITUDE = _U(0x7FFFFFFF)
_INFINITY = _U(0x7F800000)
_HALF_MAX_BITS = _U(0x477FE000)
"""Largest finite half; larger results saturate, as on an IPU unless set otherwise [recalled]."""
_SMALLEST_NORMAL = _U(0x38800000)  # 2^-14
_DROPPED = _U(13)  # mantissa bits that a half does not have
_HIGH = _U(0xFFFFE000)
_HALFWAY = _U(0x0FFF)
_ONE = _U(1)
_HALF = np.float32(0.5)
_TINY_LIMIT = np.float32(2.0**-14)
_TO_FIXED = np.float32(2.0**37)  # subnormal halves are multiples of 2^-24; 13 bits more
_FROM_FIXED = np.float32(2.0**-24)
_RANDOM_SHIFT = _U(19)

_CHUNK, _ROWS = 1 << 16, 256
"""Elements, and rows, that a thread rounds at a time."""


class Rounding(NamedTuple):
    """A rounding mode, and key and salt of the random bits that it takes (`stream_key`)."""

    mode: int
    key: np.uint32 = _U(0)
    salt: np.uint32 = _U(0)

    def of(self, block: int, place: int) -> Rounding:
        """Return the same mode with random bits of its own for a part of the work."""
        key = random_bits(_U(block), self.key, self.salt)
        return Rounding(self.mode, _U(key), _U(random_bits(_U(place), self.salt, self.key)))


# Numba widens unsigned 32-bit results to 64 bits, hence a conversion around every step.


@njit(cache=True, inline="always")
def random_bits(position: np.uint32, key: np.uint32, salt: np.uint32) -> np.uint32:
    """Hash a position to 32 random bits."""
    # A finaliser of multiplications and shifted exclusive-ors (the "lowbias32" constants of C.
    # Wellons' hash prospector); the salt in its middle keeps two streams from being shifted copies
    # of each other.
    x = _U(position + key)
    x = _U(x ^ _U(x >> _U(16)))
    x = _U(x * _U(0x7FEB352D))
    x = _U(x ^ _U(x >> _U(15)))
    x = _U(_U(x + salt) * _U(0x846CA68B))
    return _U(x ^ _U(x >> _U(16)))


@njit(cache=True, inline="always")
def _round_magnitude(bits: np.uint32, addend: np.uint32, tiny: np.float32) -> np.float32:
    """Add the increment below the last kept bit and cut off; `tiny` replaces subnormal halves."""
    magnitude = _U(bits & _MAGNITUDE)
    normal = min(_U(_U(magnitude + addend) & _HIGH), _HALF_MAX_BITS)
    rounded = _F(tiny).view(_U) if magnitude < _SMALLEST_NORMAL else normal
    kept = magnitude if magnitude > _INFINITY else rounded  # NaN stays NaN
    return _U(_U(bits & _SIGN) | kept).view(_F)


@njit(cache=True, inline="always")
def round_nearest(value: np.float32) -> np.float32:
    """Round a single to the nearest half, ties to even."""
    bits = _F(value).view(_U)
    odd = _U(_U(bits >> _DROPPED) & _ONE)
    # Singles between 0.5 and 1 are multiples of 2^-24, as subnormal halves are.
    tiny = (abs(value) + _HALF) - _HALF
    return _round_magnitude(bits, _U(_HALFWAY + odd), tiny)


@njit(cache=True, inline="always")
def round_stochastic(value: np.float32, random: np.uint32) -> np.float32:
    """Round a single to a neighbouring half by 13 random bits, from 2^-14 on exactly unbiased."""
    bits = _F(value).view(_U)
    low = _U(random >> _RANDOM_SHIFT)
    # The minimum keeps the conversion in range where its result is not used.
    # Below, bits under 2^-37 are cut off.
    fixed = np.int32(min(abs(value), _TINY_LIMIT) * _TO_FIXED)
    tiny = np.float32(np.int32(np.int32(fixed + np.int32(low)) >> np.int32(13))) * _FROM_FIXED
    return _round_magnitude(bits, low, tiny)


@njit(cache=True, nogil=True)
def round_part(part: np.ndarray, mode: int, base: np.uint32, salt: np.uint32) -> None:
    """Round in place, indices from zero: the compiler vectorises the loops."""
    if mode == NEAREST:
        for i in range(part.size):
            part[i] = round_nearest(part[i])
    elif mode == STOCHASTIC:
        for i in range(part.size):
            part[i] = round_stochastic(part[i], random_bits(_U(i), base, salt))


@njit(cache=True, nogil=True)
def _round_range(values: np.ndarray, rounding: Rounding, start: int, stop: int) -> None:
    mode, key, salt = rounding
    round_part(values[start:stop], mode, _U(key + _U(start)), salt)


def stream_key(*parts: int) -> tuple[np.uint32, np.uint32]:
    """Return key and salt of a stream of random bits, well mixed from seed, step, operation, ..."""
    state = 0x9E3779B97F4A7C15
    for part in parts:
        # splitmix64, Steele, Lea and Flood, OOPSLA 2014
        state = (state ^ (int(part) & 0xFFFFFFFFFFFFFFFF)) * 0xBF58476D1CE4E5B9 % (1 << 64)
        state = (state ^ (state >> 31)) * 0x94D049BB133111EB % (1 << 64)
        state = (state ^ (state >> 29)) + 0x9E3779B97F4A7C15
    return _U(state & 0xFFFFFFFF), _U((state >> 32) & 0xFFFFFFFF)


def round_in_place(values: np.ndarray, rounding: Rounding) -> np.ndarray:
    """Round a contiguous float32 array to half precision in place."""
    if rounding.mode != NONE:
        flat = values.reshape(-1)
        over_ranges(flat.size, _CHUNK, _round_range, flat, rounding)
    return values


@njit(cache=True, nogil=True)
def _round_row_range(rows, rounding, stage, start, stop):
    mode, key, salt = rounding
    for i in range(start, stop):
        row_key = random_bits(_U(i), key, salt)
        round_part(rows[i], mode, random_bits(_U(stage), row_key, salt), salt)


def round_rows(rows: np.ndarray, rounding: Rounding, stage: int) -> np.ndarray:
    """Return rounded rows, each with random bits of its own at every `stage` of a computation."""
    rows = np.ascontiguousarray(rows)
    over_ranges(len(rows), _ROWS, _round_row_range, rows, rounding, stage)
    return rows
