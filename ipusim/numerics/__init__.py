"""What the arithmetic of an IPU does to the answer: half precision, partials, rounding.

>>> import numpy as np
>>> from ipusim import numerics
>>> x = np.linspace(0, 1, 121).reshape(1, 1, 11, 11)
>>> for precision in ("32.32", "16.16"):
...     (centre,) = numerics.run("braggnn", x, precision=precision).values()
...     print(precision, centre)
32.32 [[-0.00437897  0.00128402]]
16.16 [[-0.004364  0.001278]]
"""

from ipusim.numerics.api import gradients, load_program, run
from ipusim.numerics.arithmetic import PARTIALS, Arithmetic, ArithmeticOptions

__all__ = ["PARTIALS", "Arithmetic", "ArithmeticOptions", "gradients", "load_program", "run"]
