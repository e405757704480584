"""How each published row was run: the options that a prediction of that row needs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, make_dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from ipusim import files
from ipusim.errors import DataError, IpuSimError, unknown_name
from ipusim.files import number_cell, read_records
from ipusim.runtime.options.spec import OPTIONS

CONFIGURATIONS_FILE = "configurations.csv"
HOST_TIMES_FILE = "host_times.csv"
"""Time of one core of the host per item, for the runs where it was measured."""

HOST_WORK = {"loader": "loader_item_s", "serial": "serial_item_s"}
"""Kinds of work of the host, and the option of `ipusim.simulate` that takes its time."""

SERIAL_PRODUCTS_FILE = "serial_products.csv"
"""Runs that compute products in parts, one after the other."""

_TRUTH = {"true": True, "false": False, "": None}


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
    model: str | None  # name in the zoo; None when the network is not there
    epoch_items: int | None  # of an epoch, or of a whole run, where a published time covers them
    reported_per_item: float
    latency_per_item: bool | None
    series: str  # shared by runs that differ in the number of chips only; empty for others
    confidence: str  # how well the recipe is known
    assumed: tuple[str, ...]  # names of the fields whose value no source gives
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


def _parse(record: dict[str, str], path: Path) -> RunConfiguration:
    """Turn one line of the file into a configuration."""
    where = f"of row {record['run_id']!r} in {path.name}"
    if not record["model"] and not record["not_modelled"]:
        raise DataError(
            f"Row {record['run_id']!r} of {path.name} names neither a model nor a reason why it is "
            "not modelled: fill in one of the two."
        )
    if record["latency_per_item"] not in _TRUTH:
        raise DataError(
            f"The cell 'latency_per_item' {where} is {record['latency_per_item']!r} instead of "
            "true, false or empty: correct it."
        )
    values: dict[str, Any] = {name: record[name] for name in _FACTS}
    for name, cell in record.items():
        if name in OPTIONS and cell:
            try:
                values[name] = OPTIONS[name].check(cell)
            except IpuSimError as error:
                raise DataError(f"The cell {name!r} {where} is wrong. {error}") from error
    items, each = record["epoch_items"], record["reported_per_item"]
    values |= {
        "model": record["model"] or None,
        "assumed": tuple(record["assumed"].split()),
        "latency_per_item": _TRUTH[record["latency_per_item"]],
        "epoch_items": int(number_cell(record, "epoch_items", path, int)) if items else None,
        "reported_per_item": number_cell(record, "reported_per_item", path) if each else 1.0,
    }
    if not 0 < values["reported_per_item"] < math.inf or items == "0":
        raise DataError(f"A number of items {where} is not above 0: correct it.")
    return RunConfiguration(**values)


def _host_times(path: Path) -> dict[str, dict[str, float]]:
    """Return the host's seconds per item of every run that was timed, by option."""
    times: dict[str, dict[str, float]] = {}
    for record in read_records(path, ("run_id", "work", "item_ms", "transfers", "source")):
        if record["work"] not in HOST_WORK:
            raise DataError(
                f"The cell 'work' of row {record['run_id']!r} in {path.name} is "
                f"{record['work']!r} instead of {' or '.join(HOST_WORK)}: correct it."
            )
        seconds = float(number_cell(record, "item_ms", path, float)) / 1e3
        times.setdefault(record["run_id"], {})[HOST_WORK[record["work"]]] = seconds
    return times


def _serial_products(path: Path) -> dict[str, tuple[str, ...]]:
    """Return the products in parts of every run that has any."""
    return {
        record["run_id"]: tuple(record["serial_products"].split())
        for record in read_records(path, ("run_id", "serial_products", "source"))
    }


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
def _load(path: Path) -> dict[str, RunConfiguration]:
    records = read_records(path, _FACTS)
    for column in records[0]:
        if column not in _FACTS and column not in OPTIONS:
            raise unknown_name(f"column of {path.name}", column, [*_FACTS, *OPTIONS])
    times = _host_times(path.parent / HOST_TIMES_FILE)
    products = _serial_products(path.parent / SERIAL_PRODUCTS_FILE)
    runs: dict[str, RunConfiguration] = {}
    for record in records:
        run = replace(
            _parse(record, path),
            serial_products=products.get(record["run_id"]),
            **times.get(record["run_id"], {}),
        )
        if run.run_id in runs:
            raise DataError(f"{path.name} holds run {run.run_id!r} twice: remove one of the lines.")
        runs[run.run_id] = run
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
    return dict(_load(files.data_dir() / "runs" / CONFIGURATIONS_FILE))


def load_run(run_id: str) -> RunConfiguration:
    """Return one run configuration; an UnknownNameError with the nearest name if there is none."""
    runs = load_runs()
    if run_id not in runs:
        raise unknown_name("run", run_id, runs)
    return runs[run_id]
