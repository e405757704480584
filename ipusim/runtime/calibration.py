"""The few fitted constants: per step, superstep, GPU kernel, compiled vertex; scale-out; power."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ipusim.errors import DataError
from ipusim.files import read_tables

FILE = "calibration.toml"
_REMEDY = "run 'ipusim calibrate'"
_KERNEL_COST = "gpu_kernel_cost"
_INTERVAL = "interval"

INTERVAL_KINDS = ("inference", "single-machine training", "scale-out training", "time to train")
"""Kinds of prediction that miss by different amounts, and for different reasons."""


def _tables() -> dict[str, Any]:
    return read_tables(FILE, remedy=_REMEDY)


def _value(
    section: str, name: str, *, what: str = "number of seconds", below: float = 1e9
) -> float:
    entry = _tables().get(section, {}).get(name)
    value = entry.get("value") if isinstance(entry, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < below:
        raise DataError(
            f"The entry {section}.{name} of {FILE} is missing or not a {what} from 0 to {below:g}: "
            f"{_REMEDY}."
        )
    return float(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedCosts:
    """What the calibrated tier adds; all 0 in the specification tier.

    Attributes
    ----------
    step_s : float
        Seconds of a call from the host: per batch in inference, per weight update in training.
    reduction_s : float
        Latency of a reduction over neighbouring chips within the program (distributed batch norm).
    collective_s : float
        Latency of an all-reduce over all replicas, per machine that takes part; collectives of one
        pass have half.
    exchange_cycles : float
        Cycles of every superstep with an exchange of tensors, beyond those of its sync and its
        data (`LoweredOp.exchanges`): in inference and training, on one chip and in stages.
    """

    step_s: float = 0.0
    reduction_s: float = 0.0
    collective_s: float = 0.0
    exchange_cycles: float = 0.0


def fitted_costs(stack: str) -> FittedCosts:
    """Return the fitted costs of a stack.

    A stack without an entry has nothing to be fitted on: its costs are 0. The two
    constants of scale-out belong to links and synchronisation and hold for all stacks.
    """
    known = _tables().get("step_cost", {})
    return FittedCosts(
        step_s=_value("step_cost", stack) if stack in known else 0.0,
        exchange_cycles=_value("superstep_cost", stack, what="number of cycles")
        if stack in known
        else 0.0,
        reduction_s=_value("scale_out", "reduction_latency"),
        collective_s=_value("scale_out", "collective_latency"),
    )


def compile_s_per_tile_step() -> float:
    """Return the fitted seconds that the compiler takes per vertex and tile."""
    return _value("compile", "tile_step")


def run_kind(mode: str, active_ipus: int, ipus_per_machine: int) -> str:
    """Return which of `INTERVAL_KINDS` a run belongs to.

    Parameters
    ----------
    mode : str
        "inference" or "training".
    active_ipus, ipus_per_machine : int
        Chips that work; chips that share a machine.
    """
    if mode == "inference":
        return INTERVAL_KINDS[0]
    return INTERVAL_KINDS[1 if active_ipus <= ipus_per_machine else 2]


def interval80(kind: str) -> tuple[float, float] | None:
    """Return the factors on a predicted time between which 80 % of measurements are expected.

    Parameters
    ----------
    kind : str
        One of `INTERVAL_KINDS`.

    Returns
    -------
    tuple of float or None
        None for a kind that has no rows to be fitted on.
    """
    entry = _tables().get(_INTERVAL, {}).get(kind)
    if entry is None:
        return None
    try:
        low, high = float(entry["low"]), float(entry["high"])
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"The entry interval.{kind} of {FILE} is damaged: {_REMEDY}.") from error
    if not 0 < low <= high:
        raise DataError(
            f"The entry interval.{kind} of {FILE} goes from {low:g} to {high:g} instead of upwards "
            f"from above 0: {_REMEDY}."
        )
    return low, high


def power_scales() -> tuple[float, float]:
    """Return the fitted factors on the energies of arithmetic and of memory traffic."""
    return _value("power", "amp_scale", what="factor"), _value("power", "sram_scale", what="factor")


def kernel_cost_s(stack: str) -> float:
    """Return the fitted cost of a GPU stack per kernel that the host starts, in seconds.

    Parameters
    ----------
    stack : str
        Name of the stack, as in the data file.

    Returns
    -------
    float
        0 for a stack that has no row to be fitted on.
    """
    section = _tables().get(_KERNEL_COST)
    if not isinstance(section, dict):
        raise DataError(f"{FILE} has no section {_KERNEL_COST!r}: {_REMEDY}.")
    return _value(_KERNEL_COST, stack, below=1) if stack in section else 0.0
