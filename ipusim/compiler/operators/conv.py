"""Convolutions and their gradients."""

from __future__ import annotations

from ipusim.compiler.convolution import planner
from ipusim.compiler.emitter import Placed, TensorLayout
from ipusim.compiler.operators.planned import lower_planned, transpose_weights
from ipusim.compiler.state import Lowering, lowers
from ipusim.compiler.tiles import element_bytes
from ipusim.workload.graph import Conv

_CONV_KINDS = {
    "forward": "conv",
    "data_gradient": "conv_data_gradient",
    "weight_gradient": "conv_weight_gradient",
}


def conv_shape(params: Conv, dtype_bytes: int, *, training: bool = False) -> planner.ConvShape:
    """Return what the planner needs to know of a convolution, in a training graph or not."""
    rank = len(params.field)
    kind = _CONV_KINDS[params.pass_kind]
    return planner.ConvShape(
        kind="conv_forward" if training and kind == "conv" else kind,
        groups=params.groups,
        batch=params.batch,
        in_channels=params.in_channels // params.groups,
        out_channels=params.out_channels // params.groups,
        field=params.field,
        kernel=params.kernel,
        stride=params.stride,
        padding_lower=params.padding_lower,
        padding_upper=params.padding_upper,
        in_dilation=params.input_dilation or (1,) * rank,
        kernel_dilation=params.dilation,
        in_bytes=dtype_bytes,
        out_bytes=dtype_bytes,
    )


@lowers(Conv)
def conv(m: Lowering, op: Conv, data: Placed, weights: Placed, *_: Placed) -> TensorLayout:
    """Plan a convolution and lower it."""
    state, weights_name = m.state, m.op.inputs[1]
    dtype_bytes = element_bytes(state.dtype(m.op.outputs[0]))
    chosen = planner.plan(conv_shape(op, dtype_bytes, training=state.training), m.chip, state.rules)
    if op.pass_kind == "forward":
        state.plans[weights_name] = chosen
    elif op.pass_kind == "data_gradient":
        forward = state.plans.get(weights_name, chosen)
        transpose_weights(m, weights, chosen, forward)
    return lower_planned(m, chosen, data, weights)
