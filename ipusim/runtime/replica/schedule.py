"""Time of a pipelined step: schedules, fill and drain, micro-batches in flight."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import fsum

from ipusim.errors import ConfigError
from ipusim.runtime.options.frameworks import Framework


@dataclass(frozen=True, slots=True)
class Order:
    """When stages run: micro-batch k of a period starts `offsets[k]` steps into it."""

    ipus: tuple[int, ...]
    seconds: tuple[float, ...]
    passes: tuple[tuple[int, ...], ...]
    period: int
    offsets: tuple[int, ...]

    @property
    def slots(self) -> int:
        """Steps that one micro-batch needs."""
        return len(self.ipus)

    def running(self, step: int, periods: int) -> Iterator[tuple[int, int]]:
        """Yield each slot that runs in a step of so many periods, with its micro-batch."""
        for place, offset in enumerate(self.offsets):
            for slot in range(self.slots):
                begun, late = divmod(step - offset - slot, self.period)
                if late == 0 and 0 <= begun < periods:
                    yield slot, begun * len(self.offsets) + place

    def step(self, step: int, periods: int) -> _Step:
        """Return what happens in a step of so many periods."""
        load: dict[int, float] = {}
        sent = copies = False
        for slot, _ in self.running(step, periods):
            ipu = self.ipus[slot]
            load[ipu] = load.get(ipu, 0.0) + self.seconds[slot]
            sent |= slot == 0
            copies |= slot + 1 < self.slots and self.ipus[slot + 1] != ipu
        return _Step(max(load.values(), default=0.0), sent, copies)

    def periods(self, accumulation: int) -> int:
        """Return how many periods the micro-batches of a weight update take."""
        at_once = len(self.offsets)
        if accumulation % at_once:
            raise ConfigError(
                f"A gradient accumulation of {accumulation} does not fit the {at_once} "
                f"micro-batches in flight on these IPUs: use a multiple of {at_once}."
            )
        return accumulation // at_once

    def steps(self, periods: int) -> int:
        """Return the steps of so many periods, each ended by the copies between stages."""
        return (periods - 1) * self.period + max(self.offsets) + self.slots

    def time_s(self, accumulation: int, transfer_s: float = 0.0, host_s: float = 0.0) -> float:
        """Return the seconds of all micro-batches of one weight update.

        `host_s` are the seconds of a micro-batch's transfers from and to the host, which all chips
        wait for in every step that a micro-batch begins with. `transfer_s` ends every step in which
        a stage hands over to another chip. All chips end a step together; within it a chip runs its
        stages one after the other. In an interleaved pipeline a step holds one stage of a chip
        only, so forward stages wait for backward stages on other chips. Balanced stages on chips of
        their own, grouped, without transfers, idle for a share of ``(P - 1) / (GA + P - 1)``.

        What the host sends opens a step (graphcore/popart@sdk/poplar/3.3.0:willow/src/popx/
        popprograms.cpp, addPipelineCycle), and by default all chips meet for it (docs/popart/
        performance.rst, sync pattern Full; graphcore/poptorch@sdk/poptorch/3.3.0:python/
        options.py); `options.frameworks` has it as a property.
        """
        periods = self.periods(accumulation)
        full = max(self.offsets) + self.slots - 1  # from this step on every slot is taken
        entered = periods * self.period  # from this step on no micro-batch begins

        def spent(first: int, stop: int) -> float:
            run = (self.step(step, periods) for step in range(first, stop))
            return fsum(step.seconds(transfer_s, host_s) for step in run)

        rounds, rest = divmod(max(0, entered - full), self.period)
        # Until every stage works, while all do, and until the last micro-batch has left.
        fill = spent(0, full)
        steady = rounds * spent(full, full + self.period) + spent(entered - rest, entered)
        drain = spent(max(full, entered), self.steps(periods))
        return fill + steady + drain


@dataclass(frozen=True, slots=True)
class _Step:
    """The chip with most to do in a step; whether the host sends, and whether any chip copies."""

    busy_s: float
    sent: bool
    copies: bool

    def seconds(self, transfer_s: float, host_s: float) -> float:
        """What the host sends, the chip with most to do, then the copies."""
        return self.sent * host_s + self.busy_s + self.copies * transfer_s


def pipeline_order(
    forward: Sequence[float],
    backward: Sequence[float],
    ipus: Sequence[int],
    schedule: str,
    framework: Framework,
) -> Order:
    """Return the slots of one micro-batch, and how micro-batches follow each other.

    PopART merges the forward and the backward half of the last stage into one slot: 2 P - 1 slots
    (graphcore/popart willow/src/ir.cpp, getMaxPipelineStage). TensorFlow keeps 2 P slots; grouped
    starts a micro-batch at every step, interleaved at the rotations of the slots in which no chip
    is used twice, sequential when the one before has left (graphcore/tensorflow
    pipeline_visitor_utils.h, ScheduleOffsets).
    """
    merged = schedule == "grouped" and framework.last_stage_merged
    stages = len(ipus)
    slot_ipus = [*ipus, *reversed(ipus)]
    seconds = [*forward, *reversed(backward)]
    passes = [(index,) for index in (*range(stages), *reversed(range(stages, 2 * stages)))]
    if merged:
        last = stages - 1
        seconds[last] += seconds.pop(last + 1)
        passes[last] += passes.pop(last + 1)
        slot_ipus.pop(last + 1)
    if schedule == "grouped":
        period, offsets = 1, (0,)
    elif schedule == "sequential":
        period, offsets = len(slot_ipus), (0,)
    else:
        period, offsets = len(slot_ipus), _rotations(slot_ipus)
    return Order(tuple(slot_ipus), tuple(seconds), tuple(passes), period, offsets)


def _rotations(slot_ipus: Sequence[int]) -> tuple[int, ...]:
    """Return the rotations of the slots, smallest first, that never meet on a chip."""
    size = len(slot_ipus)
    chosen: list[int] = []
    for shift in range(size):
        if all(
            slot_ipus[(slot - shift) % size] != slot_ipus[(slot - other) % size]
            for other in chosen
            for slot in range(size)
        ):
            chosen.append(shift)
    return tuple(chosen)


def accumulation_rule(stages: int, schedule: str, framework: Framework) -> tuple[int, int]:
    """Return the least gradient accumulation of a pipeline, and what it must be a multiple of.

    PopART and PopTorch: enough micro-batches to fill the pipeline, 2 P - 1 (graphcore/popart
    willow/src/transforms/pipeline.cpp). TensorFlow: a multiple of the micro-batches in flight, 2 P
    grouped and P interleaved (graphcore/tensorflow pipeline_visitor.cc, VerifyPipelineArguments).
    One stage, or sequential: no rule.
    """
    most = max(micro_batches_in_flight(stages, schedule, framework))
    one_slot = framework.last_stage_merged and schedule == "grouped"
    return most, 1 if one_slot else most


def micro_batches_in_flight(stages: int, schedule: str, framework: Framework) -> tuple[int, ...]:
    """Return, for each stage, how many micro-batches its stored activations belong to.

    From the forward pass of a micro-batch on the stage to its backward pass there, both counted:
    grouped 2 (P - s) - 1 with PopART and 2 (P - s) with TensorFlow, interleaved P - s, sequential
    or with a single stage 1, for stage s of P.
    """
    left = range(stages, 0, -1)
    if stages == 1 or schedule == "sequential":
        return (1,) * stages
    if schedule == "interleaved":
        return tuple(left)
    return tuple(2 * rest - framework.last_stage_merged for rest in left)


def check_accumulation(count: int, stages: int, schedule: str, framework: Framework) -> None:
    """Raise `ConfigError` for a gradient accumulation that no such pipeline takes."""
    least, multiple = accumulation_rule(stages, schedule, framework)
    if count >= least and count % multiple == 0:
        return
    valid = f"{least} or more" if multiple == 1 else f"a multiple of {multiple}"
    raise ConfigError(
        f"A gradient accumulation of {count} does not fill a {schedule} pipeline of {stages} "
        f"stages: use {valid}."
    )
