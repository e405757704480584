"""Operators against onnxruntime in single precision, exact rounding in half, finite differences."""

import numba
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnx_single_op import make_model, single
from rounding_bound import SINGLE, assert_within, sum_bound

from ipusim import numerics
from ipusim.errors import IpuSimError, UnknownNameError, WorkloadError
from ipusim.numerics.kernels.functions import exponentials, log, tanh
from ipusim.workload.layers import GraphBuilder
from ipusim.workload.onnx import from_onnx

RNG = np.random.default_rng(11)


def noise(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def onnxruntime_outputs(model, feed):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [item.name for item in session.get_outputs()]
    return dict(zip(names, session.run(None, feed), strict=True))


CASES = {
    "conv": single("Conv", {"x": (2, 5, 7, 6)}, {"w": noise(4, 5, 3, 3), "b": noise(4)}),
    "grouped": single("Conv", {"x": (2, 6, 7, 7)}, {"w": noise(4, 3, 3, 3)}, group=2),
    "depthwise": single("Conv", {"x": (1, 8, 6, 6)}, {"w": noise(8, 1, 3, 3)}, group=8),
    "strided": single(
        "Conv", {"x": (2, 20, 9, 8)}, {"w": noise(3, 20, 3, 2)}, strides=[2, 3], pads=[1, 0, 2, 1]
    ),
    "dilated": single("Conv", {"x": (1, 4, 9, 9)}, {"w": noise(2, 4, 3, 3)}, dilations=[2, 3]),
    "same": single(
        "Conv", {"x": (1, 4, 9, 8)}, {"w": noise(2, 4, 4, 3)}, auto_pad="SAME_UPPER", strides=[2, 2]
    ),
    "one dimension": single("Conv", {"x": (2, 17, 11)}, {"w": noise(3, 17, 4)}, strides=[2]),
    "pointwise": single("Conv", {"x": (2, 33, 5, 5)}, {"w": noise(3, 33, 1, 1)}),
    "volume": single("Conv", {"x": (2, 5, 4, 6, 5)}, {"w": noise(4, 5, 3, 2, 3), "b": noise(4)}),
    "volume in groups": single(
        "Conv",
        {"x": (2, 6, 7, 4, 5)},
        {"w": noise(4, 3, 2, 3, 2)},
        group=2,
        strides=[2, 1, 3],
        pads=[1, 0, 2, 2, 1, 1],
        dilations=[3, 1, 1],
    ),
    "volume transposed": single(
        "ConvTranspose",
        {"x": (2, 6, 3, 4, 2)},
        {"w": noise(6, 4, 3, 2, 3), "b": noise(4)},
        strides=[2, 2, 1],
        pads=[1, 1, 0, 0, 0, 1],
    ),
    "transposed": single(
        "ConvTranspose",
        {"x": (2, 6, 4, 5)},
        {"w": noise(6, 4, 3, 3), "b": noise(4)},
        strides=[2, 2],
        pads=[1, 1, 0, 1],
        output_padding=[1, 0],
    ),
    "matmul": single("MatMul", {"x": (3, 4, 7)}, {"w": noise(7, 5)}),
    "matmul groups": single("MatMul", {"x": (3, 2, 4, 7), "z": (3, 2, 7, 5)}),
    "matmul repeated": single("MatMul", {"x": (4, 7), "z": (3, 7, 5)}),
    "gemm": single(
        "Gemm", {"x": (7, 3)}, {"w": noise(4, 7), "b": noise(4)}, transA=1, transB=1, alpha=0.5
    ),
    "softmax": single("Softmax", {"x": (3, 4, 9)}),
    "softmax axis": single("Softmax", {"x": (3, 4, 9)}, axis=1),
    "batch norm": single(
        "BatchNormalization",
        {"x": (2, 3, 4, 4)},
        {"s": noise(3), "b": noise(3), "m": noise(3), "v": np.array([1, 2, 3], np.float32)},
    ),
    "max pool": single(
        "MaxPool", {"x": (2, 3, 7, 8)}, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1]
    ),
    "average pool": single(
        "AveragePool", {"x": (2, 3, 7, 8)}, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1]
    ),
    "max pool same": single(
        "MaxPool", {"x": (2, 3, 8, 7)}, kernel_shape=[3, 2], strides=[2, 2], auto_pad="SAME_UPPER"
    ),
    "average pool rounded up": single(
        "AveragePool",
        {"x": (2, 3, 8, 9)},
        kernel_shape=[3, 3],
        strides=[2, 2],
        pads=[1, 0, 1, 0],
        ceil_mode=1,
    ),
    "padding counted, what rounds up is not": single(
        "AveragePool",
        {"x": (2, 3, 6, 6)},
        kernel_shape=[3, 3],
        strides=[2, 2],
        ceil_mode=1,
        count_include_pad=1,
    ),
    "global pool": single("GlobalAveragePool", {"x": (2, 3, 4, 5)}),
    "leaky": single("LeakyRelu", {"x": (5, 6)}, alpha=0.1),
    "leaky by default": single("LeakyRelu", {"x": (5, 6)}),
    "relu": single("Relu", {"x": (5, 6)}),
    "sigmoid": single("Sigmoid", {"x": (5, 6)}),
    "hard swish": single("HardSwish", {"x": (5, 6)}),
    "hard sigmoid": single("HardSigmoid", {"x": (5, 6)}, alpha=0.3),
    "hard sigmoid by default": single("HardSigmoid", {"x": (5, 6)}),
    "tanh": single("Tanh", {"x": (5, 6)}),
    "exp": single("Exp", {"x": (5, 6)}),
    "add": single("Add", {"x": (2, 5, 6), "z": (5, 1)}),
    "sub": single("Sub", {"x": (5, 6), "z": (2, 1, 6)}),
    "mul": single("Mul", {"x": (5, 6), "z": (5, 6)}),
    "div": single("Div", {"x": (5, 6)}, {"w": 1.5 + np.abs(noise(5, 6))}),
    "transpose": single("Transpose", {"x": (2, 3, 4)}, perm=[2, 0, 1]),
    "concat": single("Concat", {"x": (2, 3), "z": (2, 5)}, axis=1),
    "flatten": single("Flatten", {"x": (2, 3, 4)}),
}
# The finite differences of these have no oracle: onnx.reference does not compute them.
ONLY_FORWARD = {
    "transposed groups": single(
        "ConvTranspose", {"x": (2, 6, 4, 5)}, {"w": noise(6, 2, 3, 2)}, strides=[2, 3], group=2
    ),
    "transposed same": single(
        "ConvTranspose",
        {"x": (2, 6, 4, 5)},
        {"w": noise(6, 4, 4, 3)},
        strides=[2, 2],
        auto_pad="SAME_UPPER",
    ),
    "max pool same below": single(
        "MaxPool", {"x": (2, 3, 7, 8)}, kernel_shape=[3, 2], strides=[2, 2], auto_pad="SAME_LOWER"
    ),
    "layer norm": single("LayerNormalization", {"x": (3, 8)}, {"s": noise(8), "b": noise(8)}),
    "erf": single("Erf", {"x": (5, 6)}),
    "mean": single("ReduceMean", {"x": (5, 6)}, axes=[1]),
    "pad": single("Pad", {"x": (2, 3)}, {"p": np.array([0, 1, 1, 0])}),
}


def feed_for(model):
    """Values for the inputs of a model, whatever other tests ran before."""
    generator = np.random.default_rng(list(model.SerializeToString()))
    return {
        item.name: generator.standard_normal(shape_of(item), dtype=np.float32)
        for item in inputs_of(model)
    }


def inputs_of(model):
    constants = {item.name for item in model.graph.initializer}
    return [item for item in model.graph.input if item.name not in constants]


def shape_of(item):
    return tuple(dim.dim_value for dim in item.type.tensor_type.shape.dim)


def mapped(model, function):
    """Return a model with its floating-point weights changed."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    for item in copy.graph.initializer:
        array = onnx.numpy_helper.to_array(item)
        if array.dtype == np.float32:
            item.CopyFrom(onnx.numpy_helper.from_array(function(item.name, array), item.name))
    return copy


TERMS = {"average pool": 3 * 2, "global pool": 4 * 5, "mean": 6, "add": 2, "sub": 2, "gemm": 7 + 2}
"""Elements added up, where no model of ones counts them."""

SUMS = ("Conv", "ConvTranspose", "MatMul", "Gemm")


def single_bound(name, model, feed, expected):
    """Return how far two computations in single precision may lie apart, for each element."""
    sizes = {key: np.abs(x) for key, x in feed.items()}
    op_type = model.graph.node[0].op_type
    if name in TERMS or op_type in SUMS:
        largest = onnxruntime_outputs(mapped(model, lambda _, w: np.abs(w)), sizes)["y"]
        ones = {key: np.ones_like(x) for key, x in feed.items()}
        counted = onnxruntime_outputs(mapped(model, lambda _, w: np.ones_like(w)), ones)["y"]
        if name == "sub":
            largest = sum(np.broadcast_to(x, expected.shape) for x in sizes.values())
        # one more for the product, or the division by the number of elements, or alpha of a Gemm
        return sum_bound(TERMS.get(name, np.ceil(counted)) + 1, largest)
    weights = {i.name: onnx.numpy_helper.to_array(i) for i in model.graph.initializer}
    if op_type == "BatchNormalization":
        # (x - m) / sqrt(v + e) s + b, or x (s / sqrt(v + e)) + (b - m s / sqrt(v + e)): at most
        # six roundings of terms of this size
        s, b, m, v = (np.abs(weights[key])[:, None, None] for key in "sbmv")
        return sum_bound(6, (sizes["x"] + m) / np.sqrt(v) * s + b)
    if op_type == "LayerNormalization":
        x, length = feed["x"], feed["x"].shape[-1]
        deviation = np.sqrt(x.var(axis=-1, keepdims=True))
        mean = sizes["x"].mean(axis=-1, keepdims=True)
        scaled = (sizes["x"] + mean) / deviation * np.abs(weights["s"]) + np.abs(weights["b"])
        return sum_bound(length + 6, scaled)  # the mean, then as above
    # a function of one element, or a softmax: libraries promise a few units in the last place
    return 32 * SINGLE * (1 + np.abs(expected))


@pytest.mark.parametrize("name", [*CASES, *ONLY_FORWARD])
def test_single_precision_is_onnxruntimes(name):
    model = (CASES | ONLY_FORWARD)[name]
    feed = feed_for(model)
    expected = onnxruntime_outputs(model, feed)["y"]
    result = numerics.run(model, feed, precision="32.32")["y"]
    assert result.dtype == np.float32
    assert_within(result, expected, single_bound(name, model, feed, expected))


def with_one_moved(model):
    """Return a model in which the largest of every weight is off by a thousandth."""

    def moved(_, weights):
        weights = weights.copy()
        weights.flat[np.abs(weights).argmax()] *= 1.001
        return weights

    return mapped(model, moved)


@pytest.mark.parametrize("name", ["conv", "volume", "transposed", "matmul", "gemm", "layer norm"])
def test_a_weight_that_is_off_by_a_thousandth_is_noticed(name):
    model = (CASES | ONLY_FORWARD)[name]
    feed = feed_for(model)
    expected = onnxruntime_outputs(model, feed)["y"]
    result = numerics.run(with_one_moved(model), feed, precision="32.32")["y"]
    with pytest.raises(AssertionError, match="apart, more than"):
        assert_within(result, expected, single_bound(name, model, feed, expected))


@pytest.mark.parametrize("name", ["add", "sub", "mul", "relu", "leaky", "max pool", "transpose"])
def test_one_operation_is_rounded_once(name):
    """Results of one operation on halves are the halves nearest to the exact results."""
    model = CASES[name]
    feed = {key: x.astype(np.float16).astype(np.float32) for key, x in feed_for(model).items()}
    result = numerics.run(model, feed, stochastic_rounding=False)["y"]
    assert result.dtype == np.float16
    expected = onnxruntime_outputs(model, feed)["y"]
    np.testing.assert_array_equal(result, expected.astype(np.float16))


@pytest.mark.parametrize("precision", ["16.16", "16.32"])
@pytest.mark.parametrize("stochastic", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_half_precision_is_near(name, precision, stochastic):
    model = CASES[name]
    feed = feed_for(model)
    result = numerics.run(model, feed, precision=precision, stochastic_rounding=stochastic)["y"]
    expected = numerics.run(model, feed, precision="32.32")["y"]
    # operands rounded (2^-11 each), some roundings of sums: a few units of the largest result
    scale = max(1.0, float(np.abs(expected).max()))
    assert result.dtype == np.float16
    np.testing.assert_allclose(result.astype(np.float32), expected, rtol=0, atol=1.5e-2 * scale)


def test_exponential_is_accurate():
    count = 5_001 if numba.config.DISABLE_JIT else 200_001
    x = np.linspace(-87, 88, count, dtype=np.float32)
    exact = np.exp(x.astype(np.float64))
    error = np.abs(exponentials(x) - exact) / np.spacing(exact.astype(np.float32))
    assert error.max() < 2


@pytest.mark.parametrize(("function", "exact"), [(log, np.log), (tanh, np.tanh)])
def test_functions_are_accurate(function, exact):
    """Within a unit in the last place; numpy's in double precision is exact for this."""
    sizes = np.exp2(np.linspace(-100, 100, 100_001)).astype(np.float32)
    x = sizes if function is log else np.concatenate([-sizes, [np.float32(0)], sizes])
    expected = exact(x.astype(np.float64))
    error = np.abs(function(x) - expected)
    assert (error <= np.spacing(np.abs(expected).astype(np.float32))).all()


def test_logarithms_of_nothing():
    np.testing.assert_array_equal(log(np.array([0, -1, 1], np.float32)), [-np.inf, np.nan, 0])


def test_functions_have_the_same_bits_on_every_machine():
    """Sums of the bits, as recorded; numpy's own functions differ with the vectors it may use."""
    x = (np.arange(1, 20_001, dtype=np.float32) - 10_000) / np.float32(1500)
    calls = (tanh, x), (log, np.abs(x) + 1), (exponentials, x)
    bits = [int(function(values).view(np.uint32).sum()) for function, values in calls]
    assert bits == [42_730_997_930_078, 21_331_270_469_274, 21_297_475_441_441]


def test_softmax_rows_sum_to_one():
    x = noise(50, 81) * 4
    model = single("Softmax", {"x": (50, 81)})
    total = numerics.run(model, {"x": x}, precision="32.32")["y"].sum(axis=1, dtype=np.float64)
    np.testing.assert_allclose(total, 1, atol=1e-6)
    # exponentials, reciprocal and quotients are halves: 3 roundings of relative error 2^-10
    half = numerics.run(model, {"x": x})["y"].sum(axis=1, dtype=np.float64)
    assert np.abs(half - 1).max() < 3 * 2.0**-10


def double(model):
    """Return the model in double precision, for finite differences."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    for value in (*copy.graph.input, *copy.graph.output):
        value.type.tensor_type.elem_type = TensorProto.DOUBLE
    for item in copy.graph.initializer:
        array = onnx.numpy_helper.to_array(item)
        if array.dtype == np.float32:
            item.CopyFrom(onnx.numpy_helper.from_array(array.astype(np.float64), item.name))
    return copy


def swish():
    """Return a Swish of onnx's operator set 24, which onnxruntime does not run."""
    model = single("Swish", {"x": (5, 6)})
    model.opset_import[0].version = 24
    return model


WITH_GRADIENTS = CASES | {"swish": swish()}


@pytest.mark.parametrize("name", WITH_GRADIENTS)
def test_gradients_are_finite_differences(name):
    model = WITH_GRADIENTS[name]
    feed = feed_for(model)
    if "relu" in name or "leaky" in name:  # away from the kink
        feed = {key: np.sign(x) * (0.1 + np.abs(x)) for key, x in feed.items()}
    weights = {i.name: onnx.numpy_helper.to_array(i) for i in model.graph.initializer}
    if name == "batch norm":  # its statistics are constants
        weights = {key: weights[key] for key in ("s", "b")}
    output = numerics.run(model, feed, precision="32.32")["y"]
    direction = noise(*output.shape)
    result = numerics.gradients(model, feed, direction, precision="32.32")
    values = {key: x.astype(np.float64) for key, x in (feed | weights).items()}
    evaluator = ReferenceEvaluator(with_weights_as_inputs(double(model), weights))

    def projected(changed):
        return float((evaluator.run(None, changed)[0] * direction).sum())

    step = 1e-5
    for key, x in values.items():
        for at in RNG.choice(x.size, min(x.size, 4), replace=False):
            change = np.zeros(x.size)
            change[at] = step
            up, down = (values | {key: x + s * change.reshape(x.shape)} for s in (1, -1))
            slope = (projected(up) - projected(down)) / (2 * step)
            assert result[key].reshape(-1)[at] == pytest.approx(slope, rel=2e-4, abs=2e-5)


def with_weights_as_inputs(model, weights):
    kept = [item for item in model.graph.initializer if item.name not in weights]
    for key, array in weights.items():
        value = helper.make_tensor_value_info(key, TensorProto.DOUBLE, array.shape)
        model.graph.input.append(value)
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    return model


def small_network(output="y"):
    """Convolution, pool, shape arithmetic on the batch, a product and a softmax."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Shape", ["p"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Unsqueeze", ["n", "axes"], ["n1"]),
        helper.make_node("Concat", ["n1", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["p", "target"], ["f"]),
        helper.make_node("Transpose", ["m"], ["mt"], perm=[1, 0]),
        helper.make_node("MatMul", ["f", "mt"], ["l"]),
        helper.make_node("Add", ["l", "c"], ["b"]),
        helper.make_node("Softmax", ["b"], ["y"]),
    ]
    generator = np.random.default_rng(7)
    weights = {
        "w": generator.standard_normal((8, 3, 3, 3), dtype=np.float32) / 5,
        "m": generator.standard_normal((5, 32), dtype=np.float32) / 6,
        "c": generator.standard_normal(5, dtype=np.float32),
        "zero": np.array(0),
        "axes": np.array([0]),
        "rest": np.array([-1]),
    }
    kept = nodes if output == "y" else nodes[:-1]
    return make_model(kept, {"x": ("batch", 3, 4, 4)}, [output], weights)


@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (2, 2), (5, 2)])
def test_graphs_transpose_convolutions_as_files_do(kernel, stride):
    g = GraphBuilder("doubled")
    x = g.input("x", (2, 6, 4, 5))
    y = g.conv_transpose("c", x, 4, (kernel,) * 2, stride=(stride,) * 2, bias=True)
    weights = {"c.weight": noise(6, 4, kernel, kernel), "c.bias": noise(4)}
    below = (kernel - stride) // 2
    above = kernel - stride - below
    file = single(
        "ConvTranspose",
        {"x": (2, 6, 4, 5)},
        {"w": weights["c.weight"], "b": weights["c.bias"]},
        strides=[stride] * 2,
        pads=[below, below, above, above],
    )
    data = noise(2, 6, 4, 5)
    (result,) = numerics.run(g.finish(y), data, weights=weights, precision="32.32").values()
    np.testing.assert_array_equal(result, numerics.run(file, data, precision="32.32")["y"])


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="half a billion products take Python hours")
def test_an_autoencoder_of_the_zoo_runs():
    (result,) = numerics.run("cookienetae", np.ones((1, 1, 128, 128))).values()
    assert result.shape == (1, 1, 128, 128)
    assert np.isfinite(result).all()
    assert result.any()


def test_operands_that_do_not_fit_are_named():
    wide = single("Conv", {"x": (1, 3, 4, 4)}, {"w": (2, 2, 3, 3)})
    with pytest.raises(WorkloadError, match=r"'node', cannot be computed on .* \(1, 3, 4, 4\), "):
        numerics.run(wide, noise(1, 3, 4, 4), weights={"w": noise(2, 2, 3, 3)})


@pytest.mark.parametrize("batch", [1, 3])
def test_onnx_network(batch, tmp_path):
    model = small_network()
    x = noise(batch, 3, 4, 4)
    expected = onnxruntime_outputs(model, {"x": x})["y"]
    # a score sums 32 products of sums of 27, and c; softmax doubles its error, and rounds a few
    # times itself
    sizes = mapped(small_network("b"), lambda _, w: np.abs(w))
    scores = onnxruntime_outputs(sizes, {"x": np.abs(x)})["b"].max(axis=1, keepdims=True)
    bound = expected * (2 * sum_bound(27 + 32 + 2, scores) + 32 * SINGLE)
    assert_within(numerics.run(model, x, precision="32.32")["y"], expected, bound)
    path = tmp_path / "net.onnx"
    onnx.save(model, path)
    half = numerics.run(str(path), {"x": x})["y"]
    np.testing.assert_allclose(half.astype(np.float32), expected, atol=1e-2)
    np.testing.assert_array_equal(half, numerics.run(path, {"x": x}, seed=0)["y"])
    assert (half != numerics.run(path, {"x": x}, seed=1)["y"]).any()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"seed": -1}, "Seed -1 must be a whole number, 0 or more"),
        ({"seed": 1.5}, "Seed 1.5 must be"),
        ({"seed": True}, "Seed True must be"),
        ({"weights": 3}, "weights are 3: give arrays by name"),
        ({"precision": 16.16}, "Unknown precision of numerics 16.16: did you mean '16.16'"),
    ],
)
def test_what_makes_no_run_is_refused(options, why):
    with pytest.raises(IpuSimError, match=why):
        numerics.run("braggnn", np.zeros((1, 1, 11, 11)), **options)


def test_weights_can_be_replaced():
    model = single("MatMul", {"x": (2, 3)}, {"w": (3, 4)})
    x, weights = noise(2, 3), noise(3, 4)
    result = numerics.run(model, x, weights={"w": weights}, precision="32.32")["y"]
    assert_within(result, x @ weights, sum_bound(3, np.abs(x) @ np.abs(weights)))
    with pytest.raises(UnknownNameError, match="Unknown weight of 'generated' 'u'"):
        numerics.run(model, x, weights={"u": weights})
    with pytest.raises(WorkloadError, match=r"shape \(4, 3\), which must be \(3, 4\)"):
        numerics.run(model, x, weights={"w": weights.T})


def test_whole_numbers_are_taken_as_floats():
    model = single("Gemm", {"x": (2, 3)}, {"w": (3, 4)})
    whole = np.arange(6).reshape(2, 3)
    np.testing.assert_array_equal(
        numerics.run(model, whole)["y"], numerics.run(model, whole.astype(np.float32))["y"]
    )


def test_an_imported_model_lacks_large_weights(tmp_path):
    model = single("MatMul", {"x": (2, 70)}, {"w": noise(70, 70)})
    path = tmp_path / "net.onnx"
    onnx.save(model, path)
    imported = from_onnx(path)
    with pytest.raises(WorkloadError, match="'w' of 'net' has no values.*pass the ONNX file"):
        numerics.run(imported, noise(2, 70))
    x, weights = noise(2, 70), onnx.numpy_helper.to_array(model.graph.initializer[0])
    given = numerics.run(imported, x, weights={"w": weights})["y"]
    np.testing.assert_array_equal(given, numerics.run(path, x)["y"])


def test_unsupported_operators_are_named():
    for domain, advice in (("com.microsoft", "give the file before"), ("my", "nearest supported")):
        own = single("MatMull", {"x": (3, 3)}, {"w": noise(3, 3)}, domain=domain)
        named = f"'MatMull' of domain '{domain}', node 'node', is not supported.*{advice}"
        with pytest.raises(WorkloadError, match=named):
            numerics.run(own, noise(3, 3))
    with pytest.raises(WorkloadError, match="'Erf'.*has no gradient"):
        numerics.gradients(single("Erf", {"x": (3, 3)}), noise(3, 3), noise(3, 3))
    shuffled = from_onnx(single("Transpose", {"x": (2, 3)})).graph()
    with pytest.raises(WorkloadError, match=r"'node' of kind layout \(transpose\) cannot be"):
        numerics.run(shuffled, noise(2, 3))
    beyond = single("Conv", {"x": (1, 2, 4, 4, 4, 4)}, {"w": (2, 2, 1, 1, 1, 1)})
    with pytest.raises(WorkloadError, match="'node' has 4 spatial dimensions"):
        numerics.run(beyond, noise(1, 2, 4, 4, 4, 4))


def test_inputs_are_checked():
    model = single("Add", {"x": (2, 3), "z": (2, 3)})
    good = noise(2, 3)
    for feed, message in (
        ({"x": good}, "'z' of 'generated' is missing"),
        ({"x": good, "z": good, "u": good}, "Unknown input of 'generated' 'u'"),
        ({"x": good, "z": noise(3, 2)}, r"shape \(3, 2\)"),
        ({"x": good, "z": good * np.nan}, "NaN"),
        ({"x": good, "z": np.full((2, 3), "a")}, "must be a number"),
        (good, "give them by name"),
        ({"x": good[:0], "z": good}, "no samples"),
    ):
        with pytest.raises((UnknownNameError, WorkloadError), match=message):
            numerics.run(model, feed)
