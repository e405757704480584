"""Sorting of rows."""

from dataclasses import dataclass

from ipusim.workload.operators.base import Attributes, Positive
from ipusim.workload.operators.gather import Gather
from ipusim.workload.operators.gradient import Backward, gradient


@dataclass(frozen=True, slots=True, kw_only=True)
class Sort(Attributes):
    """Sorting of ``outer`` rows of ``length`` elements, each by itself.

    With ``kept``, so many first elements of every row are found beside their places (top-k).
    """

    outer: Positive
    length: Positive
    kept: int = 0

    def check(self) -> None:
        """Refuse to keep more than there is."""
        if not 0 <= self.kept <= self.length:
            raise self.refusal("kept", f"must be 0 to {self.length}, its length")


@gradient.register
def _gradient(sort: Sort, back: Backward) -> None:
    """Every element goes back to where it came from: an addition into rows of one element."""
    found = sort.kept or sort.length
    scatter = Gather(rows=sort.length, width=1, indices=found, groups=sort.outer, function="add")
    back.send(back.op.inputs[0], "gradient", scatter, (back.gradient, back.op.outputs[0]))
