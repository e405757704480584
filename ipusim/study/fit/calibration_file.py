"""The fitted constants: reading and writing ``data/calibration.toml``.

The runtime reads what its calibrated tier needs from the same file (`ipusim.runtime.calibration`);
here every value comes with the rows behind it, which only a study may know of.
"""

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ipusim import files
from ipusim.errors import DataError
from ipusim.files import write_text
from ipusim.runtime.calibration import FILE, FittedCosts, Interval, read_interval

_STEP_SOURCE = "least mean absolute relative error of time per step over rows, all at once"
_RUN_SOURCE = "median of pairs of rows that are predicted alike but for their device iterations"
_GPU_SOURCE = "least mean absolute logarithm of predicted over published time per step over rows"
_SCALE_SOURCE = "median of what makes the slowdown of one of the rows exact"
_COMPILE_SOURCE = "least squares of compile times over rows of evidence/ipu_microbench.csv"
_INTERVAL_SOURCE = "mean and spread of families, each predicted without its own rows, over rows"
_POWER_SOURCE = "non-negative least squares of dynamic power over rows"
_NOT_FITTED = "not fitted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A fitted constant, in seconds unless it says otherwise, and its rows; 0 without any."""

    value: float = 0.0
    rows: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """What a step costs beside what is predicted for it."""

    calls: dict[str, Fitted] = field(default_factory=dict)  # from the host, by framework
    runs: dict[str, Fitted] = field(default_factory=dict)  # of the device, by framework
    supersteps: dict[str, Fitted] = field(default_factory=dict)  # cycles of an exchange, by stack

    def at(self, stack: str, framework: str) -> FittedCosts:
        """Return the costs of a run: none on a stack without rows, as `fitted_costs` has it."""
        superstep = self.supersteps.get(stack, Fitted())
        if not superstep.rows:
            return FittedCosts()
        return FittedCosts(
            step_s=self.calls.get(framework, Fitted()).value,
            run_s=self.runs.get(framework, Fitted()).value,
            exchange_cycles=superstep.value,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleOut:
    """The latencies of a reduction over neighbouring chips, and of a collective per machine."""

    reduction: Fitted = Fitted()
    collective: Fitted = Fitted()

    @property
    def costs(self) -> FittedCosts:
        """Both as costs of a step."""
        return FittedCosts(reduction_s=self.reduction.value, collective_s=self.collective.value)


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
    compile: Fitted = Fitted()  # per vertex and tile that is compiled
    gpu: dict[str, Fitted] = field(default_factory=dict)  # per kernel, by GPU software stack
    # by class of runs; a class that is missing takes that of all chips
    intervals: dict[str, Interval] = field(default_factory=dict)
    # those that the model was developed on; others show what a new network gets
    known_families: tuple[str, ...] = ()


def _block(
    title: str, values: Mapping[str, str], unit: str, source: str, rows: Sequence[str]
) -> str:
    """Write one table of the file."""
    label = "verified" if source == _NOT_FITTED else "fitted"
    lines = [f"[{title}]", *(f"{name} = {text}" for name, text in values.items())]
    lines += [f'unit = "{unit}"', f'label = "{label}"', f"source = {json.dumps(source)}"]
    return "\n".join([*lines, "rows = [", *(f"    {json.dumps(row)}," for row in rows), "]", ""])


def _seconds(title: str, fitted: Fitted, source: str) -> str:
    return _block(title, {"value": f"{fitted.value:.6e}"}, "s", source, fitted.rows)


def calibration_text(calibration: Calibration) -> str:
    """Write fitted constants as the text of ``data/calibration.toml``, under its present header."""
    present = (files.data_dir() / FILE).read_text(encoding="utf-8")
    blocks = [present[: present.index("schema = 1")] + "schema = 1\n"]
    for framework, call in sorted(calibration.steps.calls.items()):
        blocks.append(_seconds(f"call_cost.{framework}", call, _STEP_SOURCE))
    for framework, run in sorted(calibration.steps.runs.items()):
        blocks.append(_seconds(f"run_cost.{framework}", run, _RUN_SOURCE))
    for stack, cycles in sorted(calibration.steps.supersteps.items()):
        title, value = f"superstep_cost.{json.dumps(stack)}", {"value": f"{cycles.value:.0f}"}
        blocks.append(_block(title, value, "cycles", _STEP_SOURCE, cycles.rows))
    for name in ("reduction", "collective"):
        fitted = getattr(calibration.scale_out, name)
        blocks.append(_seconds(f"scale_out.{name}_latency", fitted, _SCALE_SOURCE))
    blocks.append(_seconds("compile.tile_step", calibration.compile, _COMPILE_SOURCE))
    power = calibration.power
    for name in ("amp", "sram"):
        scale = {"value": f"{getattr(power, name):.4f}"}
        source = _POWER_SOURCE if power.rows else _NOT_FITTED
        blocks.append(_block(f"power.{name}_scale", scale, "-", source, power.rows))
    for stack, kernel in sorted(calibration.gpu.items()):
        blocks.append(_seconds(f"gpu_kernel_cost.{json.dumps(stack)}", kernel, _GPU_SOURCE))
    names = ", ".join(map(json.dumps, calibration.known_families))
    blocks.append(f"[known_families]\nnames = [{names}]\n")
    for interval in calibration.intervals.values():
        title = f"interval.{json.dumps(interval.kind)}"
        ends = {"low": f"{interval.low:.4f}", "high": f"{interval.high:.4f}"}
        families = "".join(
            f"{json.dumps(family)} = [{low:.4f}, {high:.4f}]\n"
            for family, (low, high) in interval.without.items()
        )
        blocks.append(_block(title, ends, "-", _INTERVAL_SOURCE, interval.rows))
        blocks.append(f"[{title}.without]\n{families}")
    return "\n".join(blocks)


def save_calibration(calibration: Calibration, path: Path | None = None) -> None:
    """Write fitted constants, by default to ``data/calibration.toml``."""
    write_text(path or files.data_dir() / FILE, calibration_text(calibration))


def _fitted(blocks: dict[str, Any]) -> dict[str, Fitted]:
    return {
        name: Fitted(value=float(block["value"]), rows=tuple(block["rows"]))
        for name, block in blocks.items()
    }


def load_calibration(path: Path | None = None) -> Calibration:
    """Read fitted constants back, by default those of ``data/calibration.toml``."""
    source = path or files.data_dir() / FILE
    try:
        tables = tomllib.loads(source.read_text(encoding="utf-8"))
        scales, latencies = (_fitted(tables[name]) for name in ("power", "scale_out"))
        amp, sram = scales["amp_scale"], scales["sram_scale"]
        intervals = tables.get("interval", {}).items()
        return Calibration(
            steps=StepCosts(
                calls=_fitted(tables["call_cost"]),
                runs=_fitted(tables.get("run_cost", {})),
                supersteps=_fitted(tables["superstep_cost"]),
            ),
            power=PowerScales(amp=amp.value, sram=sram.value, rows=amp.rows),
            scale_out=ScaleOut(
                reduction=latencies["reduction_latency"],
                collective=latencies["collective_latency"],
            ),
            compile=_fitted(tables["compile"])["tile_step"],
            gpu=_fitted(tables.get("gpu_kernel_cost", {})),
            intervals={kind: read_interval(kind, block) for kind, block in intervals},
            known_families=tuple(tables["known_families"]["names"]),
        )
    except OSError as error:
        raise DataError(
            f"{source.name} cannot be read ({error.strerror}): run 'ipusim calibrate'."
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{source.name} is damaged ({error}): run 'ipusim calibrate'.") from error
