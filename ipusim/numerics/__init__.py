"""What the arithmetic of an IPU does to the answer: half precision, partials, rounding.

>>> import numpy as np
>>> from ipusim import numerics
>>> outputs = numerics.run("braggnn", np.zeros((1, 1, 11, 11)), precision="16.16")
"""

from ipusim.kernel_cache import use_keyed_cache

use_keyed_cache()  # before any module of this package compiles a kernel

from ipusim.numerics.arithmetic import PARTIALS, Arithmetic, ArithmeticOptions  # noqa: E402
from ipusim.numerics.network import gradients, load_program, run  # noqa: E402

__all__ = ["PARTIALS", "Arithmetic", "ArithmeticOptions", "gradients", "load_program", "run"]
