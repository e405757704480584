"""Sorting of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ipusim.workload.operators.base import Attributes, check_positive


@dataclass(frozen=True, slots=True, kw_only=True)
class Sort(Attributes):
    """Sorting of ``outer`` rows of ``length`` elements, each by itself."""

    KIND: ClassVar[str] = "sort"

    outer: int
    length: int

    def __post_init__(self) -> None:
        check_positive(self, outer=self.outer, length=self.length)

    @property
    def flops(self) -> int:
        """One comparison per element and merge of a sort by merging."""
        return self.outer * self.length * (self.length - 1).bit_length()
