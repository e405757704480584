"""ONNX operators that compute: convolution, matrix product, pooling, normalisation, reduction."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import onnx

from ipusim.errors import WorkloadError
from ipusim.workload.graph import (
    Conv,
    Elementwise,
    MatMul,
    Norm,
    Pool,
    Reduce,
    Softmax,
)
from ipusim.workload.onnx_context import ImportContext, attributes, has_input, node_label

Handler = Callable[[ImportContext, onnx.NodeProto], None]

PER_ELEMENT_AXIS_OPSET = 13
"""From here on Softmax works along one axis; before, on everything from that axis on."""


def _same_padding(
    field: tuple[int, ...],
    out_field: tuple[int, ...],
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
    extra_below: bool,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    lower, upper = [], []
    for size, out, taps, hop, step in zip(field, out_field, kernel, stride, dilation, strict=True):
        total = max(0, (out - 1) * hop + step * (taps - 1) + 1 - size)
        below = total - total // 2 if extra_below else total // 2
        lower.append(below)
        upper.append(total - below)
    return tuple(lower), tuple(upper)


def _window(
    given: dict[str, object],
    field: tuple[int, ...],
    out_field: tuple[int, ...],
    kernel: tuple[int, ...],
) -> dict[str, tuple[int, ...]]:
    """Return stride, paddings and dilation of a sliding window, auto_pad resolved."""
    rank = len(field)
    stride = tuple(given.get("strides", (1,) * rank))
    dilation = tuple(given.get("dilations", (1,) * rank))
    mode = given.get("auto_pad", "NOTSET")
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        lower, upper = _same_padding(
            field, out_field, kernel, stride, dilation, extra_below=mode == "SAME_LOWER"
        )
    else:
        pads = tuple(given.get("pads", (0,) * 2 * rank)) if mode == "NOTSET" else (0,) * 2 * rank
        lower, upper = pads[:rank], pads[rank:]
    return {
        "stride": stride,
        "padding_lower": lower,
        "padding_upper": upper,
        "dilation": dilation,
    }


def _emit_with_bias(
    context: ImportContext, node: onnx.NodeProto, params: Conv, inputs: tuple[str, ...]
) -> None:
    if not has_input(node, 2):
        context.emit(node, params, inputs)
        return
    product = context.emit_intermediate(node, params, inputs, suffix=".product")
    bias = context.operand(node.input[2], weight=True)
    add = Elementwise(
        function="bias_add",
        n_inputs=2,
        elements=prod(context.shape(node.output[0])),
        broadcast=True,
        in_place_ok=True,
    )
    context.emit(node, add, (product, bias), suffix=".bias_add")


def conv(context: ImportContext, node: onnx.NodeProto) -> None:
    """Conv of any rank, with groups, stride, dilation and padding."""
    data, weights = context.shape(node.input[0]), context.shape(node.input[1])
    given = attributes(node)
    groups = given.get("group", 1)
    kernel = weights[2:]
    if tuple(given.get("kernel_shape", kernel)) != kernel or data[1] != weights[1] * groups:
        raise WorkloadError(
            f"The {node_label(node)} has data of shape {data}, weights of shape {weights}, "
            f"{groups} groups and kernel_shape {given.get('kernel_shape', kernel)}, which "
            "contradict each other; export the model again."
        )
    params = Conv(
        batch=data[0],
        in_channels=data[1],
        out_channels=weights[0],
        groups=groups,
        field=data[2:],
        kernel=kernel,
        **_window(given, data[2:], context.shape(node.output[0])[2:], kernel),
    )
    operands = (context.operand(node.input[0]), context.operand(node.input[1], weight=True))
    _emit_with_bias(context, node, params, operands)


def conv_transpose(context: ImportContext, node: onnx.NodeProto) -> None:
    """ConvTranspose, as a convolution of the zero-spread input with the mirrored kernel."""
    data, weights = context.shape(node.input[0]), context.shape(node.input[1])
    given = attributes(node)
    groups = given.get("group", 1)
    rank = len(data) - 2
    kernel, out_field = weights[2:], context.shape(node.output[0])[2:]
    stride = tuple(given.get("strides", (1,) * rank))
    dilation = tuple(given.get("dilations", (1,) * rank))
    mode = given.get("auto_pad", "NOTSET")
    reach = tuple(step * (taps - 1) for step, taps in zip(dilation, kernel, strict=True))
    spread = tuple((size - 1) * hop + 1 for size, hop in zip(data[2:], stride, strict=True))
    # Whatever rule gave the output its size, lower and upper padding add up to it.
    total = tuple(
        out + span - size for out, span, size in zip(out_field, reach, spread, strict=True)
    )
    pads = tuple(given.get("pads", (0,) * 2 * rank))
    if mode == "NOTSET" and "output_shape" not in given:
        lower = tuple(span - pad for span, pad in zip(reach, pads[:rank], strict=True))
    else:
        cropped = tuple(2 * span - both for span, both in zip(reach, total, strict=True))
        lower = tuple(
            span - (crop // 2 if mode == "SAME_UPPER" else crop - crop // 2)
            for span, crop in zip(reach, cropped, strict=True)
        )
    params = Conv(
        batch=data[0],
        in_channels=data[1],
        out_channels=weights[1] * groups,
        groups=groups,
        field=data[2:],
        kernel=kernel,
        stride=(1,) * rank,
        padding_lower=lower,
        padding_upper=tuple(both - low for both, low in zip(total, lower, strict=True)),
        dilation=dilation,
        input_dilation=stride,
    )
    operands = (context.operand(node.input[0]), context.operand(node.input[1], weight=True))
    _emit_with_bias(context, node, params, operands)


def gemm(context: ImportContext, node: onnx.NodeProto) -> None:
    """Gemm: alpha A' B' + beta C, as matrix product, scale and (scaled) addition.

    Scaling by 1 is left out, and so is C where beta is 0. A per-column parameter is added as
    "bias_add", anything else as "add" or, with beta, "scaled_add".
    """
    given = attributes(node)
    alpha, beta = given.get("alpha", 1.0), given.get("beta", 1.0)
    flip_a, flip_b = bool(given.get("transA", 0)), bool(given.get("transB", 0))
    a_shape, output = context.shape(node.input[0]), context.shape(node.output[0])
    a = context.operand(node.input[0], weight=True)
    b = context.operand(node.input[1], weight=True)
    product = MatMul(
        m=output[0],
        k=a_shape[0] if flip_a else a_shape[1],
        n=output[1],
        weights_operand=context.role(b) == "parameter",
        transpose_a=flip_a,
        transpose_b=flip_b,
    )
    scale = Elementwise(function="scale", n_inputs=1, elements=prod(output), in_place_ok=True)
    has_c = has_input(node, 2) and beta != 0.0
    if not has_c and alpha == 1.0:
        context.emit(node, product, (a, b))
        return
    result = context.emit_intermediate(node, product, (a, b), suffix=".product")
    if not has_c:
        context.emit(node, scale, (result,), suffix=".scale")
        return
    if alpha != 1.0:
        result = context.emit_intermediate(node, scale, (result,), suffix=".scale")
    c_shape = context.shape(node.input[2])
    c = context.operand(node.input[2], weight=True)
    per_column = prod(c_shape) == output[1] and c_shape[-1:] == output[1:]
    if beta != 1.0:
        function = "scaled_add"
    elif per_column and context.role(c) == "parameter":
        function = "bias_add"
    else:
        function = "add"
    add = Elementwise(
        function=function,
        n_inputs=2,
        elements=prod(output),
        broadcast=c_shape != output,
        in_place_ok=True,
    )
    context.emit(node, add, (result, c), suffix=f".{function}")


def matmul(context: ImportContext, node: onnx.NodeProto) -> None:
    """MatMul of any ranks; a batch that only A has is folded into its rows."""
    a_shape, b_shape = context.shape(node.input[0]), context.shape(node.input[1])
    a_shape = a_shape if len(a_shape) > 1 else (1, *a_shape)
    b_shape = b_shape if len(b_shape) > 1 else (*b_shape, 1)
    rows, groups = a_shape[-2], 1
    if prod(b_shape[:-2]) == 1:
        rows *= prod(a_shape[:-2])
    else:
        groups = prod(context.shape(node.output[0])) // (rows * b_shape[-1])
    a = context.operand(node.input[0], weight=True)
    b = context.operand(node.input[1], weight=True)
    params = MatMul(
        groups=groups,
        m=rows,
        k=a_shape[-1],
        n=b_shape[-1],
        weights_operand=context.role(b) == "parameter",
    )
    context.emit(node, params, (a, b))


def pool(context: ImportContext, node: onnx.NodeProto) -> None:
    """MaxPool and AveragePool; rounding up becomes upper padding."""
    data, output = context.shape(node.input[0]), context.shape(node.output[0])
    given = attributes(node)
    kernel = tuple(given["kernel_shape"])
    window = _window(given, data[2:], output[2:], kernel)
    if given.get("ceil_mode", 0):
        window["padding_upper"] = tuple(
            max(high, (out - 1) * hop + step * (taps - 1) + 1 - size - low)
            for size, out, taps, hop, step, low, high in zip(
                data[2:],
                output[2:],
                kernel,
                window["stride"],
                window["dilation"],
                window["padding_lower"],
                window["padding_upper"],
                strict=True,
            )
        )
    params = Pool(
        kind="max" if node.op_type == "MaxPool" else "average",
        batch=data[0],
        channels=data[1],
        field=data[2:],
        kernel=kernel,
        include_padding=bool(given.get("count_include_pad", 0)),
        **window,
    )
    context.emit(node, params, (context.operand(node.input[0]),))


def global_pool(context: ImportContext, node: onnx.NodeProto) -> None:
    """GlobalMaxPool and GlobalAveragePool: a window as large as the field."""
    batch, channels, *field = context.shape(node.input[0])
    rank = len(field)
    params = Pool(
        kind="max" if node.op_type == "GlobalMaxPool" else "average",
        batch=batch,
        channels=channels,
        field=tuple(field),
        kernel=tuple(field),
        stride=(1,) * rank,
        padding_lower=(0,) * rank,
        padding_upper=(0,) * rank,
    )
    context.emit(node, params, (context.operand(node.input[0]),))


def batch_norm(context: ImportContext, node: onnx.NodeProto) -> None:
    """BatchNormalization with stored statistics."""
    if attributes(node).get("training_mode", 0):
        raise WorkloadError(
            f"The {node_label(node)} is in training mode; export the model for inference."
        )
    batch, channels, *field = context.shape(node.input[0])
    params = Norm(kind="batch", batch=batch, channels=channels, spatial_elements=prod(field))
    operands = (
        context.operand(node.input[0]),
        context.operand(node.input[1], weight=True),
        context.operand(node.input[2], weight=True),
        context.operand(node.input[3], role="constant"),
        context.operand(node.input[4], role="constant"),
    )
    context.emit(node, params, operands)


def layer_norm(context: ImportContext, node: onnx.NodeProto) -> None:
    """LayerNormalization over the axes from ``axis`` on."""
    shape = context.shape(node.input[0])
    axis = attributes(node).get("axis", -1) % len(shape)
    params = Norm(
        kind="layer", batch=prod(shape[:axis]), channels=prod(shape[axis:]), spatial_elements=1
    )
    context.emit(node, params, _norm_operands(context, node))


def group_norm(context: ImportContext, node: onnx.NodeProto) -> None:
    """InstanceNormalization and GroupNormalization."""
    batch, channels, *field = context.shape(node.input[0])
    instance = node.op_type == "InstanceNormalization"
    params = Norm(
        kind="instance" if instance else "group",
        batch=batch,
        channels=channels,
        spatial_elements=prod(field),
        groups=channels if instance else attributes(node)["num_groups"],
    )
    context.emit(node, params, _norm_operands(context, node))


def _norm_operands(context: ImportContext, node: onnx.NodeProto) -> tuple[str, ...]:
    vectors = (context.operand(name, weight=True) for name in node.input[1:] if name)
    return (context.operand(node.input[0]), *vectors)


def local_response_norm(context: ImportContext, node: onnx.NodeProto) -> None:
    """LRN over neighbouring channels: square, windowed sum, power, division.

    The window slides over the channels, so its `Pool` has one spatial dimension (the channels),
    one channel, and the product of the other dimensions as batch.
    """
    shape = context.shape(node.input[0])
    size = attributes(node)["size"]
    elements = prod(shape)
    data = context.operand(node.input[0])
    square = Elementwise(function="square", n_inputs=1, elements=elements)
    squared = context.emit_intermediate(node, square, (data,), suffix=".square")
    window = Pool(
        kind="average",
        batch=elements // shape[1],
        channels=1,
        field=(shape[1],),
        kernel=(size,),
        stride=(1,),
        padding_lower=((size - 1) // 2,),
        padding_upper=(size - 1 - (size - 1) // 2,),
        include_padding=True,
    )
    summed = context.emit_intermediate(node, window, (squared,), suffix=".window")
    power = Elementwise(function="pow", n_inputs=1, elements=elements, in_place_ok=True)
    scale = context.emit_intermediate(node, power, (summed,), suffix=".power")
    divide = Elementwise(function="div", n_inputs=2, elements=elements)
    context.emit(node, divide, (data, scale), suffix=".div")


def softmax(context: ImportContext, node: onnx.NodeProto) -> None:
    """Softmax and LogSoftmax."""
    shape = context.shape(node.input[0])
    modern = context.opset >= PER_ELEMENT_AXIS_OPSET
    axis = attributes(node).get("axis", -1 if modern else 1)
    axis = axis % max(1, len(shape))
    length = prod(shape[axis : axis + 1] if modern else shape[axis:])
    params = Softmax(outer=prod(shape) // length, length=length, log=node.op_type == "LogSoftmax")
    context.emit(node, params, (context.operand(node.input[0]),))


def reduce(context: ImportContext, node: onnx.NodeProto) -> None:
    """Reductions over any axes; axes that are not neighbours are brought together."""
    shape = context.shape(node.input[0])
    given = attributes(node)
    if node.op_type in ("ArgMax", "ArgMin"):
        axes = (given.get("axis", 0),)
    else:
        listed = context.array(node, 1)
        axes = tuple(given.get("axes", ())) if listed is None else tuple(listed.tolist())
        if not axes and not given.get("noop_with_empty_axes", 0):
            axes = tuple(range(len(shape)))
    chosen = sorted({axis % len(shape) for axis in axes})
    reduced = prod(shape[axis] for axis in chosen)
    if chosen and chosen == list(range(chosen[0], chosen[-1] + 1)):
        inner = prod(shape[chosen[-1] + 1 :])
    else:
        inner = 1
    params = Reduce(
        function=node.op_type.removeprefix("Reduce").lower(),
        outer=prod(shape) // (reduced * inner),
        reduced=reduced,
        inner=inner,
    )
    context.emit(node, params, (context.operand(node.input[0]),))


_REDUCTIONS = (
    "ReduceMean",
    "ReduceSum",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceL1",
    "ReduceL2",
    "ReduceSumSquare",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ArgMax",
    "ArgMin",
)

COMPUTE_HANDLERS: dict[str, Handler] = {
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "Gemm": gemm,
    "MatMul": matmul,
    "MaxPool": pool,
    "AveragePool": pool,
    "GlobalAveragePool": global_pool,
    "GlobalMaxPool": global_pool,
    "BatchNormalization": batch_norm,
    "LayerNormalization": layer_norm,
    "InstanceNormalization": group_norm,
    "GroupNormalization": group_norm,
    "LRN": local_response_norm,
    "Softmax": softmax,
    "LogSoftmax": softmax,
    **dict.fromkeys(_REDUCTIONS, reduce),
}
