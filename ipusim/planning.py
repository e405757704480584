"""The search for a way to run a model: `ipusim.plan`.

A candidate is a micro-batch, chips per replica with the split of stages, replicas and accumulation,
and what saves memory: recomputation, a smaller share of memory for temporaries, phases. Of a
micro-batch on so many chips the first candidate that fits is taken, what costs no time tried first.
What cannot fit however it is planned is left out before it is compiled (`least_bytes`), and so is
what held no smaller micro-batch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ipusim.api import names_options, simulate, split_onnx
from ipusim.compiler.memory import least_bytes
from ipusim.errors import ConfigError, WorkloadError
from ipusim.files import read_tables
from ipusim.report import Report
from ipusim.report.advice import PLANNED, command, misfit, python
from ipusim.runtime.compile import REMEMBERED, GraphJob, compile_run, graph_job, graphs
from ipusim.runtime.options.config import make_config
from ipusim.runtime.options.spec import RunConfig, counts
from ipusim.runtime.replica.balance import balance
from ipusim.runtime.replica.partition import homes
from ipusim.workload.loading import load_model
from ipusim.workload.model import Model

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

MOST_ITEMS = 4096
"""Largest micro-batch that is tried where no global batch bounds it."""
PHASES = (2, 3, 4, 8, 16)
SAVING = ("recompute", "available_memory_proportion", "phases")
"""Options that give time for memory."""
LOW_SHARE = 0.2
"""Share of a tile for temporaries where that of the stack leaves too little for the rest."""
NEAR = 1.05
"""Latencies up to so many times the least count as alike."""
HOPELESS = 2.0
"""How many times a tile a stage may need for another split to be tried."""
FILLED = 8
"""Micro-batches per stage and update where no global batch is given: bubbles of one in nine."""

MOST_BATCH = 10**12
"""Largest global batch, whose divisors can be found at once."""

Options = dict[str, Any]

_BATCH = counts(most=MOST_BATCH)


@dataclass(frozen=True, eq=False)
class Plan:
    """Ways to run a model, as `ipusim.plan` found them.

    Attributes
    ----------
    model, system, mode : str
    global_batch : int or None
        Items per call, in training per weight update, that were asked for.
    frame : pandas.DataFrame
        Everything that fits, one row per way: chips, latency (ms), throughput (items/s), tile
        (bytes in use, %), the options that make it, and ``command`` and ``python``, lines to copy.
    pareto : pandas.DataFrame
        The rows that no other beats in chips, latency and throughput, one of nearly equal ones
        (`NEAR`).
    """

    model: str
    system: str
    mode: str
    global_batch: int | None
    frame: pd.DataFrame = field(repr=False)
    pareto: pd.DataFrame = field(repr=False)

    @property
    def best(self) -> pd.Series:
        """The way with the highest throughput, of several the one with fewest chips."""
        return _ranked(self.pareto).iloc[0]

    def _head(self) -> str:
        asked = f", global batch {self.global_batch:,}" if self.global_batch else ""
        return (
            f"{self.model} on {self.system}, {self.mode}{asked}: {len(self.frame)} ways fit, "
            f"{len(self.pareto)} of them are beaten by no other"
        )

    def __repr__(self) -> str:
        shown = self.pareto.drop(columns=["command", "python"])
        table = shown.to_string(index=True, float_format=lambda value: f"{value:,.4g}")
        lines = "\n".join(f"{at}: {line}" for at, line in self.pareto["command"].items())
        return f"{self._head()}\n\n{table}\n\n{lines}"

    def _repr_html_(self) -> str:
        shown = self.pareto.drop(columns="python")
        return f"<p>{self._head()}</p>{shown.to_html(float_format=lambda value: f'{value:,.4g}')}"

    def figure(self) -> Figure:
        """Draw latency against throughput of every way; those beaten by no other are joined."""
        from ipusim.drawing import drawn

        figures = read_tables("figures.toml")
        title = f"{self.model} on {self.system}, {self.mode}"
        time = "step, ms" if self.mode == "training" else "latency, ms"
        plural = ["s" * (chips > 1) for chips in self.pareto["chips"]]
        pareto = self.pareto.assign(s=plural).sort_values(["chips", "latency_ms"])
        tables = {"frame": self.frame.assign(title=title, time=time), "pareto": pareto}
        return drawn(figures["plan"], tables, figures["looks"])


@names_options
def plan(
    model: str | Model,
    *,
    system: str = "IPU-POD16",
    mode: str = "inference",
    global_batch: int | None = None,
    progress: bool | None = None,
    **options: Any,
) -> Plan:
    """Search the ways to run a model that fit, and those of them that no other beats.

    Parameters
    ----------
    model : str or Model
        As for `simulate`.
    system : str
        Machine; its chips are the most that are used.
    mode : {"inference", "training"}
    global_batch : int, optional
        Items per call of all replicas, in training per weight update; by default as many as are
        fastest, in training with accumulation enough to fill a pipeline.
    progress : bool, optional
        Whether to count what has been tried; by default only on a terminal or in a notebook.
    **options
        Other options of `simulate` and of `from_onnx`. Those that the search chooses (micro_batch,
        replicas, ipus_per_replica, gradient_accumulation, recompute, available_memory_proportion,
        pipeline_splits, phases) are kept as they are where they are given.

    Returns
    -------
    Plan

    Raises
    ------
    ConfigError
        If nothing that was tried fits, or the options contradict each other.

    Examples
    --------
    >>> found = ipusim.plan("mcmc_bnn", system="C2")
    >>> found.pareto[["chips", "micro_batch"]].values.tolist()
    [[1, 64], [1, 4096], [2, 64], [2, 4096]]
    """
    opened = split_onnx(options)
    loaded = load_model(model, **opened)
    if global_batch is not None:
        global_batch = _BATCH.check("global_batch", global_batch)
    given = {"system": system, "mode": mode, **options}
    import pandas as pd
    from tqdm.auto import tqdm

    base, asked = make_config(**given), {"model": model, **opened}
    disable = None if progress is None else not progress
    with tqdm(desc=loaded.name, unit=" tried", disable=disable) as bar:
        search = _Search(loaded, base, given, global_batch, bar.update)
        rows = [_row(report, ways, asked) for report, ways in search.found()]
    if not rows:
        raise ConfigError(search.refusal())
    frame = pd.DataFrame(rows)
    frame = frame.sort_values(["chips", "latency_ms", "throughput_items_per_s"], ignore_index=True)
    empty = [name for name in PLANNED if name in frame and frame[name].isna().all()]
    frame = frame.drop(columns=empty)
    return Plan(
        model=loaded.name,
        system=search.base.system.name,
        mode=search.base.mode,
        global_batch=global_batch,
        frame=frame,
        pareto=_unbeaten(frame),
    )


def _row(report: Report, options: Options, asked: Mapping[str, Any]) -> dict[str, Any]:
    question = {**asked, **options}
    memory = report.result.memory
    return {
        "chips": report.config.active_ipus,
        "latency_ms": 1e3 * report.latency.value,
        "throughput_items_per_s": report.throughput.value,
        "tile_percent": 100.0 * memory.used_tile_bytes / memory.tile_bytes,
        **{name: options.get(name) for name in PLANNED if name != "stage_ipus"},
        "command": command("simulate", question),
        "python": python("simulate", question),
    }


def _ranked(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.sort_values(["throughput_items_per_s", "chips"], ascending=[False, True])


def _unbeaten(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that no other beats, and of rows that are nearly alike the fastest."""
    kept: list[Any] = []
    for row in _ranked(frame).itertuples():
        beaten = any(
            other.chips <= row.chips and other.latency_ms <= NEAR * row.latency_ms for other in kept
        )
        if not beaten:
            kept.append(row)
    return frame.loc[sorted(row.Index for row in kept)].reset_index(drop=True)


def _doubled(most: int) -> list[int]:
    """Return 1, 2, 4, ... up to a number, and the number."""
    return sorted({*(2**power for power in range(most.bit_length())), most})


def _spaced_divisors(number: int) -> list[int]:
    """Return divisors of a number, each at least half as large again as the one before."""
    small = [size for size in range(1, math.isqrt(number) + 1) if number % size == 0]
    found = [1]
    for size in [*small, *(number // size for size in reversed(small))]:
        if 2 * size >= 3 * found[-1]:
            found.append(size)
    return found


@lru_cache(maxsize=REMEMBERED)
def _least_bytes(job: GraphJob) -> int:
    return least_bytes(graphs(job).micro_batch)


@dataclass
class _Search:
    """Candidates in a fixed order, each simulated at most once; `tried` is told of every one."""

    model: Model
    base: RunConfig
    given: Options
    batch: int | None
    tried: Callable[[], Any]
    nearest: Report | None = None
    last: Report | None = None
    least: float = math.inf
    phased: bool = False
    failed: set[tuple[Any, ...]] = field(default_factory=set)

    def found(self) -> Iterator[tuple[Report, Options]]:
        """Yield what fits: each micro-batch on as few chips as hold it, with all replicas."""
        sizes = self._sizes()
        for size in sizes:
            held = list(self._held(size))
            # Phases save chips where one holds no micro-batch at all.
            if size == sizes[0] and not any(o["ipus_per_replica"] == 1 for o in held):
                self.phased = True
                held += self._held(size, chips=(1,))
            for options in held:
                yield from self._scaled(options)
            if not held:
                return

    def refusal(self) -> str:
        """Say why nothing was found."""
        name, machine = self.model.name, self.base.system
        if self.nearest is None:
            room = machine.ipus * machine.chip.sram_bytes
            return (
                f"Nothing runs {name} on {machine.name} at this batch: it needs at least "
                f"{self.least / 1e9:.3g} GB at once, of {room / 1e9:.3g} GB of all its chips, or "
                "more replicas than the batch has items: choose another system or batch."
            )
        if self.batch is not None and self.nearest.fits:
            return (
                f"{name} fits {machine.name}, but no micro-batch that was tried, times replicas, "
                f"makes a global batch of {self.batch:,}: choose another batch, or leave "
                "micro_batch and replicas out."
            )
        nearest = misfit(self.nearest)
        return f"Nothing that was tried fits {name} on {machine.name}; nearest: {nearest}."

    def _sizes(self) -> list[int]:
        """Return the micro-batches to try, smallest first."""
        given = self.given.get("micro_batch")
        if given is not None or not self._resizes():
            return [given or self.model.batch]
        if self.batch is None:
            return _doubled(MOST_ITEMS)
        sizes = _spaced_divisors(self.batch)
        if self.base.mode == "training":
            return sizes
        replicas = self._counts("replicas", self.base.system.ipus)
        return [size for size in sizes if self.batch // size in replicas]

    def _resizes(self) -> bool:
        """Whether the model has other batches than its own, which a file may fix."""
        try:
            return self.model.batch is None or bool(self.model.build(2 * self.model.batch))
        except WorkloadError:
            return False

    def _counts(self, name: str, most: int) -> list[int]:
        """Return the replicas, or the chips of one, to try."""
        given = self.given.get(name)
        return [given] if given else _doubled(most)

    def _options(self, size: int, chips: int, replicas: int = 1, **more: Any) -> Options:
        counts = {"micro_batch": size, "replicas": replicas, "ipus_per_replica": chips}
        if self.base.mode == "training":
            filled = 1 if chips == 1 else FILLED * chips
            held = filled if self.batch is None else self.batch // (size * replicas)
            counts["gradient_accumulation"] = held
        return {**self.given, **counts, **more, **self.given}

    def _held(self, size: int, chips: Sequence[int] = ()) -> Iterator[Options]:
        """Yield options with which a micro-batch fits, until nothing could be gained."""
        for number in chips or self._counts("ipus_per_replica", self.base.system.ipus):
            for options in self._savings(size, number):
                if self._fits(options):
                    yield options
                    # Unless something was given up to save memory on so many chips.
                    if all(options.get(name) in (None, self.given.get(name)) for name in SAVING):
                        return
                    break

    def _savings(self, size: int, chips: int) -> Iterator[Options]:
        """Yield options for a micro-batch on so many chips, what costs no time first."""
        training = self.base.mode == "training"
        modes = [{}, *([{"recompute": "auto"}] if training else [])]
        shares = [{}, {"available_memory_proportion": LOW_SHARE}]
        for share, mode in itertools.product(shares, modes):
            saving = (chips, *share, *mode)
            if saving in self.failed:
                continue
            options = self._options(size, chips, **share, **mode)
            yield options
            over = self.last.peak_tile_bytes / self.last.tile_bytes if self.last else math.inf
            if chips > 1 and "pipeline_splits" not in self.given and over < HOPELESS:
                yield from self._splits(options)
            # Who asks for more found none of these to fit.
            self.failed.add(saving)
        if chips == 1 and self.phased:
            recompute = {"recompute": "auto"} if training else {}
            for share, phases in itertools.product(shares, PHASES):
                yield self._options(size, chips, phases=phases, **recompute, **share)

    def _splits(self, options: Options) -> Iterator[Options]:
        """Yield the same with stages cut for memory, and for memory and time alike."""
        compiled = compile_run(self.model, make_config(**options))
        graph, cycles = compiled.graph, {op.name: op.cycles for op in compiled.program.ops}
        forward = [op.name for op in graph.ops if op.phase == "forward"]
        time, size = [0] * len(forward), [0] * len(forward)
        home, seen = homes(graph), set()
        for op in graph.ops:
            new = {*op.inputs, *op.outputs} - seen
            seen |= new
            time[home[op.name]] += cycles[op.name]
            size[home[op.name]] += sum(graph.tensors[name].bytes for name in new)
        whole = max(1, sum(time)) / max(1, sum(size))
        both = [cycles + int(whole * stored) for cycles, stored in zip(time, size, strict=True)]
        for costs in (size, both):
            starts = balance(costs, options["ipus_per_replica"])
            yield options | {"pipeline_splits": [forward[start - 1] for start in starts[1:]]}

    def _simulated(self, options: Options) -> Report | None:
        """Simulate a candidate; nothing where its options go together on no machine."""
        self.tried()
        try:
            config = make_config(**options)
            if not config.phased:
                # Nor what lives at once, spread as well as can be, on the chips.
                least = _least_bytes(graph_job(self.model, config))
                self.least = min(self.least, least)
                if least > config.ipus_per_replica * config.system.chip.sram_bytes:
                    return None
            return simulate(self.model, **options)
        except ConfigError:
            return None

    def _fits(self, options: Options) -> bool:
        report = self.last = self._simulated(options)
        if report is None:
            return False
        nearer = self.nearest is None or report.peak_tile_bytes < self.nearest.peak_tile_bytes
        self.nearest = report if nearer else self.nearest
        return report.fits

    def _scaled(self, options: Options) -> Iterator[tuple[Report, Options]]:
        """Yield the same on one to all replicas that the system holds."""
        chips, size = options["ipus_per_replica"], options["micro_batch"]
        for replicas in self._counts("replicas", self.base.system.ipus // chips):
            rounds, left = divmod(self.batch or size * replicas, size * replicas)
            # Only training works a batch off in several rounds.
            if left or (rounds > 1 and self.base.mode != "training"):
                continue
            scaled = options | self._options(size, chips, replicas)
            report = self._simulated(scaled)
            if report is not None and report.fits:
                yield report, scaled
