"""Rows of a table, chosen, added up or written by index."""

from dataclasses import dataclass, replace
from typing import Literal

from ipusim.workload.operators.base import Attributes, Positive
from ipusim.workload.operators.gradient import Backward, gradient
from ipusim.workload.operators.layout import Layout

_BACK = {"lookup": "add", "add": "lookup"}
"""A lookup sends gradients back by adding them up, a sum by looking them up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gather(Attributes):
    """Rows of a table chosen by index: ``indices`` of ``rows`` rows of ``width`` elements.

    "lookup" reads (table, indices); "add" sums (updates, indices) into a table of zeros, which is
    the gradient of a lookup and how a graph network aggregates neighbours; "write" puts (table,
    updates, indices) into a table that stays. There are ``groups`` tables, each with as many rows
    and indices of its own (a batch of small graphs).

    ``hottest`` of a group's indices fall on one and the same row, beyond an even spread: padding
    that points to a spare row, or the hub of a graph. One tile has to serve them all.
    """

    rows: Positive
    width: Positive
    indices: Positive
    function: Literal["lookup", "add", "write"] = "lookup"
    groups: Positive = 1
    hottest: int = 0

    def check(self) -> None:
        """Refuse more indices of one row than there are."""
        if not 0 <= self.hottest <= self.indices:
            raise self.refusal("hottest", f"must be 0 to {self.indices}, its indices")


@gradient.register
def _gradient(gather: Gather, back: Backward) -> None:
    *tables, operand, indices = back.op.inputs
    if gather.function == "write":
        # The rows that were overwritten send nothing back; what was written is looked up.
        read = replace(gather, function="lookup")
        back.send(operand, "gradient", read, (back.gradient, indices), back.result.dtype)
        kept = Layout.move("pad")
        back.send(tables[0], "gradient_of_table", kept, (back.gradient,), back.result.dtype)
        return
    answer = replace(gather, function=_BACK[gather.function])
    back.send(operand, "gradient", answer, (back.gradient, indices), back.result.dtype)
