"""The shape of one convolution or matrix product, and what its plan depends on besides."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ipusim.errors import ConfigError
from ipusim.machine import Chip
from ipusim.workload.operators.base import windowed_field

KINDS = (
    "conv",
    "conv_forward",
    "conv_data_gradient",
    "conv_weight_gradient",
    "matmul",
    "fc_inference",
    "fc_training",
    "fc_data_gradient",
    "fc_weight_gradient",
)
_MAX_DIMS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvShape:
    """One convolution, or a matrix product seen as one; channels are per group.

    Attributes
    ----------
    kind : str
        "conv" at inference, "conv_forward" in training, and its two gradients; "matmul" for a
        product on its own; "fc_inference", "fc_training" and its two gradients for a layer whose
        weights are laid out for it.
    groups, batch, in_channels, out_channels : int
        For C[g, m, n] = A[g, m, k] B[g, k, n]: groups g, batch n, in_channels k, out_channels m
        (poplibs swaps the operands of products: MatMul.cpp).
    field, kernel, stride, padding_lower, padding_upper, in_dilation, kernel_dilation : tuple of int
        One entry per spatial dimension; a matrix product has one dimension of size 1.
    in_bytes, out_bytes : int
        Bytes of an input (and weight) element and of an output element.

    Raises
    ------
    ConfigError
        If the kind, a size or an element width is not one that can be planned.
    """

    kind: str
    groups: int
    batch: int
    in_channels: int
    out_channels: int
    field: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding_lower: tuple[int, ...]
    padding_upper: tuple[int, ...]
    in_dilation: tuple[int, ...]
    kernel_dilation: tuple[int, ...]
    in_bytes: int
    out_bytes: int

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"The kind {self.kind!r} is not one of {', '.join(KINDS)}: use one.")
        if self.in_bytes not in (2, 4) or self.out_bytes not in (2, 4):
            raise ConfigError(
                f"Elements of {self.in_bytes} and {self.out_bytes} bytes cannot be convolved: "
                "use float16 (2) or float32 (4)."
            )
        dims = len(self.field)
        if not 1 <= dims <= _MAX_DIMS:
            raise ConfigError(
                f"A convolution over {dims} spatial dimensions cannot be planned: "
                f"use 1 to {_MAX_DIMS}."
            )
        sizes = (self.field, self.kernel, self.stride, self.in_dilation, self.kernel_dilation)
        if any(len(entry) != dims for entry in (*sizes, self.padding_lower, self.padding_upper)):
            raise ConfigError(
                f"Kernel, stride, padding and dilation of a convolution over {dims} spatial "
                "dimensions need one entry each per dimension."
            )
        counts = (self.groups, self.batch, self.in_channels, self.out_channels)
        if min(counts) < 1 or min(map(min, sizes)) < 1:
            raise ConfigError(
                f"A convolution with groups, batch and channels {counts} over the field "
                f"{self.field} has an empty dimension: use sizes of 1 or more."
            )
        if min(self.out_field) < 1:
            raise ConfigError(
                f"The kernel {self.kernel} is larger than the padded field {self.field}: "
                "use more padding or a smaller kernel."
            )

    @classmethod
    def matmul(
        cls, groups: int, m: int, k: int, n: int, *, dtype_bytes: int, kind: str = "matmul"
    ) -> ConvShape:
        """Return the shape of C[g, m, n] = A[g, m, k] B[g, k, n]."""
        one, zero = (1,), (0,)
        return cls(
            kind=kind,
            groups=groups,
            batch=n,
            in_channels=k,
            out_channels=m,
            field=one,
            kernel=one,
            stride=one,
            padding_lower=zero,
            padding_upper=zero,
            in_dilation=one,
            kernel_dilation=one,
            in_bytes=dtype_bytes,
            out_bytes=dtype_bytes,
        )

    @property
    def out_field(self) -> tuple[int, ...]:
        """Output extent per spatial dimension."""
        spread = zip(self.field, self.in_dilation, strict=True)
        return windowed_field(
            tuple((size - 1) * dilation + 1 for size, dilation in spread),
            self.kernel,
            self.stride,
            self.padding_lower,
            self.padding_upper,
            self.kernel_dilation,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerRules:
    """What one software stack's planner does.

    Attributes
    ----------
    era : int
        Generation of the vertex formulas and planner rules (`vertices.conv`), 0 to 3.
    partials_bytes : int
        Bytes of a partial sum, 2 or 4, in the vertex and between tiles.
    available_memory_proportion : float
        Share of tile memory that one operation's temporaries may take, 0 < p <= 1.

    Raises
    ------
    ConfigError
        If a value is outside its range.
    """

    era: int
    partials_bytes: int
    available_memory_proportion: float

    def __post_init__(self) -> None:
        if self.era not in range(4):
            raise ConfigError(f"The planner era {self.era} does not exist: use 0, 1, 2 or 3.")
        if self.partials_bytes not in (2, 4):
            raise ConfigError(
                f"Partials of {self.partials_bytes} bytes do not exist: use half (2) or float (4)."
            )
        if not 0 < self.available_memory_proportion <= 1:
            raise ConfigError(
                f"The available memory proportion {self.available_memory_proportion} is outside "
                "its range: use more than 0 and at most 1."
            )

    def temporary_bytes(self, bytes_per_tile: int) -> int:
        """Return the bytes of a tile that temporaries may take, 1 at the least."""
        return max(1, int(bytes_per_tile * self.available_memory_proportion))


@dataclass(frozen=True, slots=True)
class PlannerChip:
    """The values of a chip that a plan depends on, hashable for the cache of plans."""

    mark: int
    tiles: int
    bytes_per_tile: int
    memory_element_bytes: int
    half_half_units: int
    half_float_units: int
    float_float_units: int
    exchange_bytes: int
    tiles_per_bus: int
    memcpy_bytes: int

    @classmethod
    def of(cls, chip: Chip) -> PlannerChip:
        """Return the values of `chip`."""
        return cls(
            chip.mark,
            chip.tiles,
            chip.bytes_per_tile,
            chip.memory_element_bytes,
            chip.half_half_conv_units,
            chip.half_float_conv_units,
            chip.float_float_conv_units,
            chip.exchange_bytes_per_cycle,
            chip.tiles_per_exchange_bus,
            chip.memcpy_bytes_per_cycle,
        )

    def units(self, in_bytes: int, partial_bytes: int) -> int:
        """Convolution units for inputs and partials of these widths."""
        if in_bytes == 4:
            return self.float_float_units
        return self.half_half_units if partial_bytes == 2 else self.half_float_units

    @property
    def single_input_bytes(self) -> int:
        """Largest partials for the contiguous reduce vertex (ConvReducePlan.hpp).

        The partials, rounded up to memory elements, must stay below a sixteenth of the memory.
        """
        element = self.memory_element_bytes
        return (math.ceil(self.bytes_per_tile / 16 / element) - 1) * element
