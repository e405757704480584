"""A graph and the program it was lowered to: what every way of running a replica starts from."""

from __future__ import annotations

from dataclasses import dataclass

from ipusim.compiler.program import Program
from ipusim.compiler.program_cache import as_rewritten
from ipusim.machine import Chip
from ipusim.workload.graph import Graph

REMEMBERED = 128
"""Programs of a mode whose graphs and cuts a process remembers: the published runs have fewer."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lowered:
    """One micro-batch of a run; each object its own key, so that what it is cut into is remembered.

    Attributes
    ----------
    graph : Graph
    program : Program
        Lowered as if for one chip: a stage or phase of it has a whole chip to itself.
    update : Lowered or None
        The weight update of a training step; None in inference, and of an update itself.
    """

    graph: Graph
    program: Program
    update: Lowered | None = None

    def as_rewritten(self, chip: Chip) -> Lowered:
        """Return this with its programs as they are read here (`program_cache.rewritten`)."""
        program = as_rewritten(self.program, chip)
        if program is self.program:
            return self
        update = self.update.as_rewritten(chip) if self.update else None
        return Lowered(graph=self.graph, program=program, update=update)
