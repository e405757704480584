"""The file of fitted constants: ``data/calibration.toml``, written by `ipusim calibrate`."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ipusim import files
from ipusim.errors import DataError
from ipusim.runtime.calibration import (
    FILE as CALIBRATION_FILE,
    FittedCosts,
    Interval,
    read_interval,
)

_HEADER = """\
# Written by `ipusim calibrate`; do not edit by hand.
#
# call_cost, superstep_cost: what comes on top of what the specification tier predicts, the seconds
# of a call from the host per step, by framework, and the cycles of each superstep with an exchange
# of data, by software stack. Together they minimise the mean absolute relative error of time per
# step over their rows, inference on one chip; a stack without rows has no fitted cost. Comparisons
# never use these values: they refit without the row's own family.
#
# power: two factors, on the energies of arithmetic and of memory traffic in
# data/hardware/power.toml, by least squares on the power that the rows imply; 1 means none.
#
# gpu_kernel_cost: one constant per GPU software stack, seconds that each kernel takes beside its
# roofline (ipusim.study.fit.gpu). It minimises the mean absolute logarithm of predicted over
# published time per step; comparisons refit without the row's own model.
#
# scale_out: latency of a reduction over neighbouring chips inside the program, and latency of an
# all-reduce over all replicas for each machine that takes part (a reduce-scatter or an all-gather
# has half of it). Both are fitted on slowdowns against the smallest system of a series, not on
# levels (ipusim.study.fit.scale_out); comparisons refit the second without the row's own series.
#
# known_families: those with most rows, on which the model was developed; any other network is new.
#
# interval: factors on a predicted time between which 80 % of published times are expected, by class
# of runs (ipusim.study.verdicts.intervals); `without` holds what each family among the rows gets.
#
# compile: seconds per vertex on a tile that the compiler generates (ipusim.runtime.compile_time).
schema = 1
"""
_STEP_SOURCE = "least mean absolute relative error of time per step over rows, all at once"
_GPU_SOURCE = "least mean absolute logarithm of predicted over published time per step over rows"
_SCALE_SOURCE = "median of what makes the slowdown of one of the rows exact"
_COMPILE_SOURCE = "least squares of compile times over rows of evidence/ipu_microbench.csv"
_INTERVAL_SOURCE = "mean and spread of families, each predicted without its own rows, over rows"
_POWER_SOURCE = "non-negative least squares of dynamic power over rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """A fitted time in seconds, and the rows it comes from; 0 without rows."""

    value_s: float = 0.0
    rows: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycles:
    """Fitted cycles, and the rows they come from; 0 without rows."""

    value: float = 0.0
    rows: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """What a step costs beside what is predicted for it.

    Attributes
    ----------
    calls : dict of str to Latency
        Of each call from the host, by framework.
    supersteps : dict of str to Cycles
        Of each superstep with an exchange, by software stack.
    """

    calls: dict[str, Latency] = field(default_factory=dict)
    supersteps: dict[str, Cycles] = field(default_factory=dict)

    def at(self, stack: str, framework: str) -> FittedCosts:
        """Return the costs of a run: none on a stack without rows, as `fitted_costs` has it."""
        superstep = self.supersteps.get(stack, Cycles())
        if not superstep.rows:
            return FittedCosts()
        call_s = self.calls.get(framework, Latency()).value_s
        return FittedCosts(step_s=call_s, exchange_cycles=superstep.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleOut:
    """The latencies of a reduction over neighbouring chips, and of a collective per machine."""

    reduction: Latency = Latency()
    collective: Latency = Latency()

    @property
    def costs(self) -> FittedCosts:
        """Both as costs of a step."""
        return FittedCosts(reduction_s=self.reduction.value_s, collective_s=self.collective.value_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerScales:
    """Factors on the energies of arithmetic and of memory traffic; 1 leaves them as sourced."""

    amp: float = 1.0
    sram: float = 1.0
    rows: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Everything that is fitted."""

    steps: StepCosts
    power: PowerScales
    scale_out: ScaleOut = ScaleOut()
    compile: Latency = Latency()  # per vertex and tile that is compiled
    gpu: dict[str, Latency] = field(default_factory=dict)  # per kernel, by GPU software stack
    # by class of runs; a class that is missing takes that of all chips
    intervals: dict[str, Interval] = field(default_factory=dict)
    # those that the model was developed on; others show what a new network gets
    known_families: tuple[str, ...] = ()


def _block(
    title: str,
    value: str,
    unit: str,
    source: str,
    rows: Iterable[str] = (),
    label: str = "fitted",
) -> str:
    """Write one table of the file; a value of two is an interval."""
    names = ("low", "high") if " " in value else ("value",)
    lines = [f"[{title}]"]
    lines += [f"{name} = {text}" for name, text in zip(names, value.split(), strict=True)]
    lines += [f'unit = "{unit}"', f'label = "{label}"', f"source = {json.dumps(source)}"]
    return "\n".join([*lines, "rows = [", *(f"    {json.dumps(row)}," for row in rows), "]", ""])


def _seconds(title: str, fitted: Latency, source: str) -> str:
    return _block(title, f"{fitted.value_s:.6e}", "s", source, fitted.rows)


def calibration_text(calibration: Calibration) -> str:
    """Write fitted constants as the text of ``data/calibration.toml``."""
    blocks = [_HEADER]
    for framework, call in sorted(calibration.steps.calls.items()):
        blocks.append(_seconds(f"call_cost.{framework}", call, _STEP_SOURCE))
    for stack, cycles in sorted(calibration.steps.supersteps.items()):
        title, value = f"superstep_cost.{json.dumps(stack)}", f"{cycles.value:.0f}"
        blocks.append(_block(title, value, "cycles", _STEP_SOURCE, cycles.rows))
    for name in ("reduction", "collective"):
        fitted = getattr(calibration.scale_out, name)
        blocks.append(_seconds(f"scale_out.{name}_latency", fitted, _SCALE_SOURCE))
    blocks.append(_seconds("compile.tile_step", calibration.compile, _COMPILE_SOURCE))
    power = calibration.power
    known = (_POWER_SOURCE, power.rows) if power.rows else ("not fitted", (), "verified")
    for name in ("amp", "sram"):
        scale = f"{getattr(power, name):.4f}"
        blocks.append(_block(f"power.{name}_scale", scale, "-", *known))
    for stack, kernel in sorted(calibration.gpu.items()):
        blocks.append(_seconds(f"gpu_kernel_cost.{json.dumps(stack)}", kernel, _GPU_SOURCE))
    names = ", ".join(map(json.dumps, calibration.known_families))
    blocks.append(f"[known_families]\nnames = [{names}]\n")
    for interval in calibration.intervals.values():
        title = f"interval.{json.dumps(interval.kind)}"
        ends = f"{interval.low:.4f} {interval.high:.4f}"
        families = "".join(
            f"{json.dumps(family)} = [{low:.4f}, {high:.4f}]\n"
            for family, (low, high) in interval.without.items()
        )
        blocks.append(_block(title, ends, "-", _INTERVAL_SOURCE, interval.rows))
        blocks.append(f"[{title}.without]\n{families}")
    return "\n".join(blocks)


def _latency(block: dict[str, Any]) -> Latency:
    return Latency(value_s=float(block["value"]), rows=tuple(block["rows"]))


def load_calibration(path: Path | None = None) -> Calibration:
    """Read fitted constants back, by default those of ``data/calibration.toml``."""
    source = path or files.data_dir() / CALIBRATION_FILE
    try:
        tables = tomllib.loads(source.read_text(encoding="utf-8"))
        amp, sram = tables["power"]["amp_scale"], tables["power"]["sram_scale"]
        return Calibration(
            steps=StepCosts(
                calls={name: _latency(block) for name, block in tables["call_cost"].items()},
                supersteps={
                    stack: Cycles(value=float(block["value"]), rows=tuple(block["rows"]))
                    for stack, block in tables["superstep_cost"].items()
                },
            ),
            power=PowerScales(
                amp=float(amp["value"]), sram=float(sram["value"]), rows=tuple(amp["rows"])
            ),
            scale_out=ScaleOut(
                reduction=_latency(tables["scale_out"]["reduction_latency"]),
                collective=_latency(tables["scale_out"]["collective_latency"]),
            ),
            compile=_latency(tables["compile"]["tile_step"]),
            gpu={
                stack: _latency(block) for stack, block in tables.get("gpu_kernel_cost", {}).items()
            },
            intervals={
                kind: read_interval(kind, block)
                for kind, block in tables.get("interval", {}).items()
            },
            known_families=tuple(tables["known_families"]["names"]),
        )
    except OSError as error:
        raise DataError(
            f"{source.name} cannot be read ({error.strerror}): run 'ipusim calibrate'."
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{source.name} is damaged ({error}): run 'ipusim calibrate'.") from error
