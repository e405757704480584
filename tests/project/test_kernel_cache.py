"""Compiled kernels are kept apart for every state of the sources, privately, and never trusted."""

import errno
import os
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numba
import numpy as np
import pytest

import ipusim
from ipusim import kernel_cache
from ipusim.kernel_cache import Kernel, njit


def triple(x):
    return 3 * x


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where kernels are kept in this test."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "X" / "y"))
    kernel_cache._is_private.cache_clear()
    yield tmp_path / "X" / "y" / "ipusim-kernels" / kernel_cache.source_digest()
    kernel_cache._is_private.cache_clear()


def fresh(code, **environment):
    """Run code in a process of its own; return what it printed and said on stderr."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip(), done.stderr.strip()


def test_the_digest_follows_the_sources(tmp_path, monkeypatch):
    copy = tmp_path / "ipusim"
    shutil.copytree(Path(ipusim.__file__).parent, copy)
    monkeypatch.setattr(kernel_cache, "__file__", str(copy / "kernel_cache.py"))
    digest = kernel_cache.source_digest.__wrapped__
    before, whole = digest(), digest(("",))
    assert digest() == before
    style = copy / "templates" / "figures.mplstyle"
    style.write_text(style.read_text() + "# changed\n")
    assert digest(("",)) != whole
    assert digest() == before
    changed = copy / "compiler" / "convolution" / "search.py"
    changed.write_text(changed.read_text() + "# changed\n")
    assert digest() != before


def test_the_digest_holds_all_that_kernels_import():
    root = Path(ipusim.__file__).parent
    listed = [root / source for source in kernel_cache.KERNEL_SOURCES]
    kernels = [path for path in root.rglob("*.py") if "\n@njit" in path.read_text()]
    assert len(kernels) > 10
    for kernel in kernels:
        names = re.findall(r"^from (ipusim\.\S+) import", kernel.read_text(), re.MULTILINE)
        found = [(root.parent / name.replace(".", "/")).with_suffix(".py") for name in names]
        # Neither what keeps kernels nor the classes of errors is compiled.
        made_from = {kernel, *found} - {root / "kernel_cache.py", root / "errors.py"}
        for path in made_from:
            assert any(path == source or source in path.parents for source in listed), path


def test_a_kernel_is_kept_in_a_private_folder_and_read_again(folder, monkeypatch):
    assert njit(cache=True)(triple)(2) == 6
    assert len(list(folder.iterdir())) == 1
    assert folder.parent.stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr(kernel_cache, "write_kept", None)
    again = njit(cache=True)(triple)
    assert again(2) == 6
    assert sum(again.stats.cache_hits.values()) == 1


def test_a_damaged_kernel_is_compiled_anew(folder):
    njit(cache=True)(triple)(2)
    (path,) = folder.iterdir()
    whole = path.read_bytes()
    payload = whole[32:]
    foreign = kernel_cache.hashlib.sha256(b"no kernel").digest() + b"no kernel"
    flipped = bytes([*whole[:-1], whole[-1] ^ 1])
    for damaged in (b"", whole[:100], payload, flipped, foreign):
        path.write_bytes(damaged)
        assert njit(cache=True)(triple)(2) == 6
        assert path.read_bytes() != damaged
    assert njit(cache=True)(triple)(2) == 6


def test_a_full_disk_costs_time_only(folder, monkeypatch):
    def full(path, content):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(kernel_cache, "replace_file", full)
    assert njit(cache=True)(triple)(2) == 6


@pytest.mark.parametrize("kind", ["file", "link"])
def test_a_folder_that_is_not_the_users_own_is_not_used(folder, tmp_path, kind):
    folder.parents[1].mkdir(parents=True)
    if kind == "file":
        folder.parent.write_text("")
    else:
        (tmp_path / "elsewhere").mkdir()
        folder.parent.symlink_to(tmp_path / "elsewhere")
    assert njit(cache=True)(triple)(2) == 6
    assert not (tmp_path / "elsewhere").exists() or not any((tmp_path / "elsewhere").iterdir())


def test_a_folder_open_to_others_is_closed(folder):
    folder.parent.mkdir(parents=True, mode=0o777)
    folder.parent.chmod(0o777)
    assert njit(cache=True)(triple)(2) == 6
    assert folder.parent.stat().st_mode & 0o777 == 0o700


def test_kernels_call_kernels(folder):
    inner = njit(cache=True, inline="always")(triple)

    def outer(x):
        return inner(x) + 1

    assert njit(outer)(2) == 7


KERNEL = """
import sys
from ipusim.compiler.convolution.search import next_split
before = "numba" in sys.modules
next_split(4, 1, False)
asked = "numba", "numba.np.arraymath", "scipy.linalg"
print(before, *(name in sys.modules for name in asked))
"""


def test_numba_comes_with_the_first_call_and_without_scipy(tmp_path):
    out, said = fresh(KERNEL, NUMBA_CACHE_DIR=str(tmp_path))
    assert out == "False True True False"
    assert said.startswith("ipusim: compiling kernels") and len(said.splitlines()) == 1
    # What is kept needs nothing that compiling does.
    assert fresh(KERNEL, NUMBA_CACHE_DIR=str(tmp_path)) == ("False True False False", "")


def all_kernels():
    """List every kernel of the package."""
    root = Path(kernel_cache.__file__).parent
    found = {}
    for path in root.rglob("*.py"):
        if "import njit" in path.read_text():
            module = import_module(".".join(path.relative_to(root.parent).with_suffix("").parts))
            found |= {id(one): one for one in vars(module).values() if isinstance(one, Kernel)}
    return list(found.values())


def test_no_kernel_makes_arrays():
    makers = {"empty", "empty_like", "zeros", "zeros_like", "full", "copy"}
    kernels = all_kernels()
    assert len(kernels) > 50
    for kernel in kernels:
        assert not makers & set(kernel.py_func.__code__.co_names), kernel.__qualname__


@njit
def _array(size):
    return np.zeros(size)


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="numba refuses a kernel when it compiles it")
def test_a_kernel_that_makes_arrays_is_refused():
    with pytest.raises(numba.core.errors.NumbaError, match="Only accept returning of array passed"):
        _array(3)


PLANNED = """
import sys, ipusim
print(ipusim.simulate("uno").cycles_per_step)
heavy = {"numba", "numpy", "scipy", "pandas", "matplotlib", "onnx"}
heavy |= {"ipusim.workload.zoo.vision.swin"}
print(*sorted(heavy & set(sys.modules)))
"""


def test_what_was_planned_before_needs_no_numpy_or_numba():
    first, *_ = fresh(PLANNED)[0].splitlines()
    assert fresh(PLANNED) == (first, "")
