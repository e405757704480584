"""LSTM, GRU and RNN: step by step, as poplibs' layers store their sums and gates.

Products of the inputs and of the last output are stored, then added, then a gate's function is
taken of them (``lib/popnn/Lstm.cpp``, basicLstmCellForwardPass). Attributes are those of ONNX:
sequences that end early give zeros from there on, and a layer that runs backwards begins where each
ends.
"""

from collections.abc import Callable, Iterator

import numpy as np

from ipusim.numerics.arithmetic import Arithmetic
from ipusim.numerics.operators.elementwise import ELEMENTWISE
from ipusim.numerics.operators.products import matrix_product
from ipusim.numerics.operators.registry import Arrays, Operator
from ipusim.numerics.program import Node
from ipusim.workload.onnx.operators.recurrent import ACTIVATIONS

_F = np.float32
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_OF_PARAMETERS: dict[str, Callable[[np.ndarray, np.float32, np.float32], np.ndarray]] = {
    "Affine": lambda x, alpha, beta: alpha * x + beta,
    "ScaledTanh": lambda x, alpha, beta: alpha * np.tanh(beta * x),
    "Elu": lambda x, alpha, _: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0))),
    "ThresholdedRelu": lambda x, alpha, _: np.where(x > alpha, x, _F(0)),
    "Softsign": lambda x, *_: x / (_F(1) + np.abs(x)),
    "Softplus": lambda x, *_: np.logaddexp(_F(0), x),
}
_ALPHA_BETA = {
    "LeakyRelu": (0.01, None),
    "HardSigmoid": (0.2, 0.5),
    "Elu": (1.0, None),
    "ThresholdedRelu": (1.0, None),
    "Affine": (1.0, 0.0),
    "ScaledTanh": (1.0, 1.0),
}
"""What functions take if nothing is given; None of what they do not have."""

Function = Callable[[np.ndarray], np.ndarray]


class _Layer:
    """One direction of a layer."""

    def __init__(self, node: Node, inputs: Arrays, direction: int, arithmetic: Arithmetic) -> None:
        self.node, self.arithmetic = node, arithmetic
        w, r, bias, _, h, c, peepholes = inputs
        count = _GATES[node.op]
        self.w, self.r = w[direction], r[direction]
        hidden = self.r.shape[1]
        both = np.zeros(2 * count * hidden, _F) if bias is None else bias[direction]
        self.w_bias, self.r_bias = both.reshape(2, -1)
        self.peepholes = [_F(0)] * 3 if peepholes is None else peepholes[direction].reshape(3, -1)
        batch = inputs[3].size
        self.state = [
            np.zeros((batch, hidden), _F) if one is None else one[direction]
            for one in ((h, c) if node.op == "LSTM" else (h,))
        ]
        functions = list(_functions(node, arithmetic))
        kinds = len(ACTIVATIONS[node.op])
        self.functions = functions[direction * kinds :][:kinds]

    def step(self, ahead: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Move on from the product of the inputs; sequences that ended keep what they have."""
        cell = {"LSTM": self._lstm, "GRU": self._gru, "RNN": self._rnn}[self.node.op]
        after = cell(ahead, *self.state)
        pairs = zip(after, self.state, strict=True)
        self.state = [np.where(ends[:, None], old, new) for new, old in pairs]
        return np.where(ends[:, None], _F(0), after[0])

    def product(self, x: np.ndarray, weights: np.ndarray, bias: np.ndarray) -> np.ndarray:
        made = matrix_product(x[None], weights.T[None], self.arithmetic)[0]
        return self.arithmetic.store(made + bias)

    def _gate(self, function: int, *terms: np.ndarray) -> np.ndarray:
        total = self.arithmetic.store(sum(terms))
        limit = self.node.attributes.get("clip")
        return self.functions[function](total if limit is None else np.clip(total, -limit, limit))

    def _lstm(self, ahead: np.ndarray, h: np.ndarray, c: np.ndarray) -> list[np.ndarray]:
        store = self.arithmetic.store
        x = np.split(store(ahead + self.product(h, self.r, self.r_bias)), 4, axis=1)
        to_input, to_output, to_forget = self.peepholes
        enters = self._gate(0, x[0], to_input * c)
        coupled = self.node.attributes.get("input_forget", 0)
        stays = store(_F(1) - enters) if coupled else self._gate(0, x[2], to_forget * c)
        c = store(store(stays * c) + store(enters * self._gate(1, x[3])))
        return [store(self._gate(0, x[1], to_output * c) * self.functions[2](c)), c]

    def _gru(self, ahead: np.ndarray, h: np.ndarray) -> list[np.ndarray]:
        store, hidden = self.arithmetic.store, h.shape[1]
        x = np.split(ahead, 3, axis=1)
        after = self.node.attributes.get("linear_before_reset", 0)
        rows = slice(None if after else 2 * hidden)
        both = np.split(self.product(h, self.r[rows], self.r_bias[rows]), 3 if after else 2, axis=1)
        update, reset = (self._gate(0, x[i], both[i]) for i in (0, 1))
        if after:
            new = store(reset * both[2])
        else:
            own = slice(2 * hidden, None)
            new = self.product(store(reset * h), self.r[own], self.r_bias[own])
        new = self._gate(1, x[2], new)
        return [store(store(update * h) + store(store(_F(1) - update) * new))]

    def _rnn(self, ahead: np.ndarray, h: np.ndarray) -> list[np.ndarray]:
        return [self._gate(0, ahead, self.product(h, self.r, self.r_bias))]


def _functions(node: Node, arithmetic: Arithmetic) -> Iterator[Function]:
    """Give the functions of all directions, with their parameters from the lists of both."""
    given = node.attributes
    names = list(given.get("activations") or ACTIVATIONS[node.op] * 2)
    lists = [iter(given.get(f"activation_{name}") or ()) for name in ("alpha", "beta")]
    known = {name.lower(): name for name in (*ELEMENTWISE, *_OF_PARAMETERS)}
    for name in names:
        kind = known.get(name.lower(), name)
        defaults = _ALPHA_BETA.get(kind, (None, None))
        alpha, beta = (
            None if default is None else _F(next(values, default))
            for values, default in zip(lists, defaults, strict=True)
        )
        yield _function(kind, alpha, beta, arithmetic)


def _function(
    kind: str, alpha: np.float32 | None, beta: np.float32 | None, arithmetic: Arithmetic
) -> Function:
    if kind in _OF_PARAMETERS:
        return lambda x: arithmetic.store(_OF_PARAMETERS[kind](x, alpha, beta))
    given = {"alpha": alpha, "beta": beta} if alpha is not None else {}
    node = Node(name="", op=kind, inputs=(), outputs=(), attributes=given)
    return lambda x: ELEMENTWISE[kind].forward(node, [x], arithmetic)[0]


def _forward(node: Node, inputs: Arrays, arithmetic: Arithmetic) -> list[np.ndarray]:
    x, *rest = [*inputs, *[None] * (8 - len(inputs))]
    first = bool(node.attributes.get("layout", 0))
    if first:
        x = x.swapaxes(0, 1)
        rest[4:6] = [None if one is None else one.swapaxes(0, 1) for one in rest[4:6]]
    steps, batch, _ = x.shape
    lengths = np.full(batch, steps) if rest[3] is None else rest[3]
    rest[3] = lengths
    rows = np.arange(batch)
    whole, states = [], []
    for direction in range(rest[0].shape[0]):
        backwards = node.attributes.get("direction", "forward") == "reverse" or direction == 1
        layer = _Layer(node, rest, direction, arithmetic)
        ahead = layer.product(x.reshape(steps * batch, -1), layer.w, layer.w_bias)
        ahead = ahead.reshape(steps, batch, -1)
        results = np.zeros((steps, batch, layer.r.shape[1]), _F)
        for step in range(steps):
            ends = lengths <= step
            at = np.where(ends, step, lengths - 1 - step) if backwards else np.full(batch, step)
            results[at, rows] = layer.step(ahead[at, rows], ends)
        whole.append(results)
        states.append(layer.state)
    found = [np.stack(whole, 1), *(np.stack(parts) for parts in zip(*states, strict=True))]
    if first:
        found = [found[0].transpose(2, 0, 1, 3), *(one.swapaxes(0, 1) for one in found[1:])]
    return found[: len(node.outputs)]


RECURRENT = dict.fromkeys(_GATES, Operator(forward=_forward))
