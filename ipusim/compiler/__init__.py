"""What Poplar and poplibs would do with a graph: plans, codelets, supersteps, memory."""

from ipusim.kernel_cache import use_keyed_cache

# Before any module of this package compiles a kernel.
use_keyed_cache()
