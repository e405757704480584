"""Lowered programs kept on disk, apart for every state of the sources that make them.

Lowering is the larger part of a simulation and gives the same program for the same input, so a
comparison of hundreds of runs need not repeat it. A program is found by a digest of everything that
`lower` reads: the graph, the chip, the stack, the options, and the sources of the compiler, the
machine and the operators. Nothing is kept unless `keep_programs` was called: a program that is
being changed must not be answered from memory.
"""

from __future__ import annotations

import hashlib
import marshal
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import fields
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any

from ipusim.compiler.lower import lower
from ipusim.compiler.program import LoweredOp, Program, Step
from ipusim.compiler.stacks import Stack
from ipusim.files import replace_file
from ipusim.kernel_cache import cache_folder, source_digest
from ipusim.machine import Chip
from ipusim.workload.graph import Graph

SOURCES = ("compiler", "machine", "workload/graph.py", "workload/operators", "errors.py")
"""What the program of a given graph depends on."""

_STEP_FIELDS = tuple(field.name for field in fields(Step))
_OP_FIELDS = tuple(field.name for field in fields(LoweredOp) if field.name != "steps")

Rewrite = Callable[[Program, Chip], Program]

_KEEPS: ContextVar[bool] = ContextVar("keeps_programs", default=False)
_REWRITE: ContextVar[Rewrite | None] = ContextVar("rewrite", default=None)


@contextmanager
def keep_programs() -> Iterator[None]:
    """Within this context, programs are read from disk where they are known and kept there."""
    token = _KEEPS.set(True)
    try:
        yield
    finally:
        _KEEPS.reset(token)


@contextmanager
def rewritten(rewrite: Rewrite | None) -> Iterator[None]:
    """Within this context, every program is rewritten before its time is read off it.

    Parameters
    ----------
    rewrite : callable, optional
        Takes a program and its chip and returns another program of the same operations; a
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

    Parameters
    ----------
    graph, chip, stack, **options
        As for `ipusim.compiler.lower.lower`.

    Returns
    -------
    Program
        The same, byte for byte, as without this module; not rewritten.

    Raises
    ------
    ConfigError, UnknownNameError
        As `lower`.
    """
    if not _KEEPS.get():
        return lower(graph, chip, stack, **options)
    text = repr((graph, chip, stack, sorted(options.items())))
    path = _folder() / hashlib.sha256(text.encode()).hexdigest()
    known = _read(path)
    if known is not None:
        return known
    program = lower(graph, chip, stack, **options)
    _write(path, program)
    return program


@cache
def _folder() -> Path:
    return cache_folder("programs") / source_digest(SOURCES)


def _read(path: Path) -> Program | None:
    """Return a kept program; none where the file is missing or damaged."""
    try:
        return _from_rows(marshal.loads(zlib.decompress(path.read_bytes())))
    except (OSError, zlib.error, EOFError, TypeError, ValueError):
        return None


def _write(path: Path, program: Program) -> None:
    """Keep a program whole or not at all; a full or closed disk is no reason to fail."""
    content = zlib.compress(marshal.dumps(_to_rows(program)), 1)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content)


def _to_rows(program: Program) -> list[tuple[Any, Any]]:
    """Return a program as plain tuples, which are read back several times as fast as objects."""
    of_op, of_step = attrgetter(*_OP_FIELDS), attrgetter(*_STEP_FIELDS)
    return [(of_op(op), [of_step(step) for step in op.steps]) for op in program.ops]


def _from_rows(rows: list[tuple[Any, Any]]) -> Program:
    """Return the program again; a TypeError or ValueError where the rows are none of a program."""
    return Program(
        tuple(
            LoweredOp(
                steps=tuple(Step(**dict(zip(_STEP_FIELDS, step, strict=True))) for step in steps),
                **dict(zip(_OP_FIELDS, op, strict=True)),
            )
            for op, steps in rows
        )
    )
