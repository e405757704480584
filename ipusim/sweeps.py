"""Many runs: every combination of options, each distinct program compiled once, here or elsewhere.

The combinations are cut into tasks whose points share their programs. Tasks run in this process, in
worker processes or on a dask cluster; what each gives is written to a part file at once, so that a
sweep that was ended goes on where it was and its table is the same.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipusim.api import load_model, names_options, simulate, split_onnx
from ipusim.errors import ConfigError, IpuSimError, check_name
from ipusim.kernel_cache import state_digest
from ipusim.machine import Chip, System
from ipusim.parts import taken_up
from ipusim.report import Report
from ipusim.runtime.options.config import machine_of
from ipusim.runtime.options.spec import COUNT, OPTIONS, Option
from ipusim.workers import Workers
from ipusim.workload.model import Model

if TYPE_CHECKING:
    import pandas as pd

SCHEDULER_ANSWERS_S = 10
"""A scheduler that has not answered by then is not there."""

LEAST_POINTS, MOST_POINTS = 25, 500
"""Points of a task: enough to be worth a part file, few enough that a lost one is soon made."""

PRICED = (
    *("clock_hz", "replicas", "batches_in_flight", "instances", "loader_item_s", "serial_item_s"),
    *("host_servers", "loader_workers", "dataset", "merge_gradients_bytes", "framework"),
    "device_iterations",
    *("ipus_per_replica", "pipeline_splits", "stage_ipus", "schedule", "optimizer_state"),
)
"""What a program does not depend on, as a rule: points that differ in these alone share a task."""

CHIP_OPTIONS: dict[str, Option] = {
    one.name: Option(name=one.name, kind=COUNT, meaning="")
    for one in fields(Chip)
    if one.metadata and one.name != "mark"
}
"""Numbers of a chip that a sweep may set."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What a sweep asks; a point is the number of a combination, the last axis moving fastest.

    `axes` are values by (kind, name); the kind is "run", "chip", "dims" or "shapes". What is not
    swept is `fixed`, by kind; `given` is all that an ONNX file leaves open.
    """

    model: str | Model
    axes: Mapping[tuple[str, str], list[Any]]
    fixed: Mapping[str, Mapping[str, Any]]
    given: Mapping[str, Any]
    keep_going: bool = False

    @property
    def named(self) -> str:
        """The model's name, or that of its file."""
        return self.model.name if isinstance(self.model, Model) else str(self.model)

    def __len__(self) -> int:
        return math.prod(map(len, self.axes.values()))

    def text(self) -> str:
        """Return what tells it from others; a model that is no name counts by its name."""
        told = (self.named, self.axes, self.fixed, self.given, self.keep_going)
        return repr((*told, LEAST_POINTS, MOST_POINTS))

    def tasks(self) -> list[tuple[int, ...]]:
        """Return the points of each task: those that share programs together."""
        compiled = [place for place, (_, name) in enumerate(self.axes) if name not in PRICED]
        groups: dict[tuple[int, ...], list[int]] = {}
        places = itertools.product(*(range(len(values)) for values in self.axes.values()))
        for point, place in enumerate(places):
            groups.setdefault(tuple(place[axis] for axis in compiled), []).append(point)
        tasks: list[tuple[int, ...]] = []
        waiting: list[int] = []
        for group in groups.values():
            waiting += group
            while len(waiting) >= LEAST_POINTS:
                tasks.append(tuple(waiting[:MOST_POINTS]))
                waiting = waiting[MOST_POINTS:]
        return [*tasks, tuple(waiting)] if waiting else tasks

    def row(self, point: int) -> dict[str, Any]:
        """Predict one point."""
        chosen = {kind: dict(values) for kind, values in self.fixed.items()}
        for (kind, name), values in reversed(self.axes.items()):
            point, place = divmod(point, len(values))
            chosen[kind][name] = values[place]
        run = chosen["run"]
        adopted = run.get("adopted") not in (False, "false")
        machine = _system(run.get("system"), adopted, tuple(chosen["chip"].items()))
        opened = {kind: chosen[kind] for kind in ("dims", "shapes") if chosen[kind]}
        given = _Given(self.given, **opened)
        head = {"model": self.named, "system": machine.name}
        head |= {name: chosen[kind][name] for kind, name in self.axes if name != "system"}
        refused = {"refused": ""} if self.keep_going else {}
        try:
            report = simulate(_loaded(self.model, given), **{**run, "system": machine})
        except IpuSimError as error:
            if not self.keep_going:
                raise
            return {**head, **dict.fromkeys(NUMBERS), "refused": str(error)}
        numbers = {name: number(report) for name, number in NUMBERS.items()}
        return {**head, "model": report.model, **numbers, **refused}


def _scaled(end: float | None, scale: float = 1.0) -> float:
    return math.nan if end is None else scale * end


NUMBERS: dict[str, Callable[[Report], Any]] = {
    "latency_ms": lambda report: 1e3 * report.latency.value,
    "latency_low80_ms": lambda report: _scaled(report.latency.low80, 1e3),
    "latency_high80_ms": lambda report: _scaled(report.latency.high80, 1e3),
    "throughput_items_per_s": attrgetter("throughput.value"),
    "throughput_low80_items_per_s": lambda report: _scaled(report.throughput.low80),
    "throughput_high80_items_per_s": lambda report: _scaled(report.throughput.high80),
    "power_w": attrgetter("power.value"),
    **{name: attrgetter(name) for name in ("cycles_per_step", "fits", "peak_tile_bytes")},
}
"""What a row says of a run."""


class _Given(dict[str, Any]):
    """Options of `from_onnx` that a cache can hold."""

    def __hash__(self) -> int:
        return hash(repr(self))


@lru_cache(maxsize=8)
def _loaded(model: str | Model, given: _Given) -> Model:
    return load_model(model, **given)


@lru_cache(maxsize=1024)
def _system(
    system: str | System | None, adopted: bool, changes: tuple[tuple[str, int], ...]
) -> System:
    machine = machine_of(system, adopted=adopted)
    return replace(machine, chip=replace(machine.chip, **dict(changes))) if changes else machine


def _several(kind: str, name: str, value: Any) -> list[Any] | None:
    """Return the values of an axis of a sweep, checked where no run checks them; None for one."""
    if kind == "dims":
        return list(value) if isinstance(value, Iterable) else None
    if kind == "shapes":
        listed = isinstance(value, Iterable) and any(isinstance(size, Iterable) for size in value)
        return list(value) if listed else None
    if kind == "run":
        check_name("option", name, OPTIONS)
        return OPTIONS[name].axis(value)
    check_name("number of a chip", name, CHIP_OPTIONS)
    values = CHIP_OPTIONS[name].axis(value)
    return values and [CHIP_OPTIONS[name].check(one) for one in values]


def _asked(
    model: str | Model, chip: Mapping[str, Any] | None, options: dict[str, Any], keep_going: bool
) -> Question:
    """Tell what is swept from what is fixed."""
    given = split_onnx(options)
    opened = {kind: given.get(kind, {}) for kind in ("dims", "shapes")}
    axes: dict[tuple[str, str], list[Any]] = {}
    fixed: dict[str, dict[str, Any]] = {}
    for kind, told in {**opened, "run": options, "chip": chip or {}}.items():
        if not isinstance(told, Mapping):
            raise ConfigError(f"The option {kind} is {told!r}: give values by name, as a mapping.")
        swept = {name: _several(kind, name, value) for name, value in told.items()}
        fixed[kind] = {name: value for name, value in told.items() if swept[name] is None}
        axes |= {(kind, name): values for name, values in swept.items() if values is not None}
    for (_, name), values in axes.items():
        if not values:
            raise ConfigError(
                f"The option {name} has no value to sweep: give one, or leave it out."
            )
    fixed["chip"] = {name: CHIP_OPTIONS[name].check(value) for name, value in fixed["chip"].items()}
    return Question(model=model, axes=axes, fixed=fixed, given=given, keep_going=keep_going)


@names_options
def sweep(
    model: str | Model,
    *,
    chip: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    jobs: int = 1,
    client: Any = None,
    keep_going: bool = False,
    progress: bool | None = None,
    **options: Any,
) -> pd.DataFrame:
    """Predict every combination of options.

    Parameters
    ----------
    model : str or Model
        As for `simulate`.
    chip : mapping, optional
        Numbers of the chip to set, each a value or several: tiles, clock_hz [Hz], bytes_per_tile
        [bytes] and the others of `load_chip`.
    out : path, optional
        Also write the table to this file, ending in .csv or .parquet (which needs pyarrow). What is
        done lies in a folder beside it; the same call again goes on from there, however it ended.
    jobs : int
        Worker processes. Above 1, a script needs ``if __name__ == "__main__":``.
    client : distributed.Client or str, optional
        Run on a dask cluster instead: a client, the address of a scheduler, or "local" for a
        cluster of `jobs` processes here. Needs ``ipusim[cluster]``.
    keep_going : bool
        Whether a combination that makes no sense becomes a row without numbers, with the reason in
        the column refused, instead of the end.
    progress : bool, optional
        Whether to show a bar; by default only on a terminal or in a notebook.
    **options
        Options of `simulate`, each a value or a list or range of values. Of an option that takes
        a list itself (such as pipeline_splits) several values are a list of lists. So may each
        size in dims (``dims={"sequence": [128, 256]}``) and, as lists of tuples, each shape in
        shapes.

    Returns
    -------
    pandas.DataFrame
        One row per combination: the swept options, latency (ms) and throughput (items/s) with
        their 80 % intervals (NaN where there is none), power (W), cycles per step, whether it fits,
        bytes on the fullest tile.

    Raises
    ------
    IpuSimError
        With one sentence that says what is wrong.

    Examples
    --------
    >>> table = ipusim.sweep("mcmc_bnn", system=["C2", "Bow-2000"], micro_batch=[1, 4])
    >>> table[["system", "micro_batch", "cycles_per_step"]].values.tolist()
    [['C2', 1, 12021], ['C2', 4, 13570], ['Bow-2000', 1, 11011], ['Bow-2000', 4, 11742]]
    """
    from tqdm.auto import tqdm

    question, jobs = _asked(model, chip, options, keep_going), COUNT.check("jobs", jobs)
    tasks = dict(enumerate(question.tasks()))
    with taken_up(out, f"{state_digest()} {question.text()}") as parts:
        kept = parts.known(tasks)
        bar = tqdm(
            total=len(question),
            initial=sum(len(tasks[task]) for task in kept),
            desc=question.named,
            disable=None if progress is None else not progress,
        )
        left = {task: (question, points) for task, points in tasks.items() if task not in kept}
        with bar:
            for task, rows in _run_all(left, jobs, client):
                parts.keep(task, dict(zip(tasks[task], rows, strict=True)))
                bar.update(len(rows))
        return parts.table()


def _run(task: tuple[Question, tuple[int, ...]]) -> list[dict[str, Any]]:
    question, points = task
    return [question.row(point) for point in points]


def _run_all(
    tasks: Mapping[int, Any], jobs: int, client: Any
) -> Iterator[tuple[Any, list[dict[str, Any]]]]:
    """Yield the rows of each task as they are done."""
    if client is not None:
        return _on_cluster(tasks, jobs, client)
    if jobs == 1 or len(tasks) < 2:
        return ((task, _run(given)) for task, given in tasks.items())
    return Workers(jobs).each(_run, tasks)


def _on_cluster(
    tasks: Mapping[int, Any], jobs: int, client: Any
) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Run on a dask cluster, which begins the tasks of a lost worker again on another."""
    try:
        from distributed import Client, as_completed
    except ImportError:
        raise ConfigError(
            "A cluster needs dask.distributed, which is not installed: pip install ipusim[cluster]."
        ) from None
    with _closing(client, jobs, Client) as found:
        futures = {found.submit(_run, given, pure=False): task for task, given in tasks.items()}
        try:
            for future, rows in as_completed(futures, with_results=True):
                yield futures[future], rows
                future.release()
        finally:
            found.cancel(list(futures))


@contextmanager
def _closing(client: Any, jobs: int, make: Callable[..., Any]) -> Iterator[Any]:
    """Give a client as it is, or one made for an address, which ends with its use."""
    if not isinstance(client, str):
        yield client
        return
    local = {"n_workers": jobs, "threads_per_worker": 1, "dashboard_address": None}
    try:
        made = make(**local) if client == "local" else make(client, timeout=SCHEDULER_ANSWERS_S)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"No scheduler answers at {client!r} ({error}): give its address, such as "
            "tcp://127.0.0.1:8786, or 'local'."
        ) from error
    with made:
        yield made
