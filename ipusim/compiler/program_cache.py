"""Lowered programs kept on disk, separately for each version of the sources that make them.

Lowering is the larger part of a simulation and gives the same program for the same input, so what
was planned before need not be planned again. A program is found by a digest of everything that
`lower` reads: the graph, the chip, the stack, the options, and the sources of the compiler, the
machine and the operators. The digest does not see functions that are patched in memory: use
`keep_programs(False)` around these.
"""

import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import fields
from itertools import chain, islice
from operator import attrgetter
from pathlib import Path
from typing import Any

from ipusim.compiler.memory import require_room
from ipusim.compiler.program import LoweredOp, Program, Superstep
from ipusim.compiler.stacks import Stack
from ipusim.kernel_cache import kept_path, read_kept, source_digest, write_kept
from ipusim.machine import Chip
from ipusim.workload.graph import Graph, Op, Tensor

SOURCES = ("compiler", "machine", "workload/graph.py", "workload/operators", "errors.py")
"""What the program of a given graph depends on."""

Rewrite = Callable[[Program, Chip], Program]

_KEEPS: ContextVar[bool] = ContextVar("keeps_programs", default=True)
_REWRITE: ContextVar[Rewrite | None] = ContextVar("rewrite", default=None)


@contextmanager
def _within(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def keep_programs(keeps: bool = True) -> AbstractContextManager[None]:
    """Within this context, programs are read from disk where known and kept there, or are not."""
    return _within(_KEEPS, keeps)


def keeps_programs() -> bool:
    """Return whether programs are read from disk and kept there."""
    return _KEEPS.get()


def rewritten(rewrite: Rewrite | None) -> AbstractContextManager[None]:
    """Within this context, every program is rewritten before its time is read off it.

    `rewrite` takes a program and its chip and returns another program of the same operations: a
    module-level function, so that it compares equal to itself. None changes nothing.
    """
    return _within(_REWRITE, rewrite)


def as_rewritten(program: Program, chip: Chip) -> Program:
    """Return a program as the `rewritten` of this context makes it; without one, unchanged."""
    rewrite = _REWRITE.get()
    return program if rewrite is None else rewrite(program, chip)


def lower_kept(graph: Graph, chip: Chip, stack: Stack, **options: Any) -> Program:
    """Lower a graph, or read the program that the same input gave before.

    Errors are those of `lower`, and a ConfigError for what is far beyond a chip's memory.
    """
    require_room(graph, chip)
    path = None
    if _KEEPS.get():
        text = f"{_text_of(graph)}{(chip, stack, sorted(options.items()))!r}"
        path = kept_path("programs", source_digest(SOURCES), text)
        known = _read(path)
        if known is not None:
            return known
    from ipusim.compiler.lower import lower  # with the planner, which a known program needs not

    program = lower(graph, chip, stack, **options)
    if path is not None:
        write_kept(path, _to_bytes(program))
    return program


def _text_of(graph: Graph) -> str:
    """Return `repr(graph)` in short: attributes that operators share are spelt once."""
    spelt: dict[Any, int] = {}
    shared = [spelt.setdefault(op.params, len(spelt)) for op in graph.ops]
    ops = _said(Op, graph.ops, "params")
    about = _said(Graph, (graph,), "tensors", "ops")
    return repr((about, _said(Tensor, graph.tensors.values()), ops, shared, [*spelt]))


def _said(kind: type, alike: Iterable[Any], *without: str) -> list[Any]:
    """Return the fields that `repr` shows of dataclasses of one kind, as plain tuples."""
    names = [one.name for one in fields(kind) if one.repr and one.name not in without]
    return [*map(attrgetter(*names), alike)]


def _read(path: Path) -> Program | None:
    """Return a kept program; none where the file is missing, damaged or of another kind."""
    content = read_kept(path)
    try:
        return None if content is None else _from_bytes(content)
    except (zlib.error, ValueError, TypeError, KeyError, IndexError, AttributeError):
        return None


# A kept program is JSON: a list per field of its operations, and one per field of all supersteps,
# those of operations that share them once. That is read several times as fast as object by object,
# and only ever as texts and numbers.

_STEPS = LoweredOp._fields.index("steps")


def _to_bytes(program: Program) -> bytes:
    alike = {id(op.steps): op.steps for op in program.ops}
    places = {key: place for place, key in enumerate(alike)}
    ops = [op._replace(steps=places[id(op.steps)]) for op in program.ops]
    about = {
        "ops": [*zip(*ops, strict=True)],
        "counts": [*map(len, alike.values())],
        "steps": [*zip(*chain.from_iterable(alike.values()), strict=True)],
    }
    # Some numbers are numpy's.
    return zlib.compress(json.dumps(about, default=int, separators=(",", ":")).encode(), 1)


def _from_bytes(content: bytes) -> Program:
    about = json.loads(zlib.decompress(content))
    steps = map(Superstep._make, zip(*about["steps"], strict=True))
    alike = [tuple(islice(steps, count)) for count in about["counts"]]
    columns = about["ops"]
    columns[_STEPS] = [alike[place] for place in columns[_STEPS]]
    return Program(tuple(map(LoweredOp._make, zip(*columns, strict=True))))
