"""Reductions over axes: sums, means, extrema."""

from dataclasses import dataclass

from ipusim.workload.operators.base import Attributes


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduce(Attributes):
    """Reduction of ``(outer, reduced, inner)`` over the middle; "mean", "sum", "max", ...

    Where axes are reduced that are not neighbours, ``shape`` and ``axes`` say which of what;
    ``outer`` then counts the results and ``inner`` is 1.
    """

    function: str
    outer: int
    reduced: int
    inner: int
    shape: tuple[int, ...] = ()
    axes: tuple[int, ...] = ()
