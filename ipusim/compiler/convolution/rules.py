"""What a plan depends on besides its convolution: the rules of a stack, the values of a chip."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ipusim.errors import ConfigError
from ipusim.machine import Chip


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerRules:
    """What one software stack's planner does.

    `era` is the generation of vertex formulas and planner rules (`vertices.conv`), `partials_bytes`
    the size of a partial sum, in the vertex and between tiles; the proportion is the share of tile
    memory that one operation's temporaries may take.
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
    """The values of a `Chip` that a plan depends on, hashable for the cache of plans."""

    mark: int
    tiles: int
    bytes_per_tile: int
    memory_element_bytes: int
    half_half_conv_units: int
    half_float_conv_units: int
    float_float_conv_units: int
    exchange_bytes_per_cycle: int
    tiles_per_exchange_bus: int
    memcpy_bytes_per_cycle: int

    @classmethod
    def of(cls, chip: Chip) -> PlannerChip:
        """Return the values of `chip`."""
        return cls(*(getattr(chip, name) for name in cls.__slots__))

    def units(self, in_bytes: int, partial_bytes: int) -> int:
        """Convolution units for inputs and partials of these widths; of float8 as many as half."""
        if in_bytes == 4:
            return self.float_float_conv_units
        return self.half_half_conv_units if partial_bytes == 2 else self.half_float_conv_units

    @property
    def single_input_bytes(self) -> int:
        """Largest partials for the contiguous reduce vertex (ConvReducePlan.hpp).

        The partials, rounded up to memory elements, must stay below a sixteenth of the memory.
        """
        element = self.memory_element_bytes
        return (math.ceil(self.bytes_per_tile / 16 / element) - 1) * element
