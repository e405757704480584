"""Losses over all alignments of a sequence with its labels."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from ipusim.workload.operators.base import Attributes, Positive
from ipusim.workload.operators.elementwise import Elementwise
from ipusim.workload.operators.gradient import Backward, gradient

ALIGNMENT_LOSSES = ("ctc", "transducer")
"""Connectionist temporal classification (Graves et al. 2006) and its form with a prediction for
every pair of step and label (Graves 2012, arXiv 1211.3711)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignmentLoss(Attributes):
    """Loss over all alignments of ``batch`` sequences with at most ``labels`` labels each.

    Inputs are (log probabilities, labels), outputs (loss of each sequence, gradient of the log
    probabilities). A "ctc" reads ``classes`` probabilities per step, (batch x steps, classes), a
    "transducer" two per step and label (nothing, or the next label), so ``classes`` is 2 and its
    input is (batch x steps x (labels + 1), 2).
    """

    KIND: ClassVar[str] = "alignment_loss"
    kind: Literal[*ALIGNMENT_LOSSES]
    batch: Positive
    steps: Positive
    labels: Positive
    classes: Positive


@gradient.register
def _gradient(_loss: AlignmentLoss, back: Backward) -> None:
    """Scale the gradient that the forward operator has computed already."""
    computed = back.tensor(back.op.outputs[1])
    scale = Elementwise(function="mul", broadcast=True)
    result = back.emit("gradient", scale, (computed.name, back.gradient), computed)
    back.give(back.op.inputs[0], result)
