"""Sliding maxima and averages."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from ipusim.workload.operators.base import Attributes, Positive, Positives, windowed_field
from ipusim.workload.operators.gradient import Backward, gradient


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool(Attributes):
    """A sliding maximum or average; global pooling has ``kernel == field``.

    When a file rounds its output size up, ``padding_upper`` has been enlarged to say the same
    with rounding down, so ``out_field`` is always exact. With ``backward`` the op reads the
    gradient of the result (and, for a maximum, the input and the result) and writes that of the
    input; the sizes stay those of the forward pool.
    """

    kind: Literal["max", "average"]
    batch: Positive
    channels: Positive
    field: tuple[int, ...]
    kernel: Positives
    stride: Positives
    padding_lower: tuple[int, ...]
    padding_upper: tuple[int, ...]
    dilation: tuple[int, ...] = ()
    include_padding: bool = False
    backward: bool = False

    @classmethod
    def of_all(cls, kind: str, shape: tuple[int, ...]) -> Pool:
        """Return a pool of every position of an (N, C, ...) tensor into one."""
        batch, channels, *rest = shape
        field, ones, none = tuple(rest), (1,) * len(rest), (0,) * len(rest)
        place = {"stride": ones, "padding_lower": none, "padding_upper": none}
        return cls(kind=kind, batch=batch, channels=channels, field=field, kernel=field, **place)

    @property
    def padded(self) -> bool:
        """Whether windows reach, or leave out, anything beyond the field."""
        return any((*self.padding_lower, *self.padding_upper))

    @property
    def out_field(self) -> tuple[int, ...]:
        """Output size per spatial dimension, in elements."""
        return windowed_field(self, self.field, self.dilation or (1,) * len(self.field))


@gradient.register
def _gradient(pool: Pool, back: Backward) -> None:
    x, result = back.op.inputs[0], back.op.outputs[0]
    kept = (x, result) if pool.kind == "max" else ()
    back.send(x, "gradient", replace(pool, backward=True), (back.gradient, *kept))
