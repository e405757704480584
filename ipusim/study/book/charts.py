"""Figures in one style: colour-blind safe, readable in grey, the same bytes for the same data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from ipusim.errors import StudyError
from ipusim.machine.system import load_system
from ipusim.study.book.outputs import SVG_SALT
from ipusim.study.verdicts.compare import HIT_PERCENT, NEAR_PERCENT, PREDICTED

OKABE_ITO = {
    "black": "#000000",
    "orange": "#E69F00",
    "sky": "#56B4E9",
    "green": "#009E73",
    "yellow": "#F0E442",
    "blue": "#0072B2",
    "vermilion": "#D55E00",
    "purple": "#CC79A7",
    "grey": "#8A8F98",
}
"""The palette of Okabe and Ito (2008), which people with any colour vision can tell apart."""

SERIES = {
    "published": {"color": OKABE_ITO["black"], "marker": "o", "linestyle": "-"},
    "calibrated": {
        "color": OKABE_ITO["vermilion"],
        "marker": "s",
        "linestyle": "--",
        "fillstyle": "none",
        "markersize": 9.0,
    },
    "specification": {"color": OKABE_ITO["blue"], "marker": "^", "linestyle": "-."},
    "roofline": {"color": OKABE_ITO["grey"], "marker": "v", "linestyle": ":"},
}
"""Colour, marker and line of each kind of number: never told apart by colour alone. Where
nothing is fitted, calibrated equals specification: its mark is a frame around the other's."""

_LIGHT_BLUE, _LIGHT_PURPLE, _LIGHT_GREEN = "#BFE3F7", "#E4B9CF", "#9ADBC5"
PHASES: dict[str, dict[str, str]] = {
    "sync": {"color": OKABE_ITO["grey"]},
    "exchange": {"color": OKABE_ITO["orange"]},
    "copy": {"color": OKABE_ITO["yellow"]},
    "compute": {"color": OKABE_ITO["blue"]},
}
"""One look per phase of a superstep, in the order in which they follow, in every figure."""

PARTS: dict[str, dict[str, str]] = {
    **PHASES,
    "copies on the tile": PHASES["copy"],
    "convolutions, compute": PHASES["compute"],
    "normalisation, compute": {"color": OKABE_ITO["sky"]},
    "other compute": {"color": _LIGHT_BLUE, "hatch": ".."},
    "host prepares the batch": {"color": OKABE_ITO["purple"]},
    "host link": {"color": _LIGHT_PURPLE, "hatch": "//"},
    "device": PHASES["compute"],
    "host work": {"color": OKABE_ITO["purple"]},
    "transfers": {"color": _LIGHT_PURPLE, "hatch": "//"},
    "waiting for the host": {"color": OKABE_ITO["vermilion"], "hatch": "xx"},
    "batch-norm reductions": {"color": OKABE_ITO["sky"]},
    "gradient all-reduce": PHASES["exchange"] | {"hatch": "\\\\"},
    "weight update": {"color": OKABE_ITO["green"]},
    "optimiser state": {"color": _LIGHT_GREEN, "hatch": ".."},
    "fixed": {"color": OKABE_ITO["grey"], "hatch": "//"},
}
"""One look per part of a step: what the host does is purple, the device blue, links orange."""

_CHIPS = {
    "GC2": OKABE_ITO["vermilion"],
    "GC200": OKABE_ITO["blue"],
    "Bow": OKABE_ITO["green"],
}
_LINES = (("s", "--"), ("^", "-."), ("D", ":"), ("v", "-"))


def system_looks(names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return a look per system: the colour of its chip, mark and line by place."""
    return {
        name: {
            "color": _CHIPS.get(load_system(name).chip.name, OKABE_ITO["purple"]),
            "marker": _LINES[place % len(_LINES)][0],
            "linestyle": _LINES[place % len(_LINES)][1],
        }
        for place, name in enumerate(dict.fromkeys(names))
    }


OFF_SCALE = 1.6
"""A roofline that starts beyond this multiple of everything else is stated, not drawn."""

_STYLE = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "figure.constrained_layout.use": True,
    "figure.dpi": 100,
    "figure.facecolor": "white",
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "grid.color": "#E3E6EA",
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 5.5,
    "svg.fonttype": "path",
    "svg.hashsalt": SVG_SALT,
}


@contextmanager
def figure_style() -> Iterator[None]:
    """Draw in the workbook's style, whatever style the caller has set."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        yield


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One set of axes that compares published and predicted values.

    Attributes
    ----------
    title : str
        Title of the panel.
    unit : str
        Label of the vertical axis.
    x : sequence of float
        Horizontal positions.
    series : mapping of str to sequence of float
        Values per kind of number; the keys are those of `SERIES`, NaN where there is none.
    band : tuple of sequence of float, optional
        Lower and upper end of the 80 % interval of the calibrated values.
    """

    title: str
    unit: str
    x: Sequence[float]
    series: Mapping[str, Sequence[float]]
    band: tuple[Sequence[float], Sequence[float]] | None = None


def comparison_panels(panels: Sequence[Panel], *, x_label: str, columns: int = 0) -> Figure:
    """Draw published and predicted values side by side, one panel per metric.

    Parameters
    ----------
    panels : sequence of Panel
        At least one.
    x_label : str
        Label of every horizontal axis.
    columns : int
        Panels side by side; 0 puts all into one line.

    Returns
    -------
    matplotlib.figure.Figure
        The figure, with one legend.

    Raises
    ------
    StudyError
        If a series is not one of `SERIES`.
    """
    with figure_style():
        across = min(columns or len(panels), len(panels))
        down = -(-len(panels) // across)
        figure = Figure(figsize=((4.1 if across > 2 else 4.8) * across, 0.6 + 2.9 * down))
        places = list(figure.subplots(down, across, squeeze=False).flat)
        for axis in places[len(panels) :]:
            axis.set_visible(False)
        axes = places[: len(panels)]
        for axis, panel in zip(axes, panels, strict=True):
            _draw_panel(axis, panel)
            axis.set_xlabel(x_label)
        entries: dict[str, Artist] = {}
        for axis in axes:
            handles, labels = axis.get_legend_handles_labels()
            entries |= dict(zip(labels, handles, strict=True))
        figure.legend(
            entries.values(), entries.keys(), loc="outside lower center", ncols=len(entries)
        )
    return figure


def _draw_panel(axis: Axes, panel: Panel) -> None:
    unknown = [name for name in panel.series if name not in SERIES]
    if unknown:
        raise StudyError(f"Unknown series {unknown[0]!r}: use one of {', '.join(SERIES)}.")
    if panel.band is not None and np.isfinite(np.asarray(panel.band, dtype=np.float64)).all():
        low, high = panel.band
        axis.fill_between(panel.x, low, high, color=SERIES["calibrated"]["color"], alpha=0.13)
    known = {
        name: np.asarray(panel.series[name], dtype=np.float64)
        for name in SERIES
        if name in panel.series and np.isfinite(np.asarray(panel.series[name], float)).any()
    }
    bound = known.get("roofline")
    others = [np.nanmax(values) for name, values in known.items() if name != "roofline"]
    if bound is not None and others and np.nanmin(bound) > OFF_SCALE * max(others):
        del known["roofline"]
        axis.text(
            0.98,
            0.06,
            f"roofline: {np.nanmin(bound):,.0f}, off the scale",
            transform=axis.transAxes,
            ha="right",
            fontsize=8.5,
            color="#5B626B",
        )
    for name, values in known.items():
        axis.plot(panel.x, values, label=name, **SERIES[name])
    axis.set_title(panel.title)
    axis.set_ylabel(panel.unit)
    axis.set_ylim(0, 1.07 * max((np.nanmax(values) for values in known.values()), default=1.0))
    axis.set_xticks(list(panel.x))


def stacked_bars(
    axis: Axes,
    heights: Mapping[str, np.ndarray],
    looks: Mapping[str, Mapping[str, str]],
    *,
    width: float,
    edge_width: float,
) -> np.ndarray:
    """Draw bars at 0, 1, 2, ..., each a stack of labelled parts, the first at the bottom.

    Parameters
    ----------
    axis : matplotlib.axes.Axes
        Where.
    heights : mapping of str to numpy.ndarray
        Height of each part in every bar, by the part's label.
    looks : mapping of str to mapping of str to str
        Options of matplotlib's bars for each part.
    width, edge_width : float
        Of the bars, and of the white line between their parts.
    """
    tops = np.zeros(len(next(iter(heights.values()))))
    for label, height in heights.items():
        axis.bar(
            np.arange(len(tops)),
            height,
            bottom=tops,
            width=width,
            label=label,
            edgecolor="white",
            linewidth=edge_width,
            **looks[label],
        )
        tops = tops + height
    return tops


def layer_breakdown(parts: Mapping[str, pd.DataFrame], *, title: str = "") -> Figure:
    """Draw where the time goes: one stacked bar per run, one colour per kind of operation.

    Parameters
    ----------
    parts : mapping of str to pandas.DataFrame
        Label of each bar to a table with the columns ``part`` and ``share_percent``, for example
        from `ipusim.study.tamu.breakdown.device_work`.
    title : str
        Title of the figure.

    Returns
    -------
    matplotlib.figure.Figure
        The figure; shares below 4 % are drawn but not labelled.
    """
    names = list(dict.fromkeys(name for frame in parts.values() for name in frame["part"]))
    colours = [colour for name, colour in OKABE_ITO.items() if name != "black"]
    hatches = ("", "//", "..", "xx")
    with figure_style():
        figure = Figure(figsize=(9.0, 1.5 + 0.62 * len(parts)))
        axis = figure.subplots()
        for row, frame in enumerate(parts.values()):
            share = dict(zip(frame["part"], frame["share_percent"], strict=True))
            left = 0.0
            for index, name in enumerate(names):
                width = float(share.get(name, 0.0))
                axis.barh(
                    row,
                    width,
                    left=left,
                    height=0.62,
                    color=colours[index % len(colours)],
                    hatch=hatches[index // len(colours) % len(hatches)],
                    edgecolor="white",
                    linewidth=0.8,
                    label=name if row == 0 else None,
                )
                if width >= 4.0:
                    axis.text(
                        left + width / 2, row, f"{width:.0f}", ha="center", va="center", fontsize=9
                    )
                left += width
        axis.set_yticks(range(len(parts)), list(parts))
        axis.invert_yaxis()
        axis.set_xlim(0, 100)
        axis.set_xlabel("share of the device time, %")
        axis.grid(axis="y", visible=False)
        axis.set_title(title)
        figure.legend(loc="outside lower center", ncols=min(5, len(names)))
    return figure


def published_against_predicted(frame: pd.DataFrame, *, metric: str = "throughput") -> Figure:
    """Draw every predicted row of one metric against what was published.

    Parameters
    ----------
    frame : pandas.DataFrame
        From `ipusim.study.verdicts.compare.verdicts`.
    metric : str
        Which metric.

    Returns
    -------
    matplotlib.figure.Figure
        Logarithmic scatter, one marker per tier, with the bands that count as hit and as near.

    Raises
    ------
    StudyError
        If no row of that metric is predicted.
    """
    shown = frame[(frame["status"] == PREDICTED) & (frame["metric"] == metric)]
    if shown.empty:
        raise StudyError(f"No predicted row has the metric {metric!r}: choose another metric.")
    tiers = [name for name in SERIES if name != "published"]
    values = shown[["published", *tiers]].to_numpy(dtype=np.float64)
    ends = np.array([np.nanmin(values) / 1.3, np.nanmax(values) * 1.3])
    with figure_style():
        figure = Figure(figsize=(5.4, 5.0))
        axis = figure.subplots()
        for percent, shade in ((NEAR_PERCENT, 0.08), (HIT_PERCENT, 0.14)):
            axis.fill_between(
                ends,
                ends * (1 - percent / 100),
                ends * (1 + percent / 100),
                color=OKABE_ITO["green"],
                alpha=shade,
                label=f"within {percent:g} %",
                linewidth=0,
            )
        axis.plot(ends, ends, color=OKABE_ITO["black"], linewidth=0.9)
        for name in reversed(tiers):
            look = SERIES[name] | {"linestyle": "none"}
            axis.plot(shown["published"], shown[name], label=name, alpha=0.85, **look)
        axis.set_xscale("log")
        axis.set_yscale("log")
        for line in (axis.xaxis, axis.yaxis):
            line.set_minor_formatter(NullFormatter())
        axis.set_xlim(*ends)
        axis.set_ylim(*ends)
        axis.set_aspect("equal")
        axis.set_title(f"{metric}: {len(shown)} published rows")
        axis.set_xlabel("published")
        axis.set_ylabel("predicted")
        axis.legend(loc="upper left")
    return figure


def power_audit(frame: pd.DataFrame) -> Figure:
    """Draw the card power that Qwant's Tables 2 and 3 imply.

    Parameters
    ----------
    frame : pandas.DataFrame
        From `ipusim.study.audit.qwant_power`, optionally with a column ``predicted_power_w``.

    Returns
    -------
    matplotlib.figure.Figure
        Implied power with its rounding range; rows that fall although the batch grows are marked.
    """
    fallen = frame[frame["falls_beyond_rounding"]]
    with figure_style():
        figure = Figure(figsize=(6.4, 4.0))
        axis = figure.subplots()
        spread = [
            frame["implied_power_w"] - frame["low_w"],
            frame["high_w"] - frame["implied_power_w"],
        ]
        axis.errorbar(
            frame["batch_size"],
            frame["implied_power_w"],
            yerr=spread,
            capsize=4,
            label="implied by Tables 2 and 3",
            **SERIES["published"],
        )
        if "predicted_power_w" in frame:
            axis.plot(
                frame["batch_size"],
                frame["predicted_power_w"],
                label="calibrated",
                **SERIES["calibrated"],
            )
        axis.plot(
            fallen["batch_size"],
            fallen["implied_power_w"],
            "o",
            markersize=13,
            fillstyle="none",
            color=OKABE_ITO["vermilion"],
            label="falls, beyond rounding",
        )
        axis.set_xticks(list(frame["batch_size"]))
        axis.set_title("Power that the published tables imply")
        axis.set_xlabel("batch size of the card")
        axis.set_ylabel("card power, W (axis cut)")
        figure.legend(loc="outside lower center", ncols=3)
    return figure
