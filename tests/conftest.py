"""What holds for every test."""

import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

from ipusim import files, kernel_cache
from ipusim.compiler.program_cache import keep_programs
from ipusim.workers import available_cores

# A shell that runs the tests in the background ignores interrupts, and so would what they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The first call of a kernel compiles it: how long an example takes says nothing.
settings.register_profile("kernels", deadline=None)
settings.load_profile("kernels")


LONGEST_FILES = (
    "test_fidelity.py",
    "test_site_browser.py",
    "test_lab_browser.py",
    "test_reproduce.py",
    "test_same_bytes.py",
    "test_packaging.py",
    "test_faults.py",
    "test_sweeps.py",
    "test_planner.py",
    "06_fidelity.ipynb",
    "03_argonne_braggnn.ipynb",
)
"""Files that take long: begun first, no worker is left alone with one.

Both notebooks come when test_fidelity.py has predicted what they read: 06 predicts as much again,
the training of 03 takes a core for a minute.

Not test_readme.py, which like the notebooks reads the predictions that test_fidelity.py keeps.
"""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """One more than cores: a test that waits for a browser or a process leaves one idle."""
    return available_cores() + 1


def pytest_collection_modifyitems(items):
    """A file stays with one worker (Makefile), so the order of files decides who waits for whom.

    Other notebooks come last: they read predictions and trainings that tests keep.
    """
    order = {name: place for place, name in enumerate(LONGEST_FILES)}
    others = len(order)

    def place(item):
        return order.get(item.path.name, others + (item.path.suffix == ".ipynb"))

    items.sort(key=place)


@pytest.fixture(autouse=True)
def _plans_anew():
    """Tests patch what plans: nothing may be answered from, or kept on, the disk."""
    with keep_programs(False):
        yield


@pytest.fixture
def own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the data folder, in use instead, which a test may write to."""
    folder = shutil.copytree(files.data_dir(), tmp_path / "data")
    monkeypatch.setenv(files.DATA_DIR_VARIABLE, str(folder))
    return folder


@pytest.fixture
def keep_below(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Keep programs in another place; kernels stay where they are, as compiling them takes long."""
    usual = kernel_cache.cache_folder

    def keep(place: Path) -> None:
        def folder(what: str) -> Path:
            return place / what if what == "programs" else usual(what)

        monkeypatch.setattr(kernel_cache, "cache_folder", folder)

    return keep
