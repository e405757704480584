"""How each published row was run: the options that a prediction of that row needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from ipusim import files
from ipusim.errors import DataError, unknown_name
from ipusim.files import number_cell, read_records
from ipusim.workload.training import RECOMPUTE_MODES

CONFIGURATIONS_FILE = "configurations.csv"
HOST_TIMES_FILE = "host_times.csv"
"""Time of one core of the host per item, for the runs where it was measured."""

HOST_WORK = {"loader": "loader_item_s", "serial": "serial_item_s"}
"""Kinds of work of the host, and the option of `ipusim.simulate` that takes its time."""

SERIAL_PRODUCTS_FILE = "serial_products.csv"
"""Runs that compute products in parts, one after the other."""

_OPTION_FIELDS = (
    "system",
    "mode",
    "micro_batch",
    "replicas",
    "ipus_per_replica",
    "gradient_accumulation",
    "precision",
    "partials",
    "host_dtype",
    "overlap_io",
    "io_tiles",
    "batches_in_flight",
    "available_memory_proportion",
    "optimizer",
    "optimizer_state",
    "replicated_tensor_sharding",
    "recompute",
    "batch_norm_span",
    "merge_gradients_bytes",
    "pipeline_splits",
    "stage_ipus",
    "schedule",
    "framework",
    "instances",
    "host_servers",
    "loader_workers",
    "dataset",
    "loss",
    "stack",
)
"""Options of `ipusim.simulate` that are columns of the file."""
_INTEGER_FIELDS = (
    "micro_batch",
    "replicas",
    "ipus_per_replica",
    "gradient_accumulation",
    "io_tiles",
    "batch_norm_span",
    "merge_gradients_bytes",
    "instances",
    "host_servers",
    "loader_workers",
    "epoch_items",
)
_MAY_BE_ZERO = ("merge_gradients_bytes",)
_TEXT_FIELDS = (
    "system",
    "mode",
    "precision",
    "partials",
    "host_dtype",
    "optimizer",
    "optimizer_state",
    "schedule",
    "framework",
    "dataset",
    "loss",
    "stack",
)
_TRUTH_FIELDS = ("overlap_io", "replicated_tensor_sharding", "latency_per_item")
_TRUTH = {"true": True, "false": False, "": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfiguration:
    """One way in which a published number was measured.

    Attributes
    ----------
    run_id : str
        Identifier shared by every number of that run, for example ``"results.inference.058"``.
    family : str
        Model family, the unit that leave-one-family-out leaves out.
    model : str or None
        Name in the zoo; None when the network is not there.
    system, mode, precision, partials, host_dtype, stack : str or None
        Options of `ipusim.simulate`; None means the default of system or stack.
    micro_batch : int or None
        Items per replica and step.
    replicas, ipus_per_replica, gradient_accumulation, io_tiles : int or None
        Counts.
    batches_in_flight : float or None
        Mean number of batches between request and result.
    overlap_io : bool or None
        Whether host transfers run beside compute.
    available_memory_proportion : float or None
        Share of tile memory for temporaries.
    optimizer, optimizer_state, schedule, framework, dataset, loss : str or None
        Names of training options.
    recompute : str or tuple of str or None
        "auto", "none", or the operators whose results are kept.
    batch_norm_span, merge_gradients_bytes, instances, host_servers, loader_workers : int or None
        Counts of training options.
    pipeline_splits : tuple of str or None
        Operators that end a stage.
    stage_ipus : tuple of int or None
        Chip of each pipeline stage, where a chip has more than one.
    replicated_tensor_sharding : bool or None
        Whether replicas share the optimiser state among them.
    epoch_items : int or None
        Items of an epoch, or of a whole run, where a published time covers them.
    reported_per_item : float
        What the published throughput counts per item of a micro-batch: 1 unless an item is, say, a
        pack of sequences.
    latency_per_item : bool or None
        Whether the published latency is the time of a step over its items on one replica; None
        where it is that of a request.
    series : str
        Runs that differ in the number of chips only share a name; empty for others.
    confidence : str
        How well the recipe is known.
    assumed : tuple of str
        Names of the fields whose value no source gives.
    source : str
        Where the recipe comes from.
    not_modelled : str
        Why no prediction is made; empty when one is made.
    note : str
        What a reader of the verdict must know, for example a wrong printed batch.
    loader_item_s : float or None
        Option of `ipusim.simulate`: seconds of a worker of the loader per item.
    serial_item_s : float or None
        Option of `ipusim.simulate`: seconds per item of a host process between runs of the device.
    serial_products : tuple of str or None
        Option of `ipusim.simulate`: products in parts.
    """

    run_id: str
    family: str
    model: str | None
    system: str | None
    mode: str | None
    micro_batch: int | None
    replicas: int | None
    ipus_per_replica: int | None
    gradient_accumulation: int | None
    precision: str | None
    partials: str | None
    host_dtype: str | None
    overlap_io: bool | None
    io_tiles: int | None
    batches_in_flight: float | None
    available_memory_proportion: float | None
    optimizer: str | None
    optimizer_state: str | None
    recompute: str | tuple[str, ...] | None
    batch_norm_span: int | None
    merge_gradients_bytes: int | None
    pipeline_splits: tuple[str, ...] | None
    schedule: str | None
    framework: str | None
    instances: int | None
    host_servers: int | None
    loader_workers: int | None
    dataset: str | None
    loss: str | None
    stack: str | None
    stage_ipus: tuple[int, ...] | None
    replicated_tensor_sharding: bool | None
    epoch_items: int | None
    reported_per_item: float
    latency_per_item: bool | None
    series: str
    confidence: str
    assumed: tuple[str, ...]
    source: str
    not_modelled: str
    note: str
    loader_item_s: float | None = None
    serial_item_s: float | None = None
    serial_products: tuple[str, ...] | None = None

    def options(self) -> dict[str, Any]:
        """Return the keyword arguments of `ipusim.simulate`, unknown ones left to the defaults."""
        names = (*_OPTION_FIELDS, *HOST_WORK.values(), "serial_products")
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def chips(self) -> int:
        """Chips (or GPUs) in use: those of all replicas, 1 where the file gives no number."""
        return (self.replicas or 1) * (self.ipus_per_replica or 1)

    @property
    def items_per_step(self) -> int:
        """Items that the whole system finishes in one step (micro-batch x replicas x accumulation).

        Raises
        ------
        DataError
            If the micro-batch or the number of replicas is not known.
        """
        if self.micro_batch is None or self.replicas is None:
            raise DataError(
                f"Run {self.run_id!r} has no micro-batch or no replica count: "
                "fill in its line of data/runs/configurations.csv."
            )
        return self.micro_batch * self.replicas * (self.gradient_accumulation or 1)

    def step_s_at(self, reported_per_s: float) -> float:
        """Return the seconds per step of the whole system at a throughput as it is published.

        Raises
        ------
        DataError
            As `items_per_step`.
        """
        return self.items_per_step * self.reported_per_item / reported_per_s


def _parse(record: dict[str, str], path: Path) -> RunConfiguration:
    """Turn one line of the file into a configuration."""
    for name in _TRUTH_FIELDS:
        if record[name] not in _TRUTH:
            raise DataError(
                f"The cell {name!r} of row {record['run_id']!r} in {path.name} is "
                f"{record[name]!r} instead of true, false or empty: correct it."
            )
    if not record["model"] and not record["not_modelled"]:
        raise DataError(
            f"Row {record['run_id']!r} of {path.name} names neither a model nor a reason why it is "
            "not modelled: fill in one of the two."
        )
    integers = {
        name: int(number_cell(record, name, path, int)) if record[name] else None
        for name in _INTEGER_FIELDS
    }
    for name, value in integers.items():
        least = 0 if name in _MAY_BE_ZERO else 1
        if value is not None and value < least:
            raise DataError(
                f"The cell {name!r} of row {record['run_id']!r} in {path.name} is {value}, "
                f"below {least}: correct it."
            )
    share = record["available_memory_proportion"]
    splits, kept = record["pipeline_splits"].split(), record["recompute"].split()
    one_word = len(kept) == 1 and kept[0] in RECOMPUTE_MODES
    return RunConfiguration(
        run_id=record["run_id"],
        family=record["family"],
        model=record["model"] or None,
        available_memory_proportion=(
            number_cell(record, "available_memory_proportion", path, float) if share else None
        ),
        recompute=(kept[0] if one_word else tuple(kept)) if kept else None,
        pipeline_splits=tuple(splits) or None,
        series=record["series"],
        confidence=record["confidence"],
        assumed=tuple(record["assumed"].split()),
        source=record["source"],
        not_modelled=record["not_modelled"],
        note=record["note"],
        stage_ipus=_stage_ipus(record, path),
        batches_in_flight=_batches_in_flight(record, path),
        reported_per_item=_reported_per_item(record, path),
        **{name: _TRUTH[record[name]] for name in _TRUTH_FIELDS},
        **integers,
        **{name: record[name] or None for name in _TEXT_FIELDS},
    )


def _stage_ipus(record: dict[str, str], path: Path) -> tuple[int, ...] | None:
    chips = record["stage_ipus"].split()
    if not all(chip.isdecimal() for chip in chips):
        raise DataError(
            f"The cell 'stage_ipus' of row {record['run_id']!r} in {path.name} is "
            f"{record['stage_ipus']!r}: give the number of a chip for each stage, such as 0 1 0."
        )
    return tuple(int(chip) for chip in chips) or None


def _batches_in_flight(record: dict[str, str], path: Path) -> float | None:
    value = _number(record, path, "batches_in_flight", lambda given: given >= 1, ", 1 or more")
    return int(value) if value is not None and value.is_integer() else value


def _reported_per_item(record: dict[str, str], path: Path) -> float:
    value = _number(record, path, "reported_per_item", lambda given: given > 0, " above 0")
    return 1.0 if value is None else value


def _number(
    record: dict[str, str], path: Path, name: str, fits: Callable[[float], bool], allowed: str
) -> float | None:
    """Return the number of a cell, which must fit what is allowed; None where it is empty."""
    if not record[name]:
        return None
    value = float(number_cell(record, name, path, float))
    if not fits(value):
        raise DataError(
            f"The cell {name!r} of row {record['run_id']!r} in {path.name} is {value}: give a "
            f"number{allowed}."
        )
    return value


def _host_times(path: Path) -> dict[str, dict[str, float]]:
    """Return the host's seconds per item of every run that was timed, by option."""
    times: dict[str, dict[str, float]] = {}
    for record in read_records(path, ("run_id", "work", "item_ms", "source")):
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
    columns = ("run_id", "family", "model", "confidence", "assumed", "source", "not_modelled")
    extra = ("note", "series", "epoch_items", "reported_per_item", "stage_ipus", *_TRUTH_FIELDS)
    records = read_records(path, tuple(dict.fromkeys((*columns, *extra, *_OPTION_FIELDS))))
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
    """Return every run configuration by its identifier.

    Returns
    -------
    dict of str to RunConfiguration
        In file order; a fresh dictionary at each call.

    Raises
    ------
    DataError
        If the file is missing or damaged.
    """
    return dict(_load(files.data_dir() / "runs" / CONFIGURATIONS_FILE))


def load_run(run_id: str) -> RunConfiguration:
    """Return one run configuration.

    Parameters
    ----------
    run_id : str
        For example ``"qwant.batch2"``.

    Returns
    -------
    RunConfiguration
        That run.

    Raises
    ------
    UnknownNameError
        If there is no such run.
    DataError
        If the file is missing or damaged.
    """
    runs = load_runs()
    if run_id not in runs:
        raise unknown_name("run", run_id, runs)
    return runs[run_id]
