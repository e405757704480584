"""What a run was asked to be: every option checked, every default taken, once."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ipusim.compiler.stacks import PARTIALS_BYTES, Stack, load_stack
from ipusim.errors import ConfigError, resolve_name, unknown_name
from ipusim.machine import System, load_system
from ipusim.runtime.options.phases import PhaseOptions, make_phase_options
from ipusim.runtime.options.placement import Placement, make_placement
from ipusim.runtime.options.training import (
    TrainingOptions,
    check_instances,
    count,
    make_training_options,
    seconds,
)
from ipusim.workload.graph import PRECISIONS, Graph
from ipusim.workload.serialization import SerialProduct, parse_serial_products

MODES = ("inference", "training")
HOST_DTYPES = ("uint8", "float16", "float32")
TIERS = ("calibrated", "specification")
MIN_IO_TILES, MAX_IO_TILES = 32, 192


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """One run, with every default resolved.

    Attributes
    ----------
    system : System
    stack : Stack
    mode : str
        "inference" or "training".
    micro_batch : int or None
        Items per replica and step; None takes what the model fixes.
    replicas, ipus_per_replica : int
        Copies of the model, and chips of each.
    placement : Placement
        How a copy lies on its chips.
    phases : PhaseOptions or None
        How a copy shares its chips in time; None where they hold all of it.
    precision : str
        Storage of activations.weights, "16.16", "16.32" or "32.32".
    partials : str
        "half" or "float".
    available_memory_proportion : float
        Share of tile memory that the temporaries of one operation may take.
    host_dtype : str or None
        Type of the data on the host; None means the type of the activations.
    overlap_io : bool
        Whether transfers run beside compute, on tiles of their own.
    io_tiles : int
        Those tiles; 0 without overlap.
    batches_in_flight : float
        Batches between request and result, on average; with more than one the host runs ahead.
    instances : int or None
        Host processes that feed the replicas in inference; None leaves their rate out of account.
        Those of training are among `training`.
    loader_item_s : float
        Seconds that a worker of the loader needs to prepare an item, beside the device: one worker
        per host process in inference, those of the dataset "prepared" in training.
    serial_item_s : float
        Seconds per item that each host process spends between two runs of the device, to make,
        convert or collect data, while its replicas wait.
    training : TrainingOptions or None
        What only training has; None in inference.
    serial_products : tuple of SerialProduct
        Products that are computed in parts, one after the other.
    """

    system: System
    stack: Stack
    mode: str
    micro_batch: int | None
    replicas: int
    ipus_per_replica: int
    placement: Placement
    precision: str
    partials: str
    available_memory_proportion: float
    host_dtype: str | None
    overlap_io: bool
    io_tiles: int
    batches_in_flight: float
    instances: int | None = None
    loader_item_s: float = 0.0
    serial_item_s: float = 0.0
    training: TrainingOptions | None = None
    phases: PhaseOptions | None = None
    serial_products: tuple[SerialProduct, ...] = ()

    @property
    def active_ipus(self) -> int:
        """Chips that work."""
        return self.replicas * self.ipus_per_replica

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a replica and step."""
        if self.training is not None:
            return self.training.gradient_accumulation
        return self.phases.micro_batches if self.phases else 1

    def items(self, graph: Graph) -> int:
        """Items of a micro-batch: its size, or where the model fixes it that of the first input."""
        if self.micro_batch is not None:
            return self.micro_batch
        shape = graph.tensors[graph.inputs[0]].shape if graph.inputs else ()
        return shape[0] if shape and shape[0] > 0 else 1


def make_config(
    *,
    system: str | System,
    mode: str = "inference",
    micro_batch: int | None = None,
    replicas: int | None = None,
    ipus_per_replica: int = 1,
    pipeline_splits: Sequence[str] | None = None,
    stage_ipus: Sequence[int] | None = None,
    schedule: str | None = None,
    serial_products: Sequence[str] | None = None,
    precision: str = "16.16",
    partials: str | None = None,
    available_memory_proportion: float | None = None,
    host_dtype: str | None = None,
    overlap_io: bool | None = None,
    io_tiles: int | None = None,
    batches_in_flight: float | None = None,
    instances: int | None = None,
    loader_item_s: float | None = None,
    serial_item_s: float | None = None,
    stack: str | None = None,
    **others: Any,
) -> RunConfig:
    """Check the options of a run and fill in the defaults.

    Parameters
    ----------
    **others
        Options of `phase_options.make_phase_options`, and of
        `training_options.make_training_options`, which need the mode "training".

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
    size = count("ipus_per_replica", ipus_per_replica)
    copies = _replicas(machine, size, replicas)
    phasing = {name: others[name] for name in PHASE_OPTION_NAMES if name in others}
    training = {name: value for name, value in others.items() if name not in phasing}
    for name in training:
        if name not in TRAINING_OPTION_NAMES:
            raise unknown_name("option", name, (*OPTION_NAMES, *TRAINING_OPTION_NAMES))
    phased = make_phase_options(machine, size, **phasing)
    if phased:
        _refuse_with_phases(
            pipeline_splits=pipeline_splits, stage_ipus=stage_ipus, schedule=schedule
        )
    options = None
    if mode == "training":
        if phased and training.get("optimizer_state") is None:
            training["optimizer_state"] = "off_chip"
        options = make_training_options(
            system=machine,
            replicas=copies,
            instances=instances,
            **training,
        )
        if phased:
            _check_phased_training(phased, options, machine)
    else:
        _refuse_in_inference(training)
        instances = None if instances is None else check_instances(copies, instances)
    host_times = {
        "loader_item_s": seconds("loader_item_s", loader_item_s or 0.0),
        "serial_item_s": seconds("serial_item_s", serial_item_s or 0.0),
    }
    for name, value in host_times.items():
        if value and mode == "inference" and instances is None:
            raise ConfigError(
                f"The option {name} = {value!r} is time of a host process, but their number is "
                "not known: give instances too."
            )
    # In training the input pipeline always runs ahead of the chips.
    in_flight = 2 if options else 1
    if batches_in_flight is not None:
        in_flight = _in_flight(batches_in_flight)
    proportion = profile.available_memory_proportion
    if available_memory_proportion is not None:
        proportion = float(available_memory_proportion)
        if not 0 < proportion <= 1:
            raise ConfigError(
                f"The option available_memory_proportion is {proportion}: give a share above 0 "
                "and up to 1."
            )
    return RunConfig(
        system=machine,
        stack=profile,
        mode=mode,
        micro_batch=None if micro_batch is None else count("micro_batch", micro_batch),
        replicas=copies,
        ipus_per_replica=size,
        placement=make_placement(
            size, pipeline_splits=pipeline_splits, stage_ipus=stage_ipus, schedule=schedule
        ),
        precision=resolve_precision(precision),
        partials=resolve_name("partials type", partials or profile.partials, PARTIALS_BYTES),
        available_memory_proportion=proportion,
        host_dtype=None
        if host_dtype is None
        else resolve_name("host type", host_dtype, HOST_DTYPES),
        overlap_io=bool(overlap_io),
        io_tiles=_io_tiles(profile, bool(overlap_io), io_tiles, in_flight),
        batches_in_flight=in_flight,
        instances=None if options else instances,
        **host_times,
        training=options,
        phases=phased,
        serial_products=parse_serial_products(serial_products or ()),
    )


def _replicas(machine: System, ipus_per_replica: int, replicas: int | None) -> int:
    """Return the number of replicas; by default as many as the machine holds."""
    most = machine.ipus // ipus_per_replica
    if not most:
        raise ConfigError(
            f"A replica over {ipus_per_replica} IPUs does not fit {machine.name}, which has "
            f"{machine.ipus}: use ipus_per_replica = 1 to {machine.ipus}."
        )
    copies = most if replicas is None else count("replicas", replicas)
    if copies > most:
        raise ConfigError(
            f"{copies} replicas need {copies * ipus_per_replica} IPUs, but {machine.name} has "
            f"{machine.ipus}: use 1 to {most}."
        )
    return copies


def _refuse_with_phases(**placement: Any) -> None:
    for name, value in placement.items():
        if value:
            raise ConfigError(
                f"The option {name} = {value!r} places the stages of a pipeline, but phases run "
                "one after the other: leave it out, or leave phases out."
            )


def _check_phased_training(phases: PhaseOptions, options: TrainingOptions, machine: System) -> None:
    if options.framework != "popart":
        raise ConfigError(
            f"The framework {options.framework!r} has no phased execution: use 'popart', or leave "
            "phases out."
        )
    if options.gradient_accumulation % phases.micro_batches:
        raise ConfigError(
            f"The option micro_batches_per_phase = {phases.micro_batches} does not divide a "
            f"gradient accumulation of {options.gradient_accumulation}: use a divisor of it."
        )
    if options.optimizer_state == "off_chip" and not machine.streaming_memory_bytes_per_machine:
        raise ConfigError(
            f"{machine.name} has no Streaming Memory for the optimiser state of phases: give "
            "optimizer_state = 'on_chip', or use another system, such as IPU-M2000."
        )


def _refuse_in_inference(training: dict[str, Any]) -> None:
    for name, value in training.items():
        if value is not None:
            raise ConfigError(
                f"The option {name} = {value!r} has no meaning in the mode 'inference': leave it "
                "out, or use the mode 'training'."
            )


def _in_flight(batches: float) -> float:
    """Return the mean number of batches in flight, 1 or more."""
    try:
        number = math.nan if isinstance(batches, bool) else float(batches)
    except (TypeError, ValueError):
        number = math.nan
    if not 1 <= number < math.inf:
        raise ConfigError(
            f"The option batches_in_flight is {batches!r}: give a number, 1 or more; a mean over "
            "the iterations of a call need not be whole."
        )
    return int(number) if number.is_integer() else number


def _io_tiles(profile: Stack, overlap: bool, io_tiles: int | None, in_flight: float) -> int:
    """Return the tiles that only transfer: 0 without overlap."""
    if overlap and in_flight < 2:
        raise ConfigError(
            f"The options overlap_io and batches_in_flight = {in_flight} contradict each other, "
            "because overlapped transfers keep at least 2 batches in flight: give 2 or more, or "
            "turn the overlap off."
        )
    if not overlap:
        if io_tiles is not None:
            raise ConfigError(
                f"The option io_tiles = {io_tiles!r} has no meaning without overlapped transfers: "
                "leave it out, or turn the overlap on."
            )
        return 0
    tiles = count("io_tiles", profile.io_tiles or MIN_IO_TILES if io_tiles is None else io_tiles)
    if tiles > MAX_IO_TILES:
        raise ConfigError(
            f"The option io_tiles is {tiles}: give 1 to {MAX_IO_TILES} (poptorch allows "
            f"{MIN_IO_TILES} to {MAX_IO_TILES})."
        )
    return tiles


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


def _keywords(function: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    )


PHASE_OPTION_NAMES = _keywords(make_phase_options)

OPTION_NAMES = (*_keywords(make_config), *PHASE_OPTION_NAMES)
"""Options that every run has."""

TRAINING_OPTION_NAMES = tuple(
    name
    for name in inspect.signature(make_training_options).parameters
    if name not in ("system", "replicas", "instances")
)
"""Options that only training has."""
