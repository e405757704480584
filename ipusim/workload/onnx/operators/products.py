"""ONNX operators that multiply, slide a window, normalise or reduce."""

from collections.abc import Callable
from math import prod

from ipusim.workload.graph import Attributes, Conv, Elementwise, MatMul, Norm, Pool, Reduce, Softmax
from ipusim.workload.onnx.operators.emission import Emission, Handler
from ipusim.workload.onnx.shapes import (
    REDUCTIONS,
    Call,
    by_names,
    convolution,
    pool,
    product,
    reduction,
    window,
)

PER_ELEMENT_AXIS_OPSET = 13
"""From here on Softmax works along one axis; before, on everything from that axis on."""


def gemm(e: Emission) -> None:
    """Gemm: alpha A' B' + beta C, as matrix product, scale and (scaled) addition."""
    alpha, beta = e.get("alpha", 1.0), e.get("beta", 1.0)
    work, a, b = _product(e)
    scale = Elementwise.in_place("scale")
    has_c = e.has(2) and beta != 0.0
    if not has_c and alpha == 1.0:
        e.emit(work, a, b)
        return
    result = e.step(".product", work, a, b)
    if not has_c:
        e.emit(scale, result, suffix=".scale")
        return
    if alpha != 1.0:
        result = e.step(".scale", scale, result)
    shape, c = e.shape(2), e.operand(2, weight=True)
    per_column = prod(shape) == e.out[1] and shape[-1:] == e.out[1:]
    function = "bias_add" if per_column and e.is_parameter(c) else "add"
    function = function if beta == 1.0 else "scaled_add"
    add = Elementwise.in_place(function, broadcast=shape != e.out)
    e.emit(add, result, c, suffix=f".{function}")


def _product(e: Emission) -> tuple[MatMul, str, str]:
    a, b = e.operand(0, weight=True), e.operand(1, weight=True)
    return MatMul(**product(e)[0], weights_operand=e.is_parameter(b)), a, b


def norm(e: Emission) -> None:
    """Norms with one operator: gain and shift are parameters, stored statistics constants."""
    kind = e.node.op_type.removesuffix("Normalization").lower()
    if e.get("training_mode", 0):
        e.note("batch norms in training mode use their stored statistics")
    batch, channels, *field = _rows(e) if kind == "layer" else e.shape()
    groups = {"instance": channels, "group": e.get("num_groups")}.get(kind, 1)
    sizes = {"batch": batch, "channels": channels, "spatial_elements": prod(field)}
    operands = (
        e.operand(name, weight=place < 3, role="" if place < 3 else "constant")
        for place, name in enumerate(e.node.input[1:], start=1)
        if name
    )
    e.emit(Norm(kind=kind, groups=groups, **sizes), e.operand(), *operands)


def _rows(e: Emission) -> tuple[int, int]:
    """Return how many rows a norm over the axes from ``axis`` on has, and their length."""
    return prod(e.shape()[: e.axis(-1)]), prod(e.shape()[e.axis(-1) :])


def rms_norm(e: Emission) -> None:
    """RMSNormalization: square, mean, reciprocal root, and two products."""
    shape, (rows, length) = e.shape(), _rows(e)
    narrow = (*shape[: e.axis(-1)], *(1 for _ in shape[e.axis(-1) :]))
    data = e.operand()
    scale = Elementwise(function="mul", broadcast=True)
    mean = Reduce(function="mean", outer=rows, reduced=length, inner=1)
    result = e.step(".square", Elementwise(function="square"), data, shape=shape)
    result = e.step(".mean", mean, result, shape=narrow)
    result = e.step(".root", Elementwise(function="rsqrt"), result, shape=narrow)
    if e.has(1):
        scaled = e.step(".scaled", scale, data, result, shape=shape)
        e.emit(scale, scaled, e.operand(1, weight=True))
    else:
        e.emit(scale, data, result)


def softmax(e: Emission) -> None:
    """Softmax and LogSoftmax."""
    shape, modern = e.shape(), e.opset >= PER_ELEMENT_AXIS_OPSET
    axis = e.axis(-1 if modern else 1)
    length = prod(shape[axis : axis + 1] if modern else shape[axis:])
    log = e.node.op_type == "LogSoftmax"
    e.emit(Softmax(outer=prod(shape) // length, length=length, log=log), e.operand())


def reduce(e: Emission) -> None:
    """Reductions over any axes, neighbours or not."""
    function = e.node.op_type.removeprefix("Reduce").lower()
    e.emit(Reduce(function=function, **reduction(e)[0]), e.operand())


ATTRIBUTES: dict[str, Callable[[Call], Conv | MatMul | Pool]] = by_names(
    {
        "Gemm MatMul": lambda c: MatMul(**product(c)[0]),
        "Conv ConvTranspose": lambda c: Conv(**convolution(c)[0]),
        "MaxPool": lambda c: Pool(kind="max", **pool(c)[0]),
        "AveragePool": lambda c: Pool(kind="average", **pool(c)[0]),
        "GlobalAveragePool": lambda c: Pool.of_all("average", c.shape()),
        "GlobalMaxPool": lambda c: Pool.of_all("max", c.shape()),
    }
)
"""What products and nodes with windows do, as attributes and the shapes of operands say."""


def conv(e: Emission) -> None:
    """Conv and ConvTranspose."""
    product_and_bias(e, ATTRIBUTES[e.node.op_type](e), e.operand(), e.operand(1, weight=True), at=2)


def product_and_bias(e: Emission, params: Attributes, *inputs: str, at: int) -> None:
    """Add a product or convolution and, if it is given, the bias ``at`` a place of the inputs."""
    if not e.has(at):
        e.emit(params, *inputs)
        return
    made = e.step(".product", params, *inputs)
    bias = e.operand(at, weight=True)
    add = Elementwise.in_place("bias_add", broadcast=True)
    e.emit(add, made, bias, suffix=".bias_add")


def local_response_norm(e: Emission) -> None:
    """LRN over neighbouring channels: square, windowed sum, power, division."""
    # The window slides over the channels: all other dimensions are the batch of its `Pool`.
    shape, size, data = e.shape(), e.node.attributes["size"], e.operand()
    below, channels = (size - 1) // 2, shape[1]
    place, _ = window({"pads": (below, size - 1 - below)}, (channels,), (size,))
    counts = {"batch": prod(shape) // channels, "channels": 1}
    mean = Pool(kind="average", include_padding=True, **counts, **place)
    square = Elementwise(function="square")
    result = e.step(".window", mean, e.step(".square", square, data))
    result = e.step(".power", Elementwise.in_place("pow"), result)
    e.emit(Elementwise(function="div"), data, result, suffix=".div")


COMPUTE_HANDLERS: dict[str, Handler] = by_names(
    {
        "Gemm": gemm,
        "MatMul": lambda e: e.emit(*_product(e)),
        "BatchNormalization LayerNormalization InstanceNormalization GroupNormalization": norm,
        "RMSNormalization": rms_norm,
        "Softmax LogSoftmax": softmax,
        f"{REDUCTIONS} ArgMax ArgMin": reduce,
        "Conv ConvTranspose": conv,
        "MaxPool AveragePool GlobalAveragePool GlobalMaxPool": lambda e: e.emit(
            ATTRIBUTES[e.node.op_type](e), e.operand()
        ),
        "LRN": local_response_norm,
    }
)
