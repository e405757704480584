"""What the arithmetic of an IPU does to the answer: half precision, partials, rounding.

>>> import numpy as np
>>> from ipusim import numerics
>>> outputs = numerics.run("braggnn", np.zeros((1, 1, 11, 11)), precision="16.16")
"""

from ipusim.numerics.api import gradients, load_program, run
from ipusim.numerics.arithmetic import PARTIALS, Arithmetic, ArithmeticOptions

__all__ = ["PARTIALS", "Arithmetic", "ArithmeticOptions", "gradients", "load_program", "run"]
