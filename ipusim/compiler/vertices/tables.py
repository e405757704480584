"""Inner loops of the elementwise vertices, and what a vertex takes around its loop.

Sources: poplibs lib/popops/popopsCycleEstimators.cpp at tag 1.0.136 (era 0, where unary loops add 4
cycles and binary loops 2 or 5 to the operation itself) and lib/popops/popopsCycleEstimators.hpp at
tag sdk/poplar/2.4.0 (era 2, taken for 1 and 3 too); of non-linearities,
lib/popnn/PerformanceEstimation.hpp. Loops that process one natural vector are resolved for the
64-bit data path that every IPU has. loops.csv has a column for each era and type, with a pair
of numbers in each cell, or none where there is no such vertex.
"""

from functools import cache
from pathlib import Path

from ipusim.compiler.eras import ERA_1_0, ERA_2_4, ERAS
from ipusim.files import read_records

LoopTable = dict[str, dict[str, tuple[int, ...]]]


def _read() -> dict[str, dict[int, LoopTable]]:
    """Return the tables of loops.csv: by era, the pairs of each row by type."""
    found: dict[str, dict[int, LoopTable]] = {}
    for line in read_records(Path(__file__).with_name("loops.csv")):
        table = found.setdefault(line["table"], {era: {} for era in ERAS})
        for era, rows in table.items():
            read = ERA_1_0 if era == ERA_1_0 else ERA_2_4
            pairs = {dtype: line[f"era {read} {dtype}"] for dtype in ("float16", "float32")}
            if any(pairs.values()):
                pairs = {dtype: _numbers_of(text) for dtype, text in pairs.items() if text}
                rows[line["row"]] = pairs
    return found


def _numbers_of(cell: str) -> tuple[int, ...]:
    return tuple(map(int, cell.split("/")))


LOOPS = _read()
"""Loops by vertex, era, function and type (`loop_of`): ``cycles/elements`` of one pass of a
worker's loop, loads and stores included.

The file has rows for InPlace only where that vertex differs from the one with a separate output. Of
comparisons the source of era 0 has no more than a note of 17 cycles per element (sub-word stores)
and 5 of loop. BroadcastScalar1D has a single element as one operand; where a function is absent,
the operand is first broadcast by a copy and the vertex of two full operands runs."""

for _era, _in_place in LOOPS["UnaryOp1DInPlace"].items():
    LOOPS["UnaryOp1DInPlace"][_era] = LOOPS["UnaryOp1D"][_era] | _in_place

SUPERVISOR_CYCLES = (200, 11, 11, 11)
"""Cycles of the supervisor to run a vertex of all workers, by era."""

AROUND = LOOPS.pop("around")
"""Cycles of every worker before its loop, and of the supervisor: ``worker/supervisor``.

By vertex, and by vertex and function where that differs."""

AROUND_VECTOR = LOOPS.pop("around a vector")
"""The same for vertices that repeat a vector, by function, and those of the vertex for several
regions, whose workers take cycles once and per region: ``worker/supervisor/once/per region``.

A product of later eras takes a common prologue of 24 besides the 19 of the path for halves."""

INTEGERS = LOOPS.pop("integers")
"""Cycles of vertices of unsigned integers of 32 bits, where others have float32, by vertex and
function: ``worker/supervisor/element``. Quotients and remainders are means of random numbers."""

NON_LINEARITY = LOOPS.pop("non-linearity")
"""Cycles of the operation alone in the pipelined vertices, ``single/per vector``. The loop of
era 0 runs the operation twice per vector."""

RANDOM = LOOPS.pop("random")
"""Cycles of the vertices of poprand: ``supervisor/worker/vector/rest``, the last for what is left
of a vector. Of Uniform, whose loop is that of Normal, those of one integer of 32 bits."""

NON_LINEARITY_GRAD = LOOPS.pop("non-linearity gradient")
"""Cycles of the gradient of a non-linearity, ``one element/one vector``. At tag 1.0.136 every kind
took 3 per vector."""


@cache
def numbers(table: str, keys: int) -> dict[tuple[int, ...], list[tuple[int, ...]]]:
    """Return the cells of a table beside this file, each several numbers, by its first columns."""
    lines = [[*line.values()] for line in read_records(Path(__file__).with_name(table))]
    return {tuple(map(int, line[:keys])): [*map(_numbers_of, line[keys:])] for line in lines}
