"""The links between chips, machines and hosts."""

from dataclasses import dataclass, field
from typing import ClassVar

from ipusim.errors import ConfigError
from ipusim.machine.constants import Constant, constant


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One link, one direction; ``constants`` holds the same values with unit, source and label.

    Payload can use the share ``efficiency`` of the raw bandwidth; an empty transfer takes
    ``latency_s``, one hop of a sync ``sync_s_per_hop``.
    """

    FILE: ClassVar = "hardware/links"
    WORD: ClassVar = "link"

    name: str
    bytes_per_s: float = constant("B/s")
    efficiency: float = constant("ratio")
    latency_s: float = constant("s")
    sync_s_per_hop: float = constant("s")
    constants: dict[str, Constant] = field(compare=False, repr=False)

    @property
    def effective_bytes_per_s(self) -> float:
        """Payload bandwidth of one link in one direction, bytes per second."""
        return self.bytes_per_s * self.efficiency


def sync_hops(ipus: int) -> int:
    """Return the hops that a sync over `ipus` chips crosses in one direction, 0 for one chip.

    One hop leaves the rung of the ladder, then half of the remaining rail is crossed (poplibs
    lib/poplibs_test/Util.cpp).
    """
    if ipus < 1:
        raise ConfigError(f"A sync over {ipus} IPUs is impossible: use at least 1.")
    return 0 if ipus == 1 else 1 + (ipus // 2) // 2
