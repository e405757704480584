"""How each published row was run: the options that a prediction of that row needs."""

import math
from dataclasses import dataclass, field, fields, make_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from ipusim import files
from ipusim.errors import DataError, IpuSimError, unknown_name
from ipusim.files import read, read_records
from ipusim.runtime.options.spec import OPTIONS

CONFIGURATIONS_FILE = "configurations.csv"
HOST_TIMES_FILE = "host_times.csv"
"""Time of one core of the host per item, for the runs where it was measured."""

SERIAL_PRODUCTS_FILE = "serial_products.csv"
"""Runs that compute products in parts, one after the other."""


@dataclass(frozen=True, kw_only=True)
class _Facts:
    """One way in which a published number was measured.

    Every option of `ipusim.simulate` is an attribute besides; `None` stands for its default.
    ``reported_per_item`` is what the published throughput counts per item of a micro-batch: 1
    unless an item is, say, a pack of sequences. With ``latency_per_item`` the published latency is
    the time of a step over its items on one replica, else that of a request.
    """

    run_id: str  # shared by every number of that run, "results.inference.058"
    family: str  # the unit that leave-one-family-out leaves out
    model: str | None = None  # name in the zoo; None when the network is not there
    epoch_items: int | None = None  # of an epoch, or of a whole run, that a published time covers
    reported_per_item: float = 1.0
    latency_per_item: bool | None = None
    series: str  # shared by runs that differ in the number of chips only; empty for others
    confidence: str  # how well the recipe is known
    assumed: tuple[str, ...] = ()  # names of the fields whose value no source gives
    source: str
    not_modelled: str  # why no prediction is made; empty when one is made
    note: str  # what a reader of the verdict must know, for example a wrong printed batch

    def options(self) -> dict[str, Any]:
        """Return the keyword arguments of `ipusim.simulate`, unknown ones left to the defaults."""
        values = {name: getattr(self, name) for name in OPTIONS}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def chips(self) -> int:
        """Chips (or GPUs) in use: those of all replicas, 1 where the file gives no number."""
        return (self.replicas or 1) * (self.ipus_per_replica or 1)

    @property
    def items_per_step(self) -> int:
        """Items that the whole system finishes in one step: micro-batch, replicas, accumulation."""
        if self.micro_batch is None or self.replicas is None:
            raise DataError(
                f"Run {self.run_id!r} has no micro-batch or no replica count: "
                "fill in its line of data/runs/configurations.csv."
            )
        return self.micro_batch * self.replicas * (self.gradient_accumulation or 1)

    def step_s_at(self, reported_per_s: float) -> float:
        """Return the seconds per step of the whole system at a throughput as it is published."""
        return self.items_per_step * self.reported_per_item / reported_per_s


RunConfiguration = make_dataclass(
    "RunConfiguration",
    [(name, Any, field(default=None)) for name in OPTIONS],
    bases=(_Facts,),
    namespace={"__doc__": _Facts.__doc__, "__module__": __name__},
    frozen=True,
    kw_only=True,
)
_FACTS = tuple(one.name for one in fields(_Facts))


@dataclass(frozen=True, slots=True, kw_only=True)
class _HostTime:
    """Time of one core per item; the option that takes it is ``<work>_item_s``."""

    run_id: str
    work: Literal["loader", "serial"]
    item_ms: float
    transfers: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _SerialProducts:
    run_id: str
    serial_products: tuple[str, ...]
    source: str


def _options(record: dict[str, str], path: Path) -> dict[str, Any]:
    """Return the options that a line of the file gives."""
    values = {}
    for name, cell in record.items():
        if name in OPTIONS and cell:
            try:
                values[name] = OPTIONS[name].check(cell)
            except IpuSimError as error:
                where = f"of row {record['run_id']!r} in {path.name}"
                raise DataError(f"The cell {name!r} {where} is wrong. {error}") from error
    return values


def _check_run(run: RunConfiguration) -> None:
    """Refuse a line that says too little, or counts nothing."""
    where = f"of row {run.run_id!r} in {CONFIGURATIONS_FILE}"
    if run.model is None and not run.not_modelled:
        raise DataError(
            f"The line {where} names neither a model nor a reason why it is not modelled: fill in "
            "one of the two."
        )
    if not 0 < run.reported_per_item < math.inf or run.epoch_items == 0:
        raise DataError(f"A number of items {where} is not above 0: correct it.")


def _check_host_times(
    times: dict[str, dict[str, float]], runs: dict[str, RunConfiguration]
) -> None:
    """Refuse times that no run takes."""
    for run_id, seconds in times.items():
        run = runs.get(run_id)
        loads = run is not None and (run.mode == "inference" or run.dataset == "prepared")
        if "loader_item_s" in seconds and not loads:
            raise DataError(
                f"{HOST_TIMES_FILE} times the loader of {run_id!r}, which is neither a run of "
                "inference nor one whose data set is 'prepared': remove the line or correct "
                f"{CONFIGURATIONS_FILE}."
            )
        if "serial_item_s" in seconds and (run is None or run.instances is None):
            raise DataError(
                f"{HOST_TIMES_FILE} times a host process of {run_id!r}, which is no run of known "
                f"instances: remove the line or correct {CONFIGURATIONS_FILE}."
            )


@lru_cache(maxsize=4)
def _load(folder: Path) -> dict[str, RunConfiguration]:
    path = folder / CONFIGURATIONS_FILE
    records = read_records(path, _FACTS)
    for column in records[0]:
        if column not in _FACTS and column not in OPTIONS:
            raise unknown_name(f"column of {path.name}", column, [*_FACTS, *OPTIONS])
    times: dict[str, dict[str, float]] = {}
    for one in read(_HostTime, f"runs/{HOST_TIMES_FILE}"):
        times.setdefault(one.run_id, {})[f"{one.work}_item_s"] = one.item_ms / 1e3
    products = {
        one.run_id: one.serial_products
        for one in read(_SerialProducts, f"runs/{SERIAL_PRODUCTS_FILE}")
    }
    runs: dict[str, RunConfiguration] = {}
    for record, facts in zip(records, read(_Facts, f"runs/{CONFIGURATIONS_FILE}"), strict=True):
        name = facts.run_id
        options = _options(record, path) | times.get(name, {})
        run = RunConfiguration(**vars(facts), **options | {"serial_products": products.get(name)})
        _check_run(run)
        if name in runs:
            raise DataError(f"{path.name} holds run {name!r} twice: remove one of the lines.")
        runs[name] = run
    _check_host_times(times, runs)
    for run_id in products:
        if run_id not in runs or runs[run_id].model is None:
            raise DataError(
                f"{SERIAL_PRODUCTS_FILE} cuts products of {run_id!r}, which is no run of a model: "
                f"remove the line or correct {CONFIGURATIONS_FILE}."
            )
    return runs


def load_runs() -> dict[str, RunConfiguration]:
    """Return every run configuration by its identifier."""
    return dict(_load(files.data_dir() / "runs"))


def load_run(run_id: str) -> RunConfiguration:
    """Return one run configuration; an UnknownNameError with the nearest name if there is none."""
    runs = load_runs()
    if run_id not in runs:
        raise unknown_name("run", run_id, runs)
    return runs[run_id]
