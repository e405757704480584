"""One replica that holds a phase of the model at a time: where its time goes, what it needs.

Phases are stages that share chips in time: `plan` cuts a graph into them, `streams` tells what is
streamed, `memory` what lies on the chip.

A phase is followed by the loads for the next and then by its own stores
(graphcore/popart@sdk/poplar/3.3.0:willow/src/transforms/streamingmemoryopinserter.cpp, setPriority;
willow/src/schedulegraphgrower.cpp: "compute phase n, load weights of phase n+1"). While a chip
streams it does not compute (docs/popart/overlap_io.rst), so all of it adds up; but two chips that
take turns stream in the phase of the other, which the sync pattern ReplicaAndLadder is for
(docs/popart/performance.rst), and tiles set aside for transfers stream beside the others. Copies
between chips or from tile to tile and collectives stop the overlap (setPriority).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import fsum

from ipusim.runtime.calibration import FittedCosts
from ipusim.runtime.compile import Compiled
from ipusim.runtime.options.spec import STREAMED, RunConfig
from ipusim.runtime.replica.balance import stage_transfer_s
from ipusim.runtime.replica.partition import Replica, Stage, measured_once
from ipusim.runtime.replica.phases.memory import phase_memories
from ipusim.runtime.replica.phases.plan import PhasePlan, plan_phases
from ipusim.runtime.replica.phases.streams import COMPUTED, handed_over_bytes
from ipusim.runtime.terms import UPDATE, Beside, Work
from ipusim.workload.training import ACCUMULATOR_SUFFIX

STATE_PART = "streamed optimiser state"
COLUMNS = ("compute", "blocking", "load", "store")
"""What a phase spends seconds on: computing; what nothing overlaps with; loading for itself in the
phase before; storing, and what else runs after it has handed over."""

Contribution = tuple[str, str, Sequence[float]]
"""Part of the step, column, seconds of every phase."""


def phased_seconds(
    compute: Sequence[float],
    blocking: Sequence[float],
    load: Sequence[float],
    store: Sequence[float],
    *,
    overlapped: bool,
) -> float:
    """Return the seconds from the first load to the last store of phases (`COLUMNS`)."""
    if not overlapped:
        return fsum(chain(compute, blocking, load, store))
    # Phase n computes while what phase n + 1 needs is loaded and what phase n - 1 leaves is stored,
    # one after the other on the same chip or tiles.
    beside = zip(compute, (0.0, *store), (*load[1:], 0.0), strict=False)
    hidden = (max(busy, stored + loaded) for busy, stored, loaded in beside)
    return fsum((load[0], *hidden, *blocking, store[-1]))


def parts_s(
    contributions: Iterable[Contribution], phases: int, *, overlapped: bool
) -> dict[str, float]:
    """Return how much longer each part makes the whole, the contributions of one in a row."""
    columns = {name: [0.0] * phases for name in COLUMNS}
    result: dict[str, float] = {}
    reached = 0.0
    for part, column, seconds in contributions:
        columns[column] = [old + new for old, new in zip(columns[column], seconds, strict=True)]
        total = phased_seconds(**columns, overlapped=overlapped)
        result[part] = result.get(part, 0.0) + total - reached
        reached = total
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Phased:
    """Micro-batches on chips that hold one phase at a time.

    `compute` is that of every phase in one pass, `contributions` what else a pass spends seconds
    on, `after_s` what follows all passes.
    """

    compute: tuple[Work, ...]
    contributions: tuple[Contribution, ...]
    after_s: Mapping[str, float]
    overlapped: bool
    passes: int
    times: int

    def parts_s(self, costs: FittedCosts, beside: Beside | None) -> dict[str, float]:
        """As `Schedule` says."""
        device = ("device", "compute", [work.at(costs) for work in self.compute])
        once = parts_s((device, *self.contributions), len(self.compute), overlapped=self.overlapped)
        parts = {name: self.passes * seconds for name, seconds in once.items() if seconds}
        for name, seconds in self.after_s.items():
            parts[name] = parts.get(name, 0.0) + seconds
        update = parts.pop(UPDATE, 0.0)
        return parts | (beside.parts_s(self.times, costs) if beside else {}) | {UPDATE: update}


def phased_replica(compiled: Compiled, config: RunConfig) -> Replica:
    """Run a graph in phases, which are the stages of the result.

    Where a phase computes all micro-batches of an update, it updates its weights itself; otherwise
    the update follows all micro-batches and streams what it reads and writes without overlap
    (PopART: ExecutionContext::AccumulateOuterFragment, which belongs to no phase). Optimiser state
    is loaded on demand, PopART's default, when the phase has handed over. With tiles for transfers
    the update runs on the others (PopTorch's default, useIOTilesToStore False).
    """
    plan = plan_phases(compiled, config)
    # A pass puts together weights whose shards it loads, once for each load.
    gathered = tuple(held.bytes for held in plan.held if held.parts > 1 for _ in held.loads)
    passes = config.micro_batches // plan.micro_batches
    after: dict[str, float] = {}
    if plan.update and not plan.in_phase:
        cycles = max(part.cycles for part in plan.update.programs)
        after = {UPDATE: cycles / compiled.chip.clock_hz, **_update_streams_s(plan)}
    return Replica(
        schedule=Phased(
            compute=_compute(plan),
            contributions=tuple(_contributions(plan)),
            after_s=after,
            overlapped=plan.overlapped,
            passes=passes,
            times=config.micro_batches,
        ),
        parameters=plan.cut.parameters,
        measured=measured_once(_stages, plan),
        gathers=passes * gathered if "weights" in config.off_chip else None,
    )


def _contributions(plan: PhasePlan) -> Iterator[Contribution]:
    """Yield what a pass spends seconds on besides computing, by part and column."""
    numbers = range(plan.count)
    if plan.chips > 1:
        handed = handed_over_bytes(plan.cut.graph, plan.number_of)
        sizes = [plan.micro_batches * handed.get(number, 0) for number in numbers]
        copies = [stage_transfer_s(plan.config.system, (0, 1), [size]) for size in sizes]
        yield "stage transfers", "blocking", copies
    # One of two chips goes on by itself once it has handed over to the other.
    after = "store" if plan.chips > 1 else "blocking"
    if plan.in_phase:
        cycles, clock = plan.update.cycles, plan.cut.chip.clock_hz
        yield UPDATE, after, _by_number(plan, cycles, 1 / clock)
    loading = "load" if plan.config.load_schedule == "preload" else "blocking"
    for kind in STREAMED:
        part = f"streamed {kind}"
        loads, stores = (
            [plan.moved_bytes(way, number, kind) for number in numbers]
            for way in ("loads", "stores")
        )
        yield part, loading, [_streaming_s(plan, size) for size in loads]
        yield part, "store", [_streaming_s(plan, size) for size in stores]
        if plan.config.io_tiles:
            moved = [sum(both) for both in zip(loads, stores, strict=True)]
            # Between the tiles for transfers and the others.
            chip = plan.config.system.chip
            rate = plan.config.io_tiles * chip.exchange_bytes_per_cycle * chip.clock_hz
            yield part, "blocking", [size / rate for size in moved]
    if plan.in_phase and plan.state_off_chip:
        both_ways = 2 * _streaming_s(plan, 1)
        yield STATE_PART, after, _by_number(plan, plan.update.state_bytes, both_ways)


def _compute(plan: PhasePlan) -> tuple[Work, ...]:
    clock = plan.cut.chip.clock_hz
    result = [Work(seconds=0.0, exchanges=0, clock_hz=clock) for _ in range(plan.count)]
    for numbers, works in zip((plan.forward, plan.backward), plan.cut.works, strict=True):
        for number, own in zip(numbers, works, strict=False):
            result[number] += replace(
                own,
                seconds=plan.micro_batches * own.seconds,
                exchanges=plan.micro_batches * own.exchanges,
            )
    return tuple(result)


def _by_number(plan: PhasePlan, amounts: dict[str, int], each_s: float) -> list[float]:
    """Return the seconds of every phase for what its parameters need."""
    result = [0.0] * plan.count
    for name, number in plan.update.number_of.items():
        result[number] += each_s * amounts[name]
    return result


def _streaming_s(plan: PhasePlan, size: int) -> float:
    """Seconds to move bytes between a chip and Streaming Memory, at the rate of its own link."""
    return size / plan.config.system.buffer_link_bytes_per_s_per_ipu


def _update_streams_s(plan: PhasePlan) -> dict[str, float]:
    """Return the seconds of streaming for an update after all phases; chips stream side by side."""
    update, chips = plan.update, range(plan.chips)
    # Of weights that both chips hold, the last counts.
    kinds = plan.config.off_chip.difference(COMPUTED)
    off_chip = {held.name: held for held in plan.held if held.kind in kinds}
    moved: dict[str, list[int]] = {}
    for name, held in off_chip.items():
        number = update.number_of.get(name.removesuffix(ACCUMULATOR_SUFFIX))
        if number is not None:
            part = moved.setdefault(f"streamed {held.kind}", [0 for _ in chips])
            part[number % plan.chips] += 2 * held.moved_bytes
    if plan.state_off_chip:
        part = moved.setdefault(STATE_PART, [0 for _ in chips])
        for name, size in update.state_bytes.items():
            part[update.number_of[name] % plan.chips] += 2 * size
    return {name: _streaming_s(plan, max(sizes)) for name, sizes in moved.items()}


def _stages(plan: PhasePlan) -> tuple[Stage, ...]:
    """Return every forward phase with its backward part, in the fuller of the two."""
    memories = phase_memories(plan)
    result = []
    for phase, number in enumerate(plan.forward):
        own = dict.fromkeys((number, *plan.backward[phase : phase + 1]))
        fuller = max((memories[one] for one in own), key=lambda used: used.peak_tile_bytes)
        streamed = sum(plan.moved_bytes(way, one) for one in own for way in ("loads", "stores"))
        result.append(plan.cut.stage(phase, plan.micro_batches, fuller, streamed))
    return tuple(result)
