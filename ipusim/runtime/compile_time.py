"""Time to compile a program, which the first epoch of a training run contains."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ipusim.compiler.program import LoweredOp, Program
from ipusim.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledCode:
    """What the compiler has to generate for one replica.

    Attributes
    ----------
    operations : int
        Distinct operations; repeated ones are outlined and generated once.
    supersteps : int
        Supersteps of these.
    tile_steps : int
        Tiles that take part, added up over these supersteps: one vertex on one tile, with its
        exchange, each.
    """

    operations: int
    supersteps: int
    tile_steps: int


def compiled_code(*programs: Program) -> CompiledCode:
    """Count what is distinct in the programs of one executable.

    Parameters
    ----------
    *programs : Program
        For example a micro-batch and a weight update.

    Returns
    -------
    CompiledCode
        Operations without supersteps count nothing.
    """
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
    """Return the seconds to compile a program.

    Parameters
    ----------
    code : CompiledCode
        Of the whole replica, or of one of its chips if the chips carry alike parts.
    s_per_tile_step : float
        Calibrated seconds per vertex on a tile; 0 leaves compilation out.
    ipus_per_replica : int
        Chips that each carry `code`.

    Returns
    -------
    float
        Seconds. Replicas share one executable, so their number does not matter.

    Raises
    ------
    ConfigError
        If a number is out of range.
    """
    if not 0 <= s_per_tile_step < math.inf:
        raise ConfigError(
            f"A compile time of {s_per_tile_step} seconds per tile and step is impossible: give a "
            "finite number, 0 or more."
        )
    if ipus_per_replica < 1:
        raise ConfigError(f"A replica of {ipus_per_replica} IPUs is impossible: use 1 or more.")
    return s_per_tile_step * code.tile_steps * ipus_per_replica


def fit_s_per_tile_step(seconds: Sequence[float], tile_steps: Sequence[int]) -> float:
    """Return the least-squares cost of a tile step from compile times, without an offset.

    Parameters
    ----------
    seconds : sequence of float
        Compile times.
    tile_steps : sequence of int
        Vertices on tiles of each program.

    Raises
    ------
    ConfigError
        If there is nothing to fit on.
    """
    squares = sum(steps**2 for steps in tile_steps)
    if not squares or len(seconds) != len(tile_steps):
        raise ConfigError(
            f"{len(seconds)} compile times and {len(tile_steps)} programs cannot be fitted: give "
            "one program with supersteps per time."
        )
    paired = zip(seconds, tile_steps, strict=True)
    return sum(time * steps for time, steps in paired) / squares


def first_epoch_items_per_s(items: float, items_per_s: float, compile_seconds: float) -> float:
    """Return the rate of an epoch that begins with compilation.

    Parameters
    ----------
    items : float
        Items of the epoch, more than 0.
    items_per_s : float
        Rate once compiled, more than 0.
    compile_seconds : float
        Time before the first step.

    Returns
    -------
    float
        Items per second over the whole epoch.

    Raises
    ------
    ConfigError
        If a number is out of range.
    """
    if items <= 0 or items_per_s <= 0 or compile_seconds < 0:
        raise ConfigError(
            f"An epoch of {items} items at {items_per_s} per second after {compile_seconds} "
            "seconds is impossible: give more than 0 items and rate, and 0 or more seconds."
        )
    return items / (items / items_per_s + compile_seconds)
