"""Losses of a prediction, each with its gradient in the same operator."""

from dataclasses import dataclass
from typing import Literal

from ipusim.workload.operators.base import Attributes, Positive

CLASS_LOSSES = ("cross_entropy", "cross_entropy_accuracy")
"""Those whose target is the number of a class."""

CROSS_ENTROPIES = ("fused", "probabilities", "logarithms")
"""How a framework writes a cross entropy: poplibs' own vertex, or a negative log likelihood of
probabilities or of their logarithms, each with operators of its own."""

LOSSES = (*CLASS_LOSSES, "binary_cross_entropy", "mean_squared", "identity")
"""Losses that `Loss` knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss(Attributes):
    """Mean loss of ``rows`` rows of ``classes`` values, and its gradient in the same op.

    Inputs are (predictions, targets), outputs (loss of each row, gradient of the predictions).
    "cross_entropy" takes the softmax of the predictions first and integer targets, in the form
    `cross_entropy`; "cross_entropy_accuracy" also counts the rows whose largest prediction is the
    target's, "binary_cross_entropy" the sigmoid and targets of the predictions' shape,
    "mean_squared" such targets too. "identity" is for networks that compute their loss themselves:
    the result is the loss, its gradient 1, and there are no targets (PopTorch's identity_loss).
    """

    kind: Literal[*LOSSES]
    rows: Positive
    classes: Positive
    cross_entropy: Literal[*CROSS_ENTROPIES] = "fused"
