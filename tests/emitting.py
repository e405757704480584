"""Supersteps of an operator alone: helper of the tests of several rooms."""

from collections.abc import Callable
from dataclasses import replace

from ipusim.compiler.emitter import Emitter, Placed, TensorLayout
from ipusim.compiler.eras import ERA_2_4, ESTIMATORS
from ipusim.compiler.program import Superstep
from ipusim.compiler.stacks import load_stack
from ipusim.machine import Chip, load_chip

MK1 = load_chip("GC2")
MK2 = load_chip("GC200")


CODELETS = {era: codelets for codelets, era in ESTIMATORS.items()}


def emitter(era: int = ERA_2_4, chip: Chip = MK2, estimators: int | None = None) -> Emitter:
    """Return an emitter for an era, with estimators of the same or of another."""
    codelets = CODELETS[era if estimators is None else estimators]
    stack = replace(load_stack("sdk-2.4"), planner_era=era, codelets=codelets)
    return Emitter(chip=chip, stack=stack)


def emitted(
    run: Callable,
    *arguments: object,
    era: int = ERA_2_4,
    chip: Chip = MK2,
    estimators: int | None = None,
    **options: object,
) -> list[Superstep]:
    """Return the supersteps that an operator, or a method of `Emitter`, adds."""
    m = emitter(era, chip, estimators)
    run(m, *arguments, **options)
    return m.steps


def matrix(
    rows: int,
    columns: int,
    dtype: str = "float16",
    tiles: int | None = None,
    *,
    by_rows: bool = False,
) -> Placed:
    """Return a matrix, spread linearly unless `tiles` are given."""
    return Placed((rows, columns), dtype, TensorLayout(tiles=tiles, rows=by_rows))


def vector(elements: int, dtype: str = "float16", tiles: int | None = None) -> Placed:
    """Return a tensor of one dimension, spread linearly unless `tiles` are given."""
    return Placed((elements,), dtype, TensorLayout(tiles=tiles))
