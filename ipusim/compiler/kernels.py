"""The decorators of compiled kernels, and where their machine code is kept.

numba keeps a compiled function until its own source file changes, but the kernels call one another
across modules.  So their code is kept in a folder named after the contents of all kernel modules.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from numba import njit
from numba.core import config

KERNEL_MODULES = (
    "conv_bounds",
    "conv_cost",
    "conv_layout",
    "conv_reduce",
    "conv_search",
    "conv_totals",
    "conv_vertices",
    "mac_vertices",
    "tile_cycles",
)
"""Modules whose functions or constants are compiled into one another."""

_HERE = Path(__file__).parent


def source_digest(folder: Path = _HERE) -> str:
    """Return 16 hexadecimal digits that stand for the contents of all kernel modules."""
    digest = hashlib.sha256()
    for name in KERNEL_MODULES:
        digest.update((folder / f"{name}.py").read_bytes())
    return digest.hexdigest()[:16]


def _cache_folder() -> Path:
    """Choose the user's NUMBA_CACHE_DIR, else beside the modules, else the home folder's cache."""
    if config.CACHE_DIR:
        base = Path(config.CACHE_DIR)
    elif os.access(_HERE, os.W_OK):
        base = _HERE / "__pycache__"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ipusim"
    return base / f"kernels-{source_digest()}"


_FOLDER = str(_cache_folder())


def _compile(function: Callable, inline: str) -> Callable:
    # numba reads the setting while it decorates; others' functions must not be affected.
    before = config.CACHE_DIR
    config.CACHE_DIR = _FOLDER
    try:
        return njit(cache=True, inline=inline)(function)
    finally:
        config.CACHE_DIR = before


def compiled(function: Callable) -> Callable:
    """Compile a function to machine code when it is first called."""
    return _compile(function, "never")


def inlined(function: Callable) -> Callable:
    """Compile a function as part of each of its callers: short ones, or with one caller only."""
    return _compile(function, "always")
