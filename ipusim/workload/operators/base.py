"""What all operators of a graph have: tensors, attributes that know their own work, a name.

Attributes say what one operator does, as plain numbers. ``macs`` counts multiply-accumulates as
``torch.utils.flop_counter`` does (every output element times every kernel tap, padding
included), as papers count parameters and MACs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from math import prod
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin, get_type_hints

from ipusim.errors import WorkloadError

DTYPE_BYTES = {
    "float16": 2,
    "float32": 4,
    "int32": 4,
    "int64": 8,
    "uint8": 1,
    "bool": 1,
    "float8": 1,
}
"""Bytes per element of every element type a tensor may have."""

ROLES = ("input", "parameter", "constant", "state", "activation", "output")
"""Data from the host, learnt weights, fixed values, what a training step keeps for the next one
(accumulated gradients, moments), intermediate results, results."""

PASSES = ("forward", "data_gradient", "weight_gradient")
"""What a convolution or product computes: the result, or the gradient of one of its operands."""

Sizes = tuple[tuple[str, int], ...]
"""Names of tensors, each with the elements that it must have."""


def changed(one: Any, **values: Any) -> Any:
    """Return `dataclasses.replace(one, **values)`, unchecked, in half the time.

    `one` is an `Op` or a `Tensor`: their own slots are all their fields.
    """
    made = object.__new__(type(one))
    for name in one.__slots__:
        object.__setattr__(made, name, values[name] if name in values else getattr(one, name))
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A named array; ``alias_of`` names the tensor whose memory a reshaped parameter shares."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    role: str = "activation"
    alias_of: str | None = None
    elements: int = field(init=False, repr=False, compare=False)
    """Number of elements; 1 for a scalar."""

    def __post_init__(self) -> None:
        named = (("element type", self.dtype, DTYPE_BYTES), ("role", self.role, ROLES))
        for what, own, known in named:
            if own not in known:
                raise WorkloadError(
                    f"Tensor {self.name!r} has {what} {own!r}, which must be one of "
                    f"{', '.join(known)}."
                )
        if min(self.shape, default=0) < 0:
            raise WorkloadError(f"Tensor {self.name!r} has shape {self.shape}, which is negative.")
        object.__setattr__(self, "elements", prod(self.shape))

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        return self.elements * DTYPE_BYTES[self.dtype]


Positive = Annotated[int, "at least 1"]
Positives = Annotated[tuple[int, ...], "each at least 1"]
"""Types of attributes that cannot be 0 or less."""

_VARIANTS = ("function", "kind", "pass_kind")
"""Attributes that tell operators of one class apart."""


class Attributes:
    """What one operator does; the base of all, without work unless one says otherwise.

    Types of attributes say what they may be. Those with several entries have one, or by default
    none, for each spatial dimension of the ``field``, if there is such an attribute.
    """

    __slots__ = ()

    KIND: ClassVar[str]
    """The class in lower case, unless it says otherwise: "conv", "matmul", "elementwise", ..."""
    _variant: ClassVar[str]
    _choices: ClassVar[dict[str, tuple[str, ...]]]
    _positive: ClassVar[list[str]]
    _of_field: ClassVar[list[str]]

    def __init_subclass__(cls) -> None:
        cls.KIND = cls.__dict__.get("KIND", cls.__name__.lower())
        hints = get_type_hints(cls, include_extras=True)
        types, lists = hints.items(), (tuple[int, ...], Positives)
        cls._variant = next(filter(hints.get, _VARIANTS), "")
        cls._choices = {name: get_args(kind) for name, kind in types if get_origin(kind) is Literal}
        cls._positive = [name for name, kind in types if kind in (Positive, Positives)]
        cls._of_field = [name for name, kind in types if "field" in hints and kind in lists]

    def __post_init__(self) -> None:
        for name, choices in self._choices.items():
            if getattr(self, name) not in choices:
                raise self.refusal(name, f"must be one of {', '.join(choices)}")
        for name in self._positive:
            value = getattr(self, name)
            if (min(value, default=0) if isinstance(value, tuple) else value) < 1:
                raise self.refusal(name, "must be at least 1")
        for name in self._of_field:
            value, rank = getattr(self, name), len(self.field)
            if len(value) != rank and value != self._default(name):
                raise self.refusal(name, f"must have {rank} entries, one per spatial dimension")
        self.check()

    def _default(self, name: str) -> Any:
        return self.__dataclass_fields__[name].default

    def check(self) -> None:
        """Raise `WorkloadError` for what types do not say."""

    def refusal(self, name: str, why: str) -> WorkloadError:
        """Return the error of an attribute with a value that it cannot have."""
        return WorkloadError(
            f"{type(self).__name__} has {name} = {getattr(self, name)!r}, which {why}."
        )

    @property
    def macs(self) -> int:
        """Multiply-accumulates; element-wise products are not counted as such."""
        return 0

    @property
    def variant(self) -> str:
        """What tells operators of one kind apart: "relu", "max", "data_gradient"; "" by default."""
        variant = getattr(self, self._variant, "")
        return "" if variant and variant == self._default(self._variant) else variant

    def sizes(self, _op: Op) -> Sizes:
        """Return tensors of an operator with the elements that they must have."""
        return ()


_ROUND = re.compile(r"@\d+/")


def round_prefix(loop: str, number: int) -> str:
    """Return what the names of operators in a round of a loop begin with."""
    return f"{loop}@{number}/"


def name_in_body(name: str) -> str:
    """Return the name that an operator of a loop has in every round; other names as they are."""
    return _ROUND.sub("@/", name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One operator: what it does (``params``), what it reads and what it writes.

    ``phase`` is the part of a training step that it belongs to, ``source`` the forward operator
    (or, in an update, the parameter) that it was derived from.
    """

    name: str
    params: Attributes
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    phase: str = "forward"
    source: str = ""

    @property
    def kind(self) -> str:
        """Lower-case name of what it does."""
        return self.params.KIND

    @property
    def function(self) -> str:
        """What distinguishes operators of one kind, as their attributes say."""
        return self.params.variant

    @property
    def macs(self) -> int:
        """Multiply-accumulates."""
        return self.params.macs


def windowed_field(
    window: Attributes, field: tuple[int, ...], dilation: tuple[int, ...]
) -> tuple[int, ...]:
    """Output size of a sliding window per spatial dimension, rounded down and at least 0.

    ``(field + paddings - dilation * (kernel - 1) - 1) // stride + 1``, in elements.
    """
    paddings = (window.padding_lower, window.padding_upper)
    along = zip(field, dilation, window.kernel, window.stride, *paddings, strict=True)
    return tuple(
        max(0, (size + low + high - step * (taps - 1) - 1) // hop + 1)
        for size, step, taps, hop, low, high in along
    )


def check_forward(attributes: Attributes, pass_kind: str) -> None:
    """Raise `WorkloadError` if a convolution or product is a gradient itself."""
    if pass_kind != "forward":
        raise WorkloadError(
            f"{type(attributes).__name__} has pass_kind = {pass_kind!r} and so no gradient of "
            "its own here: derive gradients from the forward operator."
        )
