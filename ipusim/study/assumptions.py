"""What a prediction rests on, and how much hangs on each assumption.

What is predicted here is the specification tier: nothing in it is fitted.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pandas as pd

from ipusim.compiler.stacks import Stack, load_stack, stack_table
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
_SECONDS_TO_MS = 1e3
AS_MODELLED = "as modelled"


def stack_frame(stack: Stack) -> pd.DataFrame:
    """Return what is taken for granted about a software stack, and on what grounds.

    Columns property, value, basis (settled, supported, adopted) and source.
    """
    rows = pd.DataFrame(row for row in stack_table() if row["stack"] == stack.name)
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
    """Return how a run is configured: option, value, and whether a source gives it.

    The micro-batch is that of each row.
    """
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
    """Return every fitted constant, and what the fit makes of the sourced energies of a system.

    Constant, sourced value, fitted factor, value in use, unit, and how many rows it was fitted on;
    costs per step are those of `ipusim.simulate`, while comparisons refit them without the family
    of each row.
    """
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


def _variants(config: RunConfig) -> Iterator[tuple[str, str, RunConfig]]:
    """Yield the run as it is modelled, then with one assumption changed: words, basis, run."""
    stack, machine = config.stack, config.system

    def changed_stack(**values: object) -> RunConfig:
        # a name of its own: it is no published stack any more
        return replace(config, stack=replace(stack, name=f"{stack.name}, changed", **values))

    def host_rate(factor: float) -> RunConfig:
        host = replace(machine.host, core_bytes_per_s=factor * machine.host.core_bytes_per_s)
        return replace(config, system=replace(machine, host=host))

    yield AS_MODELLED, "", config
    if stack.host_work_in_step:
        yield (
            "host prepares nothing inside the timed step",
            "adopted: the report times pre-processing",
            changed_stack(host_work_in_step=False),
        )
        for factor, word in ((0.5, "half"), (2.0, "double")):
            label = f"host memory rate of {word} the assumed one"
            yield label, "assumed rate", host_rate(factor)
    if config.host_dtype == "float32":
        changed = replace(config, host_dtype="float16")
        yield "host sends float16 instead of float32", "assumed", changed
    other = "half" if config.partials == "float" else "float"
    changed = replace(config, partials=other)
    yield f"{other} partial sums", "settled: default of the SDK", changed
    yield (
        "batch norm kept" if stack.fold_batch_norm else "batch norm folded",
        "settled, if the export was plain",
        changed_stack(fold_batch_norm=not stack.fold_batch_norm),
    )
    for cycles in (350, 550):
        yield (
            f"{cycles} cycles per superstep",
            "supported: the range that IPUModel allows",
            changed_stack(superstep_cycles=cycles, planned_superstep_cycles=cycles),
        )
    later = load_stack("sdk-2.0")
    if stack.planner_era < later.planner_era:
        changed = changed_stack(planner_era=later.planner_era)
        yield f"planner rules of {later.name}", "settled: another SDK", changed


def sensitivity(rows: Sequence[PublishedRow]) -> pd.DataFrame:
    """Change one assumption of runs at a time and see what it does to the latency.

    `rows` are latencies in milliseconds, NaN where none was published. Per row and variant:
    assumption, basis, batch_size, latency_ms, change_percent against the modelled run and
    error_percent against the published latency (NaN where none). This weighs assumptions; it does
    not choose them: dozens of combinations fit six numbers.
    """
    lines = []
    for row in rows:
        model, modelled = zoo.load(row.run.model), math.nan
        for label, basis, config in _variants(make_config(**row.run.options())):
            latency = _SECONDS_TO_MS * run_step(model, config, tier="specification").latency_s
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
