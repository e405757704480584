"""What a plan depends on besides its convolution and the chip: the rules of a stack."""

from dataclasses import dataclass

from ipusim.compiler.eras import ERAS
from ipusim.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerRules:
    """What one software stack's planner does.

    `era` is the generation of vertex formulas and planner rules (`eras`), `partials_bytes`
    the size of a partial sum, in the vertex and between tiles; the proportion is the share of tile
    memory that one operation's temporaries may take.
    """

    era: int
    partials_bytes: int
    available_memory_proportion: float

    def __post_init__(self) -> None:
        if self.era not in ERAS:
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
