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

__all__ = ["KERNEL_STAGES", "cache_folder", "njit", "source_digest", "use_keyed_cache"]

KERNEL_STAGES = ("compiler", "numerics")
"""Packages that hold kernels."""

NUMBA = "numba"


def source_digest(sources: tuple[str, ...] = KERNEL_STAGES) -> str:
    """Return a digest of source files, by default all that kernels are made from.

    Parameters
    ----------
    sources : tuple of str
        Modules and packages, relative to this one.
    """
    root = Path(__file__).parent
    digest = hashlib.sha256()
    for source in sources:
        place = root / source
        for path in [place] if place.suffix else sorted(place.rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def cache_folder(what: str) -> Path:
    """Return where something is kept between runs: beside or in place of numba's own cache.

    Parameters
    ----------
    what : str
        Name of the folder; ``"numba"`` is that of ``NUMBA_CACHE_DIR`` where this is set, and other
        folders lie beside it.
    """
    given = os.environ.get("NUMBA_CACHE_DIR")
    if given:
        folder = Path(given).resolve()
        return folder if what == NUMBA else folder.parent / what
    user_cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return (user_cache / "ipusim" / what).resolve()


def use_keyed_cache() -> None:
    """Let numba keep kernels in a directory of this state of the sources.

    It lies in ``NUMBA_CACHE_DIR`` where that is set, else in the user's cache directory; where
    nothing can be written, numba is left to its own rules.
    """
    try:
        directory = cache_folder(NUMBA) / source_digest()
        directory.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    numba.config.CACHE_DIR = str(directory)


use_keyed_cache()
