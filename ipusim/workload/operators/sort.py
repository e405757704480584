"""Sorting of rows."""

from dataclasses import dataclass

from ipusim.workload.operators.base import Attributes, Positive
from ipusim.workload.operators.gather import Gather
from ipusim.workload.operators.gradient import Backward, gradient


@dataclass(frozen=True, slots=True, kw_only=True)
class Sort(Attributes):
    """Sorting of ``outer`` rows of ``length`` elements, each by itself."""

    outer: Positive
    length: Positive


@gradient(Sort)
def _gradient(back: Backward, sort: Sort) -> None:
    """Every element goes back to where it came from: an addition into rows of one element."""
    scatter = Gather(
        rows=sort.length, width=1, indices=sort.length, groups=sort.outer, function="add"
    )
    back.send(back.op.inputs[0], "gradient", scatter, (back.gradient, back.op.outputs[0]))
