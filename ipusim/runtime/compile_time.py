"""Time to compile a program, which the first epoch of a training run contains."""

from collections.abc import Sequence
from dataclasses import dataclass

from ipusim.compiler.program import LoweredOp, Program


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledCode:
    """What the compiler has to generate for one replica: distinct operations and their supersteps.

    Repeated operations are outlined and generated once. A tile step is one vertex on one tile, with
    its exchange.
    """

    operations: int
    supersteps: int
    tile_steps: int


def compiled_code(*programs: Program) -> CompiledCode:
    """Count what is distinct in the programs of one executable, whatever has supersteps."""
    distinct: dict[tuple[object, ...], LoweredOp] = {}
    for program in programs:
        distinct |= program.distinct
    steps = [step for op in distinct.values() for step in op.steps]
    return CompiledCode(
        operations=len(distinct),
        supersteps=len(steps),
        tile_steps=sum(step.tiles for step in steps),
    )


def compile_s(code: CompiledCode, s_per_tile_step: float, ipus_per_replica: int = 1) -> float:
    """Return the seconds to compile `code` for each chip of a replica.

    Replicas share one executable, so their number does not matter; a cost of 0 leaves compilation
    out.
    """
    return s_per_tile_step * code.tile_steps * ipus_per_replica


def fit_s_per_tile_step(seconds: Sequence[float], tile_steps: Sequence[int]) -> float:
    """Return the least-squares cost of a tile step from compile times, without an offset."""
    paired = zip(seconds, tile_steps, strict=True)
    return sum(time * steps for time, steps in paired) / sum(steps**2 for steps in tile_steps)


def first_epoch_items_per_s(items: float, items_per_s: float, compile_seconds: float) -> float:
    """Return the items per second over an epoch that begins with compilation."""
    return items / (items / items_per_s + compile_seconds)
