"""Recurrent layers, each one operator however long its sequence, because it runs as a loop."""

from dataclasses import dataclass, replace
from typing import Literal

from ipusim.workload.operators.base import Attributes, Op, Positive, Sizes
from ipusim.workload.operators.elementwise import Elementwise
from ipusim.workload.operators.gradient import Backward, gradient
from ipusim.workload.operators.layout import Layout

GATES = {"lstm": 4, "gru": 3}
"""Gates of a cell, the candidate counted as one: products of this many times the hidden size."""

_SAVED = {"lstm": 6, "gru": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrent(Attributes):
    """One LSTM or GRU layer over ``steps`` steps of ``batch`` sequences, from either end.

    Inputs are (sequence, input weights, recurrent weights, bias) and, optionally, the initial
    output and the initial cell state; shapes (steps, batch, features), (features, gates * hidden),
    (hidden, gates * hidden), (gates * hidden,), (batch, hidden). Outputs are the outputs of all
    steps, (steps, batch, hidden), or with ``sequence`` False that of the last, (batch, hidden);
    then the final cell state of an LSTM where somebody wants it; then, with ``training``, what the
    gradient needs of every step.

    With ``backward`` the inputs are (incoming gradient, sequence, input weights, recurrent weights,
    outputs, what was kept) and the outputs the gradients of (sequence, input weights, recurrent
    weights, bias), without the first where ``input_gradient`` is False.

    ``reset_after`` is the form of GRU that multiplies by the reset gate after the product.
    ``input_product_first`` takes the products of all steps with the input weights in one go before
    the loop instead of one in each step (poplibs' LSTM option ``preCalcWeights``).
    """

    kind: Literal[*GATES]
    steps: Positive
    batch: Positive
    features: Positive
    hidden: Positive
    sequence: bool = True
    reset_after: bool = False
    input_product_first: bool = False
    training: bool = False
    backward: bool = False
    input_gradient: bool = True

    def check(self) -> None:
        """Refuse options of the other kind."""
        for option, kind in (("reset_after", "gru"), ("input_product_first", "lstm")):
            if getattr(self, option) and self.kind != kind:
                raise self.refusal(option, f"a layer of kind {self.kind!r} has not: use {kind!r}")

    @property
    def gates(self) -> int:
        """Gates of the cell."""
        return GATES[self.kind]

    @property
    def saved(self) -> int:
        """Tensors of (batch, hidden) that every step of a training layer keeps."""
        # Those of poplibs without recomputation (``lib/popnn/Lstm.cpp``, ``Gru.cpp``,
        # getNumFwdIntermediatesToSave): the gates with the LSTM's hyperbolic tangent and previous
        # cell state, one more for a GRU that resets after, one more where outputs are not kept.
        return _SAVED[self.kind] + self.reset_after + (not self.sequence)

    @property
    def macs(self) -> int:
        """Multiply-accumulates: each gate reads input and state; a gradient takes two passes."""
        read = self.features + self.hidden
        per_step = self.gates * self.hidden * read
        if self.backward:
            passed_on = read if self.input_gradient else self.hidden
            per_step += self.gates * self.hidden * passed_on
        return self.steps * self.batch * per_step

    def sizes(self, op: Op) -> Sizes:
        """Elements of sequence, weights and result, or of what arrives in their place."""
        steps = self.steps if self.sequence else 1
        result = op.inputs[0] if self.backward else op.outputs[0]
        columns = self.gates * self.hidden
        read = (self.steps * self.batch * self.features, columns * self.features)
        names = (result, *(op.inputs[1:4] if self.backward else op.inputs[:3]))
        sizes = (steps * self.batch * self.hidden, *read, columns * self.hidden)
        return tuple(zip(names, sizes, strict=True))


@gradient.register
def _gradient(layer: Recurrent, back: Backward) -> None:
    op = back.op
    gradient, *others = back.incoming
    x, *weights = op.inputs[:4]
    for place, other in enumerate(filter(None, others)):
        # The gradient of a final cell state joins that of the last step.
        part = back.emit(f"final{place}", Layout.move("pad"), (other,), back.result)
        if gradient is not None:
            add = Elementwise(function="add")
            part = back.emit(f"joined{place}", add, (gradient, part), back.result)
        gradient = part
    if gradient is None:
        raise back.refusal()
    passed_on = back.wants(x)
    inputs = (gradient, *op.inputs[:3], op.outputs[0], op.outputs[-1])
    back.send_all(
        (x, *weights) if passed_on else tuple(weights),
        replace(layer, backward=True, input_gradient=passed_on),
        inputs,
    )
    for place, name in enumerate(op.inputs[4:]):
        # What reaches an initial state is what the first step leaves over: one small copy.
        back.send(name, f"initial{place}", Layout.move("slice"), (gradient,))
