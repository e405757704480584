"""Options that only a training run has: checked, with their defaults taken, once."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ipusim.errors import ConfigError, resolve_name
from ipusim.machine import System
from ipusim.runtime.host.loader import DATASETS, WORKERS_PER_INSTANCE
from ipusim.runtime.replica.schedule import FRAMEWORKS
from ipusim.workload.operators import LOSSES
from ipusim.workload.optimizers import OPTIMIZERS
from ipusim.workload.training import RECOMPUTE_MODES

STATE_PLACES = ("on_chip", "off_chip")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """How a training run was asked to be.

    Attributes
    ----------
    gradient_accumulation : int
        Micro-batches per weight update.
    loss : str or None
        One of `operators.LOSSES`; None takes the model's own.
    optimizer : str
        One of `ipusim.workload.optimizers.OPTIMIZERS`.
    optimizer_state : str
        "on_chip", or "off_chip" for Streaming Memory.
    replicated_tensor_sharding : bool
        Whether each replica updates a part of every weight and keeps the state of that part only.
    recompute : str or tuple of str
        "none", "auto", or the operators after which results are kept.
    batch_norm_span : int
        Replicas that share batch-norm statistics.
    merge_gradients_bytes : int
        Gradients are joined into collectives of up to so many bytes; 0 reduces each on its own.
    framework : str
        "popart" (PyTorch too) or "tensorflow": whose rules the pipeline follows.
    instances : int
        Host processes that feed the replicas (``poprun --num-instances``).
    host_servers : int or None
        Servers that they run on; None takes as few as give each a NUMA node, within the
        numbers that the system is sold with.
    loader_workers : int
        Worker processes of each, where the framework loads data with processes.
    dataset : str
        What the host must prepare (`ipusim.runtime.host.loader.DATASETS`).
    """

    gradient_accumulation: int
    loss: str | None
    optimizer: str
    optimizer_state: str
    replicated_tensor_sharding: bool
    recompute: str | tuple[str, ...]
    batch_norm_span: int
    merge_gradients_bytes: int
    framework: str
    instances: int
    host_servers: int | None
    loader_workers: int
    dataset: str


def count(name: str, value: Any, *, least: int = 1) -> int:
    """Return a whole number, or say what is wrong with it.

    Raises
    ------
    ConfigError
        If it is not a whole number of at least `least`.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least or isinstance(value, bool):
        raise ConfigError(f"The option {name} is {value!r}: give a whole number, {least} or more.")
    return number


def make_training_options(
    *,
    system: System,
    replicas: int,
    gradient_accumulation: int | None = None,
    loss: str | None = None,
    optimizer: str | None = None,
    optimizer_state: str | None = None,
    replicated_tensor_sharding: bool | None = None,
    recompute: str | Sequence[str] | None = None,
    batch_norm_span: int | None = None,
    merge_gradients_bytes: int | None = None,
    framework: str | None = None,
    instances: int | None = None,
    host_servers: int | None = None,
    loader_workers: int | None = None,
    dataset: str | None = None,
) -> TrainingOptions:
    """Check the options of a training run and fill in the defaults.

    Raises
    ------
    ConfigError
        If a value is out of range or does not divide what it must divide.
    UnknownNameError
        If a name does not exist; the message gives the nearest one.
    """
    span = 1 if batch_norm_span is None else count("batch_norm_span", batch_norm_span)
    if replicas % span:
        raise ConfigError(
            f"The option batch_norm_span = {span} does not divide {replicas} replicas: use a "
            "divisor of the replicas."
        )
    processes = _instances(system, replicas, instances)
    if isinstance(recompute, str) or recompute is None:
        kept: str | tuple[str, ...] = resolve_name(
            "recompute mode", recompute or "none", RECOMPUTE_MODES
        )
    else:
        kept = tuple(recompute)
    accumulation = 1 if gradient_accumulation is None else gradient_accumulation
    merged = 0 if merge_gradients_bytes is None else merge_gradients_bytes
    return TrainingOptions(
        gradient_accumulation=count("gradient_accumulation", accumulation),
        loss=None if loss is None else resolve_name("loss", loss, LOSSES),
        optimizer=resolve_name("optimizer", optimizer or "sgd_momentum", OPTIMIZERS),
        optimizer_state=resolve_name(
            "place of the optimiser state", optimizer_state or "on_chip", STATE_PLACES
        ),
        replicated_tensor_sharding=bool(replicated_tensor_sharding) and replicas > 1,
        recompute=kept,
        batch_norm_span=span,
        merge_gradients_bytes=count("merge_gradients_bytes", merged, least=0),
        framework=resolve_name("framework", framework or "popart", FRAMEWORKS),
        instances=processes,
        host_servers=None if host_servers is None else count("host_servers", host_servers),
        loader_workers=count("loader_workers", loader_workers or WORKERS_PER_INSTANCE),
        dataset=resolve_name("dataset", dataset or "generated", DATASETS),
    )


def seconds(name: str, value: Any) -> float:
    """Return a time, or say what is wrong with it.

    Raises
    ------
    ConfigError
        If it is not a finite number, 0 or more.
    """
    if not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ConfigError(f"The option {name} is {value!r}: give seconds, 0 or more.")
    return float(value)


def _instances(system: System, replicas: int, instances: int | None) -> int:
    """Return the number of host processes; by default one per replica up to the NUMA nodes."""
    if instances is None:
        nodes = system.host.numa_nodes * system.host_servers
        return max(n for n in range(1, min(replicas, nodes) + 1) if replicas % n == 0)
    return check_instances(replicas, instances)


def check_instances(replicas: int, instances: int) -> int:
    """Return the number of host processes, each of which feeds as many replicas.

    Raises
    ------
    ConfigError
        If the replicas cannot be shared out evenly.
    """
    processes = count("instances", instances)
    if replicas % processes:
        raise ConfigError(
            f"The option instances = {processes} does not divide {replicas} replicas: use a "
            "divisor of the replicas."
        )
    return processes
