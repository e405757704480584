"""Software stacks: named, sourced profiles of what one SDK's compiler and runtime do."""

from dataclasses import dataclass, replace
from typing import Self

from ipusim.compiler.convolution.rules import PlannerRules
from ipusim.errors import resolve_name
from ipusim.machine.constants import Sourced, load, names

PARTIALS_BYTES = {"half": 2, "float": 4}
"""Bytes of a partial sum by the name that options give it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack(Sourced, file="stacks", word="software stack"):
    """One software stack, each property with its source (``constants``).

    Attributes
    ----------
    planner_era : int
        Generation of the planner's rules and of the vertices that run (`eras`).
    codelets : str
        Versions of poplibs whose vertices and whose estimators are taken (`eras.estimator_era`).
    partials : {"half", "float"}
        Type of partial sums unless a run says otherwise.
    available_memory_proportion : float
        Share of tile memory that the temporaries of one operation may take.
    fold_batch_norm : bool
        Whether a batch norm at inference is folded into the convolution before it.
    regroup_fully_connected : bool
        Whether operands of fully connected layers are brought into the plan's channel groups first.
    operands_in_order : bool
        Whether an operand that an operation made is rearranged once for all tiles, at the cost of
        its pieces as they lie in memory, and not at the planner's own estimate.
    copies_windows : bool
        Whether weight gradients copy, within a tile, only elements that several windows hold.
    remaps_outputs : bool
        Whether results in which no neighbours are adjacent in memory are rearranged.
    host_work_in_step : bool
        Whether the host prepares each batch inside the timed step.
    io_tiles : int
        Tiles set aside for transfers that overlap with compute.
    superstep_cycles, loop_superstep_cycles : int
        Sync and control code of a superstep with an exchange [cycles], and of one in a loop.
    compute_set_cycles, loop_compute_set_cycles : int
        Those of a step without an exchange [cycles], and of one in a loop.
    cut_partials_percent : int
        Time in which a tile receives partial sums that several tiles send in two pieces each, in
        percent of that at its full rate.
    """

    name: str
    title: str
    planner_era: int
    codelets: str
    partials: str
    available_memory_proportion: float
    fold_batch_norm: bool
    regroup_fully_connected: bool
    operands_in_order: bool
    copies_windows: bool
    remaps_outputs: bool
    host_work_in_step: bool
    io_tiles: int
    superstep_cycles: int
    loop_superstep_cycles: int
    compute_set_cycles: int
    loop_compute_set_cycles: int
    cut_partials_percent: int

    def planner_rules(self, partials: str | None = None) -> PlannerRules:
        """Return the rules of planning, with partials of the stack's type or of another."""
        kind = resolve_name("partials type", partials or self.partials, PARTIALS_BYTES)
        return PlannerRules(
            era=self.planner_era,
            partials_bytes=PARTIALS_BYTES[kind],
            available_memory_proportion=self.available_memory_proportion,
        )

    def in_loop(self) -> Self:
        """Return the stack with what a superstep costs in a loop.

        The 450 cycles that single operations want per superstep (stack "sdk-2.0") include what
        running a program costs once; in a loop that is shared by all rounds.
        """
        return replace(
            self,
            superstep_cycles=self.loop_superstep_cycles,
            compute_set_cycles=self.loop_compute_set_cycles,
        )


def stack_names() -> tuple[str, ...]:
    """Return the names that `load_stack` accepts, oldest first.

    Examples
    --------
    >>> ipusim.stack_names()
    ('sdk-1.0', 'sdk-2.0', 'sdk-2.4', 'sdk-3.x')
    """
    return names(Stack)


def load_stack(name: str, *, adopted: bool = True) -> Stack:
    """Return one software stack, such as "sdk-2.4", whatever its case, spaces and hyphens.

    If not `adopted`, values are those without decisions that were taken after seeing residuals
    (data/adopted.csv). An UnknownNameError if there is no such stack.

    Examples
    --------
    >>> stack = ipusim.load_stack("SDK 2.4")
    >>> stack.name, stack.partials, stack.superstep_cycles
    ('sdk-2.4', 'half', 450)
    """
    return load(Stack, name, adopted=adopted)
