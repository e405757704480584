"""What `ipusim.simulate` hands back: numbers, layer table, memory, trace."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipusim.compiler.program import Program
from ipusim.files import write_text
from ipusim.report import advice
from ipusim.report.advice import digits
from ipusim.report.trace import PHASES, events
from ipusim.runtime.calibration import FittedCosts, Interval, calibration, interval80
from ipusim.runtime.compile import tile_steps
from ipusim.runtime.options.spec import RunConfig
from ipusim.runtime.power import price_per_item
from ipusim.runtime.step import StepResult
from ipusim.runtime.terms import HOST_PARTS
from ipusim.workload.graph import OPERAND_DTYPES

if TYPE_CHECKING:
    import pandas as pd

_TOP_OPS = 6


@dataclass(frozen=True, slots=True)
class Estimate:
    """A predicted quantity with its 80 % interval, which is None until one is known."""

    value: float
    low80: float | None = None
    high80: float | None = None
    unit: str = ""

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        return f"{digits(self.value)} {self.unit}".rstrip() + self.ends(" (")

    def ends(self, before: str, scale: float = 1.0) -> str:
        """Return the interval as text; nothing where there is none."""
        if self.low80 is None or self.high80 is None:
            return ""
        return f"{before}{digits(scale * self.low80)} to {digits(scale * self.high80)})"


def _frame(*content: Any, **options: Any) -> pd.DataFrame:
    """Return a table; a number alone needs no pandas."""
    import pandas as pd

    return pd.DataFrame(*content, **options)


def _read(place: str, doc: str) -> Any:
    """Return a property that is read off what lies inside a report."""
    return property(attrgetter(place), doc=doc)


@dataclass(frozen=True)
class Report:
    """One simulated run.

    Attributes
    ----------
    model : str
        Name of the model.
    config : RunConfig
        The run, defaults resolved.
    tier : str
        "calibrated", "specification" or "roofline".
    result : StepResult
        The step behind the numbers: graph, program, memory, energy, terms of its time.
    note : str
        Remarks on the model: what the import of its file fused and assumed, what of its definition
        is recalled from memory.
    family : str
        Architecture of the model. Its interval is that of families on which the simulator was
        developed, or that of new networks.
    asked : mapping of str to object
        The arguments of `ipusim.simulate` that made it, the model included.
    as_if_it_fits : bool
        Whether a run that needs more memory than there is has latency, throughput and power; by
        default they are NaN, and `result` alone has the time of the program.

    Examples
    --------
    >>> report = ipusim.simulate("mcmc_bnn", micro_batch=4)
    >>> report.layers.groupby("kind")["cycles"].sum().idxmax(), report.stack
    ('elementwise', 'sdk-2.4')
    """

    model: str
    config: RunConfig
    tier: str
    result: StepResult
    note: str = ""
    family: str = ""
    asked: Mapping[str, Any] = field(default_factory=dict, repr=False)
    as_if_it_fits: bool = False

    system = _read("config.system.name", "Name of the system.")
    chip = _read("config.system.chip.name", "Name of its chip.")
    stack = _read("config.stack.name", "Name of the software stack.")
    cycles_per_step = _read(
        "result.program.cycles",
        "Cycles of the program of one micro-batch on one chip, without the host.",
    )
    supersteps = _read("result.program.supersteps", "Supersteps in a step.")
    fits = _read("result.memory.fits", "Whether every tile holds what it must.")
    peak_tile_bytes = _read(
        "result.memory.peak_tile_bytes",
        "Highest address in use on the fullest tile at the fullest moment; it decides the fit.",
    )
    used_tile_bytes = _read(
        "result.memory.used_tile_bytes",
        "Bytes in use there, without the gap below the interleaved region of a tile.",
    )
    tile_bytes = _read("result.memory.tile_bytes", "Memory of a tile in bytes.")
    held = advice.held
    verdict = cached_property(advice.verdict)
    advice = property(advice.advice)

    @cached_property
    def interval(self) -> Interval | None:
        """What the 80 % intervals come from: class of runs, published rows, factors on the time.

        None where nothing is calibrated, and for phases, in which no published run took place.
        """
        if self.tier != "calibrated" or self.config.phased or not self.runs:
            return None
        return interval80(self.family, self.config.mode, self.chip)

    @property
    def interval80(self) -> tuple[float, float] | None:
        """Factors on a predicted time between which 80 % of measurements are expected."""
        return None if self.interval is None else (self.interval.low, self.interval.high)

    @property
    def runs(self) -> bool:
        """Whether there are rates: it fits, or is asked for as if it did."""
        return self.as_if_it_fits or self.fits

    def _estimate(self, value: float, unit: str, factors: Iterable[float] = ()) -> Estimate:
        """Return a number with its interval, NaN for a run that is not possible."""
        if not self.runs:
            return Estimate(math.nan, unit=unit)
        low, high = [value * factor for factor in factors] or (None, None)
        return Estimate(value, low, high, unit)

    @property
    def latency(self) -> Estimate:
        """Seconds from request to result; in training, of a step from update to update."""
        return self._estimate(self.result.latency_s, "s", self.interval80 or ())

    @property
    def throughput(self) -> Estimate:
        """Items per second of all replicas."""
        factors = [1.0 / end for end in reversed(self.interval80 or ())]
        return self._estimate(self.result.throughput_items_per_s, "items/s", factors)

    @property
    def power(self) -> Estimate:
        """Watts of the cards or machines in use, hosts left out; no interval is known."""
        return self._estimate(self.result.power_w, "W")

    @property
    def energy_per_item_j(self) -> float:
        """Joules per item of the cards or machines in use, hosts left out."""
        return self.power.value / self.throughput.value

    def price_per_item(self, price_per_hour: float) -> float:
        """Return the price of an item where the chips in use cost so much per hour."""
        return price_per_item(price_per_hour, self.throughput.value)

    @property
    def power_parts_w(self) -> dict[str, float]:
        """Where the power goes, in watts: static, arithmetic, memory traffic, exchange."""
        result = self.result
        rate = self.config.replicas / result.step_s
        return {
            "static": result.static_w,
            "amp": result.energy.amp_j * rate,
            "sram": result.energy.sram_j * rate,
            "exchange": result.energy.exchange_j * rate,
        }

    @property
    def parts_s(self) -> dict[str, float]:
        """Where the seconds of a step go: the chip's by phase, fitted costs apart.

        The device's time without fitted costs is shared out as the cycles of the program of one
        micro-batch are, over all chips of the replica and all micro-batches alike.
        """
        parts = dict(self.result.parts_s)
        bare = self.result.terms.price(FittedCosts()).parts_s.get("device", 0.0)
        fitted = {"fitted: exchanges": parts.pop("device", 0.0) - bare}
        fitted["fitted: once per step"] = parts.pop("fixed", 0.0)
        cycles = self.result.program.phase_cycles()
        each = bare / max(1, sum(cycles.values()))
        device = {f"chip: {phase}": each * number for phase, number in cycles.items()}
        return {name: value for name, value in {**device, **parts, **fitted}.items() if value}

    @property
    def program_s(self) -> float:
        """Seconds of a step of the chips alone, as in a loop that asks nothing of the host."""
        parts = self.result.parts_s.items()
        return math.fsum(seconds for name, seconds in parts if name not in HOST_PARTS)

    @cached_property
    def parts(self) -> pd.DataFrame:
        """Where the time of a step goes, one row per part: milliseconds and share."""
        parts = _frame(self.result.parts_s.items(), columns=["part", "seconds"])
        seconds, step = parts.pop("seconds"), self.result.step_s
        return parts.assign(time_ms=1e3 * seconds, share_percent=100.0 * seconds / step)

    @cached_property
    def compile_s(self) -> float:
        """Seconds to compile the program, with which a first epoch begins."""
        distinct = tile_steps(self.result.program, self.result.update)
        return calibration().compile.value * distinct

    @cached_property
    def stages(self) -> pd.DataFrame:
        """One row per stage of a replica over several chips, or per phase: times, memory.

        Empty for one chip that holds all of the model.
        """
        phased = self.config.phased
        frame = _frame(
            [
                {
                    "phase" if phased else "stage": index,
                    "ipu": stage.ipu,
                    "first_op": stage.ops[0].name,
                    "forward_ms": 1e3 * stage.forward_s,
                    "backward_ms": 1e3 * stage.backward_s,
                    "micro_batches_in_flight": stage.in_flight,
                    "peak_tile_bytes": stage.memory.peak_tile_bytes,
                    "fits": stage.memory.fits,
                    "streamed_bytes": stage.streamed_bytes,
                }
                for index, stage in enumerate(self.result.stages)
            ]
        )
        return frame if phased or frame.empty else frame.drop(columns="streamed_bytes")

    @cached_property
    def layers(self) -> pd.DataFrame:
        """One row per operation: cycles by phase, plan, tiles, bytes, utilisation.

        Utilisation is the graph's multiply-accumulates over what the chip's AMP units could do in
        the cycles of the operation. In training the rows of one micro-batch are followed by those
        of the weight update.
        """
        chip = self.config.system.chip
        dtype = OPERAND_DTYPES.get(self.config.precision, "float16")
        partials = "float32" if dtype == "float32" else "float16"
        peak = chip.tiles * chip.macs_per_cycle(dtype, partials)
        phase_of = {op.name: op.phase for op in self.result.graph.ops}
        update = self.result.update.ops
        rows = []
        for op in (*self.result.program.ops, *update):
            cycles = op.cycles
            rows.append(
                {
                    "op": op.name,
                    "kind": op.kind,
                    "function": op.function,
                    "phase": phase_of.get(op.name, "update" if op in update else "forward"),
                    "cycles": cycles,
                    **{f"{one}_cycles": n for one, n in Program((op,)).phase_cycles().items()},
                    "time_us": 1e6 * cycles / chip.clock_hz,
                    "supersteps": sum(step.repeats for step in op.steps),
                    "macs": op.macs,
                    "utilisation_percent": 100.0 * op.macs / (peak * cycles) if cycles else 0.0,
                    "plan": op.plan,
                    "transform": op.transform,
                    "tiles": op.tiles,
                    "temp_bytes_per_tile": op.temp_bytes,
                }
            )
        return _frame(rows)

    def heaviest(self, count: int = 8) -> pd.DataFrame:
        """Return the operations that take longest on the device.

        Parameters
        ----------
        count : int
            How many, at most.

        Returns
        -------
        pandas.DataFrame
            Longest first: op, kind, time_us [microseconds], time_percent [of the device time],
            supersteps, utilisation_percent [of the peak of the AMP units] and plan.
        """
        cycles = self.layers["cycles"]
        layers = self.layers.assign(time_percent=100.0 * cycles / cycles.sum())
        longest = layers.sort_values(["cycles", "op"], ascending=[False, True]).head(count)
        shown = ["op", "kind", "time_us", "time_percent", "supersteps", "utilisation_percent"]
        return longest[[*shown, "plan"]].reset_index(drop=True)

    @cached_property
    def memory(self) -> pd.DataFrame:
        """One row per operation: bytes on the fullest tile while it runs."""
        memory = self.result.memory
        return _frame(
            [
                {
                    "op": point.op,
                    "parameter_bytes": memory.parameter_bytes,
                    "code_bytes": memory.code_bytes,
                    "activation_bytes": point.activation_bytes,
                    "temp_bytes": point.temp_bytes,
                    "total_bytes": memory.always_live_bytes
                    + point.activation_bytes
                    + point.temp_bytes,
                    "highest_address_bytes": memory.bytes_at(point),
                    "tile_bytes": memory.tile_bytes,
                }
                for point in memory.points
            ]
        )

    @cached_property
    def trace(self) -> pd.DataFrame:
        """One row per phase of every superstep: start and duration in microseconds."""
        clock = self.config.system.chip.clock_hz
        columns = ("start_us", "duration_us", "cycles", "phase", "op", "step", "vertex", "repeat")
        rows, now = [], 0
        for op, step in ((o.name, step) for o in self.result.program.ops for step in o.steps):
            for repeat, phase in itertools.product(range(step.repeats), PHASES):
                cycles = getattr(step, f"{phase}_cycles")
                if cycles:
                    times = 1e6 * now / clock, 1e6 * cycles / clock
                    rows.append((*times, cycles, phase, op, step.name, step.vertex, repeat))
                now += cycles
        return _frame(rows, columns=columns)

    def to_perfetto(self, path: str | Path) -> Path:
        """Write a trace that ui.perfetto.dev and chrome://tracing open (Chrome trace JSON).

        Of a step of one replica: host, links, every stage with its micro-batches, the update. Of a
        micro-batch on one chip: the phases of all supersteps and the memory of the fullest tile.
        The file is written whole or not at all; `StudyError` if it cannot be.
        """
        trace = {"traceEvents": list(events(self)), "displayTimeUnit": "ns"}
        return write_text(path, json.dumps(trace))

    def to_html(self, path: str | Path) -> Path:
        """Write the report as one page that needs no network: verdict, advice, figures, layers.

        The file is written whole or not at all; `StudyError` if it cannot be.
        """
        from ipusim.report.page import write  # with matplotlib, which a number needs not

        return write(self, Path(path))

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers under the stable keys of ``ipusim simulate --json``.

        What is not known, such as the rates of a run that does not fit, is None.
        """
        ends = {"latency_s": self.latency, "throughput_items_per_s": self.throughput}
        rates = {name: one.value for name, one in ends.items()}
        rates |= {"power_w": self.power.value, "energy_per_item_j": self.energy_per_item_j}
        return {
            "model": self.model,
            "system": self.system,
            "chip": self.chip,
            "cycles_per_step": self.cycles_per_step,
            **{name: None if math.isnan(rate) else rate for name, rate in rates.items()},
            "fits": self.fits,
            "peak_tile_bytes": self.peak_tile_bytes,
            "used_tile_bytes": self.used_tile_bytes,
            "tile_bytes": self.tile_bytes,
            "supersteps": self.supersteps,
            "interval80": self.interval80
            and {name: [one.low80, one.high80] for name, one in ends.items()},
            "verdict": self.verdict,
        }

    def summary(self) -> list[tuple[str, str]]:
        """Return the summary as (what, value) pairs."""
        config, result, memory = self.config, self.result, self.result.memory
        within = " (80 % interval "
        room = (
            f"highest address {memory.peak_tile_bytes:,} of {memory.tile_bytes:,} B on the fullest "
            f"tile, {memory.used_tile_bytes:,} B in use"
        )
        step = " + ".join(f"{name} {digits(1e3 * part)}" for name, part in result.parts_s.items())
        rates = [
            ("latency", f"{digits(1e3 * self.latency.value)} ms" + self.latency.ends(within, 1e3)),
            ("throughput", f"{self.throughput.value:,.1f} items/s" + self.throughput.ends(within)),
            ("power", f"{digits(self.power.value)} W, {digits(self.energy_per_item_j)} J per item"),
        ]
        return [
            *([] if self.fits else [("verdict", self.verdict)]),
            ("model", f"{self.model}, {self._batch_text()}, {config.precision}"),
            (
                "machine",
                f"{self.system} ({config.replicas} x {self._replica_text()}), {self.stack}, "
                f"{config.partials} partials",
            ),
            *(rates if self.runs else []),
            ("fits", f"{'yes' if memory.fits else 'no'}, {room}"),
            *([("step", f"{digits(1e3 * result.step_s)} ms = {step} ({self.tier})")] * self.runs),
            ("program", f"{self.cycles_per_step:,} cycles in {self.supersteps:,} supersteps"),
            *([("intervals", str(self.interval))] if self.interval else []),
            *([("note", self.note)] if self.note else []),
        ]

    def _batch_text(self) -> str:
        items, config = self.result.items, self.config
        if not config.training:
            return f"micro-batch {items}"
        size = items // config.gradient_accumulation
        return (
            f"training with {config.optimizer}, micro-batch {size} x "
            f"{config.gradient_accumulation} accumulated"
        )

    def _replica_text(self) -> str:
        size, stages = self.config.ipus_per_replica, len(self.config.stage_ipus)
        if self.config.phased:
            chips = self.chip if size == 1 else f"{size} {self.chip} in turn"
            return f"{len(self.result.stages)} phases on {chips}"
        if size == 1:
            return self.chip
        how = "a pipeline over" if self.config.schedule != "sequential" else "stages in turn on"
        more = "" if stages == size else f", {stages} stages"
        return f"{how} {size} {self.chip}{more}"

    def _where(self) -> dict[str, list[tuple[str, float]]]:
        """Return where device time goes, in percent: by phase, and the heaviest kinds."""
        total = max(1, self.cycles_per_step)
        kinds: Counter[str] = Counter()
        for op in self.result.program.ops:
            kinds[f"{op.kind} {op.function}".strip()] += op.cycles
        ranked = sorted(kinds.items(), key=lambda item: (-item[1], item[0]))[:_TOP_OPS]
        groups = {"phases": self.result.program.phase_cycles().items(), "operations": ranked}
        return {
            group: [(name, 100.0 * cycles / total) for name, cycles in members]
            for group, members in groups.items()
        }

    def __repr__(self) -> str:
        where = {
            group: ", ".join(f"{name} {share:.1f} %" for name, share in shares)
            for group, shares in self._where().items()
        }
        lines = [*self.summary(), *where.items()]
        return "\n".join(f"{name:>11}  {value}" for name, value in lines)

    def _repr_html_(self) -> str:
        from ipusim.markup import template  # a number needs it not

        phases, kinds = self._where().values()
        bars = {"Device time by phase": phases, "Device time by operation, the largest": kinds}
        return template("summary.html.j2").render(summary=self.summary(), bars=bars)


@dataclass(frozen=True, slots=True)
class RooflineReport:
    """Latency and throughput of the roofline baseline."""

    model: str
    config: RunConfig
    latency: Estimate
    throughput: Estimate


def compare(a: Report, b: Report) -> pd.DataFrame:
    """Set two reports side by side: what changed, by how much.

    Parameters
    ----------
    a, b : Report
        For example of micro-batch 1 and 16, of GC200 and Bow, before and after an edit.

    Returns
    -------
    pandas.DataFrame
        One row per number: "a", "b" and "ratio", b over a, NaN where a is 0 or not known. First
        the rates and the memory, then the parts of a step (ms), then cycles by kind of operation.

    Examples
    --------
    >>> one, many = (ipusim.simulate("mcmc_bnn", micro_batch=size) for size in (1, 64))
    >>> round(ipusim.compare(one, many).loc["throughput, items/s", "ratio"])
    63
    """

    def numbers(report: Report) -> dict[str, float]:
        kinds = report.layers.groupby("kind")["cycles"].sum()
        return {
            "chips": report.config.active_ipus,
            "latency, ms": 1e3 * report.latency.value,
            "throughput, items/s": report.throughput.value,
            "power, W": report.power.value,
            "energy per item, J": report.energy_per_item_j,
            "highest address, B": report.peak_tile_bytes,
            "in use on the fullest tile, B": report.used_tile_bytes,
            "cycles": report.cycles_per_step,
            "supersteps": report.supersteps,
            **{f"{part}, ms": 1e3 * seconds for part, seconds in report.result.parts_s.items()},
            **{f"{kind}, cycles": cycles for kind, cycles in kinds.items()},
        }

    frame = _frame({"a": numbers(a), "b": numbers(b)}, dtype=float)
    order = dict.fromkeys((*numbers(a), *numbers(b)))
    frame = frame.reindex(order).rename_axis("number")
    return frame.assign(ratio=(frame["b"] / frame["a"]).where(frame["a"] != 0))
