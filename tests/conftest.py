"""What holds for every test."""

import pytest
from hypothesis import settings

from ipusim.compiler.program_cache import keep_programs

# The first call of a kernel compiles it: how long an example takes says nothing.
settings.register_profile("kernels", deadline=None)
settings.load_profile("kernels")


@pytest.fixture(autouse=True)
def _plans_anew():
    """Tests patch what plans: nothing may be answered from, or kept on, the disk."""
    with keep_programs(False):
        yield
