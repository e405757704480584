"""Gradients of operators: one rule for each class of attributes, written to a tape.

Each forward operator is answered by the operators that a framework would run for it: gradients of
convolutions and products are convolutions and products again, everything else has one gradient
operator of its own or a few elementwise ones. A rule stands beside the attributes it is for,
registered with `gradient`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import singledispatch

from ipusim.errors import WorkloadError
from ipusim.workload.operators.base import Attributes, Op, Tensor
from ipusim.workload.operators.reduce import Reduce

Names = tuple[str, ...]


@singledispatch
def gradient(_work: Attributes, back: Backward) -> None:
    """Write the gradient of an operator; `WorkloadError` where no rule is registered."""
    raise back.refusal()


@dataclass(slots=True)
class Tape:
    """Operators and tensors of a backward pass while it is written.

    ``forward`` holds the tensors that gradients are made for, ``wanted`` those whose gradients
    somebody needs, ``gradients`` the contributions to the gradient of each so far.
    """

    forward: Mapping[str, Tensor]
    wanted: frozenset[str]
    tensors: dict[str, Tensor] = field(default_factory=dict)
    ops: list[Op] = field(default_factory=list)
    gradients: dict[str, list[str]] = field(default_factory=dict)

    def contribute(self, name: str, gradient: str) -> None:
        """Record one more contribution to the gradient of a forward tensor."""
        self.gradients.setdefault(name, []).append(gradient)


@dataclass(frozen=True, slots=True)
class Backward:
    """The gradient of one forward operator while its rule writes it.

    ``incoming`` holds the gradient of each of its results, None where nobody sends one. Methods
    that add operators name them after the forward one, with a suffix.
    """

    tape: Tape
    op: Op
    incoming: tuple[str | None, ...]

    def refusal(self) -> WorkloadError:
        """Return the error of an operator without a gradient."""
        return WorkloadError(
            f"Operator {self.op.name!r} ({self.op.kind} {self.op.function}".rstrip()
            + ") has no gradient: train a model without it, or simulate inference."
        )

    @property
    def gradient(self) -> str:
        """The gradient of the first result."""
        name = self.incoming[0]
        if name is None:
            raise self.refusal()
        return name

    @property
    def result(self) -> Tensor:
        """The first result of the forward operator."""
        return self.tensor(self.op.outputs[0])

    def tensor(self, name: str) -> Tensor:
        """Return a tensor of either pass."""
        return self.tape.tensors.get(name) or self.tape.forward[name]

    def wants(self, name: str) -> bool:
        """Whether anybody needs the gradient of a forward tensor."""
        return name in self.tape.wanted

    def emit(self, suffix: str, work: Attributes, inputs: Names, like: Tensor) -> str:
        """Add an operator and its result, of the shape and type of `like`; return its name."""
        (name,) = self._write(suffix, work, inputs, {f"{self.op.name}.{suffix}": like})
        return name

    def _write(
        self, suffix: str, params: Attributes, inputs: Names, results: dict[str, Tensor]
    ) -> Names:
        for name, like in results.items():
            self.tape.tensors[name] = Tensor(name=name, shape=like.shape, dtype=like.dtype)
        label, outputs = f"{self.op.name}.{suffix}", tuple(results)
        made = {"inputs": inputs, "outputs": outputs, "phase": "backward", "source": self.op.name}
        self.tape.ops.append(Op(name=label, params=params, **made))
        return outputs

    def give(self, name: str, gradient: str) -> None:
        """Send a gradient to a forward tensor of its size, if that is wanted."""
        if self.wants(name):
            self.tape.contribute(name, gradient)

    def send(
        self, name: str, suffix: str, work: Attributes, inputs: Names, dtype: str = ""
    ) -> None:
        """Add what computes the gradient of a forward tensor if wanted, of its type or another."""
        if self.wants(name):
            tensor = self.tensor(name)
            like = replace(tensor, dtype=dtype) if dtype else tensor
            self.tape.contribute(name, self.emit(suffix, work, inputs, like))

    def send_operands(self, data: Attributes, weights: Attributes) -> None:
        """Add the gradients of both operands of a convolution or product, the second's first."""
        first, second = self.op.inputs[:2]
        self._send_operand(second, weights, (first, self.gradient))
        self._send_operand(first, data, (self.gradient, second))

    def _send_operand(self, name: str, params: Attributes, inputs: tuple[str, ...]) -> None:
        """Send the gradient of an operand: that of one that groups share is the sum of theirs."""
        (*_, (_, made)), stored = params.sizes(self.op), self.tensor(name).elements
        if made > stored and self.wants(name):
            each = replace(self.tensor(name), shape=(made // stored, stored))
            inputs = (self.emit(f"{params.pass_kind}s", params, inputs, each),)
            params = Reduce(function="sum", outer=1, reduced=made // stored, inner=stored)
            self.send(name, "shared_gradient", params, inputs)
        else:
            self.send(name, params.pass_kind, params, inputs)

    def send_all(self, names: Names, work: Attributes, inputs: Names) -> None:
        """Add the one operator that computes the gradients of several forward tensors."""
        prefix = f"{self.op.name}.gradient"
        results = {f"{prefix}{i}": self.tensor(name) for i, name in enumerate(names)}
        made = self._write("gradient", work, inputs, results)
        for name, gradient in zip(names, made, strict=True):
            self.give(name, gradient)
