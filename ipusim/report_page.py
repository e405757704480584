"""A report as one page that needs no network, in the words of PopVision: `Report.to_html`."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

import jinja2
import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import ipusim
from ipusim import advice
from ipusim.files import TEMPLATES, replace_file
from ipusim.look import OKABE_ITO, PHASES, figure_style
from ipusim.workload.model import Model

if TYPE_CHECKING:
    from ipusim.report import Report

SHOWN = 40
"""Layers that the table lists."""
SLICES = 160
"""Parts of the time axis of the timeline."""
NAMED = 6
"""Layers that the roofline names."""
_WIDE = (9.6, 3.4)
_CATEGORIES = {"parameters": "blue", "code": "grey", "activation": "orange", "temporary": "yellow"}
_LAYER_COLUMNS = {
    "op": "layer",
    "kind": "kind",
    "phase": "pass",
    "time_us": "us",
    "time_percent": "% of time",
    "supersteps": "supersteps",
    "compute_cycles": "compute cycles",
    "exchange_cycles": "exchange cycles",
    "copy_cycles": "copy cycles",
    "utilisation_percent": "AMP %",
    "tiles": "tiles",
    "temp_bytes_per_tile": "temporary B per tile",
    "plan": "plan",
}


def write(report: Report, path: Path) -> Path:
    """Write the page of a report, whole or not at all."""
    asked = report.asked
    line = advice.python if isinstance(asked.get("model"), Model) else advice.command
    layers = report.layers
    ends = report.interval80
    template = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined
    ).get_template("report.html.j2")
    page = template.render(
        report=report,
        lines=[pair for pair in report.summary() if pair[0] != "verdict"],
        advice=advice.advice(report),
        figures=[(title, text, _svg(figure)) for title, text, figure in figures(report)],
        table=Markup(_layer_table(layers)),
        layers=len(layers),
        shown=min(SHOWN, len(layers)),
        interval=(
            "No interval is known for this kind of run."
            if ends is None
            else f"The 80 % interval is from {ends[0]:.2f} to {ends[1]:.2f} times the predicted "
            "time: between them lay four fifths of the published runs of this kind, each predicted "
            "without its own family."
        ),
        room=(
            "Whether a program fits is decided by the highest address: partial sums of the matrix "
            "units lie in interleaved memory, which begins at "
            f"{report.result.memory.interleaved_offset_bytes:,} B, even where memory below is free."
        ),
        line=line("simulate", asked) if asked else "",
        version=ipusim.__version__,
    )
    replace_file(path, page.encode())
    return path


def figures(report: Report) -> list[tuple[str, str, Figure]]:
    """Return title, text and picture of each section; rates only where the run is possible."""
    known = [
        (
            "Where the time goes",
            "A step of one replica, by its parts.",
            parts_figure(report),
        ),
        (
            "Roofline",
            "Each dot is a layer, as large as its time. Left of the bend data on its way between "
            "tiles bounds a layer, right of it the matrix units.",
            roofline_figure(report),
        ),
        (
            "Memory over the program",
            "What lies on the fullest tile while each layer runs. The dashed line is the tile.",
            liveness_figure(report),
        ),
        (
            "Memory by tile at the fullest moment",
            "As the model of memory places it: what stays lies evenly on all tiles, an activation "
            "on the tiles of the layer that made it, counted from the first tile.",
            tile_figure(report),
        ),
        (
            "Timeline",
            "What the tiles do over one micro-batch on one chip.",
            timeline_figure(report),
        ),
    ]
    return known if report.runs else known[2:]


def _svg(figure: Figure) -> Markup:
    text = io.StringIO()
    with figure_style():
        figure.savefig(text, format="svg", metadata={"Date": None})
    svg = text.getvalue()
    return Markup(svg[svg.index("<svg") :])


def _layer_table(layers: pd.DataFrame) -> str:
    share = 100.0 * layers["cycles"] / max(1, layers["cycles"].sum())
    longest = layers.assign(time_percent=share).nlargest(SHOWN, "cycles")
    shown = longest[list(_LAYER_COLUMNS)].rename(columns=_LAYER_COLUMNS)
    return shown.to_html(index=False, border=0, float_format=lambda value: f"{value:,.2f}")


def parts_figure(report: Report) -> Figure:
    """Draw the parts of a step as bars."""
    parts = report.parts.query("time_ms > 0").iloc[::-1]
    with figure_style():
        figure = Figure(figsize=(9.6, 1.1 + 0.32 * len(parts)))
        axis = figure.subplots()
        bars = axis.barh(parts["part"], parts["time_ms"], color=OKABE_ITO["blue"])
        axis.bar_label(bars, [f"{share:.1f} %" for share in parts["share_percent"]], padding=3)
        axis.margins(x=0.12)
        axis.grid(axis="y", visible=False)
        axis.set_xlabel("milliseconds per step")
        axis.set_title("Parts of a step")
    return figure


def roofline_figure(report: Report) -> Figure:
    """Draw arithmetic rate against arithmetic per byte exchanged, and what bounds both."""
    chip, config = report.config.system.chip, report.config
    dtype = "float32" if config.precision == "32.32" else "float16"
    partials = "float32" if config.partials == "float" or dtype == "float32" else "float16"
    peak, band = chip.peak_flops_per_s(dtype, partials), chip.exchange_bytes_per_s
    rows = [
        (op.name, 2 * op.macs, moved, op.cycles / chip.clock_hz)
        for op in report.result.program.ops
        if op.macs and (moved := sum(s.exchange_bytes * s.tiles * s.repeats for s in op.steps))
    ]
    with figure_style():
        figure = Figure(figsize=(9.6, 4.2))
        axis = figure.subplots()
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
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xlabel("FLOP per byte exchanged between tiles")
        axis.set_ylabel("FLOP/s of the chip")
        axis.set_title(f"Layers with products on one {chip.name}")
    return figure


def _limit_and_legend(axis: Axes, tile_bytes: int) -> None:
    """Mark what a tile holds, in KiB, and name the colours beside the axis."""
    axis.axhline(tile_bytes / 1024, color=OKABE_ITO["vermilion"], linestyle="--", label="a tile")
    axis.set_ylim(bottom=0)
    axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


def liveness_figure(report: Report) -> Figure:
    """Draw the bytes on the fullest tile over the program, with what a tile holds."""
    memory = report.result.memory
    points = report.memory
    at = np.arange(len(points))
    stays = [points[f"{name}_bytes"] for name in ("parameter", "code", "activation", "temp")]
    with figure_style():
        figure = Figure(figsize=_WIDE)
        axis = figure.subplots()
        colours = [OKABE_ITO[colour] for colour in _CATEGORIES.values()]
        names = ("parameters and state", "code and stacks", "activations", "temporaries")
        axis.stackplot(
            at, [part / 1024 for part in stays], labels=names, colors=colours, step="mid"
        )
        axis.plot(
            at,
            points["highest_address_bytes"] / 1024,
            color=OKABE_ITO["black"],
            linewidth=0.8,
            label="highest address",
        )
        axis.set_xlim(0, max(1, len(points) - 1))
        axis.set_xlabel("layers in the order in which they run")
        axis.set_ylabel("KiB on the fullest tile")
        axis.set_title(f"Fullest at {memory.peak_op}")
        _limit_and_legend(axis, memory.tile_bytes)
    return figure


def tile_figure(report: Report) -> Figure:
    """Draw the bytes of every tile at the fullest moment, by category."""
    tiles = report.result.memory.tiles
    held = advice.held(report)
    with figure_style():
        figure = Figure(figsize=_WIDE)
        axis = figure.subplots()
        bottom = np.zeros(tiles)
        for category, colour in _CATEGORIES.items():
            height = np.zeros(tiles)
            for row in held[held["category"] == category].itertuples():
                height[: row.tiles] += row.bytes / 1024
            axis.fill_between(
                np.arange(tiles), bottom, bottom + height, color=OKABE_ITO[colour], label=category,
                linewidth=0, step="mid",
            )  # fmt: skip
            bottom += height
        axis.set_xlim(0, tiles - 1)
        axis.set_xlabel("tile")
        axis.set_ylabel("KiB")
        axis.set_title(f"Tiles while {report.result.memory.peak_op} runs")
        _limit_and_legend(axis, report.tile_bytes)
    return figure


def timeline_figure(report: Report) -> Figure:
    """Draw what the tiles do over the time of one micro-batch, with the heaviest layers above."""
    trace = report.trace
    end = float((trace["start_us"] + trace["duration_us"]).max()) if len(trace) else 1.0
    edges = np.linspace(0, end, SLICES + 1)
    with figure_style():
        figure = Figure(figsize=_WIDE)
        axis = figure.subplots()
        bottom = np.zeros(SLICES)
        for phase, look in PHASES.items():
            part = trace[trace["phase"] == phase]
            share = 100 * busy_share(
                part["start_us"].to_numpy(), part["duration_us"].to_numpy(), edges
            )
            axis.bar(
                edges[:-1], share, width=np.diff(edges), align="edge", bottom=bottom, label=phase,
                **look,
            )  # fmt: skip
            bottom += share
        axis.set_ylim(0, 100)
        axis.set_xlim(0, end)
        axis.set_xlabel("microseconds of one micro-batch on one chip")
        axis.set_ylabel("share of the slice, %")
        axis.set_title("Supersteps by phase")
        axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def busy_share(start: np.ndarray, duration: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return the share of each slice of time that some intervals cover."""
    stop = start + duration
    covered = np.minimum(stop[:, None], edges[None, 1:]) - np.maximum(
        start[:, None], edges[None, :-1]
    )
    return np.clip(covered, 0, None).sum(axis=0) / np.diff(edges)
