"""Functions applied element by element, and conversions between element types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ipusim.errors import WorkloadError
from ipusim.workload.operators.base import Attributes, Op, Sizes, check_positive
from ipusim.workload.operators.gradient import Backward, gradient


@dataclass(frozen=True, slots=True, kw_only=True)
class Elementwise(Attributes):
    """One function applied element by element; ``elements`` is the size of the output.

    ``function`` is a lower-case name: "relu", "add", "bias_add" (a per-channel parameter added
    to a convolution or matrix product), "mul", ... ``broadcast`` says that some input is smaller
    than the output. ``in_place_ok`` says that the first input has the output's shape and type and
    is not a parameter, so that its memory may be reused if nobody else reads it.
    """

    KIND: ClassVar[str] = "elementwise"

    function: str
    n_inputs: int
    elements: int
    broadcast: bool = False
    in_place_ok: bool = False

    def __post_init__(self) -> None:
        check_positive(self, n_inputs=self.n_inputs)

    @property
    def flops(self) -> int:
        """One per output element and pair of inputs; one per element for unary functions."""
        return self.elements * max(1, self.n_inputs - 1)

    @property
    def variant(self) -> str:
        """Its function."""
        return self.function

    def sizes(self, op: Op) -> Sizes:
        """Elements of the result."""
        if self.n_inputs != len(op.inputs):
            raise WorkloadError(
                f"Operator {op.name!r} declares {self.n_inputs} inputs but reads {len(op.inputs)}."
            )
        return ((op.outputs[0], self.elements),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cast(Attributes):
    """Conversion of ``elements`` elements to the type ``to``."""

    KIND: ClassVar[str] = "cast"

    to: str
    elements: int


@gradient(Cast)
def _cast(back: Backward, _cast: Cast) -> None:
    (x,) = back.op.inputs
    tensor = back.tensor(x)
    back.send(x, "gradient", Cast(to=tensor.dtype, elements=tensor.elements), (back.gradient,))
