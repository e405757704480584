"""A lowered graph cut into phases: which phase runs what, and what each loads and stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ipusim.compiler.program import Program
from ipusim.compiler.tiles import ceil_div
from ipusim.errors import ConfigError
from ipusim.runtime.compile import Compiled
from ipusim.runtime.options.spec import LIVENESS, RunConfig
from ipusim.runtime.phase_splits import forward_splits
from ipusim.runtime.replica.partition import Partitioned, partition
from ipusim.runtime.replica.phases import streams
from ipusim.workload.graph import Graph
from ipusim.workload.optimizers import kept_states


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateShares:
    """The weight update by parameter, and the program of each chip.

    Of each parameter: the phase in which its gradient is complete, which is one of its chip, the
    cycles of its update and the bytes of its optimiser state.
    """

    number_of: Mapping[str, int]
    cycles: Mapping[str, int]
    state_bytes: Mapping[str, int]
    programs: tuple[Program, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PhasePlan:
    """What runs in which phase; the forward phases are the stages of `cut`.

    `forward` and `backward` are the numbers of the parts of each phase, `number_of` that of every
    operator. Phases that compute all micro-batches update their weights themselves (`in_phase`).
    """

    cut: Partitioned
    config: RunConfig
    forward: tuple[int, ...]
    backward: tuple[int, ...]
    number_of: Mapping[str, int]
    held: tuple[streams.Held, ...]
    update: UpdateShares | None
    in_phase: bool

    @property
    def count(self) -> int:
        """Numbers of phases, those left out too."""
        return max(*self.forward, *self.backward) + 1

    @property
    def chips(self) -> int:
        """Chips that take turns."""
        return self.config.ipus_per_replica

    @property
    def micro_batches(self) -> int:
        """Micro-batches that a phase computes in a row."""
        return self.config.micro_batches_per_phase

    @property
    def adjoining(self) -> bool:
        """Whether what a phase needs is loaded at the end of the phase before."""
        preloads = self.config.load_schedule == "preload"
        return preloads and LIVENESS[self.config.phase_liveness] == 1

    @property
    def overlapped(self) -> bool:
        """Whether transfers of other phases run beside a phase."""
        beside = self.chips > 1 or self.config.io_tiles > 0
        return beside and LIVENESS[self.config.phase_liveness] == 1

    @property
    def state_off_chip(self) -> bool:
        """Whether optimiser state lies in Streaming Memory."""
        return self.update is not None and self.config.optimizer_state == "off_chip"

    def moved_bytes(self, way: str, number: int, kind: str | None = None) -> int:
        """Return the bytes that a phase "loads" or "stores", of all kinds or of one."""
        return sum(
            held.moved_bytes
            for held in self.held
            if number in getattr(held, way) and kind in (None, held.kind)
        )

    def on_chip_of(self, number: int) -> list[streams.Held]:
        """Return what the chip of a phase holds at some time."""
        return [held for held in self.held if held.chip == number % self.chips]

    def check(self) -> PhasePlan:
        """Return the plan if tiles for transfers and Streaming Memory hold what they must."""
        config, system = self.config, self.config.system
        loads = [self.moved_bytes("loads", number) for number in range(self.count)]
        loaded = max(loads)
        room = config.io_tiles * system.chip.bytes_per_tile
        if config.io_tiles and loaded > room:
            raise ConfigError(
                f"The {config.io_tiles} I/O tiles hold {room:,} B, but {loaded:,} B are loaded for "
                f"phase {loads.index(loaded)}: give more io_tiles or more phases, or turn "
                "overlap_io off."
            )
        lying = sum(held.moved_bytes for held in self.held if held.loads)
        if self.state_off_chip:
            lying += sum(self.update.state_bytes.values())
        replicas = min(config.replicas, max(1, system.ipus_per_machine // self.chips))
        if replicas * lying > system.streaming_memory_bytes_per_machine:
            raise ConfigError(
                f"The {replicas} replicas on one machine keep {replicas * lying:,} B in Streaming "
                f"Memory, but a machine of {system.name} has "
                f"{system.streaming_memory_bytes_per_machine:,.0f} B: use fewer replicas."
            )
        return self


def plan_phases(compiled: Compiled, config: RunConfig) -> PhasePlan:
    """Cut a graph into phases whose transfers fit the tiles set aside and Streaming Memory."""
    graph, trains = compiled.graph, compiled.update is not None
    splits = forward_splits(graph, config)
    ipus = tuple(phase % config.ipus_per_replica for phase in range(len(splits) + 1))
    cut = partition(compiled, splits, ipus)
    forward, backward = streams.phase_numbers(len(ipus), config.phase_liveness, training=trains)
    number_of = {
        op.name: (forward if op.phase == "forward" else backward)[cut.stage_of[op.name]]
        for op in graph.ops
    }
    shares = _shares(cut, backward, compiled) if trains else None
    in_phase = shares is not None and config.micro_batches_per_phase == config.micro_batches
    updated = shares.number_of if in_phase else {}
    held = streams.held_tensors(graph, number_of, config.ipus_per_replica, updated)
    return PhasePlan(
        cut=cut,
        config=config,
        forward=forward,
        backward=backward,
        number_of=number_of,
        held=tuple(
            _streamed(one, graph, config)
            for one in held
            # Sums that the phase itself uses up are not handed on.
            if one.kind != "accumulators" or not in_phase
        ),
        update=shares,
        in_phase=in_phase,
    ).check()


def _streamed(held: streams.Held, graph: Graph, config: RunConfig) -> streams.Held:
    """Add what lies off the chip how long stays, and what moves when."""
    if held.kind not in config.off_chip:
        return held
    loads, stores = streams.transfers(held.made, held.used, held.changed)
    size, parts = held.bytes, 1
    if held.of_each:
        size *= config.micro_batches_per_phase
    elif held.kind == "weights" and loads:
        parts = config.sharding.parts(graph.tensors[held.name])
    moved = {"loads": loads, "stores": stores, "moved_bytes": ceil_div(size, parts)}
    return replace(held, stay=streams.ADJACENT, parts=parts, **moved)


def _shares(cut: Partitioned, backward: Sequence[int], compiled: Compiled) -> UpdateShares:
    """Share the weight update out: a parameter belongs to the first phase that reads it."""
    graph = compiled.update
    state_bytes = {state.name: state.bytes for state in kept_states(graph)}
    cycles: dict[str, int] = {}
    states: dict[str, dict[str, int]] = {}
    for op, low in zip(graph.ops, compiled.update_program.ops, strict=True):
        name = streams.stored_as(cut.graph, op.source)
        cycles[name] = cycles.get(name, 0) + low.cycles
        for read in op.inputs:
            if read in state_bytes:
                states.setdefault(name, {})[read] = state_bytes[read]
    return UpdateShares(
        number_of={name: backward[cut.owners[name]] for name in cycles},
        cycles=cycles,
        state_bytes={name: sum(states.get(name, {}).values()) for name in cycles},
        programs=cut.updates(compiled),
    )
