"""Tables of the Argonne notebook: dataflows, GPUs, ratios, scaling, phases, Uno."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from ipusim.study.argonne import bragg_claims
from ipusim.study.argonne.claims import uno_frame
from ipusim.study.argonne.dataflow import (
    SYSTEMS,
    GpuRun,
    item_seconds,
    load_dataflow,
    load_dataflows,
    simulate_flow,
    worker_times_us,
)
from ipusim.study.book.trace_charts import phase_shares
from ipusim.study.table import Table

_MILLISECONDS = 1e3


def flows_table() -> Table:
    """Show what a loader process does with an item in each dataflow, and how long it takes."""
    times = worker_times_us()
    lines = []
    for flow in load_dataflows().values():
        steps = ", ".join(f"{step.replace('_', ' ')} {times[step]:g}" for step in flow.worker)
        lines.append(
            {
                "title": flow.title,
                "steps": steps,
                "item_us": 1e6 * item_seconds(flow),
                "model": flow.model,
                "source": flow.source,
            }
        )
    return Table(
        pd.DataFrame(lines),
        caption="What a loader process does with one item, in us (measured, see the text)",
        columns={
            "title": "dataflow",
            "steps": "steps of a process, us",
            "item_us": "in all, us",
            "model": "graph on the chip",
            "source": "source",
        },
        digits=3,
    )


def dataflow_table(frame: pd.DataFrame) -> Table:
    """Show `ipusim.study.argonne.dataflow.dataflow_frame`."""
    return Table(
        frame,
        caption="One IPU, batch 512, single precision, 500 epochs of 108 steps",
        columns={
            "title": "dataflow",
            "chip": "chip",
            "loader_ms": "loader, ms per batch",
            "chip_ms": "chip, ms",
            "step_ms": "step, ms",
            "bound": "bound by",
            "training_s": "time to train, s",
            "training_several_s": "several components, s",
        },
        digits=3,
    )


def boards_table(boards: Mapping[str, GpuRun]) -> Table:
    """Show the GPU runs with the stock loader."""
    lines = [
        {
            "board": run.report.gpu,
            "stack": run.report.stack,
            "precision": run.report.precision,
            "kernels": run.report.host_ops,
            **{name: _MILLISECONDS * part for name, part in run.report.parts.items()},
            "loader_ms": _MILLISECONDS * run.loader_s,
            "step_ms": _MILLISECONDS * run.step_s,
            "training_s": run.training_s,
            "source": run.source,
        }
        for run in boards.values()
    ]
    return Table(
        pd.DataFrame(lines),
        caption="GPUs with the stock loader, ms per step of 512",
        columns={
            "board": "board",
            "stack": "stack",
            "precision": "precision",
            "kernels": "kernels",
            "compute": "arithmetic",
            "memory": "memory",
            "launch": "launches",
            "loader_ms": "loader",
            "step_ms": "step",
            "training_s": "time to train, s",
            "source": "source",
        },
        digits=3,
    )


def reference_table() -> Table:
    """Show what 800 s mean for either GPU."""
    return Table(
        bragg_claims.reference_frame(),
        caption="If the 800 s are those of ...",
        columns={
            "candidate": "GPU",
            "v100_s": "V100, s",
            "a100_s": "A100, s",
            "first_fast_s": "first version, s (4 x)",
            "first_slow_s": "(3 x)",
            "final_s": "final version, at most s",
            "meets_goal": "under two minutes",
        },
        digits=3,
    )


def ratios_table(frame: pd.DataFrame) -> Table:
    """Show `ipusim.study.argonne.bragg_claims.ratio_frame`."""
    return Table(
        frame,
        caption="BraggNN on the slides, and predicted for a GC200",
        columns={
            "row_id": "row",
            "claim": "claim",
            "published": "slide",
            "predicted": "predicted",
            "low80": "low 80 %",
            "high80": "high 80 %",
            "unit": "unit",
            "error_percent": "error %",
            "verdict": "verdict",
            "reason": "reason",
        },
        digits=3,
    )


def scaling_table(frame: pd.DataFrame) -> Table:
    """Show `ipusim.study.argonne.dataflow.scaling_frame`: seconds to train per number of IPUs."""
    wide = frame.pivot_table(
        index=["line", "chip"], columns="ipus", values="training_s", sort=False
    ).reset_index()
    last = frame.groupby(["line", "chip"], sort=False)["bound"].last().reset_index()
    wide = wide.merge(last, on=["line", "chip"])
    counts = [name for name in wide.columns if isinstance(name, int)]
    columns = {"line": "dataflow", "chip": "chip"}
    columns |= {count: f"{count} IPU" + ("s" if count > 1 else "") for count in counts}
    return Table(
        wide.rename(columns={count: str(count) for count in counts}),
        caption="Seconds to train 500 epochs",
        columns={str(key): name for key, name in columns.items()} | {"bound": "bound by, at last"},
        digits=3,
    )


def phases_table() -> Table:
    """Show how a training step divides into phases, in either precision and on either chip."""
    flow = load_dataflow("on_chip")
    reports = {
        f"{chip}, {precision}": simulate_flow(flow, chip=chip, precision=precision)
        for chip in SYSTEMS
        for precision in ("32.32", "16.16")
    }
    return Table(
        phase_shares(reports),
        caption="Cycles of 512 patches, forwards and backwards",
        columns={
            "label": "run",
            "supersteps": "supersteps",
            "cycles": "cycles",
            "sync_percent": "sync %",
            "exchange_percent": "exchange %",
            "copy_percent": "copy %",
            "compute_percent": "compute %",
        },
    )


def uno_table() -> Table:
    """Show what bounds Uno on one IPU, over the batch."""
    return Table(
        uno_frame(),
        caption="CANDLE Uno on one GC200, single precision",
        columns={
            "batch": "batch",
            "kb_per_sample": "kB per sample",
            "device_ms": "chip, ms",
            "transfers_ms": "transfers, ms",
            "other_ms": "update and fixed, ms",
            "step_ms": "step, ms",
            "link_percent": "transfers over chip, %",
            "samples_per_s": "samples/s",
            "link_samples_per_s": "most the link passes, samples/s",
        },
        digits=3,
    )
