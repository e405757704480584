"""What the hardware draws: idle power, and energy per unit of activity."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from ipusim.machine.constants import Constant, constant


@dataclass(frozen=True, slots=True, kw_only=True)
class Energy:
    """Energy of some activity by where it is spent, in joules."""

    amp_j: float
    sram_j: float
    exchange_j: float

    @property
    def total_j(self) -> float:
        """All of it, without static, card and host power."""
        return self.amp_j + self.sram_j + self.exchange_j

    def scaled(self, *, amp: float, sram: float) -> Energy:
        """Return the energy with the fitted factors on arithmetic and memory traffic."""
        return replace(self, amp_j=amp * self.amp_j, sram_j=sram * self.sram_j)

    def times(self, count: int) -> Energy:
        """Return the energy of the same activity so many times."""
        return Energy(
            amp_j=count * self.amp_j,
            sram_j=count * self.sram_j,
            exchange_j=count * self.exchange_j,
        )

    def __add__(self, other: Energy) -> Energy:
        return Energy(
            amp_j=self.amp_j + other.amp_j,
            sram_j=self.sram_j + other.sram_j,
            exchange_j=self.exchange_j + other.exchange_j,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerConstants:
    """Power and energy of one chip generation; ``constants`` has unit, source and label of each.

    A chip that waits draws ``static_w_per_ipu``, everything else on the card or in the machine
    ``card_w``. The energy of a FLOP of the conv units, of float16 or float32 operands, includes
    their delivery; a byte is one read from or written to tile memory, or received over the on-chip
    exchange. A host server draws ``host_w``, outside every card measurement.
    """

    FILE: ClassVar = "hardware/power"
    WORD: ClassVar = "chip"

    chip: str
    static_w_per_ipu: float = constant("W")
    card_w: float = constant("W")
    amp_half_pj_per_flop: float = constant("pJ/FLOP")
    amp_float_pj_per_flop: float = constant("pJ/FLOP")
    sram_pj_per_byte: float = constant("pJ/B")
    exchange_pj_per_byte: float = constant("pJ/B")
    host_w: float = constant("W")
    constants: dict[str, Constant] = field(compare=False, repr=False)

    def energy(
        self, *, half_flops: float, float_flops: float, sram_bytes: float, exchange_bytes: float
    ) -> Energy:
        """Return the energy of some FLOPs of the conv units, and bytes of memory and exchange."""
        amp_pj = half_flops * self.amp_half_pj_per_flop + float_flops * self.amp_float_pj_per_flop
        return Energy(
            amp_j=amp_pj * 1e-12,
            sram_j=sram_bytes * self.sram_pj_per_byte * 1e-12,
            exchange_j=exchange_bytes * self.exchange_pj_per_byte * 1e-12,
        )
