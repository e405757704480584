"""The dataflows of BraggNN training: what host and chip do in each, and the time to train.

Three versions of the Argonne slides, as the commits of Graphcore's port have them
(data/runs/bragg_dataflows.toml), on IPUs with `ipusim.simulate` and on GPUs with
`ipusim.simulate_gpu`. Loader processes prepare items beside the accelerator; the slower of the two
sets the pace.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from ipusim.api import simulate
from ipusim.errors import ConfigError, resolve_name
from ipusim.files import read, read_tables
from ipusim.machine.constants import Sourced, constant, load
from ipusim.report import Report
from ipusim.runtime.gpu.step import GpuReport, simulate_gpu
from ipusim.runtime.options.spec import counts
from ipusim.runtime.terms import WAITING

_TABLES = "runs/bragg_dataflows"
FILE = f"{_TABLES}.toml"
SYSTEMS = {"GC200": "IPU-POD16", "Bow": "Bow Pod16"}
MOST_IPUS = 16
MERGED_BYTES = 50_000_000
"""Bytes of a merged collective in the vendor's recipes of the time (data/runs/recipes.csv)."""
SHARES = ("per IPU", "in all")
"""Whether the batch is that of one IPU, or of all of them together."""

Step = Literal["crop", "label", "scale", "collate", "copy_and_collate", "choose"]
"""What a loader process does with an item."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataflow:
    """One version of the program."""

    name: str
    title: str
    source: str
    model: str  # the graph that the chip runs, by its name in the zoo
    worker: tuple[Step, ...]  # what a loader process does with an item
    batches_in_flight: int  # 1 where the chip waits for each batch, 2 where the host runs ahead


@dataclass(frozen=True, slots=True, kw_only=True)
class Training(Sourced, file=_TABLES, word="run"):
    """The run of the slides: items of an epoch, epochs, items of a step, loader processes."""

    name: str
    items: int = constant("items")
    epochs: int = constant("epochs")
    batch: int = constant("items")
    workers: int = constant("processes")

    def steps(self, items_per_step: int) -> int:
        """Return the steps of the whole training; what an epoch leaves over is dropped."""
        return self.epochs * (self.items // items_per_step)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Worker(Sourced, file=_TABLES, word="loader process"):
    """What each step takes a loader process."""

    name: str
    crop: float = constant("us")
    label: float = constant("us")
    scale: float = constant("us")
    collate: float = constant("us")
    copy_and_collate: float = constant("us")
    choose: float = constant("us")


def load_training() -> Training:
    """Return the run of the slides; a DataError where the file is damaged."""
    return load(Training, "training")


def worker_times_us() -> dict[str, float]:
    """Return the microseconds of a loader process per item, step by step."""
    times = load(_Worker, "worker").constants
    return {step: time.value for step, time in times.items()}


def load_dataflows() -> dict[str, Dataflow]:
    """Return the dataflows by name, in the order of the slides; a DataError for damaged data."""
    return {flow.name: flow for flow in read(Dataflow, FILE, table="flow")}


def load_dataflow(name: str) -> Dataflow:
    """Return one dataflow; an UnknownNameError with the nearest name if there is none."""
    flows = load_dataflows()
    return flows[resolve_name("dataflow", name, flows)]


def item_seconds(flow: Dataflow, *, several_components: bool = False) -> float:
    """Return the seconds of a loader process per item, of one component or of several."""
    times = worker_times_us()
    extra = times["choose"] if several_components and "label" in flow.worker else 0.0
    return 1e-6 * (sum(times[step] for step in flow.worker) + extra)


def simulate_flow(
    flow: Dataflow,
    *,
    chip: str = "GC200",
    ipus: int = 1,
    share: str = "per IPU",
    precision: str = "32.32",
    several_components: bool = False,
    merged: bool = False,
) -> Report:
    """Simulate a training step of a dataflow on a chip, a name of `SYSTEMS`.

    IPUs are replicas, 1 to 16; one host process with its loader processes feeds them all. `share`
    says what the batch of 512 counts (`SHARES`); single precision is the port's own default; with
    `merged` all gradients are reduced in one collective, where the port leaves one per tensor;
    `several_components` is that of `item_seconds`.

    A ConfigError refuses a number of IPUs that is out of range or does not divide the batch, an
    UnknownNameError an unknown name.
    """
    run = load_training()
    ipus = counts(most=MOST_IPUS).check("ipus", ipus)
    divided = resolve_name("share of the batch", share, SHARES) == "in all"
    if divided and run.batch % ipus:
        raise ConfigError(
            f"A batch of {run.batch} cannot be shared by {ipus} IPUs: use a divisor of it."
        )
    return simulate(
        flow.model,
        system=SYSTEMS[resolve_name("chip", chip, SYSTEMS)],
        mode="training",
        micro_batch=run.batch // ipus if divided else run.batch,
        replicas=ipus,
        precision=precision,
        partials="float" if precision == "32.32" else "half",
        optimizer="adam",
        batches_in_flight=flow.batches_in_flight,
        merge_gradients_bytes=MERGED_BYTES if merged else 0,
        instances=1,
        host_servers=1,
        loader_workers=run.workers,
        dataset="prepared",
        loader_item_s=item_seconds(flow, several_components=several_components),
    )


def training_seconds(report: Report) -> float:
    """Return the seconds of the whole training of a simulated step."""
    items = report.result.items * report.config.replicas
    return load_training().steps(items) * report.result.step_s


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRun:
    """BraggNN with the stock loader on a GPU."""

    report: GpuReport  # a step whose data are there
    loader_s: float  # between two batches of the loader
    source: str  # why this stack and precision

    @property
    def step_s(self) -> float:
        """Seconds from step to step: the slower of board and loader."""
        return max(self.report.step_s, self.loader_s)

    @property
    def training_s(self) -> float:
        """Seconds of the whole training."""
        return load_training().steps(self.report.batch) * self.step_s


def simulate_board(board: str) -> GpuRun:
    """Simulate the reference run on a GPU of the slides; an UnknownNameError for another."""
    run, boards = load_training(), read_tables(FILE)["gpu"]
    said = boards[resolve_name("board", board, boards)]
    given = {"precision": said["precision"], "framework": said["framework"]}
    report = simulate_gpu("braggnn", said["gpu"], batch=run.batch, optimizer="adam", **given)
    loader_s = run.batch * item_seconds(load_dataflow("stock")) / run.workers
    return GpuRun(report=report, loader_s=loader_s, source=said["source"])


def dataflow_frame(chips: Sequence[str] = tuple(SYSTEMS)) -> pd.DataFrame:
    """Predict the time to train of every dataflow on one chip, and what sets its pace.

    ``chip_ms`` is all that is not waiting for the host, ``training_several_s`` the time with as
    many components as synthetic patches hold.
    """
    run, lines = load_training(), []
    for flow, chip in itertools.product(load_dataflows().values(), chips):
        item_s = item_seconds(flow)
        report = simulate_flow(flow, chip=chip)
        several = simulate_flow(flow, chip=chip, several_components=True)
        lines.append(
            {
                "flow": flow.name,
                "title": flow.title,
                "chip": chip,
                "worker_us": 1e6 * item_s,
                "loader_ms": 1e3 * run.batch * item_s / run.workers,
                "chip_ms": 1e3 * busy_s(report),
                "step_ms": 1e3 * report.result.step_s,
                "bound": _bound(report),
                "training_s": training_seconds(report),
                "training_several_s": training_seconds(several),
            }
        )
    return pd.DataFrame(lines)


def busy_s(report: Report) -> float:
    """Return the seconds of a step but for those in which the chip waits for the host."""
    return report.result.step_s - report.result.parts_s.get(WAITING, 0.0)


def scaling_frame(ipus: Sequence[int]) -> pd.DataFrame:
    """Predict the time to train over several IPUs, as the file lists dataflows and batches.

    ``bound`` is "host", "all-reduce" where that is the largest part, or "chip"; the speedup is that
    over the fewest IPUs. A ConfigError for a number that `simulate_flow` refuses.
    """
    lines = []
    for said in read_tables(FILE)["scaling"].values():
        flow, share, merged = load_dataflow(said["flow"]), said["share"], said["merged"]
        words = f"{flow.title}, 512 {share}" + (", gradients merged" if merged else "")
        for chip, count in itertools.product(SYSTEMS, sorted(ipus)):
            run = {"chip": chip, "share": share, "merged": merged, "ipus": count}
            report = simulate_flow(flow, **run)
            step_ms, bound = 1e3 * report.result.step_s, _bound(report)
            times = {"step_ms": step_ms, "bound": bound, "training_s": training_seconds(report)}
            lines.append({"flow": flow.name, "line": words, **run, **times})
    frame = pd.DataFrame(lines)
    alone = frame.groupby(["line", "chip"], sort=False)["training_s"].transform("first")
    return frame.assign(speedup=alone / frame["training_s"])


def _bound(report: Report) -> str:
    parts = report.result.parts_s
    if WAITING in parts:
        return "host"
    return "all-reduce" if max(parts, key=parts.__getitem__) == "gradient all-reduce" else "chip"
