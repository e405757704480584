"""Normalisations by stored or computed statistics."""

from dataclasses import dataclass, replace
from typing import Literal

from ipusim.workload.operators.base import Attributes, Positive
from ipusim.workload.operators.gradient import Backward, gradient


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm(Attributes):
    """Normalisation of ``batch x channels x spatial_elements`` elements.

    "batch" at inference is a scale and a shift by four stored vectors; its inputs are
    (data, scale, bias, mean, variance). "layer" normalises each of ``batch`` rows over its
    ``channels`` (``spatial_elements`` is 1); "instance" and "group" normalise each of ``groups``
    groups of channels of each sample. Inputs of those, and of "batch" with ``training``, are
    (data, scale, bias).

    In a training graph a norm writes its mean and deviation as a second output. With ``backward``
    the inputs are (incoming gradient, data, scale, statistics) and the outputs the gradients of
    (data, scale, bias). ``replica_span`` replicas share the statistics of a training batch norm
    (distributed batch norm). A ``stable`` norm subtracts the mean before it sums squares.
    """

    kind: Literal["batch", "layer", "group", "instance"]
    batch: int
    channels: int
    spatial_elements: int
    groups: Positive = 1
    training: bool = False
    backward: bool = False
    replica_span: Positive = 1
    stable: bool = False

    def check(self) -> None:
        """Refuse groups that do not divide the channels."""
        if self.channels % self.groups:
            raise self.refusal("groups", f"must be a divisor of {self.channels}, its channels")

    @property
    def elements(self) -> int:
        """Number of elements normalised."""
        return self.batch * self.channels * self.spatial_elements

    @property
    def statistics(self) -> int:
        """Number of means: one per channel, row, group of a sample, or channel of a sample."""
        per_kind = {
            "batch": self.channels,
            "layer": self.batch,
            "group": self.batch * self.groups,
            "instance": self.batch * self.channels,
        }
        return per_kind[self.kind]


@gradient.register
def _gradient(norm: Norm, back: Backward) -> None:
    names = back.op.inputs[:3]
    inputs = (back.gradient, *names[:2], back.op.outputs[1])
    back.send_all(names, replace(norm, backward=True), inputs)
