"""What holds for every test."""

from hypothesis import settings

# The first call of a kernel compiles it: how long an example takes says nothing.
settings.register_profile("kernels", deadline=None)
settings.load_profile("kernels")
