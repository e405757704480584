"""A report as one page that needs no network, in the words of PopVision: `Report.to_html`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import ipusim
from ipusim.compiler.program import Program
from ipusim.files import write_text
from ipusim.look import OKABE_ITO, figure_bytes, shared_looks, sheet
from ipusim.markup import template
from ipusim.report import advice
from ipusim.report.trace import PHASES

if TYPE_CHECKING:
    from ipusim.report import Report

SHOWN = 40
"""Layers that the table lists."""
SLICES = 160
"""Parts of the time axis of the timeline."""
NAMED = 6
"""Layers that the roofline names."""
BESIDE = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}
"""Where a legend stands beside its axis."""
_HELD = {
    "parameters": ("parameter_bytes", "parameters and state", "blue"),
    "code": ("code_bytes", "code and stacks", "grey"),
    "activation": ("activation_bytes", "activations", "orange"),
    "temporary": ("temp_bytes", "temporaries", "yellow"),
}
"""Categories of what a tile holds: column of `Report.memory`, name, and colour."""


def write(report: Report, path: Path) -> Path:
    """Write the page of a report, whole or not at all."""
    layers = report.layers
    share = 100.0 * layers["cycles"] / max(1, layers["cycles"].sum())
    drawn = {name: figure_bytes(one, "svg").decode() for name, one in figures(report).items()}
    page = template("report.html.j2").render(
        report=report,
        lines=[pair for pair in report.summary() if pair[0] != "verdict"],
        figures={name: Markup(svg[svg.index("<svg") :]) for name, svg in drawn.items()},
        layers=layers.assign(time_percent=share).nlargest(SHOWN, "cycles").to_dict("records"),
        count=len(layers),
        line=advice.line("simulate", report.asked) if report.asked else "",
        version=ipusim.__version__,
    )
    return write_text(path, page)


def figures(report: Report) -> dict[str, Figure]:
    """Return the pictures by name; rates only where the run is possible."""
    rates = {"parts": parts_figure, "roofline": roofline_figure} if report.runs else {}
    always = {"liveness": liveness_figure, "tiles": tile_figure, "timeline": timeline_figure}
    return {name: draw(report) for name, draw in (rates | always).items()}


@contextmanager
def _drawn(height: float = 3.4, **said: str) -> Iterator[tuple[Figure, Axes]]:
    """Open a figure of one axis; what is said of it (title, labels) is set at the end."""
    with sheet(9.6, height, legend=0) as (figure, (axis,)):
        yield figure, axis
        axis.set(**said)


def parts_figure(report: Report) -> Figure:
    """Draw the parts of a step as bars."""
    parts = report.parts.query("time_ms > 0").iloc[::-1]
    said = {"title": "Parts of a step", "xlabel": "milliseconds per step"}
    with _drawn(1.1 + 0.32 * len(parts), **said) as (figure, axis):
        bars = axis.barh(parts["part"], parts["time_ms"], color=OKABE_ITO["blue"])
        axis.bar_label(bars, [f"{share:.1f} %" for share in parts["share_percent"]], padding=3)
        axis.margins(x=0.12)
        axis.grid(axis="y", visible=False)
    return figure


def roofline_figure(report: Report) -> Figure:
    """Draw arithmetic rate against arithmetic per byte exchanged, and what bounds both."""
    chip = report.config.system.chip
    dtype, partials = report.config.product_dtypes
    peak, band = chip.peak_flops_per_s(dtype, partials), chip.exchange_bytes_per_s
    rows = [
        (op.name, 2 * op.macs, moved, op.cycles / chip.clock_hz)
        for op in report.result.program.ops
        if op.macs and (moved := Program((op,)).exchanged_bytes)
    ]
    said = {
        "title": f"Layers with products on one {chip.name}",
        "xlabel": "FLOP per byte exchanged between tiles",
        "ylabel": "FLOP/s of the chip",
    }
    with _drawn(4.2, xscale="log", yscale="log", **said) as (figure, axis):
        if rows:
            names, flops, moved, seconds = (np.array(column) for column in zip(*rows, strict=True))
            x, y = flops / moved, flops / seconds
            share = seconds / seconds.sum()
            axis.scatter(x, y, s=8 + 1500 * share, color=OKABE_ITO["vermilion"], alpha=0.55)
            named: list[int] = []
            for at in np.argsort(-share, kind="stable"):
                apart = all(abs(np.log(x[at] / x[other])) > 0.3 for other in named)
                if apart and len(named) < NAMED:
                    named.append(at)
                    axis.annotate(names[at], (x[at], y[at]), fontsize=8)
            ends = np.array([min(x.min(), peak / band) / 2, max(x.max(), peak / band) * 2])
            line = np.geomspace(*ends, 64)
            label = f"peak with {partials} partials, and the exchange"
            axis.plot(line, np.minimum(peak, band * line), color=OKABE_ITO["black"], label=label)
            axis.legend(loc="lower right")
    return figure


def _limit_and_legend(axis: Axes, tile_bytes: int) -> None:
    """Mark what a tile holds, in KiB, and name the colours beside the axis."""
    axis.axhline(tile_bytes / 1024, color=OKABE_ITO["vermilion"], linestyle="--", label="a tile")
    axis.set_ylim(bottom=0)
    axis.legend(**BESIDE)


def liveness_figure(report: Report) -> Figure:
    """Draw the bytes on the fullest tile over the program, with what a tile holds."""
    memory, points = report.result.memory, report.memory
    said = {
        "title": f"Fullest at {memory.peak_op}",
        "xlabel": "layers in the order in which they run",
        "ylabel": "KiB on the fullest tile",
    }
    with _drawn(**said) as (figure, axis):
        columns, labels, names = zip(*_HELD.values(), strict=True)
        heights = [points[column] / 1024 for column in columns]
        look = {"labels": labels, "colors": [OKABE_ITO[name] for name in names], "step": "mid"}
        axis.stackplot(np.arange(len(points)), heights, **look)
        highest = points["highest_address_bytes"].to_numpy() / 1024
        axis.plot(highest, color=OKABE_ITO["black"], linewidth=0.8, label="highest address")
        axis.set_xlim(0, max(1, len(points) - 1))
        _limit_and_legend(axis, memory.tile_bytes)
    return figure


def tile_figure(report: Report) -> Figure:
    """Draw the bytes of every tile at the fullest moment, by category."""
    memory, held = report.result.memory, advice.held(report)
    said = {"title": f"Tiles while {memory.peak_op} runs", "xlabel": "tile", "ylabel": "KiB"}
    with _drawn(**said) as (figure, axis):
        bottom = np.zeros(memory.tiles)
        for category, (_, _, colour) in _HELD.items():
            top = bottom.copy()
            for row in held[held["category"] == category].itertuples():
                top[: row.tiles] += row.bytes / 1024
            look = {"color": OKABE_ITO[colour], "linewidth": 0, "step": "mid"}
            axis.fill_between(np.arange(memory.tiles), bottom, top, label=category, **look)
            bottom = top
        axis.set_xlim(0, memory.tiles - 1)
        _limit_and_legend(axis, report.tile_bytes)
    return figure


def timeline_figure(report: Report) -> Figure:
    """Draw what the tiles do over the time of one micro-batch, with the heaviest layers above."""
    with _drawn(title="Supersteps by phase") as (figure, axis):
        draw_phases(axis, report.trace, SLICES)
    return figure


def draw_phases(axis: Axes, trace: pd.DataFrame, slices: int) -> None:
    """Draw the share of each phase of a superstep in slices of the time of a micro-batch."""
    end = float((trace["start_us"] + trace["duration_us"]).max()) if len(trace) else 1.0
    edges, bottom = np.linspace(0, end, slices + 1), np.zeros(slices)
    looks = shared_looks("parts")
    for phase in PHASES:
        part = trace[trace["phase"] == phase]
        share = busy_share(part["start_us"].to_numpy(), part["duration_us"].to_numpy(), edges)
        place = {"width": np.diff(edges), "align": "edge", "bottom": bottom}
        axis.bar(edges[:-1], 100 * share, label=phase, **place, **looks[phase])
        bottom = bottom + 100 * share
    unit = "microseconds of one micro-batch on one chip"
    axis.set(ylim=(0, 100), xlim=(0, end), ylabel="share of the slice, %", xlabel=unit)
    axis.legend(**BESIDE)


def busy_share(start: np.ndarray, duration: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return the share of each slice of time that some intervals cover."""
    stop = start + duration
    covered = np.minimum(stop[:, None], edges[None, 1:]) - np.maximum(
        start[:, None], edges[None, :-1]
    )
    return np.clip(covered, 0, None).sum(axis=0) / np.diff(edges)
