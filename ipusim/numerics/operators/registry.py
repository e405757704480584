"""What an operator is to the executor, and the table of those with arithmetic of their own.

A forward function takes the node, its input arrays (None where left out) and the arithmetic, and
returns the outputs. A gradient function takes an `Applied` and returns one gradient per input, or
None for inputs that have none or do not need one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ipusim.numerics.arithmetic import Arithmetic
from ipusim.numerics.program import Arrays, Node
from ipusim.workload.operators.base import Attributes

Forward = Callable[[Node, Arrays, Arithmetic], list[np.ndarray]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """An operator after its forward pass, the gradients of its outputs, which inputs need one."""

    node: Node
    inputs: Arrays
    outputs: Sequence[np.ndarray]
    gradients: Sequence[np.ndarray | None]
    wanted: Sequence[bool]
    arithmetic: Arithmetic


Backward = Callable[[Applied], list[np.ndarray | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """Forward function, None where ONNX's own definition serves, and gradient where there is one.

    A function of single elements has as many ``operands``.
    """

    forward: Forward | None = None
    backward: Backward | None = None
    operands: int = 0


def attributes_of(node: Node, inputs: Arrays) -> Attributes:
    """Return what a node does on these operands, as the graph has it."""
    return node.params(inputs) if callable(node.params) else node.params


def reduce_to_shape(
    gradient: np.ndarray, shape: tuple[int, ...], arithmetic: Arithmetic
) -> np.ndarray:
    """Sum a gradient over the axes along which an operand was repeated, and store it."""
    if gradient.shape == tuple(shape):
        return gradient
    whole = (1,) * (gradient.ndim - len(shape)) + tuple(shape)
    axes = tuple(axis for axis, size in enumerate(whole) if size != gradient.shape[axis])
    # Added up in double and rounded once more when stored, as popops reduces halves in floats
    # (``lib/popops/reduction``).
    summed = gradient.sum(axis=axes, dtype=np.float64, keepdims=True)
    return arithmetic.store(summed.reshape(shape))
