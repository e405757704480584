"""Gradients of convolutions and products: shapes, work, and the numbers they stand for."""

from math import prod

import numpy as np
import onnx
import onnxruntime
import pytest
import windows
from hypothesis import given, settings, strategies as st
from rounding_bound import DOUBLE, assert_within, sum_bound

from ipusim.errors import WorkloadError
from ipusim.workload.graph import Conv, Graph, MatMul, Op, Tensor
from ipusim.workload.operators.conv import conv_data_gradient, conv_weight_gradient
from ipusim.workload.operators.matmul import matmul_data_gradient, matmul_weight_gradient


def convolve(conv: Conv, data: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Do what the payload says, straight from its definition; data (N, C, ...), weights OI...."""
    for axis, (spread, low, high) in enumerate(
        zip(
            conv.input_dilation or (1,) * len(conv.field),
            conv.padding_lower,
            conv.padding_upper,
            strict=True,
        ),
        start=2,
    ):
        shape = list(data.shape)
        shape[axis] = (shape[axis] - 1) * spread + 1
        wide = np.zeros(shape)
        wide[(slice(None),) * axis + (slice(None, None, spread),)] = data
        pads = [(0, 0)] * data.ndim
        pads[axis] = (max(0, low), max(0, high))
        wide = np.pad(wide, pads)
        begin, end = max(0, -low), wide.shape[axis] - max(0, -high)
        data = wide[(slice(None),) * axis + (slice(begin, end),)]
    out = np.zeros((conv.batch, conv.out_channels, *conv.out_field))
    ins, outs = conv.in_channels // conv.groups, conv.out_channels // conv.groups
    for place in np.ndindex(*conv.out_field):
        for tap in np.ndindex(*conv.kernel):
            at = tuple(
                o * s + t * d
                for o, s, t, d in zip(place, conv.stride, tap, conv.dilation, strict=True)
            )
            for g in range(conv.groups):
                block = slice(g * outs, (g + 1) * outs)
                seen = data[(slice(None), slice(g * ins, (g + 1) * ins), *at)]
                out[(slice(None), block, *place)] += seen @ weights[(block, slice(None), *tap)].T
    return out


def rotated(conv: Conv, weights: np.ndarray) -> np.ndarray:
    """Kernel of the data gradient: channels of each group exchanged, fields reversed."""
    outs = conv.out_channels // conv.groups
    blocks = [weights[g * outs : (g + 1) * outs].swapaxes(0, 1) for g in range(conv.groups)]
    return np.flip(np.concatenate(blocks), axis=tuple(range(2, weights.ndim)))


def weight_gradient(conv: Conv, data: np.ndarray, incoming: np.ndarray) -> np.ndarray:
    """Weight gradient through its payload: activations (Ci, G N, ...), kernel (G Co, N, ...)."""
    payload = conv_weight_gradient(conv)
    ins = conv.in_channels // conv.groups
    groups = [data[:, g * ins : (g + 1) * ins].swapaxes(0, 1) for g in range(conv.groups)]
    found = convolve(payload, np.concatenate(groups, axis=1), incoming.swapaxes(0, 1))
    return found.swapaxes(0, 1)


@st.composite
def convolutions(draw, dims=(1, 2)):
    """Small forward convolutions of every kind, transposed ones among them."""
    rank = draw(st.sampled_from(dims))
    small = st.integers(1, 3)

    def each(values):
        return tuple(draw(values) for _ in range(rank))

    groups = draw(st.integers(1, 3))
    kernel, stride, dilation = each(small), each(small), each(st.integers(1, 2))
    lower, upper = each(st.integers(0, 2)), each(st.integers(0, 2))
    spread = each(small) if draw(st.booleans()) else ()
    need = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True))
    field = tuple(draw(st.integers(n, n + 3)) for n in need)
    return Conv(
        batch=draw(st.integers(1, 2)),
        in_channels=groups * draw(st.integers(1, 2)),
        out_channels=groups * draw(st.integers(1, 2)),
        groups=groups,
        field=field,
        kernel=kernel,
        stride=stride,
        padding_lower=lower,
        padding_upper=upper,
        dilation=dilation,
        input_dilation=spread,
    )


def arrays(conv: Conv):
    rng = np.random.default_rng(1)
    data = rng.normal(size=(conv.batch, conv.in_channels, *conv.field))
    weights = rng.normal(size=(conv.out_channels, conv.in_channels // conv.groups, *conv.kernel))
    incoming = rng.normal(size=(conv.batch, conv.out_channels, *conv.out_field))
    return data, weights, incoming


@settings(max_examples=60)
@given(convolutions())
def test_gradients_are_those_of_the_forward_sum(conv):
    data, weights, incoming = arrays(conv)
    back = convolve(conv_data_gradient(conv), incoming, rotated(conv, weights))
    assert back.shape == data.shape
    updated = weight_gradient(conv, data, incoming)
    assert updated.shape == weights.shape
    # The forward result is linear in either operand, so a unit step gives the derivative exactly.
    base = np.sum(convolve(conv, data, weights) * incoming)
    for array, gradient, which in ((data, back, 0), (weights, updated, 1)):
        for place in list(np.ndindex(*array.shape))[:: max(1, array.size // 7)]:
            step = array.copy()
            step[place] += 1.0
            operands = (step, weights) if which == 0 else (data, step)
            moved = np.sum(convolve(conv, *operands) * incoming)
            assert gradient[place] == pytest.approx(moved - base, abs=1e-9)


@settings(max_examples=300)
@given(convolutions(dims=(1, 2, 3)))
def test_fields_and_work_are_exact(conv):
    back, update = conv_data_gradient(conv), conv_weight_gradient(conv)
    assert back.out_field == conv.field
    assert update.out_field == conv.kernel
    assert back.macs == update.macs == conv.macs
    assert (back.pass_kind, update.pass_kind) == ("data_gradient", "weight_gradient")
    shapes = {
        "x": (conv.batch, conv.in_channels, *conv.field),
        "w": (conv.out_channels, conv.in_channels // conv.groups, *conv.kernel),
        "dy": (conv.batch, conv.out_channels, *conv.out_field),
    }
    shapes |= {"dx": shapes["x"], "dw": shapes["w"]}
    tensors = {name: Tensor(name=name, shape=shape) for name, shape in shapes.items()}
    ops = (
        Op(name="back", params=back, inputs=("dy", "w"), outputs=("dx",)),
        Op(name="update", params=update, inputs=("x", "dy"), outputs=("dw",)),
    )
    Graph(
        name="g", tensors=tensors, ops=ops, inputs=("x", "w", "dy"), outputs=("dx", "dw")
    ).validate()


def test_unit_strides_give_ordinary_convolutions():
    conv = windows.conv(in_channels=8, out_channels=16, field=(7, 7))
    back = conv_data_gradient(conv)
    assert (back.padding_lower, back.padding_upper) == ((1, 1), (1, 1))
    assert back.input_dilation == ()
    assert not back.is_transposed


def test_forward_of_the_check_is_that_of_onnxruntime():
    conv = Conv(
        batch=2,
        in_channels=4,
        out_channels=6,
        groups=2,
        field=(7, 8),
        kernel=(3, 2),
        stride=(2, 1),
        padding_lower=(1, 0),
        padding_upper=(2, 1),
        dilation=(1, 2),
    )
    data, weights, _ = arrays(conv)
    node = onnx.helper.make_node(
        "Conv",
        ["x", "w"],
        ["y"],
        group=2,
        strides=[2, 1],
        dilations=[1, 2],
        pads=[1, 0, 2, 1],
    )
    infos = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in "xwy"
    ]
    model = onnx.helper.make_model(
        onnx.helper.make_graph([node], "g", infos[:2], infos[2:]),
        opset_imports=[onnx.helper.make_opsetid("", 13)],
        ir_version=8,
    )
    session = onnxruntime.InferenceSession(model.SerializeToString())
    feed = {"x": data.astype(np.float32), "w": weights.astype(np.float32)}
    expected = session.run(None, feed)[0]
    # operands rounded to single precision count as two more roundings
    terms = conv.in_channels // conv.groups * prod(conv.kernel) + 2
    bound = sum_bound(terms, convolve(conv, np.abs(data), np.abs(weights)))
    assert_within(convolve(conv, data, weights), expected, bound)


@given(
    st.integers(1, 3),
    *[st.integers(1, 6)] * 3,
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, False, True]),
)
def test_product_gradients(groups, m, k, n, transpose_a, transpose_b, stored):
    product = MatMul(
        groups=groups,
        m=m,
        k=k,
        n=n,
        weights_operand=stored,
        transpose_a=transpose_a,
        transpose_b=transpose_b,
    )
    back, update = matmul_data_gradient(product), matmul_weight_gradient(product)
    assert back.macs == update.macs == product.macs
    assert (back.groups * back.m * back.n) == prod((groups, m, k))
    assert (update.groups * update.m * update.n) == prod((groups, k, n))
    # As stored, the operands have these shapes; a set flag means that the formula reads them
    # transposed.
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(groups, m, k)), rng.normal(size=(groups, k, n))
    d = rng.normal(size=(groups, m, n))
    stored_a = a.swapaxes(1, 2) if transpose_a else a
    stored_b = b.swapaxes(1, 2) if transpose_b else b
    right = stored_b.swapaxes(1, 2) if back.transpose_b else stored_b
    left = stored_a.swapaxes(1, 2) if update.transpose_a else stored_a
    for x, y, payload in ((d, right, back), (left, d, update)):
        assert x.shape == (groups, payload.m, payload.k)
        assert y.shape == (groups, payload.k, payload.n)
    for found, form, operands, terms in (
        (d @ right, "gmn,gkn->gmk", (d, b), n),
        (left @ d, "gmk,gmn->gkn", (a, d), m),
    ):
        magnitude = np.einsum(form, *map(np.abs, operands))
        assert_within(found, np.einsum(form, *operands), sum_bound(terms, magnitude, DOUBLE))
    assert (back.pass_kind, update.pass_kind) == ("data_gradient", "weight_gradient")
    assert back.weights_operand == update.weights_operand == stored


def test_a_gradient_has_no_gradient():
    product = matmul_data_gradient(MatMul(m=2, k=3, n=4))
    with pytest.raises(WorkloadError, match="derive gradients from the forward operator"):
        matmul_weight_gradient(product)
