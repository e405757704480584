"""Supersteps of an operator alone: helper of the tests of several rooms."""

from collections.abc import Callable
from dataclasses import replace

from ipusim.compiler.emitter import Emitter, Placed, TensorLayout
from ipusim.compiler.program import Superstep
from ipusim.compiler.stacks import load_stack
from ipusim.machine import Chip, load_chip

MK1 = load_chip("GC2")
MK2 = load_chip("GC200")


def emitter(codelets: str = "2021-11", chip: Chip = MK2) -> Emitter:
    """Return an emitter for a version of the codelets."""
    return Emitter(chip=chip, stack=replace(load_stack("sdk-2.4"), codelets=codelets))


def emitted(
    run: Callable,
    *arguments: object,
    codelets: str = "2021-11",
    chip: Chip = MK2,
    **options: object,
) -> list[Superstep]:
    """Return the supersteps that an operator, or a method of `Emitter`, adds."""
    m = emitter(codelets, chip)
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
