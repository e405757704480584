"""The few fitted constants: per call, superstep, GPU kernel, compiled vertex; scale-out; power."""

import json
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ipusim.errors import DataError
from ipusim.files import data_dir, once_per_data_dir, write_text

FILE = "calibration.toml"
_REMEDY = "run 'ipusim calibrate'"


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedCosts:
    """What the calibrated tier adds to the time of a step; all 0 in the specification tier.

    Attributes
    ----------
    step_s : float
        Seconds of a call from the host: per batch in inference, per weight update in training.
    run_s : float
        Seconds between two runs of the program on the device, which the device iterations of a run
        share.
    reduction_s : float
        Seconds of latency of a reduction over neighbouring chips within the program, as in batch
        norm over several replicas.
    collective_s : float
        Seconds that each step of a collective over all replicas syncs longer for each hop from one
        machine to the next (`Ring.sync_hops`).
    exchange_cycles : float
        Cycles of every superstep with an exchange, beyond its sync and its data
        (`program.exchanges`).

    Examples
    --------
    >>> call = ipusim.FittedCosts(step_s=1e-3)
    >>> f"{1e3 * ipusim.simulate('mcmc_bnn', costs=call).latency.value:.2f} ms"
    '1.03 ms'
    """

    step_s: float = 0.0
    run_s: float = 0.0
    reduction_s: float = 0.0
    collective_s: float = 0.0
    exchange_cycles: float = 0.0

    def once_s(self, iterations: int) -> float:
        """Return the seconds of a step that do not depend on what it does."""
        return self.step_s + self.run_s / iterations


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A fitted constant, in seconds unless it says otherwise, and its rows; 0 without any."""

    value: float = 0.0
    rows: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """What a step costs beside what is predicted for it."""

    calls: dict[str, Fitted] = field(default_factory=dict)  # from the host, by framework
    runs: dict[str, Fitted] = field(default_factory=dict)  # of the device, by framework
    supersteps: dict[str, Fitted] = field(default_factory=dict)  # cycles of an exchange, by stack

    def at(self, stack: str, framework: str) -> FittedCosts:
        """Return the costs of a run: none on a stack without rows, and no call there either."""
        superstep = self.supersteps.get(stack, Fitted())
        if not superstep.rows:
            return FittedCosts()
        return FittedCosts(
            step_s=self.calls.get(framework, Fitted()).value,
            run_s=self.runs.get(framework, Fitted()).value,
            exchange_cycles=superstep.value,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleOut:
    """The latencies of a reduction over neighbouring chips, and of a hop of a collective's sync."""

    reduction: Fitted = Fitted()
    collective: Fitted = Fitted()

    def beside(self, step: FittedCosts) -> FittedCosts:
        """Return the costs of a step with both."""
        both = {"reduction_s": self.reduction.value, "collective_s": self.collective.value}
        return replace(step, **both)


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerScales:
    """Factors on the energies of arithmetic and of memory traffic; 1 leaves them as sourced."""

    amp: float = 1.0
    sram: float = 1.0
    rows: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What the model of memory says of published programs, which all ran.

    `over` has those that come out larger than a tile, by row: the share of the tile beyond it.
    """

    programs: int = 0
    over: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self._so_many(0.0)} too large for a tile"

    def verdict(self, share: float) -> str:
        """Say how many of them come out too large by at least a share of a tile."""
        return f"{self._so_many(share)} as much too large"

    def _so_many(self, share: float) -> str:
        number = sum(other >= share for other in self.over.values())
        come = "come" if number > 1 else "comes"
        return (
            f"{number or 'none'} of {self.programs} published programs, which all ran, {come} out"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Everything that is fitted, and what the model of memory says of programs that ran."""

    steps: StepCosts
    power: PowerScales
    scale_out: ScaleOut = ScaleOut()
    compile: Fitted = Fitted()  # per vertex and tile that is compiled
    gpu: dict[str, Fitted] = field(default_factory=dict)  # per kernel, by GPU software stack
    # by class of runs; a class that is missing takes that of all chips
    intervals: dict[str, Interval] = field(default_factory=dict)
    # those that the model was developed on; others show what a new network gets
    known_families: tuple[str, ...] = ()
    ran: Ran = field(default_factory=Ran)

    def kind(self, family: str, mode: str, chip: str) -> str:
        """Return the class of a run: the narrower of `interval_classes` if it has an interval."""
        narrow, wide = interval_classes(family, mode, chip, self.known_families)
        return narrow if narrow in self.intervals else wide


def load_calibration() -> Calibration:
    """Read the fitted constants of ``data/calibration.toml`` as they are now."""
    try:
        tables = tomllib.loads((data_dir() / FILE).read_text(encoding="utf-8"))
        power, latencies = (_fitted(tables, name) for name in ("power", "scale_out"))
        blocks = tables.get("interval", {}).items()
        return Calibration(
            steps=StepCosts(
                calls=_fitted(tables, "call_cost"),
                runs=_fitted(tables, "run_cost") if "run_cost" in tables else {},
                supersteps=_fitted(tables, "superstep_cost"),
            ),
            power=PowerScales(
                amp=power["amp_scale"].value,
                sram=power["sram_scale"].value,
                rows=power["amp_scale"].rows,
            ),
            scale_out=ScaleOut(
                reduction=latencies["reduction_latency"],
                collective=latencies["collective_latency"],
            ),
            compile=_fitted(tables, "compile")["tile_step"],
            gpu=_fitted(tables, "gpu_kernel_cost", below=1.0),
            intervals={kind: _interval(kind, block) for kind, block in blocks},
            known_families=tuple(tables["known_families"]["names"]),
            ran=_ran(tables["ran"]),
        )
    except OSError as error:
        raise DataError(f"{FILE} cannot be read ({error.strerror}): {_REMEDY}.") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{FILE} is damaged ({error}): {_REMEDY}.") from error


def _fitted(tables: Mapping[str, Any], section: str, below: float = 1e9) -> dict[str, Fitted]:
    """Return the constants of a section, each a number from 0."""
    found = {}
    for name, block in tables[section].items():
        value = block["value"]
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < below:
            raise DataError(
                f"The entry {section}.{name} of {FILE} is {value!r}, not a number from 0 to "
                f"{below:g}: {_REMEDY}."
            )
        found[name] = Fitted(value=float(value), rows=tuple(block["rows"]))
    return found


def _ran(block: Mapping[str, Any]) -> Ran:
    over = {row_id: float(share) for row_id, share in block["over"].items()}
    programs = int(block["programs"])
    if len(over) > programs or min(over.values(), default=1.0) <= 0:
        raise ValueError(f"of {programs} programs that ran {len(over)} are beyond their tile")
    return Ran(programs=programs, over=over)


def _interval(kind: str, block: Mapping[str, Any]) -> Interval:
    low, high = float(block["low"]), float(block["high"])
    if not 0 < low <= high:
        raise DataError(
            f"The entry interval.{kind} of {FILE} goes from {low:g} to {high:g} instead of upwards "
            f"from above 0: {_REMEDY}."
        )
    without = {name: (float(one), float(two)) for name, (one, two) in block["without"].items()}
    return Interval(kind=kind, low=low, high=high, rows=tuple(block["rows"]), without=without)


def calibration_text(fitted: Calibration) -> str:
    """Write fitted constants as the text of ``data/calibration.toml``."""
    from ipusim.markup import template  # a prediction needs it not

    return template("calibration.toml.j2").render(of=fitted, quoted=json.dumps)


def save_calibration(fitted: Calibration) -> None:
    """Write fitted constants to ``data/calibration.toml``."""
    write_text(data_dir() / FILE, calibration_text(fitted))


@once_per_data_dir
def calibration() -> Calibration:
    """Return the constants in use: they do not change under a process, whatever it writes."""
    return load_calibration()


def fitted_costs(stack: str, framework: str) -> FittedCosts:
    """Return the fitted costs of a stack and a framework.

    A stack without an entry has nothing to be fitted on: its costs are 0, those of a call, too. The
    two constants of scale-out belong to links and synchronisation and hold for all stacks.
    """
    steps, scale_out = calibration().steps, calibration().scale_out
    if stack in steps.supersteps and framework not in steps.calls:
        raise DataError(f"{FILE} has no entry call_cost.{framework}: {_REMEDY}.")
    return scale_out.beside(steps.at(stack, framework))


def interval_classes(family: str, mode: str, chip: str, known: Collection[str]) -> tuple[str, str]:
    """Return the classes of a run, the narrower first; the number of its machines does not matter.

    `known` are the families that the simulator was developed on; any other network, a user's own
    file too, is new.
    """
    wide = f"{'known family' if family in known else 'new network'}, {mode}"
    return f"{wide}, {chip}", wide


def interval80(family: str, mode: str, chip: str) -> Interval | None:
    """Return factors on a time between which 80 % of measurements are expected, if known."""
    fitted = calibration()
    return fitted.intervals.get(fitted.kind(family, mode, chip))
