"""One IPU chip: its tiles, memory, clock, conv units and on-chip exchange."""

from dataclasses import dataclass

from ipusim.errors import ConfigError
from ipusim.machine.constants import Sourced, constant, described, load, names


@described
@dataclass(frozen=True, slots=True, kw_only=True)
class Chip(Sourced, file="hardware/chips", word="chip"):
    """What one IPU is: ``name`` is "GC2", "GC200" or "Bow"; ``constants`` have their sources."""

    name: str
    mark: int = constant("generation", "Generation of the architecture, 1 or 2.")
    tiles: int = constant("tiles", "Tiles in use.")
    tile_columns: int = constant("columns", "Columns in which they stand, for drawings.")
    bytes_per_tile: int = constant("B", "SRAM of a tile.")
    interleaved_offset_bytes: int = constant(
        "B", "Where the interleaved region of a tile starts.", zero=True
    )
    memory_element_bytes: int = constant("B", "Size of one memory element.")
    clock_hz: int = constant("Hz", "Tile clock.")
    workers: int = constant("threads", "Worker threads per tile.")
    half_half_conv_units: int = constant("units", "Conv units usable by half inputs and partials.")
    half_float_conv_units: int = constant("units", "Those by half inputs with float partials.")
    float_float_conv_units: int = constant("units", "Those by float inputs and partials.")
    float8_conv_units: int = constant(
        "units", "Those by float8 inputs with half partials, 0 if none.", zero=True
    )
    data_path_bytes: int = constant("B", "Width of one load, store or vector operation.")
    memory_bytes_per_cycle: int = constant(
        "B/cycle", "Two loads and one store of `data_path_bytes` each."
    )
    memcpy_bytes_per_cycle: int = constant("B/cycle", "On-tile copy outside interleaved memory.")
    exchange_bytes_per_cycle: int = constant("B/cycle", "Receive (and send) rate of one tile.")
    tiles_per_exchange_bus: int = constant(
        "tiles", "Neighbours that share a bus and can take one stream at double width."
    )
    global_sync_cycles: int = constant("cycles", "Largest delay of a sync that crosses chips.")
    ipu_links: int = constant("links", "IPU-Links of the chip.")

    def macs_per_cycle(self, dtype: str = "float16", partials: str = "float16") -> int:
        """Return the multiply-accumulates per cycle and tile of the conv units at their peak.

        The core loop takes 4 cycles for 16 float16 or 32 float8 channels or 8 for 8 float32 ones
        (poplibs lib/poplin/PerformanceEstimation.hpp, AMP vertices). Other types are a
        `ConfigError`.
        """
        peaks = {
            ("float16", "float16"): self.half_half_conv_units * 16 // 4,
            ("float16", "float32"): self.half_float_conv_units * 16 // 4,
            ("float32", "float32"): self.float_float_conv_units * 8 // 8,
            ("float8", "float16"): self.float8_conv_units * 32 // 4,
        }
        if not peaks.get((dtype, partials)):
            raise ConfigError(
                f"Inputs {dtype!r} with partials {partials!r} have no conv unit on {self.name}: "
                "use float16 or float32 inputs with partials at least as wide."
            )
        return peaks[dtype, partials]

    def peak_flops_per_s(self, dtype: str = "float16", partials: str = "float16") -> float:
        """Return the peak of the whole chip in FLOP/s, two FLOPs per multiply-accumulate."""
        return 2.0 * self.macs_per_cycle(dtype, partials) * self.tiles * self.clock_hz

    @property
    def sram_bytes(self) -> int:
        """Memory of the whole chip in bytes."""
        return self.tiles * self.bytes_per_tile

    @property
    def sram_bytes_per_s(self) -> float:
        """Bandwidth of all tile memories together in bytes per second."""
        return float(self.tiles * self.memory_bytes_per_cycle * self.clock_hz)

    @property
    def exchange_bytes_per_s(self) -> float:
        """Bandwidth of the on-chip exchange in bytes per second, all tiles receiving."""
        return float(self.tiles * self.exchange_bytes_per_cycle * self.clock_hz)

    def seconds(self, cycles: int) -> float:
        """Return the time that `cycles` take, in seconds."""
        return cycles / self.clock_hz


def chip_names() -> tuple[str, ...]:
    """Return the names of all chips, in file order.

    Examples
    --------
    >>> ipusim.chip_names()
    ('GC2', 'GC200', 'Bow', 'C600 IPU')
    """
    return names(Chip)


def load_chip(name: str) -> Chip:
    """Return one chip.

    Parameters
    ----------
    name : str
        Its name, in any case, with or without spaces and hyphens.

    Returns
    -------
    Chip
        With the values of data/hardware/chips.toml.

    Raises
    ------
    UnknownNameError
        If there is no such chip.
    DataError
        If the data file is missing or corrupt.

    Examples
    --------
    >>> chip = ipusim.load_chip("gc200")
    >>> chip.name, chip.tiles, f"{chip.peak_flops_per_s() / 1e12:.0f} TFLOP/s"
    ('GC200', 1472, '251 TFLOP/s')
    """
    return load(Chip, name)
