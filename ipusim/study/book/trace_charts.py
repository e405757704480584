"""Bulk-synchronous execution as pictures, drawn from simulated traces."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ipusim.errors import StudyError
from ipusim.report import Report
from ipusim.study.book.charts import OKABE_ITO, PHASES, figure_style


def heaviest_window(trace: pd.DataFrame, op: str) -> pd.DataFrame:
    """Return the phases of one operation, with times from its start.

    Parameters
    ----------
    trace : pandas.DataFrame
        ``report.trace``.
    op : str
        Name of an operation in it.

    Raises
    ------
    StudyError
        If the operation has no superstep.
    """
    part = trace[trace["op"] == op]
    if part.empty:
        raise StudyError(f"The trace has no operation {op!r}: use a name of report.layers.")
    return part.assign(start_us=part["start_us"] - part["start_us"].iloc[0])


def superstep_figure(window: pd.DataFrame, *, title: str) -> Figure:
    """Draw supersteps one after the other: sync, exchange, copy and compute in lanes.

    Parameters
    ----------
    window : pandas.DataFrame
        Rows of ``report.trace``; for example from `heaviest_window`.
    title : str
    """
    lanes = list(PHASES)
    with figure_style():
        figure = Figure(figsize=(9.6, 2.9))
        axis = figure.subplots()
        for line in window.itertuples():
            place = lanes.index(line.phase)
            axis.barh(
                place,
                line.duration_us,
                left=line.start_us,
                height=0.72,
                edgecolor="white",
                linewidth=0.5,
                **PHASES[line.phase],
            )
            if line.phase == "sync":
                axis.axvline(
                    line.start_us, color=OKABE_ITO["grey"], linewidth=0.7, linestyle=":", zorder=0
                )
        axis.set_yticks(range(len(lanes)), lanes)
        axis.invert_yaxis()
        axis.grid(axis="y", visible=False)
        axis.set_xlabel("microseconds; dotted lines: all tiles meet")
        axis.set_title(title)
    return figure


def execution_trace(report: Report, *, title: str, bins: int = 160) -> Figure:
    """Draw a micro-batch as PopVision does: pass by pass, and what the tiles do over time.

    The weight update that follows is a program of its own and not drawn.

    Parameters
    ----------
    report : Report
        A training step.
    title : str
    bins : int
        Slices of time of the lower panel.
    """
    trace, passes = report.trace, _passes(report)
    end = float((trace["start_us"] + trace["duration_us"]).iloc[-1])
    edges = np.linspace(0, end, bins + 1)
    with figure_style():
        figure = Figure(figsize=(9.6, 4.6))
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(2, 3))
        names = list(dict.fromkeys(passes["kind"]))
        colours = [c for n, c in OKABE_ITO.items() if n not in ("black", "grey")]
        for line in passes.itertuples():
            upper.barh(
                list(_PASSES).index(line.phase),
                line.duration_us,
                left=line.start_us,
                height=0.75,
                color=colours[names.index(line.kind) % len(colours)],
                edgecolor="white",
                linewidth=0.4,
            )
        handles = [
            upper.barh(0, 0, color=colours[index % len(colours)], label=name)
            for index, name in enumerate(names)
        ]
        upper.set_yticks(range(len(_PASSES)), list(_PASSES.values()))
        upper.invert_yaxis()
        upper.grid(axis="y", visible=False)
        upper.set_title(title)
        upper.legend(handles=handles, loc="center left", bbox_to_anchor=(1.0, 0.5))
        bottom = np.zeros(bins)
        for phase, look in PHASES.items():
            part = trace[trace["phase"] == phase]
            share = _busy(part["start_us"].to_numpy(), part["duration_us"].to_numpy(), edges)
            lower.bar(
                edges[:-1],
                100 * share,
                width=np.diff(edges),
                align="edge",
                bottom=bottom,
                label=phase,
                **look,
            )
            bottom += 100 * share
        lower.set_ylim(0, 100)
        lower.set_xlim(0, end)
        lower.set_ylabel("share of the slice, %")
        lower.set_xlabel("microseconds of one micro-batch on one chip")
        lower.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


_PASSES = {"forward": "forward", "backward": "backward"}


def _passes(report: Report) -> pd.DataFrame:
    """Return each operation of the micro-batch with its pass, kind, start and duration."""
    phases = {op.name: op.phase for op in report.result.graph.ops}
    clock = report.config.system.chip.clock_hz
    now, lines = 0, []
    for op in report.result.program.ops:
        phase = phases.get(op.name, "forward")
        lines.append(
            {
                "op": op.name,
                "kind": op.kind,
                "phase": phase if phase in _PASSES else "backward",
                "start_us": 1e6 * now / clock,
                "duration_us": 1e6 * op.cycles / clock,
            }
        )
        now += op.cycles
    return pd.DataFrame([line for line in lines if line["duration_us"]])


def _busy(start: np.ndarray, duration: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return the share of each slice of time that some intervals cover."""
    stop = start + duration
    covered = np.minimum(stop[:, None], edges[None, 1:]) - np.maximum(
        start[:, None], edges[None, :-1]
    )
    return np.clip(covered, 0, None).sum(axis=0) / np.diff(edges)


def phase_shares(reports: Mapping[str, Report]) -> pd.DataFrame:
    """Return how the cycles of a micro-batch divide into phases.

    Returns
    -------
    pandas.DataFrame
        Per label: label, supersteps, cycles, and percent of the cycles per phase.
    """
    lines = []
    for label, report in reports.items():
        phases = report.result.program.phase_cycles()
        total = report.cycles_per_step
        lines.append(
            {
                "label": label,
                "supersteps": report.supersteps,
                "cycles": total,
                **{f"{name}_percent": 100 * phases[name] / total for name in PHASES},
            }
        )
    return pd.DataFrame(lines)
