"""Figures of the ledger: errors by family, by tier and by mechanism; intervals; pairs of chips."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter, ScalarFormatter

from ipusim.errors import StudyError
from ipusim.study.book.charts import OKABE_ITO, SERIES, figure_style
from ipusim.study.fidelity.ledger import PAIR_PERCENT, time_errors
from ipusim.study.predict import TIERS
from ipusim.study.verdicts.compare import HIT_PERCENT, NEAR_PERCENT

_MODE_MARKS = {"inference": ("o", OKABE_ITO["blue"]), "training": ("s", OKABE_ITO["vermilion"])}
_RATIO_TICKS = (0.25, 0.33, 0.5, 0.67, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0)


def _ratio_axis(axis: Axes, low: float, high: float) -> None:
    """Give the horizontal axis ratios on a logarithmic scale, with the bands of the verdicts."""
    axis.set_xscale("log")
    axis.set_xlim(low, high)
    axis.set_xticks([tick for tick in _RATIO_TICKS if low <= tick <= high])
    axis.xaxis.set_major_formatter(ScalarFormatter())
    axis.xaxis.set_minor_formatter(NullFormatter())
    for percent, shade in ((NEAR_PERCENT, 0.08), (HIT_PERCENT, 0.14)):
        part = percent / 100
        axis.axvspan(
            1 / (1 + part), 1 / (1 - part), color=OKABE_ITO["green"], alpha=shade, linewidth=0
        )
    axis.axvline(1.0, color=OKABE_ITO["black"], linewidth=0.9)


def _ends(ratios: pd.Series) -> tuple[float, float]:
    return 0.93 * min(0.75, float(ratios.min())), 1.07 * max(1.35, float(ratios.max()))


def errors_by_family(frame: pd.DataFrame) -> Figure:
    """Draw the error of every row of a rate or a time, one line per family.

    Parameters
    ----------
    frame : pandas.DataFrame
        From `ipusim.study.verdicts.compare.verdicts`.

    Returns
    -------
    matplotlib.figure.Figure
        Predicted over published time on a logarithmic axis: slower than the machine on the right.
        A bar marks the median of a family; a triangle that of the specification tier.

    Raises
    ------
    StudyError
        If no row is predicted.
    """
    used = time_errors(frame)
    if used.empty:
        raise StudyError("No row is predicted: there is no error to draw.")
    free = time_errors(frame, "specification")
    families = sorted(used["family"].unique(), reverse=True)
    with figure_style():
        figure = Figure(figsize=(9.2, 1.5 + 0.34 * len(families)))
        axis = figure.subplots()
        for place, family in enumerate(families):
            own = used[used["family"] == family]
            for mode, (mark, colour) in _MODE_MARKS.items():
                ratios = own.loc[own["mode"] == mode, "ratio"]
                # Rows of one line are spread a little, in a fixed order, so that none hides others.
                spread = 0.22 * np.sin(2.4 * np.arange(len(ratios)))
                axis.plot(
                    ratios,
                    place + spread,
                    linestyle="none",
                    marker=mark,
                    markersize=4.5,
                    fillstyle="none",
                    color=colour,
                    label=mode if place == 0 else None,
                )
            axis.plot(
                [own["ratio"].median()] * 2,
                [place - 0.36, place + 0.36],
                color=OKABE_ITO["black"],
                linewidth=2.2,
                label="median" if place == 0 else None,
            )
            axis.plot(
                free.loc[free["family"] == family, "ratio"].median(),
                place,
                marker="^",
                linestyle="none",
                color=OKABE_ITO["orange"],
                markersize=7,
                label="median, nothing fitted" if place == 0 else None,
            )
        _ratio_axis(axis, *_ends(used["ratio"]))
        axis.set_yticks(range(len(families)), families)
        axis.set_ylim(-0.7, len(families) - 0.3)
        axis.grid(axis="y", visible=False)
        axis.set_xlabel("predicted / published time (log scale); bands: within 10 and 25 %")
        axis.set_title(f"Error of {len(used)} rows by family, each fitted without its own")
        figure.legend(loc="outside lower center", ncols=4)
    return figure


def errors_by_tier(frame: pd.DataFrame) -> Figure:
    """Draw the share of rows within an error, for each tier, in inference and in training.

    Parameters
    ----------
    frame : pandas.DataFrame
        From `ipusim.study.verdicts.compare.verdicts`.

    Returns
    -------
    matplotlib.figure.Figure
        Cumulative distributions on the rows that all tiers predict.
    """
    with figure_style():
        figure = Figure(figsize=(9.2, 3.8))
        axes = figure.subplots(1, 2, sharey=True)
        for axis, mode in zip(axes, _MODE_MARKS, strict=True):
            used = time_errors(frame[frame["mode"] == mode])
            used = used.dropna(subset=list(TIERS))
            for tier in TIERS:
                errors = np.sort(100 * (used[tier] / used["published"] - 1).abs())
                share = 100 * np.arange(1, len(errors) + 1) / max(1, len(errors))
                look = SERIES[tier] | {"marker": ""}
                axis.step(errors, share, where="post", label=tier, **look)
            axis.axvline(HIT_PERCENT, color=OKABE_ITO["green"], linewidth=0.9)
            axis.axhline(50, color=OKABE_ITO["grey"], linewidth=0.7)
            axis.set_xscale("log")
            axis.set_xlim(0.5, 1000)
            axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.set_xlabel("absolute error, % (log scale)")
            axis.set_title(f"{mode}, {len(used)} rows")
        axes[0].set_ylabel("rows within that error, %")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


def intervals_of_rows(frame: pd.DataFrame) -> Figure:
    """Draw every interval around its published value, one column per kind of run.

    Parameters
    ----------
    frame : pandas.DataFrame
        From `ipusim.study.verdicts.compare.verdicts`.

    Returns
    -------
    matplotlib.figure.Figure
        Rows sorted by error; an interval that misses the published value is drawn in another
        colour and thicker.

    Raises
    ------
    StudyError
        If no row has an interval.
    """
    used = frame[frame["low80"].notna() & frame["published"].gt(0)]
    if used.empty:
        raise StudyError("No row has an interval: run 'ipusim calibrate'.")
    kinds = list(dict.fromkeys(used["kind"]))
    with figure_style():
        figure = Figure(figsize=(4.0 * len(kinds) + 1.2, 5.2))
        axes = figure.subplots(1, len(kinds), squeeze=False)[0]
        for axis, kind in zip(axes, kinds, strict=True):
            own = used[used["kind"] == kind]
            scaled = own[["low80", "calibrated", "high80"]].div(own["published"], axis=0)
            scaled = scaled.sort_values("calibrated", kind="stable")
            places = np.arange(len(scaled))
            inside = (scaled["low80"] <= 1) & (scaled["high80"] >= 1)
            for chosen, colour, width, label in (
                (inside, OKABE_ITO["sky"], 1.2, "holds the published value"),
                (~inside, OKABE_ITO["vermilion"], 2.2, "does not"),
            ):
                axis.hlines(
                    places[chosen],
                    scaled["low80"][chosen],
                    scaled["high80"][chosen],
                    color=colour,
                    linewidth=width,
                    label=label,
                )
            axis.plot(scaled["calibrated"], places, ".", color=OKABE_ITO["black"], markersize=3)
            axis.axvline(1.0, color=OKABE_ITO["black"], linewidth=0.9)
            axis.set_xscale("log")
            axis.set_xlim(0.2, 5)
            axis.set_xticks([0.25, 0.5, 1, 2, 4], ["0.25", "0.5", "1", "2", "4"])
            axis.xaxis.set_minor_formatter(NullFormatter())
            axis.set_yticks([])
            axis.set_xlabel("predicted / published")
            axis.set_title(f"{kind}: {inside.sum()} of {len(own)}", fontsize=10)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2)
    return figure


def ablation_bars(summary: pd.DataFrame) -> Figure:
    """Draw the mean error with every mechanism and without each.

    Parameters
    ----------
    summary : pandas.DataFrame
        From `ipusim.study.fidelity.ablation.ablation_summary`.

    Returns
    -------
    matplotlib.figure.Figure
        One panel for inference, one for training.
    """
    modes = list(dict.fromkeys(summary["mode"]))
    with figure_style():
        figure = Figure(figsize=(9.2, 3.9))
        axes = figure.subplots(1, len(modes), squeeze=False)[0]
        for axis, mode in zip(axes, modes, strict=True):
            own = summary[summary["mode"] == mode]
            places = np.arange(len(own))[::-1]
            axis.barh(
                places,
                own["without_mean_abs_percent"],
                color=OKABE_ITO["orange"],
                height=0.62,
                label="switched off",
            )
            axis.plot(
                own["with_mean_abs_percent"],
                places,
                marker="D",
                linestyle="none",
                color=OKABE_ITO["blue"],
                label="as modelled, on the same rows",
            )
            names = [
                f"{line['mechanism']} ({line['rows']} rows)" for line in own.to_dict("records")
            ]
            axis.set_yticks(places, names)
            axis.grid(axis="y", visible=False)
            axis.set_xlabel("mean absolute error of time, %")
            axis.set_title(mode)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2)
    return figure


def pairs_scatter(pairs: pd.DataFrame) -> Figure:
    """Draw published against predicted ratios of Bow over Classic.

    Parameters
    ----------
    pairs : pandas.DataFrame
        From `ipusim.study.fidelity.ledger.bow_pairs`.

    Returns
    -------
    matplotlib.figure.Figure
        One mark per pair, with the band of 10 % and the ratio of the clocks.

    Raises
    ------
    StudyError
        If there is no pair.
    """
    if pairs.empty:
        raise StudyError("No run was published on both chips: there is nothing to compare.")
    both = pairs[["published_ratio", "predicted_ratio"]]
    ends = np.array([0.9 * float(both.min().min()), 1.1 * float(both.max().max())])
    with figure_style():
        figure = Figure(figsize=(5.6, 5.0))
        axis = figure.subplots()
        part = PAIR_PERCENT / 100
        axis.fill_between(
            ends, ends * (1 - part), ends * (1 + part), color=OKABE_ITO["green"], alpha=0.14,
            linewidth=0, label=f"within {PAIR_PERCENT:g} %",
        )  # fmt: skip
        axis.plot(ends, ends, color=OKABE_ITO["black"], linewidth=0.9)
        for mode, (mark, colour) in _MODE_MARKS.items():
            own = pairs[pairs["mode"] == mode]
            axis.plot(
                own["published_ratio"],
                own["predicted_ratio"],
                linestyle="none",
                marker=mark,
                fillstyle="none",
                color=colour,
                label=mode,
            )
        clock = float(pairs["clock_ratio"].median())
        axis.axhline(
            clock, color=OKABE_ITO["grey"], linestyle=":", linewidth=1.2, label="ratio of clocks"
        )
        axis.set_xlim(*ends)
        axis.set_ylim(*ends)
        axis.set_xlabel("published, Bow / Classic")
        axis.set_ylabel("predicted, Bow / Classic")
        axis.set_title(f"{len(pairs)} runs on both chips")
        axis.legend(loc="upper left")
    return figure


def slowdowns(scaling: pd.DataFrame) -> Figure:
    """Draw published against predicted slowdowns, one mark per series.

    Parameters
    ----------
    scaling : pandas.DataFrame
        From `ipusim.study.fit.scale_out.scaling_table`.

    Returns
    -------
    matplotlib.figure.Figure
        Error of the slowdown, series left out, over the number of IPUs.

    Raises
    ------
    StudyError
        If there is no series.
    """
    if scaling.empty:
        raise StudyError("No series of runs is predicted: there is no scaling to draw.")
    marks = "osD^vP*Xh<>pd8"
    colours = [colour for name, colour in OKABE_ITO.items() if name not in ("black", "yellow")]
    with figure_style():
        figure = Figure(figsize=(9.2, 4.4))
        axis = figure.subplots()
        for index, (series, group) in enumerate(scaling.groupby("series", sort=True)):
            axis.plot(
                group["ipus"],
                group["left_out_error_percent"],
                marker=marks[index % len(marks)],
                linestyle="-",
                linewidth=0.8,
                fillstyle="none",
                color=colours[index % len(colours)],
                label=series,
            )
        axis.axhline(0, color=OKABE_ITO["black"], linewidth=0.9)
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter(ScalarFormatter())
        axis.set_xlabel("IPUs")
        axis.set_ylabel("error of the slowdown, %")
        axis.set_title("Scaling apart from level, each series left out of the fit")
        figure.legend(loc="outside right upper", fontsize=8)
    return figure
