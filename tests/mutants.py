"""Mutants: one wrong line at a time, and whether the tests of its room notice.

``python tests/mutants.py`` runs each line of mutants.csv (file, old text, new text, tests) in a
process of its own and prints those that survive; ``--sample N`` runs every so many, a word runs
those whose file holds it. The tree stays as it is: this module is also the plugin that loads the
wrong text in place of the file's. A mutant of a kernel compiles its kernels anew.
"""

from __future__ import annotations

import csv
import importlib.abc
import importlib.machinery
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
LIST = Path(__file__).with_suffix(".csv")
CHOSEN = "IPUSIM_MUTANT"
TIMEOUT_S = 900


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


def plant(mutant: Mutant) -> None:
    """Load the mistake from now on, and let nothing made with it be kept."""
    from ipusim import kernel_cache

    read, own_kernels = kernel_cache.read_kept, "njit" in mutant.text()

    def read_kept(path):
        kernels = "kernels" in path.parents[1].name
        return read(path) if kernels and not own_kernels else None

    kernel_cache.read_kept = read_kept
    kernel_cache.write_kept = lambda path, payload: None
    sys.meta_path.insert(0, Finder(mutant))


def noticed(mutant: Mutant, number: int) -> bool:
    """Return whether a test of the room fails; a run that hangs counts as noticed."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {
            CHOSEN: str(number),
            "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests"))),
        }
        if mutant.file.startswith("data/"):
            data = Path(shutil.copytree(ROOT / "data", Path(folder) / "data"))
            (data / mutant.file.removeprefix("data/")).write_text(mutant.text())
            environment["IPUSIM_DATA_DIR"] = str(data)
        command = ["-m", "pytest", "-q", "-x", "-p", "mutants", "-p", "no:cacheprovider"]
        try:
            done = subprocess.run(
                [sys.executable, *command, "-m", "not slow and not lab", *mutant.tests.split()],
                cwd=ROOT,
                env=environment,
                capture_output=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return True
    return done.returncode != 0


def main(arguments: list[str]) -> int:
    """Run mutants; return 1 where more than one in twenty survives."""
    every = list(enumerate(load()))
    if "--sample" in arguments:
        count = int(arguments[arguments.index("--sample") + 1])
        every = every[:: max(1, len(every) // count)]
    elif arguments:
        every = [(n, one) for n, one in every if any(word in one.file for word in arguments)]
    every = [(n, one) for n, one in every if (ROOT / one.file).read_text().count(one.old) == 1]
    jobs = int(os.environ.get("MUTANT_JOBS", "1"))
    survivors = []
    with ThreadPoolExecutor(jobs) as pool:
        found = pool.map(lambda job: noticed(job[1], job[0]), every)
        for (_, mutant), killed in zip(every, found, strict=True):
            if not killed:
                survivors.append(mutant)
            print(f"{'noticed ' if killed else 'SURVIVED'} {mutant.file}: {mutant.new}", flush=True)
    print(f"{len(every) - len(survivors)} of {len(every)} mutants noticed")
    return int(20 * len(survivors) > len(every))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
if CHOSEN in os.environ:
    chosen = load()[int(os.environ[CHOSEN])]
    if not chosen.file.startswith("data/"):
        plant(chosen)
