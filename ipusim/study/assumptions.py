"""What a prediction rests on, and how much hangs on each assumption.

What is predicted here is the specification tier: nothing in it is fitted.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from ipusim.compiler.stacks import Stack
from ipusim.files import read
from ipusim.machine.constants import hardware_table
from ipusim.machine.system import load_system
from ipusim.runtime.calibration import load_calibration
from ipusim.runtime.options.config import make_config
from ipusim.runtime.options.spec import RunConfig
from ipusim.runtime.step import run_step
from ipusim.study.data.published import PublishedRow
from ipusim.study.data.runs import RunConfiguration
from ipusim.study.verdicts.errors import error_percent
from ipusim.workload import zoo

_BASIS = {
    "S": "settled by source code or documents",
    "D": "supported by measured or modelled operations",
    "A": "adopted",
}
_MARK = re.compile(r"^\[([A-Z])\]\s*(.*)$", re.DOTALL)
_DOUBTED_LABELS = ("inferred", "assumed", "fitted", "recalled", "weak")
AS_MODELLED = "as modelled"
VARIANTS_FILE = "runs/assumptions.toml"


def stack_frame(stack: Stack) -> pd.DataFrame:
    """Return what is taken for granted about a software stack, and on what grounds."""
    rows = pd.DataFrame(
        {"property": key, "value": getattr(stack, key), "source": found.source}
        for key, found in stack.constants.items()
    )
    marks = rows["source"].str.extract(_MARK)
    return pd.DataFrame(
        {
            "property": rows["property"].str.replace("_", " "),
            "value": rows["value"].map(plain),
            "basis": marks[0].map(_BASIS).fillna(marks[0]).fillna(""),
            "source": marks[1].fillna(rows["source"]),
        }
    )


def run_frame(run: RunConfiguration) -> pd.DataFrame:
    """Return how a run is configured, the micro-batch being that of each row."""
    return pd.DataFrame(
        {
            "option": name.replace("_", " "),
            "value": "half the batch size" if name == "micro_batch" else plain(value),
            "basis": "assumed" if name in run.assumed else "source",
        }
        for name, value in run.options().items()
    )


def doubted_constants(system: str) -> pd.DataFrame:
    """Return what no measurement or document settles of a system, its chip, power and host."""
    machine = load_system(system)
    frame = hardware_table()
    ours = frame["subject"].isin([machine.name, machine.chip.name, machine.host.name])
    doubted = frame[ours & frame["label"].isin(_DOUBTED_LABELS)]
    shown = doubted[["subject", "name", "value", "unit", "label", "source"]]
    return shown.assign(value=shown["value"].map(plain))


def fitted_constants(system: str) -> pd.DataFrame:
    """Return every fitted constant, and what the fit makes of a system's sourced energies."""
    calibration = load_calibration()
    energies, scales = load_system(system).power, calibration.power
    columns = ("constant", "sourced", "factor", "in_use", "unit", "fitted_on")
    steps = calibration.steps
    none = math.nan
    lines = [
        *((f"host call per step, {name}", none, none, 1e6 * call.value, "µs", len(call.rows))
          for name, call in steps.calls.items()),
        *((f"each exchange superstep, {name}", none, none, each.value, "cycles", len(each.rows))
          for name, each in steps.supersteps.items()),
        *((f"energy of {name}", value, factor, factor * value, unit, len(scales.rows))
          for name, value, factor, unit in (
              ("float16 in conv units", energies.amp_half_pj_per_flop, scales.amp, "pJ/FLOP"),
              ("float32 in conv units", energies.amp_float_pj_per_flop, scales.amp, "pJ/FLOP"),
              ("tile memory", energies.sram_pj_per_byte, scales.sram, "pJ/B"),
          )),
    ]  # fmt: skip
    return pd.DataFrame(lines, columns=columns)


def plain(value: object) -> str:
    """Write a setting: rates in scientific notation, the ends of stages as their count."""
    if value is None:
        return "default"
    if isinstance(value, tuple):
        return f"{len(value) + 1} segments"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One assumption changed, as data/runs/assumptions.toml has it."""

    words: str
    basis: str
    if_stack: dict[str, Any] = field(default_factory=dict)
    if_run: dict[str, Any] = field(default_factory=dict)
    stack: dict[str, Any] = field(default_factory=dict)
    run: dict[str, Any] = field(default_factory=dict)
    host_rate: float = 1.0

    def concerns(self, config: RunConfig) -> bool:
        """Return whether a run rests on what is changed."""
        wanted = ((config.stack, self.if_stack), (config, self.if_run))
        return all(getattr(of, name) == it for of, has in wanted for name, it in has.items())

    def of(self, config: RunConfig) -> RunConfig:
        """Return the run with it changed."""
        stack, host = config.stack, config.system.host
        if self.stack:  # a name of its own: it is no published stack any more
            stack = replace(stack, name=f"{stack.name}, changed", **self.stack)
        host = replace(host, core_bytes_per_s=self.host_rate * host.core_bytes_per_s)
        system = replace(config.system, host=host)
        return replace(config, stack=stack, system=system, **self.run)


def sensitivity(rows: Sequence[PublishedRow]) -> pd.DataFrame:
    """Change one assumption of runs at a time and see what it does to the latency (ms).

    `rows` are latencies in milliseconds, NaN where none was published. The change is that against
    the modelled run, the error that against the published latency. This weighs assumptions; it does
    not choose them: dozens of combinations fit six numbers.
    """
    lines, variants = [], read(Variant, VARIANTS_FILE)
    for row in rows:
        model, modelled = zoo.load(row.run.model), math.nan
        config = make_config(**row.run.options())
        runs = [(AS_MODELLED, "", config)]
        runs += [(one.words, one.basis, one.of(config)) for one in variants if one.concerns(config)]
        for label, basis, config in runs:
            latency = 1e3 * run_step(model, config, tier="specification").latency_s
            modelled = latency if label == AS_MODELLED else modelled
            change = 100.0 * (latency / modelled - 1.0)
            error = error_percent(latency, row.value)
            lines.append((label, basis, row.run.items_per_step, latency, change, error))
    columns = "assumption", "basis", "batch_size", "latency_ms", "change_percent", "error_percent"
    return pd.DataFrame(lines, columns=columns)


def sensitivity_by_batch(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the errors of `sensitivity`: one line per assumption, one column per batch size."""
    keys = ["assumption", "basis"]
    wide = frame.pivot(index=keys, columns="batch_size", values="error_percent")
    wide = wide.reindex(pd.MultiIndex.from_frame(frame[keys].drop_duplicates()))
    return wide.rename(columns="batch_{}_error_percent".format).reset_index()
