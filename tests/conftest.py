"""What holds for every test."""

import pytest
from hypothesis import settings

from ipusim.compiler.program_cache import keep_programs

# The first call of a kernel compiles it: how long an example takes says nothing.
settings.register_profile("kernels", deadline=None)
settings.load_profile("kernels")


LONGEST_FILES = (
    "test_fidelity.py",
    "test_lab_browser.py",
    "test_packaging.py",
    "test_faults.py",
    "test_planner.py",
    "test_same_bytes.py",
)
"""Files that take long: begun first, no worker is left alone with one.

Not test_readme.py, which reads the predictions that test_fidelity.py keeps.
"""


def pytest_collection_modifyitems(items):
    """A file stays with one worker (Makefile), so the order of files decides who waits for whom."""
    order = {name: place for place, name in enumerate(LONGEST_FILES)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))


@pytest.fixture(autouse=True)
def _plans_anew():
    """Tests patch what plans: nothing may be answered from, or kept on, the disk."""
    with keep_programs(False):
        yield
