"""How each published row was run: the options that a prediction of that row needs."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, make_dataclass, replace
from types import MappingProxyType
from typing import Annotated, Any, TypeVar

from ipusim.errors import DataError, check_name
from ipusim.files import once_per_data_dir, read
from ipusim.runtime.options.spec import OPTIONS

ADOPTED = "[A]"
"""How a source marks what was taken after seeing residuals (data/adopted.csv)."""
CONFIGURATIONS_FILE = "configurations.csv"
HOST_TIMES_FILE = "host_times.csv"
"""More options of some runs, those of the host's time per item, each with how it was measured."""
_Line = TypeVar("_Line")


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
    otherwise: tuple[str, ...] = ()  # "option=value" where [A] made another; alone: its default
    transferable: bool = True  # whether times of the host's work hold for other programs
    source: str
    not_modelled: str  # why no prediction is made; empty when one is made
    note: str  # what a reader of the verdict must know, for example a wrong printed batch

    def options(self, *, adopted: bool = True) -> dict[str, Any]:
        """Return the keyword arguments of `ipusim.simulate`, unknown ones left to the defaults.

        If not `adopted`, without what was taken after seeing residuals: that may be the model too.
        """
        values = {name: getattr(self, name) for name in OPTIONS}
        if not adopted:
            values["adopted"] = False
            for name, _, text in (one.partition("=") for one in self.otherwise):
                read = OPTIONS[name].check if name in OPTIONS else str
                values[name] = read(text) if text else None
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


RunConfiguration = make_dataclass(
    "RunConfiguration",
    [(name, Annotated[Any, one.check], field(default=None)) for name, one in OPTIONS.items()],
    bases=(_Facts,),
    namespace={"__doc__": _Facts.__doc__, "__module__": __name__},
    frozen=True,
    kw_only=True,
)


@dataclass(frozen=True, kw_only=True)
class _HostTimes:
    """Options of a run that are the host's time per item, and how they were measured."""

    run_id: str
    loader_item_s: Annotated[Any, OPTIONS["loader_item_s"].check] = None
    serial_item_s: Annotated[Any, OPTIONS["serial_item_s"].check] = None
    transferable: bool
    source: str

    def added_to(self, run: RunConfiguration) -> RunConfiguration:
        """Return the run with these times."""
        times = {"loader_item_s": self.loader_item_s, "serial_item_s": self.serial_item_s}
        times = {name: time for name, time in times.items() if time is not None}
        otherwise = (*run.otherwise, *(times if ADOPTED in self.source else ()))
        return replace(run, transferable=self.transferable, otherwise=otherwise, **times)


def _by_run(kind: type[_Line], name: str) -> dict[str, _Line]:
    """Return the lines of a file of data/runs by run."""
    lines: dict[str, _Line] = {}
    for line in read(kind, f"runs/{name}", strict=True):
        if line.run_id in lines:
            raise DataError(f"{name} holds run {line.run_id!r} twice: remove one of the lines.")
        lines[line.run_id] = line
    return lines


def _check_run(run: RunConfiguration) -> None:
    """Refuse a line that says too little, or counts nothing."""
    where = f"of row {run.run_id!r} in {CONFIGURATIONS_FILE}"
    for one in run.otherwise:
        check_name(f"option in 'otherwise' {where}", one.partition("=")[0], ("model", *OPTIONS))
    if run.model is None and not run.not_modelled:
        raise DataError(
            f"The line {where} names neither a model nor a reason why it is not modelled: fill in "
            "one of the two."
        )
    if not 0 < run.reported_per_item < math.inf or run.epoch_items == 0:
        raise DataError(f"A number of items {where} is not above 0: correct it.")
    loads = run.mode == "inference" or run.dataset == "prepared"
    if (run.loader_item_s and not loads) or (run.serial_item_s and run.instances is None):
        raise DataError(
            f"{HOST_TIMES_FILE} times the host of {run.run_id!r}, which is no run of known "
            "instances, or no inference and its data set not 'prepared': correct one of the two."
        )


@once_per_data_dir
def load_runs() -> Mapping[str, RunConfiguration]:
    """Return every run configuration by its identifier."""
    runs = _by_run(RunConfiguration, CONFIGURATIONS_FILE)
    for run_id, times in _by_run(_HostTimes, HOST_TIMES_FILE).items():
        if run_id not in runs:
            raise DataError(f"{HOST_TIMES_FILE} times {run_id!r}, which is no run: correct it.")
        runs[run_id] = times.added_to(runs[run_id])
    for run in runs.values():
        _check_run(run)
    return MappingProxyType(runs)


def load_run(run_id: str) -> RunConfiguration:
    """Return one run configuration; an UnknownNameError with the nearest name if there is none."""
    runs = load_runs()
    check_name("run", run_id, runs)
    return runs[run_id]
