"""What operators on whole sequences do: recurrent layers, and losses over alignments.

Like those of `attributes`, the payloads here know their own work; each is one operator however long
its sequence, because it runs as a loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ipusim.errors import WorkloadError
from ipusim.workload.operators.attributes import Work, check_positive

GATES = {"lstm": 4, "gru": 3}
"""Gates of a cell, the candidate counted as one: products of this many times the hidden size."""

ELEMENTWISE_FLOPS = {"lstm": 13, "gru": 10}
"""Per step and hidden element. LSTM: 4 biases, 5 non-linearities, 3 products, 1 sum; GRU: 3 biases,
3 non-linearities, the reset, and 3 to blend candidate and state."""

_SAVED = {"lstm": 6, "gru": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrent(Work):
    """One LSTM or GRU layer over ``steps`` steps of ``batch`` sequences, in one direction.

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
    the loop instead of one in each step (poplibs' LSTM option ``preCalcWeights``). A ``reverse``
    layer starts from the last step.
    """

    KIND: ClassVar[str] = "recurrent"

    kind: str
    steps: int
    batch: int
    features: int
    hidden: int
    sequence: bool = True
    reverse: bool = False
    reset_after: bool = False
    input_product_first: bool = False
    training: bool = False
    backward: bool = False
    input_gradient: bool = True

    def __post_init__(self) -> None:
        if self.kind not in GATES:
            raise WorkloadError(f"Recurrent kind {self.kind!r} must be one of {', '.join(GATES)}.")
        check_positive(
            self, steps=self.steps, batch=self.batch, features=self.features, hidden=self.hidden
        )
        for option, kind in (("reset_after", "gru"), ("input_product_first", "lstm")):
            if getattr(self, option) and self.kind != kind:
                raise WorkloadError(
                    f"Recurrent has {option} = True, which a layer of kind {self.kind!r} has not: "
                    f"use it with {kind!r}."
                )

    @property
    def gates(self) -> int:
        """Gates of the cell."""
        return GATES[self.kind]

    @property
    def saved(self) -> int:
        """Tensors of (batch, hidden) that every step of a training layer keeps.

        Those of poplibs without recomputation (``lib/popnn/Lstm.cpp``, ``Gru.cpp``,
        getNumFwdIntermediatesToSave): the gates with the LSTM's hyperbolic tangent and previous
        cell state, one more for a GRU that resets after, one more where outputs are not kept.
        """
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

    @property
    def flops(self) -> int:
        """Two per multiply-accumulate, and the elementwise part of the cell."""
        return 2 * self.macs + ELEMENTWISE_FLOPS[self.kind] * self.steps * self.batch * self.hidden


ALIGNMENT_LOSSES = ("ctc", "transducer")
"""Connectionist temporal classification (Graves et al. 2006) and its form with a prediction for
every pair of step and label (Graves 2012, arXiv 1211.3711)."""

_ALIGNMENT_FLOPS = 16
"""Per cell of the lattice and direction: two additions of logarithms, two of products."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignmentLoss(Work):
    """Loss over all alignments of ``batch`` sequences with at most ``labels`` labels each.

    Inputs are (log probabilities, labels), outputs (loss of each sequence, gradient of the log
    probabilities). A "ctc" reads ``classes`` probabilities per step, (batch x steps, classes), a
    "transducer" two per step and label (nothing, or the next label), so ``classes`` is 2 and its
    input is (batch x steps x (labels + 1), 2).
    """

    KIND: ClassVar[str] = "alignment_loss"

    kind: str
    batch: int
    steps: int
    labels: int
    classes: int

    def __post_init__(self) -> None:
        if self.kind not in ALIGNMENT_LOSSES:
            raise WorkloadError(
                f"Alignment loss {self.kind!r} must be one of {', '.join(ALIGNMENT_LOSSES)}."
            )
        check_positive(
            self, batch=self.batch, steps=self.steps, labels=self.labels, classes=self.classes
        )

    @property
    def cells(self) -> int:
        """Cells of the lattice: steps times labels, for a CTC with blanks between them."""
        columns = 2 * self.labels + 1 if self.kind == "ctc" else self.labels + 1
        return self.batch * self.steps * columns

    @property
    def flops(self) -> int:
        """Both directions of the lattice."""
        return 2 * _ALIGNMENT_FLOPS * self.cells
