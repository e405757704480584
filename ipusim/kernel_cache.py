"""What is kept on disk between runs, and compiled numba kernels first of all.

Everything kept lies in a folder of the user's own, named after a digest of the sources it was made
from: numba looks only at the file that holds a kernel, and one that calls kernels of other modules
would keep its old code after these changed, and compute wrong numbers without a word. A kept file
begins with a digest of its content; one that is damaged is as good as missing, and a disk that is
full or read-only costs time only.

Modules of kernels take `njit` from here and not from numba, which is imported when a kernel is
first called: what was planned before is answered without it.
"""

import hashlib
import os
import stat
import sys
from collections.abc import Callable
from functools import cache, cached_property, update_wrapper
from importlib import import_module
from pathlib import Path
from threading import RLock
from typing import Any

from ipusim.files import data_dir, once_per_data_dir, replace_file

KERNEL_SOURCES = (
    "compiler/convolution",
    "compiler/eras.py",
    "compiler/vertices",
    "numerics/kernels",
    "kernel_cache.py",
)
"""All that kernels are made from: modules that hold them, what these import, what compiles them."""

PREDICTING_SOURCES = (
    "api.py",
    "report",
    "runtime",
    "compiler",
    "workload",
    "machine",
    "files.py",
    "errors.py",
)
"""What predicts."""

PREDICTING_DATA = (
    "calibration.toml",
    "frameworks.toml",
    "stacks.toml",
    "gpu",
    "hardware",
    "models",
)
"""The data that it reads; how a published row was run is part of a question."""

_SOURCES = (".py", ".csv", ".css", ".j2", ".mplstyle")
_PRIVATE = 0o700
_DIGEST_BYTES = hashlib.sha256().digest_size
_LOCK = RLock()


@cache
def source_digest(sources: tuple[str, ...] = KERNEL_SOURCES) -> str:
    """Return a digest of modules and packages, by default those that kernels are made from."""
    return files_digest(Path(__file__).parent, sources, _SOURCES)


@once_per_data_dir
def state_digest(sources: tuple[str, ...] = PREDICTING_SOURCES) -> str:
    """Return a digest of sources and data: what the answer to a question depends on."""
    return files_digest(data_dir(), PREDICTING_DATA, ("",), source_digest(sources))


def files_digest(
    root: Path, names: tuple[str, ...], endings: tuple[str, ...], begin: str = ""
) -> str:
    """Return a digest of files and of those that folders hold, all named relative to `root`."""
    digest = hashlib.sha256(begin.encode())
    for name in names:
        place = str(root / name)
        # Every answer waits for this; to walk takes half as long as to ask Path for all files.
        held = (f"{at}/{one}" for at, _, ones in os.walk(place) for one in ones)
        for path in sorted(one for one in held if one.endswith(endings)) or [place]:
            digest.update(os.path.relpath(path, root).encode() + Path(path).read_bytes())
    return digest.hexdigest()[:16]


def cache_folder(what: str) -> Path:
    """Return where "kernels" or "programs" are kept: in NUMBA_CACHE_DIR or the user's cache."""
    given = os.environ.get("NUMBA_CACHE_DIR")
    if given:
        return Path(given).resolve() / f"ipusim-{what}"
    user_cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return (user_cache / "ipusim" / what).resolve()


def kept_path(what: str, state: str, question: str) -> Path:
    """Return the file of "kernels", ... for a question and a digest of its sources (`state`)."""
    return cache_folder(what) / state / hashlib.sha256(question.encode()).hexdigest()


@cache
def _is_private(folder: Path) -> bool:
    """Whether a folder, made where missing, is the user's and nobody else can write to it."""
    # Compiled kernels are executed, so a file that somebody else could have placed is not read.
    try:
        folder.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
        found = folder.lstat()
        own = not hasattr(os, "getuid") or found.st_uid == os.getuid()
        if not (own and stat.S_ISDIR(found.st_mode)):
            return False
        if stat.S_IMODE(found.st_mode) & ~_PRIVATE:
            folder.chmod(_PRIVATE)
    except OSError:
        return False
    return True


def read_kept(path: Path) -> bytes | None:
    """Return what was kept in a file of `kept_path`; None where missing, foreign or damaged."""
    if not _is_private(path.parents[1]):
        return None
    try:
        content = path.read_bytes()
    except OSError:
        return None
    payload = content[_DIGEST_BYTES:]
    return payload if hashlib.sha256(payload).digest() == content[:_DIGEST_BYTES] else None


def write_kept(path: Path, payload: bytes) -> None:
    """Keep a file of `kept_path` whole or not at all."""
    if not _is_private(path.parents[1]):
        return
    try:
        path.parent.mkdir(mode=_PRIVATE, exist_ok=True)
        replace_file(path, hashlib.sha256(payload).digest() + payload)
    except OSError:
        return


class Kernel:
    """A function that numba compiles when it is first called, by Python or by another kernel.

    To numba it is the dispatcher that it stands for: it has its type (``_numba_type_``), its
    options and its Python function. None makes arrays: they do without numba's memory management,
    which takes as long to set up as the kernels of a plan to load.
    """

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        update_wrapper(self, function)
        self.py_func = function
        self._options = options

    def __call__(self, *arguments: Any) -> Any:
        """Call the compiled function."""
        return self._dispatcher(*arguments)

    @property
    def _numba_type_(self) -> Any:
        return self._dispatcher._numba_type_

    @cached_property
    def _dispatcher(self) -> Any:
        with _LOCK:
            numba, kept = _numba()
            options = self._options | {"cache": False, "no_cfunc_wrapper": True}
            dispatcher = numba.njit(self.py_func, _nrt=False, **options)
            if self._options.get("cache") and not numba.config.DISABLE_JIT:
                dispatcher._cache = kept(self)
                # No kernel needs the extensions of numba that may be installed: to look for them
                # is to read what every package says of itself.
                dispatcher._compilation_chain_init_hook = lambda: None
            return dispatcher

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._dispatcher, name)


def njit(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Declare a kernel as numba's own decorator does; ``cache=True`` keeps its code on disk."""
    if function is None:
        return lambda given: Kernel(given, options)
    return Kernel(function, options)


@cache
def _numba() -> tuple[Any, Any]:
    """Import numba, once; return it and the class that keeps a function's compiled code."""
    import pickle  # with numba, which imports it anyway

    import numba
    from numba.core.caching import NullCache
    from numba.core.compiler import CompileResult
    from numba.core.serialize import dumps

    class Kept(NullCache):
        """Compiled code of one function, a file for each signature and processor."""

        def __init__(self, kernel: Kernel) -> None:
            line = kernel.py_func.__code__.co_firstlineno
            self._of = (kernel.__module__, kernel.__qualname__, line)

        def _path(self, signature: Any, codegen: Any) -> Path:
            made_by = numba.__version__, sys.implementation.cache_tag, codegen.magic_tuple()
            return kept_path("kernels", source_digest(), repr((*self._of, str(signature), made_by)))

        def load_overload(self, sig: Any, target_context: Any) -> Any:
            # What is compiled already needs no context that is refreshed, which loads all types and
            # functions that a compilation might ask for.
            payload = read_kept(self._path(sig, target_context.codegen()))
            if payload is not None:
                try:
                    return CompileResult._rebuild(target_context, *pickle.loads(payload))
                except Exception:  # noqa: BLE001  whatever it is, compiling anew mends it
                    pass
            _announce()
            _import_array_functions()
            return None

        def save_overload(self, sig: Any, cres: Any) -> None:
            if not cres.library.has_dynamic_globals:
                write_kept(self._path(sig, cres.library.codegen), dumps(cres._reduce()))

    return numba, Kept


@cache
def _import_array_functions() -> None:
    """Import what compiling needs, but not all of scipy.linalg."""
    from numba.np import linalg

    # Numba loads it to learn whether it is there, which takes as long as numba itself; no kernel
    # uses it and it is a dependency of this package.
    asked, linalg.ensure_blas = linalg.ensure_blas, lambda: None
    try:
        import_module("numba.np.arraymath")
    finally:
        linalg.ensure_blas = asked


@cache
def _announce() -> None:
    """Say that kernels are being compiled, at a terminal or a log, not in a notebook."""
    from multiprocessing import parent_process

    # Notebooks have a stream of their own as stderr; workers have a parent that has said so.
    if sys.stderr is sys.__stderr__ and parent_process() is None:
        print(
            "ipusim: compiling kernels, once for this version and machine: about 20 seconds "
            "('ipusim warmup' does it ahead).",
            file=sys.stderr,
            flush=True,
        )
