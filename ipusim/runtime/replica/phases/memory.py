"""Memory of a chip in each of its phases."""

from collections.abc import Mapping
from dataclasses import replace

from ipusim.compiler import memory
from ipusim.compiler.code_size import Code, code_size
from ipusim.compiler.tiles import ceil_div
from ipusim.runtime.replica.partition import part_of
from ipusim.runtime.replica.phases.plan import PhasePlan
from ipusim.runtime.replica.phases.streams import ADJACENT, COMPUTED, stored_as
from ipusim.workload.graph import Graph


def phase_memories(plan: PhasePlan) -> dict[int, memory.Memory]:
    """Return the memory of the chip of every phase while that phase is on it.

    Live are what the phase computes with, what passes through it (`streams`), and what other
    micro-batches of the phase wait with. Code stays for all phases of a chip: PopART loads none
    (docs/popxl/graph.rst tells of code in Streaming Memory, which is PopXL's alone). Preloading
    comes once the phase has computed and before it stores: then results and changed weights wait
    beside what the chip's next phase needs, and weights that are read no more are gone. Tiles set
    aside for transfers hold what is loaded themselves.
    """
    cut, codes = plan.cut, []
    for ipu in range(cut.ipus):
        update = plan.update.programs[ipu] if plan.update else None
        codes.append(code_size(*cut.on_chip(ipu), cut.chip.tiles, update=update))
    made = _made(plan)
    return {
        number: _measured(plan, number, made.get(number, {}), codes[number % plan.chips])
        for number in dict.fromkeys((*plan.forward, *plan.backward))
    }


def _made(plan: PhasePlan) -> dict[int, dict[str, int]]:
    """Return the phase that reads it last of every activation, by the phase that makes it."""
    graph, readers = plan.cut.graph, plan.cut.graph.consumers()
    result: dict[int, dict[str, int]] = {}
    for name, op in graph.producers().items():
        if graph.tensors[name].alias_of is None:
            number = plan.number_of[op.name]
            last = max((plan.number_of[reader.name] for reader in readers[name]), default=number)
            result.setdefault(number, {})[name] = last
    return result


def _measured(plan: PhasePlan, number: int, made: Mapping[str, int], code: Code) -> memory.Memory:
    kept = _kept(plan, number, made)
    ops = [op for op in plan.cut.graph.ops if plan.number_of[op.name] == number]
    part, program = part_of(plan.cut.graph, plan.cut.lowered, ops, kept)
    sizes = {name: tensor.bytes for name, tensor in part.tensors.items()}
    kept_bytes = sum(sizes[name] for name in kept)
    # Of the other micro-batches some wait with what arrives and the rest with what they hand on.
    each = {held.name for held in plan.held if held.of_each}
    waits = [sum(sizes[name] for name in each.intersection(ends)) for ends in (part.inputs, kept)]
    waiting = (plan.micro_batches - 1) * max(waits)
    resident = _resident_bytes(plan, number, part) + waiting
    measured = memory.measure(part, program, plan.cut.chip, resident_bytes=resident)
    return _with_preload(replace(measured, code=code), plan, number, kept_bytes)


def _with_preload(
    measured: memory.Memory, plan: PhasePlan, number: int, kept_bytes: int
) -> memory.Memory:
    """Add the moment at which what the chip's next phase needs has been loaded."""
    following = number + plan.chips
    ahead = plan.adjoining and not plan.config.io_tiles
    loaded = plan.moved_bytes("loads", following) if ahead else 0
    if not loaded:
        return measured
    beside = max(0, kept_bytes + loaded - _done_bytes(plan, number))
    point = memory.LivePoint(
        op=f"loads of phase {following}",
        tiles=measured.tiles,
        activation_bytes=ceil_div(beside, measured.tiles),
        temp_bytes=0,
        interleaved_bytes=0,
        chip_bytes=beside,
    )
    return replace(measured, points=(*measured.points, point))


def _done_bytes(plan: PhasePlan, number: int) -> int:
    """Return the bytes of weights that a phase computes with, and that need not stay after it."""
    total = 0
    for held in plan.on_chip_of(number):
        soon = any(number < use <= number + ADJACENT for use in held.touched)
        streamed = held.loads and held.kind not in COMPUTED
        if streamed and number in held.used and number not in held.stores and not soon:
            total += held.bytes
    return total


def _kept(plan: PhasePlan, number: int, made: Mapping[str, int]) -> tuple[str, ...]:
    """Return the activations of a phase that stay when it has computed."""
    kept = [name for name, last in made.items() if last > number or name in plan.cut.graph.kept]
    for held in plan.on_chip_of(number):
        if held.kind in COMPUTED and held.name not in made and number in held.used:
            later = [use for use in held.used if use > number]
            if later and (held.stay is None or later[0] - number <= held.stay):
                kept.append(held.name)
    return tuple(sorted(kept))


def _resident_bytes(plan: PhasePlan, number: int, part: Graph) -> int:
    """Return the bytes on the chip of a phase that it does not compute with."""
    own = {stored_as(plan.cut.graph, name) for name in part.tensors}
    total = 0
    for held in plan.on_chip_of(number):
        stays = held.stay is None and held.kind not in COMPUTED
        if held.name not in own and (stays or held.on_chip(number)):
            total += held.bytes * (plan.micro_batches if held.of_each else 1)
    if plan.update is not None and not plan.state_off_chip:
        total += sum(
            size
            for name, size in plan.update.state_bytes.items()
            if (plan.update.number_of[name] - number) % plan.chips == 0
        )
    return total
