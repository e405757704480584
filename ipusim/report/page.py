"""A report as one page that needs no network, in the words of PopVision: `Report.to_html`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure

import ipusim
from ipusim.compiler.program import Program
from ipusim.drawing import drawn
from ipusim.files import completed, read_tables, write_text
from ipusim.look import figure_bytes
from ipusim.markup import template
from ipusim.report import advice
from ipusim.report.trace import PHASES

if TYPE_CHECKING:
    from ipusim.report import Report

FIGURES = "figures.toml"
SHOWN = 40
"""Layers that the table lists."""
SLICES = 160
"""Parts of the time axis of the timeline."""
NAMED = 6
"""Layers that the roofline names."""
_HELD = {
    "parameters": "parameter_bytes",
    "code": "code_bytes",
    "activation": "activation_bytes",
    "temporary": "temp_bytes",
}
"""Columns of `Report.memory` by the categories of what a tile holds."""


def write(report: Report, path: Path) -> Path:
    """Write the page of a report, whole or not at all."""
    layers = report.layers
    share = 100.0 * layers["cycles"] / max(1, layers["cycles"].sum())
    svgs = {name: figure_bytes(one, "svg").decode() for name, one in figures(report).items()}
    page = template("report.html.j2").render(
        report=report,
        lines=[pair for pair in report.summary() if pair[0] != "verdict"],
        figures={name: Markup(svg[svg.index("<svg") :]) for name, svg in svgs.items()},
        layers=layers.assign(time_percent=share).nlargest(SHOWN, "cycles").to_dict("records"),
        count=len(layers),
        line=advice.line("simulate", report.asked) if report.asked else "",
        version=ipusim.__version__,
    )
    return write_text(path, page)


def figures(report: Report) -> dict[str, Figure]:
    """Return the pictures by name, as data say; rates only where the run is possible."""
    said = {"peak_op": report.result.memory.peak_op}
    tables = {"parts": {"parts": report.parts}, "roofline": _roofline(report)}
    tables = tables if report.runs else {}
    tables |= {
        "liveness": {"points": report.memory.assign(**said)},
        "tiles": {"tiles": _tiles(report).assign(**said)},
        "timeline": {"slices": phase_slices(report.trace, SLICES)},
    }
    specs = completed(read_tables(FIGURES), FIGURES)
    return {name: drawn(specs[name], own, {}) for name, own in tables.items()}


def _roofline(report: Report) -> dict[str, pd.DataFrame]:
    """Return arithmetic rate and arithmetic per byte exchanged of layers, and what bounds both."""
    chip = report.config.system.chip
    dtype, partials = report.config.product_dtypes
    peak, band = chip.peak_flops_per_s(dtype, partials), chip.exchange_bytes_per_s
    rows = [
        (op.name, 2 * op.macs / moved, 2e-12 * op.macs * chip.clock_hz / op.cycles, op.cycles)
        for op in report.result.program.ops
        if op.macs and (moved := Program((op,)).exchanged_bytes)
    ]
    layers = pd.DataFrame(rows, columns=["op", "flop_per_byte", "tflop_per_s", "cycles"])
    layers = layers.sort_values("cycles", ascending=False, kind="stable", ignore_index=True)
    x, named = layers["flop_per_byte"], []
    for at in layers.index:
        if all(abs(np.log(x[at] / x[other])) > 0.3 for other in named) and len(named) < NAMED:
            named.append(at)
    share = layers["cycles"] / layers["cycles"].sum()
    edges = [peak / band, *x]
    line = np.geomspace(min(edges) / 2, max(edges) * 2, 64)
    roof = {"flop_per_byte": line, "tflop_per_s": 1e-12 * np.minimum(peak, band * line)}
    return {
        "roof": pd.DataFrame(roof).assign(chip=chip.name, partials=partials),
        "layers": layers.assign(size=8 + 1500 * share, named=layers.index.isin(named)),
    }


def _tiles(report: Report) -> pd.DataFrame:
    """Return the bytes of every tile at the fullest moment, by category."""
    memory = report.result.memory
    tiles = {column: np.zeros(memory.tiles) for column in _HELD.values()}
    for row in advice.held(report).itertuples():
        tiles[_HELD[row.category]][: row.tiles] += row.bytes
    frame = pd.DataFrame(tiles)
    return frame.assign(tile_bytes=memory.tile_bytes, highest_address_bytes=np.nan)


def phase_slices(trace: pd.DataFrame, slices: int) -> pd.DataFrame:
    """Return the share of each phase of a superstep in slices of the time of a micro-batch."""
    stops = trace["start_us"] + trace["duration_us"]
    edges = np.linspace(0, stops.max() if len(trace) else 1.0, slices + 1)
    frames, bottom = [], np.zeros(slices)
    for phase in PHASES:
        own = trace["phase"] == phase
        start, stop = (times[own].to_numpy()[:, None] for times in (trace["start_us"], stops))
        covered = np.minimum(stop, edges[1:]) - np.maximum(start, edges[:-1])
        share = 100 * np.clip(covered, 0, None).sum(axis=0) / np.diff(edges)
        lines = {"start_us": edges[:-1], "width_us": np.diff(edges), "share_percent": share}
        frames.append(pd.DataFrame({**lines, "bottom_percent": bottom, "phase": phase}))
        bottom = bottom + share
    return pd.concat(frames, ignore_index=True)
