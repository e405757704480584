"""Softmax and its logarithm."""

from dataclasses import dataclass, replace

from ipusim.workload.operators.base import Attributes
from ipusim.workload.operators.gradient import Backward, gradient


@dataclass(frozen=True, slots=True, kw_only=True)
class Softmax(Attributes):
    """Softmax of ``outer`` rows of ``length`` elements; ``log`` for its logarithm.

    With ``backward`` the inputs are (incoming gradient, result of the forward pass).
    """

    outer: int
    length: int
    log: bool = False
    backward: bool = False


@gradient.register
def _gradient(softmax: Softmax, back: Backward) -> None:
    inputs = (back.gradient, back.op.outputs[0])
    back.send(back.op.inputs[0], "gradient", replace(softmax, backward=True), inputs)
