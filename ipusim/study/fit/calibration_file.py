"""Writing the fitted constants to ``data/calibration.toml``, each with the rows behind it."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from ipusim import files
from ipusim.files import write_text
from ipusim.runtime.calibration import FILE, Calibration, Fitted

_STEP_SOURCE = "least mean absolute relative error of time per step over rows, all at once"
_RUN_SOURCE = "median of pairs of rows that are predicted alike but for their device iterations"
_GPU_SOURCE = "least mean absolute logarithm of predicted over published time per step over rows"
_SCALE_SOURCE = "median of what makes the slowdown of one of the rows exact"
_COMPILE_SOURCE = "least squares of compile times over rows of evidence/ipu_microbench.csv"
_INTERVAL_SOURCE = "mean and spread of families, each predicted without its own rows, over rows"
_POWER_SOURCE = "non-negative least squares of dynamic power over rows"
_NOT_FITTED = "not fitted"


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
    shares = (f"{json.dumps(row)} = {share:.4f}\n" for row, share in calibration.ran.over.items())
    blocks.append(f"[ran]\nprograms = {calibration.ran.programs}\n")
    blocks.append(f"[ran.over]\n{''.join(shares)}")
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
