"""Matrix products, and the passes of the layers that they belong to."""

from dataclasses import replace

from ipusim.compiler.convolution import planner
from ipusim.compiler.convolution.planner import Plan, plan_layer
from ipusim.compiler.emitter import Placed, TensorLayout, narrow_bytes
from ipusim.compiler.operators.products.supersteps import lower_planned, transpose_weights
from ipusim.compiler.state import Lowering, lowers
from ipusim.compiler.tiles import element_bytes
from ipusim.workload.graph import MatMul


def plan_product(m: Lowering, op: MatMul, operand_bytes: int = 0) -> tuple[Plan, Plan]:
    """Plan a product and the forward pass of its layer; in training by `plan_layer`.

    PopART gives every product of a training graph a pass of a fully connected layer, whether its
    second operand is stored or computed, like the keys and values of attention
    (willow/src/popx/op/matmulx.cpp, appendPoplarOptionsForOp; enableFullyConnectedPass in
    willow/include/popart/sessionoptions.hpp), and so the backward pass transposes that operand.
    TensorFlow sorts its products into these passes by the operands that they share. [inferred:
    those of attention, too]
    """
    dtype_bytes = element_bytes(m.made.dtype)
    if m.training:
        plans = plan_layer(layer_pass(op, dtype_bytes), m.chip, m.rules)
        return getattr(plans, op.pass_kind), plans.forward
    kind = "fc_inference" if op.weights_operand else "matmul"
    asked = planner.ConvPass.of(kind, op, dtype_bytes, operand_bytes)
    return (planner.plan(asked, m.chip, m.rules),) * 2


@lowers(MatMul)
def matmul(
    m: Lowering, op: MatMul, a: Placed, b: Placed, *_: Placed, rounds: int = 1
) -> TensorLayout:
    """Plan a matrix product and lower it; its weights are transposed once before all `rounds`.

    poplibs swaps the operands of products: B plays the part of the input, A of the weights, unless
    the plan swaps them back.
    """
    m.plan, forward = plan_product(m, op, narrow_bytes(a.dtype))
    if op.pass_kind == "data_gradient" and m.training:
        transpose_weights(m, b, forward)
    operands = (a, b) if m.plan.transform.swap else (b, a)
    with m.loop(rounds, tiles=m.tiles):
        layout = lower_planned(m, *operands)
    # In a joint plan the gradient of stored weights lies where these lie.
    stored = m.plan.joint and op.weights_operand and op.pass_kind == "weight_gradient"
    return layout._replace(free=True) if stored else layout


def layer_pass(op: MatMul, dtype_bytes: int) -> planner.ConvPass:
    """Return the forward product of the layer that a product is a pass of, for `plan_layer`."""
    if op.pass_kind == "data_gradient":
        op = replace(op, k=op.n, n=op.k)
    elif op.pass_kind == "weight_gradient":
        op = replace(op, m=op.k, k=op.m)
    return planner.ConvPass.of("fc_training", op, dtype_bytes)
