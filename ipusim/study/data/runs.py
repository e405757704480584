"""How each published row was run: the options that a prediction of that row needs."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, make_dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ipusim import files
from ipusim.errors import DataError, IpuSimError, check_name
from ipusim.files import once_per_data_dir, read, read_records
from ipusim.runtime.options.spec import OPTIONS

ADOPTED = "[A]"
"""How a source marks what was taken after seeing residuals (data/adopted.csv)."""
CONFIGURATIONS_FILE = "configurations.csv"
HOST_TIMES_FILE = "host_times.csv"
"""More options of some runs, those of the host's time per item, each with how it was measured."""


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
    [(name, Any, field(default=None)) for name in OPTIONS],
    bases=(_Facts,),
    namespace={"__doc__": _Facts.__doc__, "__module__": __name__},
    frozen=True,
    kw_only=True,
)
_FACTS = tuple(one.name for one in fields(_Facts))


@dataclass(frozen=True, kw_only=True)
class _HostTimes:
    """What a line of the host's times says besides them."""

    run_id: str
    transferable: bool
    source: str


def _options(path: Path) -> dict[str, dict[str, Any]]:
    """Return the options that the lines of a file give, by run."""
    found: dict[str, dict[str, Any]] = {}
    for record in read_records(path):
        run_id = record["run_id"]
        if run_id in found:
            raise DataError(f"{path.name} holds run {run_id!r} twice: remove one of the lines.")
        found[run_id] = {}
        for name, cell in record.items():
            check_name(f"column of {path.name}", name, (*_FACTS, *OPTIONS))
            if name in OPTIONS and cell:
                try:
                    found[run_id][name] = OPTIONS[name].check(cell)
                except IpuSimError as error:
                    where = f"of row {run_id!r} in {path.name}"
                    raise DataError(f"The cell {name!r} {where} is wrong. {error}") from error
    return found


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
    folder = files.data_dir() / "runs"
    options = _options(folder / CONFIGURATIONS_FILE)
    times = _options(folder / HOST_TIMES_FILE)
    timed = {one.run_id: one for one in read(_HostTimes, f"runs/{HOST_TIMES_FILE}")}
    runs = {}
    for facts in read(_Facts, f"runs/{CONFIGURATIONS_FILE}"):
        known, own = vars(facts), times.pop(facts.run_id, {})
        if own:
            about = timed[facts.run_id]
            adopted = own if ADOPTED in about.source else ()
            known = known | {"transferable": about.transferable}
            known["otherwise"] = (*facts.otherwise, *adopted)
        runs[facts.run_id] = RunConfiguration(**known, **options[facts.run_id] | own)
        _check_run(runs[facts.run_id])
    if times:
        raise DataError(f"{HOST_TIMES_FILE} times {min(times)!r}, which is no run: correct it.")
    return MappingProxyType(runs)


def load_run(run_id: str) -> RunConfiguration:
    """Return one run configuration; an UnknownNameError with the nearest name if there is none."""
    runs = load_runs()
    check_name("run", run_id, runs)
    return runs[run_id]
