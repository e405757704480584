"""What a run was asked to be: every option checked, every default taken, once."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

from ipusim.compiler.stacks import PARTIALS_BYTES, Stack, load_stack
from ipusim.errors import ConfigError, resolve_name
from ipusim.machine import System, load_system
from ipusim.workload.graph import PRECISIONS

MODES = ("inference", "training")
HOST_DTYPES = ("uint8", "float16", "float32")
TIERS = ("calibrated", "specification")
MAX_IO_TILES = 192


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """One run, with every default resolved.

    Attributes
    ----------
    system : System
    stack : Stack
    mode : str
        "inference".
    micro_batch : int or None
        Items per replica and step; None takes what the model fixes.
    replicas, ipus_per_replica : int
        Copies of the model, and chips of each.
    precision : str
        Storage of activations.weights, "16.16", "16.32" or "32.32".
    partials : str
        "half" or "float".
    host_dtype : str or None
        Type of the data on the host; None means the type of the activations.
    overlap_io : bool
        Whether transfers run beside compute, on tiles of their own.
    io_tiles : int
        Those tiles; 0 without overlap.
    batches_in_flight : int
        Batches between request and result; with more than one the host runs ahead.
    """

    system: System
    stack: Stack
    mode: str
    micro_batch: int | None
    replicas: int
    ipus_per_replica: int
    precision: str
    partials: str
    host_dtype: str | None
    overlap_io: bool
    io_tiles: int
    batches_in_flight: int

    @property
    def active_ipus(self) -> int:
        """Chips that work."""
        return self.replicas * self.ipus_per_replica


def _count(name: str, value: Any) -> int:
    """Return a positive whole number, or say what is wrong with it."""
    try:
        number = operator.index(value)
    except TypeError:
        number = 0
    if number < 1 or isinstance(value, bool):
        raise ConfigError(f"The option {name} is {value!r}: give a whole number, 1 or more.")
    return number


def make_config(
    *,
    system: str | System,
    mode: str = "inference",
    micro_batch: int | None = None,
    replicas: int | None = None,
    ipus_per_replica: int = 1,
    gradient_accumulation: int | None = None,
    precision: str = "16.16",
    partials: str | None = None,
    host_dtype: str | None = None,
    overlap_io: bool | None = None,
    io_tiles: int | None = None,
    batches_in_flight: int = 1,
    stack: str | None = None,
) -> RunConfig:
    """Check the options of a run and fill in the defaults.

    Raises
    ------
    ConfigError
        If a value is out of range or options contradict each other.
    UnknownNameError
        If a name does not exist; the message gives the nearest one.
    """
    machine = system if isinstance(system, System) else load_system(system)
    profile = load_stack(stack or machine.default_stack)
    mode = resolve_name("mode", mode, MODES)
    if mode == "training":
        raise ConfigError(
            "The mode 'training' is not part of this version: use the mode 'inference'."
        )
    if gradient_accumulation is not None:
        raise ConfigError(
            f"The option gradient_accumulation = {gradient_accumulation!r} has no meaning in the "
            "mode 'inference': leave it out."
        )
    if _count("ipus_per_replica", ipus_per_replica) != 1:
        raise ConfigError(
            f"A model over {ipus_per_replica} IPUs is not part of this version: use "
            "ipus_per_replica = 1."
        )
    copies = machine.ipus if replicas is None else _count("replicas", replicas)
    if copies > machine.ipus:
        raise ConfigError(
            f"{copies} replicas need {copies} IPUs, but {machine.name} has {machine.ipus}: "
            f"use 1 to {machine.ipus}."
        )
    in_flight = _count("batches_in_flight", batches_in_flight)
    overlap = bool(overlap_io)
    if overlap and in_flight < 2:
        in_flight_text = "overlapped transfers keep at least 2 batches in flight"
        raise ConfigError(
            f"The options overlap_io and batches_in_flight = {in_flight} contradict each other, "
            f"because {in_flight_text}: give 2 or more, or turn the overlap off."
        )
    if io_tiles is not None and not overlap:
        raise ConfigError(
            f"The option io_tiles = {io_tiles!r} has no meaning without overlapped transfers: "
            "leave it out, or turn the overlap on."
        )
    tiles = 0
    if overlap:
        tiles = _count("io_tiles", profile.io_tiles or 32 if io_tiles is None else io_tiles)
        if tiles > MAX_IO_TILES:
            raise ConfigError(
                f"The option io_tiles is {tiles}: give 1 to {MAX_IO_TILES} (poptorch allows 32 "
                "to 192)."
            )
    return RunConfig(
        system=machine,
        stack=profile,
        mode=mode,
        micro_batch=None if micro_batch is None else _count("micro_batch", micro_batch),
        replicas=copies,
        ipus_per_replica=1,
        precision=resolve_precision(precision),
        partials=resolve_name("partials type", partials or profile.partials, PARTIALS_BYTES),
        host_dtype=None
        if host_dtype is None
        else resolve_name("host type", host_dtype, HOST_DTYPES),
        overlap_io=overlap,
        io_tiles=tiles,
        batches_in_flight=in_flight,
    )


def resolve_precision(precision: str) -> str:
    """Return a valid precision label.

    Raises
    ------
    ConfigError
        If it is not one of "16.16", "16.32" and "32.32".
    """
    if str(precision) not in PRECISIONS:
        raise ConfigError(
            f"The precision {precision!r} does not exist: use {', '.join(PRECISIONS)} "
            "(storage of activations.weights)."
        )
    return str(precision)
