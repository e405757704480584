"""The few fitted constants: per call, superstep, GPU kernel, compiled vertex; scale-out; power."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from ipusim.errors import DataError
from ipusim.files import read_tables

FILE = "calibration.toml"
_REMEDY = "run 'ipusim calibrate'"
_KERNEL_COST = "gpu_kernel_cost"
_INTERVAL = "interval"
_KNOWN = "known_families"


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

    `step_s` are the seconds of a call from the host: per batch in inference, per weight update in
    training; `run_s` those between two runs of the device, each of so many device iterations;
    `reduction_s` is the latency of a reduction over neighbouring chips within the program
    (distributed batch norm), `collective_s` that of an all-reduce over all replicas, per machine
    that takes part (collectives of one pass have half); `exchange_cycles` are those of every
    superstep with an exchange beyond its sync and its data (`LoweredOp.exchanges`), in every mode.
    """

    step_s: float = 0.0
    run_s: float = 0.0
    reduction_s: float = 0.0
    collective_s: float = 0.0
    exchange_cycles: float = 0.0

    def once_s(self, iterations: int) -> float:
        """Return the seconds of a step that do not depend on what it does."""
        return self.step_s + self.run_s / iterations


def fitted_costs(stack: str, framework: str) -> FittedCosts:
    """Return the fitted costs of a stack and a framework.

    A stack without an entry has nothing to be fitted on: its costs are 0, those of a call, too. The
    two constants of scale-out belong to links and synchronisation and hold for all stacks.
    """
    known = stack in _tables().get("superstep_cost", {})
    runs = known and framework in _tables().get("run_cost", {})
    return FittedCosts(
        step_s=_value("call_cost", framework) if known else 0.0,
        run_s=_value("run_cost", framework) if runs else 0.0,
        exchange_cycles=_value("superstep_cost", stack, what="number of cycles") if known else 0.0,
        reduction_s=_value("scale_out", "reduction_latency"),
        collective_s=_value("scale_out", "collective_latency"),
    )


def compile_s_per_tile_step() -> float:
    """Return the fitted seconds that the compiler takes per vertex and tile."""
    return _value("compile", "tile_step")


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """An 80 % interval of a predicted time of a class of runs (`kind`, as in `interval_classes`).

    `low` and `high` are factors on the predicted time, from the errors of the published `rows`;
    `without` has them for each family among these, without its own rows.
    """

    kind: str
    low: float
    high: float
    rows: tuple[str, ...]
    without: dict[str, tuple[float, float]]

    def ratios(self, family: str) -> tuple[float, float]:
        """Return the factors for a family; of one that is not among the rows, those of all."""
        return self.without.get(family, (self.low, self.high))

    def __str__(self) -> str:
        return (
            f"80 % by the class '{self.kind}': {len(self.rows)} published values of "
            f"{len(self.without)} families, each predicted without itself and counted once"
        )


def interval_classes(
    family: str, mode: str, chip: str, known: Collection[str] | None = None
) -> tuple[str, str]:
    """Return the classes of a run, the narrower first; the number of its machines does not matter.

    `known` are the families that the simulator was developed on, by default those of
    data/calibration.toml; any other network, a user's own file too, is new.
    """
    if known is None:
        known = _tables().get(_KNOWN, {}).get("names", ())
    wide = f"{'known family' if family in known else 'new network'}, {mode}"
    return f"{wide}, {chip}", wide


def interval80(family: str, mode: str, chip: str) -> Interval | None:
    """Return the factors on a predicted time between which 80 % of measurements are expected.

    None for a class that has no rows to be fitted on.
    """
    blocks = _tables().get(_INTERVAL, {})
    kinds = interval_classes(family, mode, chip)
    return next((read_interval(kind, blocks[kind]) for kind in kinds if kind in blocks), None)


def read_interval(kind: str, entry: Any) -> Interval:
    """Return an interval as the file holds it."""
    try:
        low, high = float(entry["low"]), float(entry["high"])
        without = {
            family: (float(one), float(two)) for family, (one, two) in entry["without"].items()
        }
        rows = tuple(entry["rows"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"The entry interval.{kind} of {FILE} is damaged: {_REMEDY}.") from error
    if not 0 < low <= high:
        raise DataError(
            f"The entry interval.{kind} of {FILE} goes from {low:g} to {high:g} instead of upwards "
            f"from above 0: {_REMEDY}."
        )
    return Interval(kind=kind, low=low, high=high, rows=rows, without=without)


def power_scales() -> tuple[float, float]:
    """Return the fitted factors on the energies of arithmetic and of memory traffic."""
    return _value("power", "amp_scale", what="factor"), _value("power", "sram_scale", what="factor")


def kernel_cost_s(stack: str) -> float:
    """Return the fitted seconds of a GPU stack per kernel that the host starts; 0 without rows."""
    section = _tables().get(_KERNEL_COST)
    if not isinstance(section, dict):
        raise DataError(f"{FILE} has no section {_KERNEL_COST!r}: {_REMEDY}.")
    return _value(_KERNEL_COST, stack, below=1) if stack in section else 0.0
