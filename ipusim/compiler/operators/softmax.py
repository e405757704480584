"""Softmax and its gradient as the series of operations that popnn emits.

Source: poplibs lib/popnn/NonLinearity.cpp, softmaxImpl and softmaxInputGradientImpl; the same at
tags 1.0.136 and sdk/poplar/2.4.0 (frameworks ask for the stable form). Of its logarithm
lib/popnn/LogSoftmax.cpp, tag sdk/poplar/2.4.0.
"""

from ipusim.compiler.emitter import Emitter, Placed, TensorLayout
from ipusim.compiler.state import Lowering, lowers
from ipusim.compiler.vertices.training import Expression
from ipusim.workload.graph import Softmax


@lowers(Softmax)
def softmax(m: Lowering, op: Softmax, x: Placed, *forward: Placed) -> TensorLayout:
    """Lower a softmax over the innermost dimension, or its gradient."""
    if op.backward:
        result = forward[0].shaped(op.outer, op.length).of(m.dtype)
        moved = {}
        if not x.layout.lies_with(result.layout):
            copied = m.bring_operand(result, x.layout, *result.shape)
            moved = {"received": m.tile_bytes(result), "copy": copied}
        softmax_gradient(m, result, log=op.log, **moved)
        return result.layout._replace(free=False)
    softmax_forward(m, x.shaped(op.outer, op.length).of(m.dtype), log=op.log)
    return x.layout


def softmax_forward(m: Emitter, x: Placed, *, log: bool = False) -> None:
    """Subtract each row's maximum, take exponents, and divide by their sum.

    For a logarithm: subtract the maximum, then the logarithm of the sum of exponents.
    """
    name, sums = "log softmax" if log else "softmax", Placed(x.shape[:-1], "float32")
    m.reduce("max", x)
    m.by_row("sub", x, f"{name}, subtract maximum")
    with m.holding(m.tile_bytes(x) if log else 0):
        m.unary("exp", x, f"{name}, exp", in_place=not log)
        m.reduce("add", x, out="float32")
    if log:
        logarithm = Expression(operations=2, tensors=1, slow=("log",))
        m.generated(f"{name}, logarithm", sums, logarithm)
        m.by_row("sub", x, f"{name}, subtract logarithm", in_place=True)
    else:
        m.unary("inverse", sums, f"{name}, 1 / sum", in_place=True)
        m.cast(sums, x.dtype)
        m.by_row("mul", x, f"{name}, divide by sum", in_place=True)


def softmax_gradient(m: Emitter, y: Placed, *, log: bool, **moved: int) -> None:
    """Compute y g, its row sum, y times that, and their difference in place.

    For a logarithm: the gradient less exp(y) times its row sum. The incoming gradient may lie
    elsewhere than the result y of the forward pass (`moved`, as `emit` has it).
    """
    held, last = m.tile_bytes(y), {}
    if log:
        m.unary("exp", y, "softmax gradient, exp")
        last = moved
    else:
        m.binary("mul", y, "softmax gradient, result times gradient", **moved)
    m.reduce("add", y)
    # The product with the row sum is a tensor of its own until the difference is taken.
    with m.holding(held):
        m.by_row("mul", y, "softmax gradient, times row sum")
    with m.holding(held - last.get("received", 0)):
        m.binary("sub", y, "softmax gradient, subtract", in_place=True, **last)
