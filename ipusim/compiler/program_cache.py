"""Lowered programs kept on disk, apart for every state of the sources that make them.

Lowering is the larger part of a simulation and gives the same program for the same input, so what
was planned before need not be planned again. A program is found by a digest of everything that
`lower` reads: the graph, the chip, the stack, the options, and the sources of the compiler, the
machine and the operators. Code that is patched in memory is not seen: switch keeping off for it.
"""

from __future__ import annotations

import json
import zlib
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields
from functools import cache
from itertools import accumulate, chain, islice, pairwise
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from ipusim.compiler.memory import require_room
from ipusim.compiler.program import LoweredOp, Program, Superstep
from ipusim.kernel_cache import kept_path, read_kept, source_digest, write_kept
from ipusim.workload.graph import Graph, Op, Tensor

if TYPE_CHECKING:
    from ipusim.compiler.stacks import Stack
    from ipusim.machine import Chip

SOURCES = ("compiler", "machine", "workload/graph.py", "workload/operators", "errors.py")
"""What the program of a given graph depends on."""

Rewrite = Callable[[Program, "Chip"], Program]

_KEEPS: ContextVar[bool] = ContextVar("keeps_programs", default=True)
_REWRITE: ContextVar[Rewrite | None] = ContextVar("rewrite", default=None)


@contextmanager
def keep_programs(keeps: bool = True) -> Iterator[None]:
    """Within this context, programs are read from disk where known and kept there, or are not."""
    token = _KEEPS.set(keeps)
    try:
        yield
    finally:
        _KEEPS.reset(token)


def keeps_programs() -> bool:
    """Return whether programs are read from disk and kept there."""
    return _KEEPS.get()


@contextmanager
def rewritten(rewrite: Rewrite | None) -> Iterator[None]:
    """Within this context, every program is rewritten before its time is read off it.

    `rewrite` takes a program and its chip and returns another program of the same operations: a
    module-level function, so that it compares equal to itself. None changes nothing.
    """
    token = _REWRITE.set(rewrite)
    try:
        yield
    finally:
        _REWRITE.reset(token)


def as_rewritten(program: Program, chip: Chip) -> Program:
    """Return a program as it is read here: the same one where nothing is rewritten."""
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
        _write(path, program)
    return program


def _text_of(graph: Graph) -> str:
    """Return `repr(graph)` in short: attributes that operators share are spelt once."""
    spelt: dict[Any, int] = {}
    shared = [spelt.setdefault(op.params, len(spelt)) for op in graph.ops]
    ops = _said(Op, graph.ops, "params")
    about = _said(Graph, (graph,), "tensors", "ops")
    return repr((about, _said(Tensor, graph.tensors.values()), ops, shared, [*spelt]))


def _said(kind: type, alike: Iterable[Any], *without: str) -> list[Any]:
    """Return what objects of one kind say of themselves, in plain tuples."""
    names = [one.name for one in fields(kind) if one.repr and one.name not in without]
    return [*map(attrgetter(*names), alike)]


def _read(path: Path) -> Program | None:
    """Return a kept program; none where the file is missing, damaged or of another kind."""
    content = read_kept(path)
    try:
        return None if content is None else _from_bytes(content)
    except (zlib.error, ValueError, TypeError, KeyError, IndexError, AttributeError):
        return None


def _write(path: Path, program: Program) -> None:
    """Keep a program whose numbers are integers of 64 bits, as they are unless it is absurd."""
    try:
        write_kept(path, _to_bytes(program))
    except (TypeError, OverflowError):
        return


# A kept program is a line of JSON (its texts) and a table of integers for its operations and one
# for the supersteps of those that differ, field by field: read several times as fast as object by
# object, and it can only ever be read as texts and numbers.


def _columns(kind: type, rows: tuple[Any, ...], texts: dict[str, int]) -> array[int]:
    """Return objects as integers, field after field; a text is its number among all texts."""
    columns = array("q")
    for name, is_text in _kept_fields(kind):
        values = map(attrgetter(name), rows)
        columns.extend([texts.setdefault(t, len(texts)) for t in values] if is_text else values)
    return columns


def _objects(kind: type, columns: array[int], texts: list[str]) -> list[Any]:
    """Return the objects again, their fields filled in without a call for each object."""
    count = len(columns) // len(_kept_fields(kind))
    objects = [kind.__new__(kind) for _ in range(count)]
    for index, (name, is_text) in enumerate(_kept_fields(kind)):
        values = columns[index * count : (index + 1) * count]
        _fill(kind, name, objects, [texts[number] for number in values] if is_text else values)
    return objects


def _fill(kind: type, name: str, objects: list[Any], values: Any) -> None:
    """Set one field of frozen objects with slots."""
    deque(map(getattr(kind, name).__set__, objects, values), maxlen=0)


@cache
def _kept_fields(kind: type) -> tuple[tuple[str, bool], ...]:
    """Return the fields that are kept, and whether each is a text."""
    hints = get_type_hints(kind)
    names = (one.name for one in fields(kind) if one.name != "steps")
    return tuple((name, hints[name] is str) for name in names)


def _to_bytes(program: Program) -> bytes:
    texts: dict[str, int] = {}
    ops = _columns(LoweredOp, program.ops, texts)
    alike = {id(op.steps): op.steps for op in program.ops}
    places = {key: place for place, key in enumerate(alike)}
    chosen = array("q", [places[id(op.steps)] for op in program.ops])
    counts = array("q", map(len, alike.values()))
    steps = _columns(Superstep, tuple(chain.from_iterable(alike.values())), texts)
    tables = (ops, chosen, counts, steps)
    head = json.dumps({"sizes": list(map(len, tables)), "texts": list(texts)})
    return zlib.compress(head.encode() + b"\n" + b"".join(map(bytes, tables)), 1)


def _from_bytes(content: bytes) -> Program:
    head, _, body = zlib.decompress(content).partition(b"\n")
    about = json.loads(head)
    numbers = array("q")
    numbers.frombytes(body)
    ends = list(accumulate(about["sizes"]))
    ops, chosen, counts, steps = (numbers[begin:end] for begin, end in pairwise([0, *ends]))
    made = iter(_objects(Superstep, steps, about["texts"]))
    objects = _objects(LoweredOp, ops, about["texts"])
    if len(objects) != len(chosen) or sum(counts) * len(_kept_fields(Superstep)) != len(steps):
        raise ValueError("not the tables of a program")
    alike = [tuple(islice(made, count)) for count in counts]
    _fill(LoweredOp, "steps", objects, [alike[place] for place in chosen])
    return Program(tuple(objects))
