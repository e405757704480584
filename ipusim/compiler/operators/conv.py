"""Convolutions and their gradients."""

from contextlib import AbstractContextManager
from functools import lru_cache

from ipusim.compiler.convolution import planner
from ipusim.compiler.emitter import Placed, TensorLayout, narrow_bytes
from ipusim.compiler.operators.products.supersteps import lower_planned, transpose_weights
from ipusim.compiler.state import Lowering, LoweringState, lowers
from ipusim.compiler.tiles import element_bytes
from ipusim.workload.graph import Conv


@lru_cache(maxsize=4096)
def conv_pass(
    op: Conv, dtype_bytes: int, operand_bytes: int = 0, *, training: bool = False
) -> planner.ConvPass:
    """Return a convolution as the planner takes it, in a training graph or not."""
    inference = op.pass_kind == "forward" and not training
    kind = "conv" if inference else f"conv_{op.pass_kind}"
    return planner.ConvPass.of(kind, op, dtype_bytes, operand_bytes)


def convolutions_planned(state: LoweringState) -> AbstractContextManager[None]:
    """Plan all convolutions of a graph side by side, while they are lowered one by one."""
    tensors = state.graph.tensors
    asked = [
        conv_pass(
            op.params,
            element_bytes(tensors[op.outputs[0]].dtype),
            narrow_bytes(tensors[op.inputs[0]].dtype),
            training=state.training,
        )
        for op in state.graph.ops
        if isinstance(op.params, Conv)
    ]
    return planner.planned_ahead(asked, state.chip, state.convolution_rules)


@lowers(Conv)
def conv(m: Lowering, op: Conv, data: Placed, weights: Placed, *_: Placed) -> TensorLayout:
    """Plan a convolution and lower it."""
    sizes = element_bytes(m.made.dtype), narrow_bytes(data.dtype)
    asked = conv_pass(op, *sizes, training=m.training)
    m.plan = planner.plan(asked, m.chip, m.rules)
    if op.pass_kind == "data_gradient":
        transpose_weights(m, weights, m.task.forward_plan or m.plan)
    return lower_planned(m, data, weights)
