"""Transforms of a convolution keep its sums, and work lists hold what is really computed."""

import math

import numpy as np
from hypothesis import assume, given, strategies as st
from windows import NO_PADDING, conv as layer

from ipusim.compiler.convolution.params import (
    ConvParams,
    Dim,
    Operand,
    _dims_of,
    canonical,
    swapped,
    uses,
)
from ipusim.compiler.convolution.planner import plan
from ipusim.compiler.convolution.rules import PlannerRules
from ipusim.compiler.convolution.windows import _tap_counts
from ipusim.compiler.operators.conv import conv_pass
from ipusim.machine import load_chip
from ipusim.workload.operators.conv import conv_data_gradient, conv_weight_gradient

CHIP = load_chip("GC200")
RULES = PlannerRules(era=1, partials_bytes=4, available_memory_proportion=0.6)


def slide(dim: Dim, data: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """Sum products of one dimension, straight from what the fields of `Dim` mean."""
    out = np.zeros(dim.out)
    data = data[dim.data.cut_low : dim.data.size - dim.data.cut_high]
    kernel = kernel[dim.kernel.cut_low : dim.kernel.size - dim.kernel.cut_high]
    for x, at in zip(data, dim.data.places(), strict=True):
        for w, tap in zip(kernel, dim.kernel.places(), strict=True):
            place = at - tap - dim.cut_low
            inside = 0 <= place < dim.slides - dim.cut_low - dim.cut_high
            if inside and place % dim.stride == 0:
                out[place // dim.stride + dim.pad_low] += x * w
    return out


@st.composite
def operands(draw, size):
    kept = draw(st.integers(1, size))
    low, high = draw(st.integers(0, 1)), draw(st.integers(0, 1))
    return Operand(
        kept + low + high,
        low,
        high,
        draw(st.integers(1, 3)),
        draw(st.integers(0, 2)),
        draw(st.integers(0, 2)),
        draw(st.booleans()),
    )


@st.composite
def dims(draw):
    dim = Dim(draw(operands(7)), draw(operands(3)))
    assume(dim.slides >= 1)
    cut_low = draw(st.integers(0, min(2, dim.slides - 1)))
    cut_high = draw(st.integers(0, min(2, dim.slides - 1 - cut_low)))
    return Dim(
        dim.data,
        dim.kernel,
        cut_low,
        cut_high,
        draw(st.integers(1, 3)),
        draw(st.integers(0, 2)),
        draw(st.integers(0, 2)),
    )


@given(
    st.integers(1, 8),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(-2, 3),
    st.integers(-2, 3),
    st.integers(1, 2),
    st.integers(1, 2),
)
def test_a_layer_with_any_padding_computes_what_it_is_defined_as(
    size, taps, stride, low, high, dilation, spread
):
    x, w = np.arange(1.0, size + 1), np.arange(1.0, taps + 1)
    data, kernel = np.zeros((size - 1) * spread + 1), np.zeros((taps - 1) * dilation + 1)
    data[::spread], kernel[::dilation] = x, w
    data = np.pad(data, (max(0, low), max(0, high)))
    data = data[max(0, -low) : data.size - max(0, -high)]
    assume(data.size >= kernel.size)
    dim = _dims_of((size,), (taps,), (stride,), (low,), (high,), (dilation,), (spread,))[-1]
    expected = np.correlate(data, kernel, "valid")[::stride]
    np.testing.assert_allclose(slide(dim, x, w), expected)


@given(dims())
def test_canonical_and_swapped_compute_the_same(dim):
    rng = np.random.default_rng(3)
    data, kernel = rng.normal(size=dim.data.size), rng.normal(size=dim.kernel.size)
    expected = slide(dim, data, kernel)
    small = canonical(dim)
    np.testing.assert_allclose(slide(small, data, kernel), expected)
    assert canonical(small) == small
    assume(small.slides >= 1 and expected.any())
    turned = swapped(small)
    np.testing.assert_allclose(slide(turned, kernel, data), expected)
    (first, last), _, outputs, _ = uses(small)
    assert 0 <= first < last <= dim.data.size
    assert outputs == (small.pad_low, dim.out - small.pad_high)


@given(dims())
def test_what_takes_part_is_what_every_pair_of_input_and_tap_says(dim):
    places = dim.data.places()[:, None] - dim.kernel.places()[None, :]
    reached = places - dim.cut_low
    hit = (reached >= 0) & (places < dim.slides - dim.cut_high) & (reached % dim.stride == 0)
    if not hit.any():
        assert uses(dim) == ((0, 0), (0, 0), (0, 0), False)
        return
    inputs, taps = (np.flatnonzero(hit.any(axis=axis)) for axis in (1, 0))
    outputs = reached[hit] // dim.stride + dim.pad_low
    assert uses(dim) == (
        (inputs[0] + dim.data.cut_low, inputs[-1] + 1 + dim.data.cut_low),
        (taps[0] + dim.kernel.cut_low, taps[-1] + 1 + dim.kernel.cut_low),
        (outputs.min(), outputs.max() + 1),
        len(taps) == dim.kernel.size and (hit.sum(axis=0) == dim.out).all(),
    )


def test_a_long_line_is_no_matter_of_pairs():
    # The weight gradient of a line of sound: as many taps as outputs, 2 * 10^9 pairs.
    dim = Dim(Operand(44_100, pad_low=10, pad_high=10), Operand(44_101))
    assert uses(dim) == ((0, 44_100), (0, 44_101), (0, 20), False)


@given(st.integers(2, 6), st.integers(2, 4), st.integers(0, 3), st.integers(0, 3))
def test_deferred_dilation_computes_the_same(size, step, low, high):
    # The data gradient of a strided kernel of one tap whose last inputs nothing reads.
    data_in = Operand(size, dilation=step, pad_low=low, pad_high=high)
    dim = canonical(Dim(data_in, Operand(1)))
    assert dim.defers_dilation
    rng = np.random.default_rng(4)
    data, kernel = rng.normal(size=dim.data.size), rng.normal(size=dim.kernel.size)
    dense = slide(dim.without_dilation(), data, kernel)
    spread = np.zeros(dim.out)
    end = dim.pad_low + (len(dense) - 1) * dim.data.dilation + 1
    spread[dim.pad_low : end : dim.data.dilation] = dense
    np.testing.assert_allclose(spread, slide(dim, data, kernel))


@given(dims())
def test_work_lists_hold_what_is_computed(dim):
    dim = canonical(dim)
    taps = np.zeros(dim.kernel.size, int)
    for tap in range(dim.kernel.size):
        one = np.zeros(dim.kernel.size)
        one[tap] = 1.0
        taps[tap] = np.count_nonzero(slide(dim, np.ones(dim.data.size), one))
    np.testing.assert_array_equal(_tap_counts(dim, 1, 1, 1), taps)
    # Of several tiles one has at least its share, and none more than everything.
    busiest = _tap_counts(dim, min(2, dim.out), 1, 1)
    assert math.ceil(taps.sum() / 2) <= busiest.sum() <= taps.sum()


def test_expanding_and_flattening_keep_the_work():
    conv = layer()
    params = ConvParams.of(conv)

    def macs(params: ConvParams) -> int:
        places = math.prod(dim.out * dim.kernel.size for dim in params.dims)
        channels = params.groups * params.in_channels * params.out_channels
        return params.batch * places * channels

    assert macs(params) == conv.macs
    assert macs(params.expanded((0,))) == macs(params.expanded((0, 1))) == conv.macs
    update = ConvParams.of(conv_weight_gradient(conv))
    assert macs(update) == conv.macs
    # The update as a plain product: kernel positions and input channels by output channels.
    product, free = update.swapped().expanded((0, 1)).flattened()
    assert free == (0, 1)
    assert (product.in_channels, product.out_channels) == (4 * 14 * 14, 64)
    assert product.dims[-1].out == 64 * 9


def test_strided_data_gradient_defers_its_zeros():
    back = conv_data_gradient(layer(kernel=(1, 1), stride=(2, 2), **NO_PADDING))
    found = plan(conv_pass(back, 2), CHIP, RULES)
    assert found.spreads_output
    wide = conv_data_gradient(layer(stride=(2, 2)))
    assert not plan(conv_pass(wide, 2), CHIP, RULES).spreads_output


def test_borders_are_skipped():
    padded = layer(field=(7, 7), in_channels=512, out_channels=512)
    inner = layer(field=(9, 9), in_channels=512, out_channels=512, **NO_PADDING)
    plans = [plan(conv_pass(conv, 2), CHIP, RULES) for conv in (padded, inner)]
    assert str(plans[0]) == str(plans[1])
    assert plans[0].cost.calc < 0.9 * plans[1].cost.calc


def test_training_forward_reckons_with_the_transpose_of_its_weights():
    conv = layer(kernel=(1, 1), **NO_PADDING)
    inference = plan(conv_pass(conv, 2), CHIP, RULES)
    training = plan(conv_pass(conv, 2, training=True), CHIP, RULES)
    assert training.out_chans_per_group % 16 == 0 or (
        training.planned_cycles > inference.planned_cycles
    )
    # What is only reckoned with does not run.
    assert training.cost.copy_weights == 0
