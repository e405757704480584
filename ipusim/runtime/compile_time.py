"""Time to compile a program, which the first epoch of a training run contains."""

from collections.abc import Sequence

from ipusim.compiler.program import LoweredOp, Program


def tile_steps(*programs: Program) -> int:
    """Count what the compiler generates for an executable: vertices on tiles, with their exchange.

    Repeated operations are outlined and generated once, and so are the repeats of a loop; replicas
    share one executable.
    """
    distinct: dict[tuple[object, ...], LoweredOp] = {}
    for program in programs:
        distinct |= program.distinct
    return sum(step.tiles for op in distinct.values() for step in op.steps)


def fit_s_per_tile_step(seconds: Sequence[float], tile_steps: Sequence[int]) -> float:
    """Return the least-squares cost of a tile step from compile times, without an offset."""
    paired = zip(seconds, tile_steps, strict=True)
    return sum(time * steps for time, steps in paired) / sum(steps**2 for steps in tile_steps)


def first_epoch_items_per_s(items: float, items_per_s: float, compile_seconds: float) -> float:
    """Return the items per second over an epoch that begins with compilation."""
    return items / (items / items_per_s + compile_seconds)
