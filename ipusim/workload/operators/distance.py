"""Distances of every row of one matrix to every row of another."""

from dataclasses import dataclass

from ipusim.workload.operators.base import Attributes, Positive
from ipusim.workload.operators.gradient import Backward, gradient


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance(Attributes):
    """L1 distances of each of ``rows`` rows to each of ``others`` rows of ``width`` elements.

    With ``backward`` the inputs are (first matrix, second matrix, gradient of the distances) and
    the result is the gradient of the first matrix.
    """

    rows: Positive
    others: Positive
    width: Positive
    backward: bool = False


@gradient.register
def _gradient(distance: Distance, back: Backward) -> None:
    counts = (distance.rows, distance.others)
    for index in (0, 1):
        own, other = back.op.inputs[index], back.op.inputs[1 - index]
        answer = Distance(
            rows=counts[index], others=counts[1 - index], width=distance.width, backward=True
        )
        back.send(own, f"gradient{index}", answer, (own, other, back.gradient))
