"""Mutants: one wrong line at a time, and whether the tests of its room notice.

``python tests/mutants.py`` runs each line of mutants.csv (file, old text, new text, tests) in a
process of its own and prints those that survive, and how many were noticed by room; ``--sample N``
runs every so many, a word runs those whose file holds it. The tree stays as it is: the wrong text
is loaded in place of the file's.
"""

import csv
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import multiprocessing
import os
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
LIST = Path(__file__).with_suffix(".csv")
CPU_SECONDS = 240
"""Longer, and a mutant that hangs counts as noticed."""
NEEDED_BY_ALL = ("numba", "onnx", "pandas", "pytest")
"""Loaded once, before the process of each mutant is forked."""
WITHOUT_JIT = ("tests/numerics", "tests/compiler/vertices")
"""Tests whose kernels also run as Python, which takes less time than compiling them anew."""


class Mutant(NamedTuple):
    """One wrong text in one file."""

    file: str
    old: str
    new: str
    tests: str

    @property
    def module(self) -> str:
        return self.file.removesuffix(".py").replace("/", ".")

    def text(self) -> str:
        """Return the file's text with the mistake in it."""
        right = (ROOT / self.file).read_text()
        if right.count(self.old) != 1:
            raise ValueError(
                f"{self.file} has {self.old!r} {right.count(self.old)} times, not once"
            )
        return right.replace(self.old, self.new)


def load() -> list[Mutant]:
    """Read the list."""
    with LIST.open(newline="") as lines:
        return [Mutant(**line) for line in csv.DictReader(lines)]


class Finder(importlib.abc.MetaPathFinder, importlib.machinery.SourceFileLoader):
    """Loads one module with its mistake."""

    def __init__(self, mutant: Mutant) -> None:
        super().__init__(mutant.module, str(ROOT / mutant.file))
        self.mutant = mutant

    def find_spec(self, name, path=None, target=None):
        if name == self.mutant.module:
            return importlib.util.spec_from_file_location(name, self.path, loader=self)
        return None

    def get_code(self, name):
        return compile(self.mutant.text(), self.path, "exec")


def plant(mutant: Mutant, folder: str) -> None:
    """Load the mistake from now on, and let nothing made with it be kept.

    A table of the package is read from the folder instead.
    """
    from ipusim import kernel_cache

    read, own_kernels = kernel_cache.read_kept, "njit" in mutant.text()
    if own_kernels and all(tests.startswith(WITHOUT_JIT) for tests in mutant.tests.split()):
        import numba

        numba.config.DISABLE_JIT = True

    def read_kept(path):
        kernels = "kernels" in path.parents[1].name
        return read(path) if kernels and not own_kernels else None

    kernel_cache.read_kept = read_kept
    kernel_cache.write_kept = lambda path, payload: None
    if mutant.file.endswith(".py"):
        sys.meta_path.insert(0, Finder(mutant))
        return
    table, wrong = ROOT / mutant.file, Path(folder) / "table"
    wrong.write_text(mutant.text())
    opened = Path.open
    Path.open = lambda path, *given, **named: opened(
        wrong if path == table else path, *given, **named
    )


def run_tests(mutant: Mutant, folder: str) -> None:
    """Run the tests of a mutant in this process and end it with their exit code."""
    import pytest

    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    if mutant.file.startswith("data/"):
        data = Path(shutil.copytree(ROOT / "data", Path(folder) / "data"))
        (data / mutant.file.removeprefix("data/")).write_text(mutant.text())
        os.environ["IPUSIM_DATA_DIR"] = str(data)
    else:
        plant(mutant, folder)
    options = ["-q", "-x", "-p", "no:cacheprovider", "-m", "not slow and not lab"]
    os._exit(pytest.main([*options, *mutant.tests.split()]))


def noticed(mutant: Mutant) -> bool:
    """Return whether a test of the room fails, in a copy of this process."""
    with tempfile.TemporaryDirectory() as folder:
        run = multiprocessing.get_context("fork").Process(target=run_tests, args=(mutant, folder))
        run.start()
        run.join()
    return run.exitcode != 0


def main(arguments: list[str]) -> int:
    """Run mutants; return 1 where more than one in twenty survives."""
    for name in NEEDED_BY_ALL:
        importlib.import_module(name)
    os.chdir(ROOT)
    sys.path[:0] = [str(ROOT)]
    chosen = load()
    if "--sample" in arguments:
        count = int(arguments[arguments.index("--sample") + 1])
        chosen = chosen[:: max(1, len(chosen) // count)]
    elif arguments:
        chosen = [one for one in chosen if any(word in one.file for word in arguments)]
    standing = [one for one in chosen if (ROOT / one.file).read_text().count(one.old) == 1]
    found: dict[str, Counter[bool]] = {}
    for mutant in standing:
        began = time.monotonic()
        killed = noticed(mutant)
        found.setdefault("/".join(mutant.file.split("/")[:2]), Counter())[killed] += 1
        told = f"{'noticed ' if killed else 'SURVIVED'} {time.monotonic() - began:4.0f} s"
        print(f"{told} {mutant.file}: {mutant.new}", flush=True)
    for room, counts in found.items():
        print(f"{counts[True]} of {counts.total()} in {room}")
    survivors = sum(counts[False] for counts in found.values())
    print(f"{len(standing) - survivors} of {len(standing)} mutants noticed")
    print(f"{len(chosen) - len(standing)} not run: their text stands nowhere or several times")
    return int(20 * survivors > len(standing))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
