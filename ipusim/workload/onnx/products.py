"""ONNX operators that multiply, slide a window, normalise or reduce."""

from __future__ import annotations

from math import prod

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
from ipusim.workload.onnx.context import (
    Handler,
    ImportContext,
    Node,
    has_input,
    node_label,
)
from ipusim.workload.onnx.shapes import REDUCTIONS, Call, reduced_axes

PER_ELEMENT_AXIS_OPSET = 13
"""From here on Softmax works along one axis; before, on everything from that axis on."""


def gemm(context: ImportContext, node: Node) -> None:
    """Gemm: alpha A' B' + beta C, as matrix product, scale and (scaled) addition.

    Scaling by 1 is left out, and so is C where beta is 0. A per-column parameter is added as
    "bias_add", anything else as "add" or, with beta, "scaled_add".
    """
    given = node.given
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


def matmul(context: ImportContext, node: Node) -> None:
    """MatMul of any ranks; a batch that only A has is folded into its rows."""
    a_shape, b_shape = context.shape(node.input[0]), context.shape(node.input[1])
    given = node.given
    flip_a, flip_b = bool(given.get("transA", 0)), bool(given.get("transB", 0))
    a_shape = (*a_shape[:-2], *a_shape[:-3:-1]) if flip_a else a_shape
    b_shape = (*b_shape[:-2], *b_shape[:-3:-1]) if flip_b else b_shape
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
        transpose_a=flip_a,
        transpose_b=flip_b,
    )
    context.emit(node, params, (a, b))


def batch_norm(context: ImportContext, node: Node) -> None:
    """BatchNormalization with stored statistics."""
    if node.given.get("training_mode", 0):
        context.notes["batch norms in training mode use their stored statistics"] += 1
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


def layer_norm(context: ImportContext, node: Node) -> None:
    """LayerNormalization over the axes from ``axis`` on."""
    shape = context.shape(node.input[0])
    axis = node.given.get("axis", -1) % len(shape)
    params = Norm(
        kind="layer", batch=prod(shape[:axis]), channels=prod(shape[axis:]), spatial_elements=1
    )
    context.emit(node, params, _norm_operands(context, node))


def rms_norm(context: ImportContext, node: Node) -> None:
    """RMSNormalization: square, mean, reciprocal root, and two products."""
    shape = context.shape(node.input[0])
    axis = node.given.get("axis", -1) % len(shape)
    rows, length = prod(shape[:axis]), prod(shape[axis:])
    narrow = (*shape[:axis], *(1 for _ in shape[axis:]))
    data = context.operand(node.input[0])

    def step(suffix: str, function: str, shape: tuple[int, ...], *operands: str) -> str:
        params = Elementwise(
            function=function,
            n_inputs=len(operands),
            elements=prod(shape),
            broadcast=len(operands) > 1,
        )
        return context.emit_intermediate(node, params, operands, suffix=suffix, shape=shape)

    squares = step(".square", "square", shape, data)
    reduce = Reduce(function="mean", outer=rows, reduced=length, inner=1)
    mean = context.emit_intermediate(node, reduce, (squares,), suffix=".mean", shape=narrow)
    root = step(".root", "rsqrt", narrow, mean)
    last = Elementwise(function="mul", n_inputs=2, elements=prod(shape), broadcast=True)
    if not has_input(node, 1):
        context.emit(node, last, (data, root))
        return
    scaled = step(".scaled", "mul", shape, data, root)
    context.emit(node, last, (scaled, context.operand(node.input[1], weight=True)))


def group_norm(context: ImportContext, node: Node) -> None:
    """InstanceNormalization and GroupNormalization."""
    batch, channels, *field = context.shape(node.input[0])
    instance = node.op_type == "InstanceNormalization"
    params = Norm(
        kind="instance" if instance else "group",
        batch=batch,
        channels=channels,
        spatial_elements=prod(field),
        groups=channels if instance else node.given["num_groups"],
    )
    context.emit(node, params, _norm_operands(context, node))


def _norm_operands(context: ImportContext, node: Node) -> tuple[str, ...]:
    vectors = (context.operand(name, weight=True) for name in node.input[1:] if name)
    return (context.operand(node.input[0]), *vectors)


def softmax(context: ImportContext, node: Node) -> None:
    """Softmax and LogSoftmax."""
    shape = context.shape(node.input[0])
    modern = context.opset >= PER_ELEMENT_AXIS_OPSET
    axis = node.given.get("axis", -1 if modern else 1)
    axis = axis % max(1, len(shape))
    length = prod(shape[axis : axis + 1] if modern else shape[axis:])
    params = Softmax(outer=prod(shape) // length, length=length, log=node.op_type == "LogSoftmax")
    context.emit(node, params, (context.operand(node.input[0]),))


def reduce(context: ImportContext, node: Node) -> None:
    """Reductions over any axes, neighbours or not."""
    shape = context.shape(node.input[0])
    chosen = reduced_axes(Call(context, node))
    reduced = prod(shape[axis] for axis in chosen)
    neighbours = bool(chosen) and chosen == list(range(chosen[0], chosen[-1] + 1))
    inner = prod(shape[chosen[-1] + 1 :]) if neighbours else 1
    apart = bool(chosen) and not neighbours
    params = Reduce(
        function=node.op_type.removeprefix("Reduce").lower(),
        outer=prod(shape) // (reduced * inner),
        reduced=reduced,
        inner=inner,
        shape=tuple(shape) if apart else (),
        axes=tuple(chosen) if apart else (),
    )
    context.emit(node, params, (context.operand(node.input[0]),))


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
    context: ImportContext, node: Node, params: Conv, inputs: tuple[str, ...]
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


def conv(context: ImportContext, node: Node) -> None:
    """Conv of any rank, with groups, stride, dilation and padding."""
    data, weights = context.shape(node.input[0]), context.shape(node.input[1])
    given = node.given
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


def conv_transpose(context: ImportContext, node: Node) -> None:
    """ConvTranspose, as a convolution of the zero-spread input with the mirrored kernel."""
    data, weights = context.shape(node.input[0]), context.shape(node.input[1])
    given = node.given
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


def _needed_padding(
    output: tuple[int, ...],
    field: tuple[int, ...],
    kernel: tuple[int, ...],
    window: dict[str, tuple[int, ...]],
) -> tuple[int, ...]:
    """Return the upper padding with which rounding down gives the output sizes."""
    return tuple(
        max(0, (out - 1) * hop + step * (taps - 1) + 1 - size - low)
        for out, size, taps, hop, step, low in zip(
            output,
            field,
            kernel,
            window["stride"],
            window["dilation"],
            window["padding_lower"],
            strict=True,
        )
    )


def pool(context: ImportContext, node: Node) -> None:
    """MaxPool and AveragePool; rounding up becomes upper padding."""
    data, output = context.shape(node.input[0]), context.shape(node.output[0])
    given = node.given
    field, kernel = data[2:], tuple(given["kernel_shape"])
    window = _window(given, field, output[2:], kernel)
    if given.get("ceil_mode", 0):
        window["padding_upper"] = _needed_padding(output[2:], field, kernel, window)
    params = Pool(
        kind="max" if node.op_type == "MaxPool" else "average",
        batch=data[0],
        channels=data[1],
        field=field,
        kernel=kernel,
        include_padding=bool(given.get("count_include_pad", 0)),
        **window,
    )
    context.emit(node, params, (context.operand(node.input[0]),))


def global_pool(context: ImportContext, node: Node) -> None:
    """GlobalMaxPool and GlobalAveragePool: a window as large as the field."""
    kind = "max" if node.op_type == "GlobalMaxPool" else "average"
    params = Pool.of_all(kind, context.shape(node.input[0]))
    context.emit(node, params, (context.operand(node.input[0]),))


def local_response_norm(context: ImportContext, node: Node) -> None:
    """LRN over neighbouring channels: square, windowed sum, power, division.

    The window slides over the channels, so its `Pool` has one spatial dimension (the channels),
    one channel, and the product of the other dimensions as batch.
    """
    shape = context.shape(node.input[0])
    size = node.given["size"]
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


COMPUTE_HANDLERS: dict[str, Handler] = {
    "Gemm": gemm,
    "MatMul": matmul,
    "BatchNormalization": batch_norm,
    "LayerNormalization": layer_norm,
    "RMSNormalization": rms_norm,
    "InstanceNormalization": group_norm,
    "GroupNormalization": group_norm,
    "Softmax": softmax,
    "LogSoftmax": softmax,
    **dict.fromkeys(REDUCTIONS.split(), reduce),
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "MaxPool": pool,
    "AveragePool": pool,
    "GlobalAveragePool": global_pool,
    "GlobalMaxPool": global_pool,
    "LRN": local_response_norm,
}
