"""Options of phased execution: a replica that holds a part of the model at a time.

What does not fit the chips lies in Streaming Memory and is loaded phase by phase: PopART's
`ExecutionPhaseSettings` and `TensorLocationSettings` (graphcore/popart@sdk/poplar/3.3.0:willow/
include/popart/sessionoptions.hpp), PopTorch's `SerialPhasedExecution` (one chip) and
`ParallelPhasedExecution` (two chips that take turns; graphcore/poptorch@sdk/poptorch/3.3.0:python/
options.py, docs/user_guide/overview.rst).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ipusim.errors import ConfigError, resolve_name
from ipusim.machine import System
from ipusim.runtime.options.training import STATE_PLACES, count

LIVENESS = (
    "always_live",
    "off_chip_after_forward",
    "off_chip_after_forward_no_overlap",
    "off_chip_after_each_phase",
)
"""PopTorch's `Liveness` (python/enums.py): how long tensors stay on the chip between phases."""

LOAD_SCHEDULES = ("preload", "on_demand")
"""PopART's `ExecutionPhaseIOSchedule`: load in the phase before, or just before the use."""

KINDS = ("weights", "activations", "accumulators")
"""What has a place of its own, besides the state of the optimiser."""

MAX_IPUS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseOptions:
    """How a replica runs in phases.

    Attributes
    ----------
    count : int
        Forward phases, 2 or more.
    splits : tuple of str
        Forward operators after which the next phase begins; empty shares the weights out.
    liveness : str
        One of `LIVENESS`.
    load_schedule : str
        One of `LOAD_SCHEDULES`; optimiser state is always loaded on demand, PopART's default.
    off_chip : frozenset of str
        Those of `KINDS` that lie in Streaming Memory.
    micro_batches : int
        Micro-batches that a phase computes while it holds its weights. PopART calls them the
        compute batches of one micro-batch (`BatchSerializationSettings.factor`).
    """

    count: int
    splits: tuple[str, ...]
    liveness: str
    load_schedule: str
    off_chip: frozenset[str]
    micro_batches: int


def make_phase_options(
    system: System,
    ipus_per_replica: int,
    *,
    phases: int | None = None,
    phase_splits: Sequence[str] | None = None,
    phase_liveness: str | None = None,
    load_schedule: str | None = None,
    weights: str | None = None,
    activations: str | None = None,
    accumulators: str | None = None,
    micro_batches_per_phase: int | None = None,
) -> PhaseOptions | None:
    """Check the options of phased execution; None where there is at most one phase.

    Raises
    ------
    ConfigError
        If a value is out of range or options contradict each other or the system.
    UnknownNameError
        If a name does not exist; the message gives the nearest one.

    Notes
    -----
    Everything lies off the chip unless told otherwise, as PopTorch sets it for phased execution
    (graphcore/poptorch@sdk/poptorch/3.3.0:popart_compiler/source/Compiler.cpp). PopART turns
    phased execution off where there is one phase (willow/src/ir.cpp,
    verifyExecutionPhaseSettings).
    """
    splits = tuple(phase_splits or ())
    number = len(splits) + 1 if phases is None else count("phases", phases)
    if splits and number != len(splits) + 1:
        raise ConfigError(
            f"{len(splits)} phase splits make {len(splits) + 1} phases, but phases is {number}: "
            f"give {number - 1} splits, or leave one of the options out."
        )
    places = {"weights": weights, "activations": activations, "accumulators": accumulators}
    if number == 1:
        _refuse_without_phases(
            phase_liveness=phase_liveness,
            load_schedule=load_schedule,
            micro_batches_per_phase=micro_batches_per_phase,
            **places,
        )
        return None
    if ipus_per_replica > MAX_IPUS:
        raise ConfigError(
            f"The option phases = {number} does not go with ipus_per_replica = "
            f"{ipus_per_replica}: phases run on 1 IPU, or take turns on 2."
        )
    liveness = resolve_name("phase liveness", phase_liveness or LIVENESS[0], LIVENESS)
    if ipus_per_replica > 1 and liveness in LIVENESS[2:]:
        raise ConfigError(
            f"The option phase_liveness = {liveness!r} spaces phases out, which needs "
            f"ipus_per_replica = 1: use that, or {' or '.join(LIVENESS[:2])}."
        )
    off_chip = frozenset(
        kind
        for kind, place in places.items()
        if resolve_name(f"place of the {kind}", place or "off_chip", STATE_PLACES) == "off_chip"
    )
    if off_chip and not system.streaming_memory_bytes_per_machine:
        raise ConfigError(
            f"{system.name} has no Streaming Memory for the {' and '.join(sorted(off_chip))} of "
            "phases: use another system, such as IPU-M2000."
        )
    return PhaseOptions(
        count=number,
        splits=splits,
        liveness=liveness,
        load_schedule=resolve_name(
            "load schedule", load_schedule or LOAD_SCHEDULES[0], LOAD_SCHEDULES
        ),
        off_chip=off_chip,
        micro_batches=count("micro_batches_per_phase", micro_batches_per_phase or 1),
    )


def _refuse_without_phases(**options: Any) -> None:
    for name, value in options.items():
        if value is not None:
            raise ConfigError(
                f"The option {name} = {value!r} has no meaning without phases: give phases, 2 or "
                "more, or leave it out."
            )
