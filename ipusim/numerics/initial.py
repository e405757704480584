"""Seeded initial weights."""

from math import prod

import numpy as np

from ipusim.numerics.program import Program

_ONES = (".running_var",)
_MATRIX_RANK = 2


def initial_weights(program: Program, seed: int) -> dict[str, np.ndarray]:
    """Draw float32 weights for every parameter of a program.

    Matrices and kernels are Xavier-uniform (Glorot and Bengio, AISTATS 2010), vectors are zero,
    except the scales and variances of norms, which are one.
    """
    generator = np.random.default_rng([seed, 0x57])
    scales = {node.inputs[1] for node in program.nodes if node.op in ("BatchNormalization",)}
    drawn: dict[str, np.ndarray] = {}
    for name, shape in program.parameters.items():
        if len(shape) >= _MATRIX_RANK:
            field = prod(shape[2:])
            limit = np.sqrt(6 / ((shape[0] + shape[1]) * field))
            drawn[name] = generator.uniform(-limit, limit, shape).astype(np.float32)
        elif name in scales or name.endswith(_ONES):
            drawn[name] = np.ones(shape, np.float32)
        else:
            drawn[name] = np.zeros(shape, np.float32)
    return drawn
