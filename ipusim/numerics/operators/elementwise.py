"""Operators on single elements and changes of shape, with their gradients.

Each is computed in single precision from stored operands and rounded once when stored, as popops'
vertices do (``lib/popops/codelets``).
"""

from collections.abc import Callable

import numpy as np

from ipusim.numerics.arithmetic import Arithmetic
from ipusim.numerics.kernels.functions import exponentials, log, tanh
from ipusim.numerics.operators.registry import Applied, Arrays, Operator, reduce_to_shape
from ipusim.numerics.program import Node

_F = np.float32


def _unary(
    function: Callable[[Node, np.ndarray], np.ndarray],
    derivative: Callable[[Node, np.ndarray, np.ndarray], np.ndarray],
) -> Operator:
    """Return an operator from ``f(node, x)`` and its derivative ``f'(node, x, y)``."""

    def forward(node: Node, inputs: Arrays, arithmetic: Arithmetic) -> list[np.ndarray]:
        return [arithmetic.store(function(node, inputs[0]))]

    def backward(applied: Applied) -> list[np.ndarray | None]:
        slope = derivative(applied.node, applied.inputs[0], applied.outputs[0])
        gradient = applied.arithmetic.store(applied.gradients[0] * slope)
        return [gradient, *[None] * (len(applied.inputs) - 1)]

    return Operator(forward=forward, backward=backward, operands=1)


def _binary(
    function: Callable[[np.ndarray, np.ndarray], np.ndarray],
    gradients: Callable[[np.ndarray, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]],
) -> Operator:
    """Return an operator from ``f(a, b)`` and ``(gradient, a, b) -> both gradients``."""

    def forward(node: Node, inputs: Arrays, arithmetic: Arithmetic) -> list[np.ndarray]:
        return [arithmetic.store(function(inputs[0], inputs[1]))]

    def backward(applied: Applied) -> list[np.ndarray | None]:
        gradient, operands, arithmetic = applied.gradients[0], applied.inputs, applied.arithmetic

        def settled(share: np.ndarray, operand: np.ndarray) -> np.ndarray:
            stored = share if share is gradient else arithmetic.store(share)
            return reduce_to_shape(stored, operand.shape, arithmetic)

        shares = zip(gradients(gradient, *operands), operands, applied.wanted, strict=True)
        return [settled(share, operand) if wanted else None for share, operand, wanted in shares]

    return Operator(forward=forward, backward=backward, operands=2)


def _slope(node: Node) -> np.float32:
    return _F(node.attributes.get("alpha", 0.01))


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return _F(1) / (_F(1) + exponentials(-x))


def _hard_sigmoid(node: Node, x: np.ndarray) -> np.ndarray:
    slope, shift = (_F(node.attributes.get(*item)) for item in (("alpha", 0.2), ("beta", 0.5)))
    return np.clip(slope * x + shift, _F(0), _F(1))


def _hard_sigmoid_slope(node: Node, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.where((y > 0) & (y < 1), _F(node.attributes.get("alpha", 0.2)), _F(0))


def _swish_share(node: Node, x: np.ndarray) -> np.ndarray:
    return _sigmoid(_F(node.attributes.get("alpha", 1)) * x)


def _swish_slope(node: Node, x: np.ndarray) -> np.ndarray:
    share = _swish_share(node, x)
    return share * (_F(1) + _F(node.attributes.get("alpha", 1)) * x * (_F(1) - share))


def _hard_share(x: np.ndarray) -> np.ndarray:
    return np.clip(x / _F(6) + _F(0.5), _F(0), _F(1))


def _hard_swish_slope(x: np.ndarray) -> np.ndarray:
    inside = np.abs(x) < _F(3)
    return np.where(inside, x / _F(3) + _F(0.5), _hard_share(x))


def _same_elements(applied: Applied) -> list[np.ndarray | None]:
    gradient = applied.gradients[0].reshape(applied.inputs[0].shape)
    return [gradient, *[None] * (len(applied.inputs) - 1)]


def _transpose_backward(applied: Applied) -> list[np.ndarray | None]:
    rank = applied.inputs[0].ndim
    order = tuple(applied.node.attributes.get("perm", range(rank - 1, -1, -1)))
    return [np.ascontiguousarray(applied.gradients[0].transpose(np.argsort(order)))]


def _concat_backward(applied: Applied) -> list[np.ndarray | None]:
    axis = applied.node.attributes["axis"]
    ends = np.cumsum([array.shape[axis] for array in applied.inputs])[:-1]
    return [np.ascontiguousarray(p) for p in np.split(applied.gradients[0], ends, axis=axis)]


ELEMENTWISE = {
    "Relu": _unary(lambda _, x: np.maximum(x, _F(0)), lambda _, x, y: (x > 0).astype(_F)),
    "LeakyRelu": _unary(
        lambda node, x: np.where(x > 0, x, _slope(node) * x),
        lambda node, x, y: np.where(x > 0, _F(1), _slope(node)),
    ),
    "Sigmoid": _unary(lambda _, x: _sigmoid(x), lambda _, x, y: y * (_F(1) - y)),
    "Swish": _unary(
        lambda node, x: x * _swish_share(node, x), lambda node, x, y: _swish_slope(node, x)
    ),
    "HardSwish": _unary(lambda _, x: x * _hard_share(x), lambda _, x, y: _hard_swish_slope(x)),
    "HardSigmoid": _unary(_hard_sigmoid, _hard_sigmoid_slope),
    "Tanh": _unary(lambda _, x: tanh(x), lambda _, x, y: _F(1) - y * y),
    "Exp": _unary(lambda _, x: exponentials(x), lambda _, x, y: y),
    "Log": _unary(lambda _, x: log(x), lambda _, x, y: _F(1) / x),
    "Sqrt": _unary(lambda _, x: np.sqrt(x), lambda _, x, y: _F(0.5) / y),
    "Neg": _unary(lambda _, x: -x, lambda _, x, y: np.full_like(x, -1)),
    "Abs": _unary(lambda _, x: np.abs(x), lambda _, x, y: np.sign(x)),
    "Add": _binary(lambda a, b: a + b, lambda g, a, b: (g, g)),
    "Sub": _binary(lambda a, b: a - b, lambda g, a, b: (g, -g)),
    "Mul": _binary(lambda a, b: a * b, lambda g, a, b: (g * b, g * a)),
    "Div": _binary(lambda a, b: a / b, lambda g, a, b: (g / b, -(g / b) * (a / b))),
}

_SAME = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout")
_ONWARD = (
    *("Split", "Slice", "Expand", "Pad", "Tile", "DepthToSpace", "SpaceToDepth", "Gather"),
    *("Where", "Shape", "Size", "Resize", "Upsample"),
)

MOVES = {
    **dict.fromkeys(_SAME, Operator(backward=_same_elements)),
    **dict.fromkeys(_ONWARD, Operator()),
    "Transpose": Operator(backward=_transpose_backward),
    "Concat": Operator(backward=_concat_backward),
    "View": Operator(
        forward=lambda node, inputs, _: [inputs[0].reshape(node.attributes["shape"])],
        backward=_same_elements,
    ),
}
"""Operators that do no arithmetic, so that their results need no rounding."""

CASTS = {
    "Cast": Operator(backward=_same_elements),
    # Within floating point: to the storage of activations, which all others have too.
    "Copy": Operator(
        forward=lambda _, inputs, arithmetic: [arithmetic.copy(inputs[0])],
        backward=_same_elements,
    ),
}
