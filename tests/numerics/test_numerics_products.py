"""Accumulation as the AMP does it: against an element-by-element model, and exact bounds."""

from types import SimpleNamespace

import numba
import numpy as np
import pytest

from ipusim.numerics.kernels.amp import PASS_DEPTH, SLICE_PASSES, multiply
from ipusim.numerics.kernels.convolution import convolve, weight_gradient
from ipusim.numerics.kernels.rounding import NEAREST, NONE, STOCHASTIC, Rounding, stream_key

KEY = stream_key(1)
NONE_3, ONES_3 = (0, 0, 0), (1, 1, 1)
WINDOW = SimpleNamespace(
    stride=ONES_3,
    dilation=ONES_3,
    input_dilation=(),
    padding_lower=NONE_3,
    padding_upper=NONE_3,
    groups=1,
)
RNG = np.random.default_rng(5)
DRAWS = 400 if numba.config.DISABLE_JIT else 40_000


def halves(*shape, scale=1.0):
    return (RNG.standard_normal(shape) * scale).astype(np.float16).astype(np.float32)


def convolved(x, weights, mode):
    """Convolve planes, as volumes of one each."""
    return convolve(x[:, :, None], weights[:, :, None], WINDOW, Rounding(mode, *KEY))


def gradient_of_weights(x, gradient, mode):
    """Return the gradient of 3 x 3 weights of planes, as volumes of one each."""
    volumes = x[:, :, None], gradient[:, :, None]
    return weight_gradient(*volumes, (1, 3, 3), WINDOW, Rounding(mode, *KEY))[:, :, 0]


def one_pass(a, b):
    """Sum of 16 products in single precision, in four chained dot products of four."""
    total = np.float32(0)
    for k in range(0, PASS_DEPTH, 4):
        p = (a[k : k + 4] * b[k : k + 4]).astype(np.float32)
        dot = np.float32(np.float32(p[0] + p[1]) + np.float32(p[2] + p[3]))
        total = dot if k == 0 else np.float32(total + dot)
    return total


def reference(a, b, half_partials):
    """Element-by-element sums with the partials stored after every pass."""
    rows, depth = a.shape
    fill = -depth % PASS_DEPTH
    a, b = np.pad(a, ((0, 0), (0, fill))), np.pad(b, ((0, fill), (0, 0)))
    out = np.zeros((rows, b.shape[1]), np.float32)
    for i in range(rows):
        for j in range(b.shape[1]):
            total = partial = np.float32(0)
            for number, k in enumerate(range(0, a.shape[1], PASS_DEPTH), start=1):
                window = slice(k, k + PASS_DEPTH)
                partial = np.float32(partial + one_pass(a[i, window], b[window, j]))
                if half_partials:
                    partial = np.float32(np.float16(partial))
                if number % SLICE_PASSES == 0:
                    total, partial = np.float32(total + partial), np.float32(0)
            out[i, j] = total + partial
    return out


@pytest.mark.parametrize("depth", [1, 16, 37, 200, 2000])
@pytest.mark.parametrize("mode", [NONE, NEAREST])
def test_products_pass_by_pass(depth, mode):
    a, b = halves(5, depth), halves(depth, 7)
    result = multiply(a[None], b[None], Rounding(mode, *KEY))[0]
    np.testing.assert_array_equal(result, reference(a, b, mode == NEAREST))


@pytest.mark.parametrize("flip_a", [False, True])
@pytest.mark.parametrize("flip_b", [False, True])
def test_stored_transposed(flip_a, flip_b):
    a, b = halves(3, 150, 20), halves(1, 20, 9)
    expected = multiply(a, b, Rounding(NEAREST, *KEY))
    left = a.swapaxes(1, 2).copy().swapaxes(1, 2) if flip_a else a
    right = b.swapaxes(1, 2).copy().swapaxes(1, 2) if flip_b else b
    result = multiply(left, right, Rounding(NEAREST, *KEY))
    np.testing.assert_array_equal(result, expected)


def test_half_partials_stay_within_their_rounding_bound():
    depth = 320
    a, b = halves(40, depth), halves(depth, 40)
    exact = a.astype(np.float64) @ b
    passes = np.cumsum(
        (a.reshape(40, -1, PASS_DEPTH)[..., None] * b.reshape(-1, PASS_DEPTH, 40)).sum(axis=2),
        axis=1,
        dtype=np.float64,
    )
    # one rounding per pass: half a unit in the last place to nearest, a whole one at random
    largest = np.abs(passes).max(axis=1) * 1.01
    unit = 2.0 ** (np.floor(np.log2(largest)) - 10)
    for mode, share in ((NEAREST, 0.5), (STOCHASTIC, 1.0)):
        error = np.abs(multiply(a[None], b[None], Rounding(mode, *KEY))[0] - exact)
        assert (error <= share * unit * depth / PASS_DEPTH + 1e-4).all()
        assert error.max() > 1e-3  # half partials do cost something


def test_stochastic_partials_are_unbiased():
    a, b = halves(1, 160), halves(160, 1)
    copies = np.broadcast_to(b, (160, DRAWS))
    drawn = multiply(a[None], copies[None], Rounding(STOCHASTIC, *KEY))[0, 0].astype(np.float64)
    exact = float(multiply(a[None], b[None], Rounding(NONE, *KEY))[0, 0, 0])
    assert drawn.std() > 0
    assert abs(drawn.mean() - exact) < 4.5 * drawn.std() / np.sqrt(DRAWS) + 1e-5


def test_small_addends_survive_only_with_stochastic_rounding():
    depth = 64 * PASS_DEPTH
    a = np.full((1, depth), 2.0**-16, np.float32)
    a[0, :PASS_DEPTH] = 1 / PASS_DEPTH  # the first pass gives 1, later ones 2^-12 each
    b = np.ones((depth, 400), np.float32)
    exact = 1 + 63 * 2.0**-12
    assert (multiply(a[None], b[None], Rounding(NEAREST, *KEY)) == 1).all()
    drawn = multiply(a[None], b[None], Rounding(STOCHASTIC, *KEY))
    assert abs(drawn.mean() - exact) < 5 * drawn.std() / 20


def test_random_bits_do_not_depend_on_how_work_is_cut():
    x, weights = halves(9, 16, 6, 6), halves(8, 16, 3, 3)
    whole = convolved(x, weights, STOCHASTIC)
    first = convolved(x[:5], weights, STOCHASTIC)
    np.testing.assert_array_equal(whole[:5], first)


def test_convolution_sums_channel_groups_outside_and_kernel_inside():
    x, weights = halves(1, 32, 3, 3), halves(4, 32, 3, 3)
    order = [
        (group * 16 + channel, row, column)
        for group in range(2)
        for row in range(3)
        for column in range(3)
        for channel in range(16)
    ]
    a = np.array([[weights[o, c, i, j] for c, i, j in order] for o in range(4)])
    b = np.array([[x[0, c, i, j]] for c, i, j in order])
    result = convolved(x, weights, NEAREST).reshape(4, 1)
    np.testing.assert_array_equal(result, reference(a, b, True))


def test_weight_gradient_takes_sixteen_samples_per_pass():
    x, gradient = halves(16, 2, 4, 4), halves(16, 3, 2, 2)
    result = gradient_of_weights(x, gradient, NEAREST)
    for channel in range(3):
        a = gradient[:, channel].transpose(1, 2, 0).reshape(1, -1)
        b = x[:, 1, 2:4, 1:3].transpose(1, 2, 0).reshape(-1, 1)
        assert result[channel, 1, 2, 1] == reference(a, b, True)[0, 0]


@pytest.mark.parametrize("mode", [NONE, NEAREST])
def test_weight_gradient_adds_blocks_of_sixteen_samples_in_single_precision(mode):
    x, gradient = halves(40, 2, 4, 4), halves(40, 3, 2, 2)
    whole = gradient_of_weights(x, gradient, mode)
    first, second, third = (
        gradient_of_weights(x[part], gradient[part], mode)
        for part in (slice(0, 16), slice(16, 32), slice(32, 40))
    )
    np.testing.assert_array_equal(whole, first + second + third)
