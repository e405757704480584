"""A lowered program: operations as lists of supersteps, with cycles, bytes and activity."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import NamedTuple


class Superstep(NamedTuple):
    """One superstep as it runs: sync, exchange, compute; the slowest tile sets each phase.

    Cycles are those of one of the `repeats` (serial splits): sync and control code, exchange,
    on-tile copies, vertices. `exchange_bytes` are received by the tile that receives most, per
    repeat; `temp_bytes` live on a tile during this step besides tensors of the graph,
    `chip_temp_bytes` on all tiles together (0: `temp_bytes` on each that takes part).
    """

    name: str
    vertex: str
    sync_cycles: int
    exchange_cycles: int
    copy_cycles: int
    compute_cycles: int
    exchange_bytes: int
    tiles: int
    repeats: int = 1
    temp_bytes: int = 0
    chip_temp_bytes: int = 0

    @property
    def cycles(self) -> int:
        """Cycles of all repeats."""
        phases = self.sync_cycles + self.exchange_cycles + self.copy_cycles + self.compute_cycles
        return self.repeats * phases

    @property
    def exchanges(self) -> int:
        """How many supersteps with an exchange this counts as, 1 or none.

        In a loop it counts once: what it takes beyond its syncs and data is shared by all rounds
        (`Stack.in_loop`).
        """
        return int(self.exchange_bytes > 0)


class LoweredOp(NamedTuple):
    """One operation of the graph and the supersteps that compute it; kind "input" is data arriving.

    `macs` are the multiply-accumulates that the graph asks for, `float_macs` those of them in
    float32. `plan` is the planner's choice in one line for people, `codelet` the planned vertex
    with its channel groups, `transform` what is done to a convolution before it is split over
    tiles; all three are empty where nothing is planned. If `reads_lines`, operands arrive as lines
    of a field, as those of a convolution with a window do. The result lies on `tiles` tiles, with
    `grouping` channels adjacent in memory. `temp_bytes` are those of the fullest tile;
    `interleaved_bytes` of them must lie in interleaved memory (AMP partials). `chip_temp_bytes` are
    those of all tiles together (0: `temp_bytes` on each).
    """

    name: str
    kind: str
    function: str
    steps: tuple[Superstep, ...]
    tiles: int
    grouping: int
    macs: int = 0
    float_macs: int = 0
    plan: str = ""
    transform: str = ""
    temp_bytes: int = 0
    interleaved_bytes: int = 0
    codelet: str = ""
    reads_lines: bool = False
    chip_temp_bytes: int = 0

    @property
    def cycles(self) -> int:
        """Cycles of all steps."""
        return sum(step.cycles for step in self.steps)

    def signature(self) -> tuple[object, ...]:
        """What makes two operations share code: the same plan and the same supersteps."""
        # A step's code depends neither on `repeats` nor on temporaries, its last three fields.
        steps = tuple([step[:-3] for step in self.steps])
        return (self.kind, self.function, self.plan, self.transform, steps)


def all_temp_bytes(of: Superstep | LoweredOp) -> int:
    """Return the bytes of temporaries on all tiles together."""
    return of.chip_temp_bytes or of.temp_bytes * of.tiles


@dataclass(frozen=True)
class Program:
    """A whole program for one micro-batch on one chip, operations in execution order."""

    ops: tuple[LoweredOp, ...]

    @cached_property
    def steps(self) -> tuple[Superstep, ...]:
        """All supersteps in order."""
        return tuple(step for op in self.ops for step in op.steps)

    @cached_property
    def distinct(self) -> dict[tuple[object, ...], LoweredOp]:
        """Operations with supersteps by their signature: one of each set that shares code."""
        return {op.signature(): op for op in self.ops if op.steps}

    @cached_property
    def _alike(self) -> list[tuple[tuple[Superstep, ...], int]]:
        """Supersteps of operations that were lowered once, and how many these are."""
        times = Counter(id(op.steps) for op in self.ops)
        steps = {id(op.steps): op.steps for op in self.ops}
        return [(one, times[key]) for key, one in steps.items()]

    def total(self, amount: Callable[[Superstep], int]) -> int:
        """Return the sum of an amount over all supersteps."""
        return sum(times * sum(map(amount, steps)) for steps, times in self._alike)

    @cached_property
    def cycles(self) -> int:
        """Cycles of the whole program."""
        return self.total(attrgetter("cycles"))

    @cached_property
    def supersteps(self) -> int:
        """Supersteps that run, repeats counted."""
        return self.total(attrgetter("repeats"))

    @cached_property
    def exchanges(self) -> int:
        """Supersteps with an exchange, as `Superstep.exchanges` counts them."""
        return self.total(attrgetter("exchanges"))

    @cached_property
    def exchanged_bytes(self) -> int:
        """Bytes received over the exchange by all tiles, an upper estimate."""
        return self.total(lambda step: step.exchange_bytes * step.tiles * step.repeats)

    @cached_property
    def macs(self) -> int:
        """Multiply-accumulates."""
        return sum(op.macs for op in self.ops)

    @cached_property
    def float_macs(self) -> int:
        """Multiply-accumulates of float32 operands."""
        return sum(op.float_macs for op in self.ops)

    def phase_cycles(self) -> dict[str, int]:
        """Return the cycles spent in sync, exchange, on-tile copies and compute."""
        return {
            phase: self.total(lambda step, of=f"{phase}_cycles": step.repeats * getattr(step, of))
            for phase in ("sync", "exchange", "copy", "compute")
        }
