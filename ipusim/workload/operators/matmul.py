"""Matrix products, and the two gradients of one, which are products again.

References
----------
poplibs tag sdk/poplar/2.0.0, ``lib/poplin/MatMul.cpp``.
"""

from dataclasses import dataclass, replace
from typing import Literal

from ipusim.workload.operators.base import PASSES, Attributes, Op, Positive, Sizes, check_forward
from ipusim.workload.operators.gradient import Backward, gradient


@dataclass(frozen=True, slots=True, kw_only=True)
class MatMul(Attributes):
    """``C[g, m, n] = A[g, m, k] @ B[g, k, n]``, A and B being the op's first two inputs.

    ``weights_operand`` says whether B is a parameter. ``transpose_a`` and ``transpose_b`` record
    that the stored operand is the transpose of what the formula reads; ``m``, ``k`` and ``n``
    already account for it. ``pass_kind`` is that of the layer: the product of an incoming gradient
    with the weights is its "data_gradient", with the activations its "weight_gradient".
    """

    groups: Positive = 1
    m: Positive
    k: Positive
    n: Positive
    weights_operand: bool | None = None
    transpose_a: bool = False
    transpose_b: bool = False
    pass_kind: Literal[*PASSES] = "forward"

    @property
    def macs(self) -> int:
        """Multiply-accumulates."""
        return self.groups * self.m * self.k * self.n

    def sizes(self, op: Op) -> Sizes:
        """Elements of the result."""
        return ((op.outputs[0], self.groups * self.m * self.n),)


def matmul_data_gradient(product: MatMul) -> MatMul:
    """Return dA = dC B^T of C = A B: inputs (dC, B), output with A's elements as (g, m, k)."""
    check_forward(product, product.pass_kind)
    return replace(
        product,
        k=product.n,
        n=product.k,
        transpose_a=False,
        transpose_b=not product.transpose_b,
        pass_kind="data_gradient",
    )


def matmul_weight_gradient(product: MatMul) -> MatMul:
    """Return dB = A^T dC of C = A B: inputs (A, dC), output with B's elements as (g, k, n).

    ``weights_operand`` still says whether B, whose gradient this is, is a parameter.
    """
    check_forward(product, product.pass_kind)
    return replace(
        product,
        m=product.k,
        k=product.m,
        transpose_a=not product.transpose_a,
        transpose_b=False,
        pass_kind="weight_gradient",
    )


@gradient.register
def _gradient(product: MatMul, back: Backward) -> None:
    data, weights = matmul_data_gradient(product), matmul_weight_gradient(product)
    back.send_operands(data, weights)
