"""ONNX operators that slide a window: convolutions, pooling, local response norm."""

from __future__ import annotations

from math import prod

from ipusim.errors import WorkloadError
from ipusim.workload.graph import Conv, Elementwise, Pool
from ipusim.workload.onnx.context import (
    Handler,
    ImportContext,
    Node,
    attributes,
    has_input,
    node_label,
)


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


def conv_transpose(context: ImportContext, node: Node) -> None:
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
    given = attributes(node)
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


def local_response_norm(context: ImportContext, node: Node) -> None:
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


WINDOW_HANDLERS: dict[str, Handler] = {
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "MaxPool": pool,
    "AveragePool": pool,
    "GlobalAveragePool": global_pool,
    "GlobalMaxPool": global_pool,
    "LRN": local_response_norm,
}
