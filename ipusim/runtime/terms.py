"""What a step consists of, before anything fitted has a price: counts and seconds.

A run is compiled once and states its terms; a tier prices them. Where the chips of a replica spend
their time is the matter of a `Schedule`, which knows what waits for what. Seconds are added by
`math.fsum`, which all versions of Python round alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from math import fsum
from typing import Protocol

from ipusim.errors import ConfigError
from ipusim.runtime.calibration import FittedCosts
from ipusim.runtime.collectives import Collective

UPDATE = "weight update"
WAITING = "waiting for the host"
BETWEEN = "host between runs"
HOST_PARTS = ("transfers", "host work", "fixed", BETWEEN, WAITING)
"""Parts of a step that a program which asks nothing of the host does not have."""
MAX_COST = 1e6
"""Largest fitted cost that is taken: beyond it something is wrong with its unit."""
FEW_CYCLES = 0.1
"""So little that no other chip becomes the slowest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a chip computes: seconds, and supersteps with an exchange, at its clock."""

    seconds: float
    exchanges: int
    clock_hz: float

    def at(self, costs: FittedCosts) -> float:
        """Return the seconds with the fitted cycles of each exchange superstep."""
        return self.seconds + costs.exchange_cycles * self.exchanges / self.clock_hz

    def __add__(self, other: Work) -> Work:
        return Work(
            seconds=self.seconds + other.seconds,
            exchanges=self.exchanges + other.exchanges,
            clock_hz=self.clock_hz,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What a micro-batch takes besides the program of a chip.

    Transfers that nothing hides, work of the host in between, and the reductions of shared norm
    statistics over all stages.
    """

    transfers_s: float
    host_work_s: float
    reductions: tuple[Collective, ...] = ()

    def reductions_s(self, costs: FittedCosts) -> float:
        """Return the seconds of the reductions."""
        total = 0.0
        for reduction in self.reductions:
            total += reduction.at(costs.reduction_s)
        return total

    def parts_s(self, times: int, costs: FittedCosts) -> dict[str, float]:
        """Return the seconds of so many micro-batches that run one after the other."""
        parts = {"transfers": times * self.transfers_s, "host work": times * self.host_work_s}
        if self.reductions:
            parts["batch-norm reductions"] = times * self.reductions_s(costs)
        return parts


class Schedule(Protocol):
    """How the chips of a replica spend a step."""

    def parts_s(self, costs: FittedCosts, beside: Beside | None) -> dict[str, float]:
        """Return where the seconds go, `UPDATE` apart; `beside` is None where it overlaps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OneChip:
    """Micro-batches one after the other on a chip that holds all of the model."""

    cycles: int
    exchanges_each: int
    clock_hz: float
    times: int
    update_cycles: int = 0

    def parts_s(self, costs: FittedCosts, beside: Beside | None) -> dict[str, float]:
        """As `Schedule` says."""
        cycles = self.cycles + costs.exchange_cycles * self.exchanges_each
        parts = {"device": self.times * cycles / self.clock_hz}
        if beside is not None:
            parts |= beside.parts_s(self.times, costs)
        return parts | {UPDATE: self.update_cycles / self.clock_hz}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """How a step depends on the fitted costs: what is slower, the chips or what runs beside them.

    Exact but where a price makes another chip the slowest.
    `base_s` are the seconds of all that the chips do in turn, who also wait for exchange
    supersteps, reductions, and collectives times machines; `floor_s` those of the host beside them.
    The call that starts a step comes on top of the slower, and so does its part of a run; a loader,
    which needs `loader_s`, goes on beside the call, too.
    """

    base_s: float
    floor_s: float
    loader_s: float = 0.0
    exchanges: int
    reductions: float
    collectives: float
    clock_hz: float
    iterations: int = 1

    @property
    def beside_s(self) -> float:
        """Seconds that what runs beside the chips needs: a step takes them at least."""
        return max(self.floor_s, self.loader_s)

    def busy_s(self, costs: FittedCosts) -> float:
        """Return the seconds of the chips."""
        return (
            self.base_s
            + self.exchanges * costs.exchange_cycles / self.clock_hz
            + self.reductions * costs.reduction_s
            + self.collectives * costs.collective_s
        )

    def step_s(self, costs: FittedCosts) -> float:
        """Return the seconds of a step."""
        called = max(self.floor_s, self.busy_s(costs)) + costs.once_s(self.iterations)
        return max(self.loader_s, called)


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """A step at given costs.

    `step_s` are the seconds from one step to the next, which its parts add up to, `latency_s` those
    from request to result, in training the step itself.
    """

    parts_s: Mapping[str, float]
    step_s: float
    latency_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a step consists of.

    `schedule` is what the chips of a replica do, `beside` what each micro-batch takes besides, None
    where it overlaps with the chips. `after` has what comes once in a training step, after all
    micro-batches, by part: of the chips of a replica the longest counts; what the schedule says of
    the `UPDATE` stands in its place. `iterations` steps are one run of the device. A step takes at
    least `host_s`, which the host needs beside the chips, and with its call `loader_s`, in which a
    loader prepares its items; `between_s` host processes spend between two runs of the device.
    `depth` are steps from request to result.
    """

    training: bool
    clock_hz: float
    schedule: Schedule
    beside: Beside | None
    host_s: float
    loader_s: float
    between_s: float
    depth: float = 1
    after: Mapping[str, Collective] = field(default_factory=dict)
    iterations: int = 1

    def price(self, costs: FittedCosts) -> Priced:
        """Return the step at given costs, none of them negative or implausibly large."""
        for cost in astuple(costs):
            if not 0 <= cost < MAX_COST:
                raise ConfigError(f"A fitted cost is {cost!r} s: give 0 or more seconds.")
        parts = self.schedule.parts_s(costs, self.beside)
        update = parts.pop(UPDATE)
        if self.training:
            parts |= {name: one.at(costs.collective_s) for name, one in self.after.items()}
            parts |= {UPDATE: update, BETWEEN: self.between_s}
        busy, fixed = fsum(parts.values()), costs.once_s(self.iterations)
        # [A] The call is not hidden by transfers beside the chips, nor by a host that is slower.
        waiting = max(0.0, self.host_s - busy, self.loader_s - busy - fixed)
        parts |= {"fixed": fixed, WAITING: waiting}
        step = fsum(parts.values())
        if self.training:
            shown = {name: seconds for name, seconds in parts.items() if seconds}
            return Priced(parts_s=shown, step_s=step, latency_s=step)
        # Frameworks take the latency within a run (PopTorch's getLatency), unless that is one step.
        within = step if self.iterations == 1 else step - fixed + costs.step_s
        latency = self.depth * within
        if self.between_s:
            parts[BETWEEN] = self.between_s
            step += self.between_s
        return Priced(parts_s=parts, step_s=step, latency_s=latency)

    def _busy_s(self, **costs: float) -> float:
        parts = self.price(FittedCosts(**costs)).parts_s
        return fsum(seconds for name, seconds in parts.items() if name != WAITING)

    def line(self) -> Line:
        """Return how the step depends on the costs: counts, or what one alone comes to.

        Exchanges and reductions are tried: only its price says which chip of a schedule is slowest.
        """
        free = self._busy_s()
        after = 0.0 if self.training else self.between_s
        collectives = self.after.values() if self.training else ()
        reduced = self.beside is not None and self.beside.reductions
        exchanged_s = self._busy_s(exchange_cycles=FEW_CYCLES) - free
        return Line(
            base_s=free,
            floor_s=self.host_s + after,
            loader_s=self.loader_s + after,
            # Rounded as far as sums of seconds are exact.
            exchanges=round(exchanged_s * self.clock_hz / FEW_CYCLES),
            reductions=round(self._busy_s(reduction_s=1.0) - free, 6) if reduced else 0.0,
            collectives=sum(one.repeats * one.paid for one in collectives),
            clock_hz=self.clock_hz,
            iterations=self.iterations,
        )
