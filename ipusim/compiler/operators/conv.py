"""Convolutions and their gradients."""

from ipusim.compiler.convolution import planner
from ipusim.compiler.emitter import Placed, TensorLayout
from ipusim.compiler.operators.planned import lower_planned, transpose_weights
from ipusim.compiler.state import Lowering, lowers
from ipusim.compiler.tiles import element_bytes
from ipusim.workload.graph import Conv


def conv_pass(
    op: Conv, dtype_bytes: int, operand_bytes: int = 0, *, training: bool = False
) -> planner.ConvPass:
    """Return what the planner needs to know of a convolution, in a training graph or not."""
    inference = op.pass_kind == "forward" and not training
    kind = "conv" if inference else f"conv_{op.pass_kind}"
    return planner.ConvPass.of(kind, op, dtype_bytes, operand_bytes)


@lowers(Conv)
def conv(m: Lowering, op: Conv, data: Placed, weights: Placed, *_: Placed) -> TensorLayout:
    """Plan a convolution and lower it."""
    dtype_bytes = element_bytes(m.made.dtype)
    asked = conv_pass(op, dtype_bytes, data.narrow_bytes, training=m.training)
    m.chosen = chosen = planner.plan(asked, m.chip, m.rules)
    if op.pass_kind == "data_gradient":
        transpose_weights(m, weights, chosen, m.task.forward_plan or chosen)
    return lower_planned(m, chosen, data, weights)
