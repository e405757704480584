"""Where compiled numba kernels are kept: apart for every state of the sources.

Numba looks only at the file that holds a kernel; one that calls kernels of other modules would keep
its old code after these changed, and compute wrong numbers without a word. So the directory is
named after a digest of all sources. Numba reads that name where a kernel is declared, so modules of
kernels take `njit` from here and not from numba.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numba
from numba import njit

__all__ = ["KERNEL_STAGES", "njit", "source_digest", "use_keyed_cache"]

KERNEL_STAGES = ("compiler", "numerics")
"""Packages that hold kernels."""


def source_digest() -> str:
    """Return a digest of every source file that kernels are made from."""
    root = Path(__file__).parent
    digest = hashlib.sha256()
    for stage in KERNEL_STAGES:
        for path in sorted((root / stage).rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def use_keyed_cache() -> None:
    """Let numba keep kernels in a directory of this state of the sources.

    It lies in ``NUMBA_CACHE_DIR`` where that is set, else in the user's cache directory; where
    nothing can be written, numba is left to its own rules.
    """
    user_cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    base = Path(os.environ.get("NUMBA_CACHE_DIR") or user_cache / "ipusim" / "numba")
    try:
        directory = base.resolve() / source_digest()
        directory.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    numba.config.CACHE_DIR = str(directory)


use_keyed_cache()
