"""Figures of the ledger: errors by family, by tier and by mechanism; intervals; pairs of chips."""

import itertools

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ipusim.errors import StudyError
from ipusim.study.book.charts import (
    OKABE_ITO,
    SERIES,
    agreement,
    log_axis,
    name_places,
    ratio_axis,
    sheet,
)
from ipusim.study.data.published import rows_by_id
from ipusim.study.fidelity.ledger import PAIR_PERCENT, time_errors
from ipusim.study.predict import TIERS
from ipusim.study.verdicts.errors import HIT_PERCENT

NAMED_PERCENT = 12.0
"""Series whose slowdown is missed by more are named in `slowdowns`."""
_MODE_MARKS = {
    mode: {"marker": mark, "color": OKABE_ITO[colour], "fillstyle": "none", "linestyle": "none"}
    for mode, mark, colour in (("inference", "o", "blue"), ("training", "s", "vermilion"))
}


def errors_by_family(frame: pd.DataFrame) -> Figure:
    """Draw the error of every row of a rate or a time in `verdicts`, one line per family.

    Predicted over published time on a logarithmic axis: slower than the machine on the right. A bar
    marks the median of a family; a triangle that of the specification tier. A StudyError without
    rows.
    """
    used = time_errors(frame)
    if used.empty:
        raise StudyError("No row is predicted: there is no error to draw.")
    free = time_errors(frame, "specification")
    families = sorted(used["family"].unique())
    with sheet(9.2, 1.5 + 0.34 * len(families)) as (figure, (axis,)):
        for place, family in enumerate(families):
            own = used[used["family"] == family]
            for mode, mark in _MODE_MARKS.items():
                ratios = own.loc[own["mode"] == mode, "ratio"]
                # Rows of one line are spread a little, in a fixed order, so that none hides others.
                spread = 0.22 * np.sin(2.4 * np.arange(len(ratios)))
                axis.plot(ratios, place + spread, markersize=4.5, label=mode, **mark)
            middle = [own["ratio"].median()] * 2
            ends = [place - 0.36, place + 0.36]
            axis.plot(middle, ends, color=OKABE_ITO["black"], linewidth=2.2, label="median")
            bare = free.loc[free["family"] == family, "ratio"].median()
            look = {"linestyle": "none", "color": OKABE_ITO["orange"], "markersize": 7}
            axis.plot(bare, place, marker="^", label="median, specification", **look)
        low, high = float(used["ratio"].min()), float(used["ratio"].max())
        ratio_axis(axis, 0.93 * min(0.75, low), 1.07 * max(1.35, high))
        name_places(axis, families, vertical=True)
        axis.set(
            xlabel="predicted / published time (log scale); bands: within 10 and 25 %",
            title=f"Error of {len(used)} rows by family, each fitted without its own",
        )
    return figure


def errors_by_tier(frame: pd.DataFrame) -> Figure:
    """Draw the share of rows of `verdicts` within an error, for each tier, by mode.

    These are cumulative distributions on the rows that all tiers predict.
    """
    with sheet(9.2, 3.8, across=2, sharey=True) as (figure, axes):
        for axis, mode in zip(axes, _MODE_MARKS, strict=True):
            used = time_errors(frame[frame["mode"] == mode])
            used = used.dropna(subset=list(TIERS))
            for tier in TIERS:
                errors = np.sort(100 * (used[tier] / used["published"] - 1).abs())
                share = 100 * np.arange(1, len(errors) + 1) / max(1, len(errors))
                axis.step(errors, share, where="post", label=tier, **SERIES[tier] | {"marker": ""})
            axis.axvline(HIT_PERCENT, color=OKABE_ITO["green"], linewidth=0.9)
            axis.axhline(50, color=OKABE_ITO["grey"], linewidth=0.7)
            log_axis(axis, "x")
            title = f"{mode}, {len(used)} rows"
            axis.set(xlim=(0.5, 1000), xlabel="absolute error, % (log scale)", title=title)
        axes[0].set_ylabel("rows within that error, %")
    return figure


def intervals_of_rows(frame: pd.DataFrame) -> Figure:
    """Draw every interval of `verdicts` around its published value, one column per kind of run.

    Rows are sorted by error; an interval that misses the published value is drawn in another colour
    and thicker. A StudyError without intervals.
    """
    used = frame[frame["low80"].notna() & frame["published"].gt(0)]
    if used.empty:
        raise StudyError("No row has an interval: run 'ipusim calibrate'.")
    kinds = list(dict.fromkeys(used["kind"]))
    with sheet(4.0 * len(kinds) + 1.2, 5.2, across=len(kinds)) as (figure, axes):
        for axis, kind in zip(axes, kinds, strict=True):
            own = used[used["kind"] == kind]
            scaled = own[["low80", "calibrated", "high80"]].div(own["published"], axis=0)
            scaled = scaled.sort_values("calibrated", kind="stable").reset_index(drop=True)
            inside = (scaled["low80"] <= 1) & (scaled["high80"] >= 1)
            for chosen, colour, width, label in (
                (inside, "sky", 1.2, "holds the published value"),
                (~inside, "vermilion", 2.2, "does not"),
            ):
                part = scaled[chosen]
                look = {"color": OKABE_ITO[colour], "linewidth": width, "label": label}
                axis.hlines(part.index, part["low80"], part["high80"], **look)
            black = OKABE_ITO["black"]
            axis.plot(scaled["calibrated"], scaled.index, ".", color=black, markersize=3)
            axis.axvline(1.0, color=black, linewidth=0.9)
            log_axis(axis, "x", (0.25, 0.5, 1, 2, 4))
            axis.set(xlim=(0.2, 5), yticks=[], xlabel="predicted / published")
            axis.set_title(f"{kind}: {inside.sum()} of {len(own)}", fontsize=10)
    return figure


def ablation_bars(summary: pd.DataFrame) -> Figure:
    """Draw the mean error with every mechanism and without each (`ablation_summary`), by mode."""
    modes = list(dict.fromkeys(summary["mode"]))
    with sheet(9.2, 3.9, across=len(modes)) as (figure, axes):
        for axis, mode in zip(axes, modes, strict=True):
            own = summary[summary["mode"] == mode]
            places, without = np.arange(len(own)), own["without_mean_abs_percent"]
            orange = {"color": OKABE_ITO["orange"], "height": 0.62}
            axis.barh(places, without, label="switched off", **orange)
            blue = {"marker": "D", "linestyle": "none", "color": OKABE_ITO["blue"]}
            label = "as modelled, on the same rows"
            axis.plot(own["with_mean_abs_percent"], places, label=label, **blue)
            lines = zip(own["mechanism"], own["rows"], strict=True)
            name_places(axis, [f"{name} ({rows} rows)" for name, rows in lines], vertical=True)
            axis.set(xlabel="mean absolute error of time, %", title=mode)
    return figure


def pairs_scatter(pairs: pd.DataFrame) -> Figure:
    """Draw published against predicted ratios of Bow over Classic (`bow_pairs`).

    There is one mark per pair, with the band of 10 % and the ratio of the clocks. A StudyError
    without pairs.
    """
    if pairs.empty:
        raise StudyError("No run was published on both chips: there is nothing to compare.")
    both = pairs[["published_ratio", "predicted_ratio"]]
    ends = (0.9 * float(both.min().min()), 1.1 * float(both.max().max()))
    with sheet(5.6, 5.0, legend=0) as (figure, (axis,)):
        agreement(axis, ends, (PAIR_PERCENT,))
        for mode, mark in _MODE_MARKS.items():
            own = pairs[pairs["mode"] == mode]
            axis.plot(own["published_ratio"], own["predicted_ratio"], label=mode, **mark)
        clock = float(pairs["clock_ratio"].median())
        dotted = {"color": OKABE_ITO["grey"], "linestyle": ":", "linewidth": 1.2}
        axis.axhline(clock, label="ratio of clocks", **dotted)
        words = {"xlabel": "published, Bow / Classic", "ylabel": "predicted, Bow / Classic"}
        axis.set(title=f"{len(pairs)} runs on both chips", **words)
        axis.legend(loc="upper left")
    return figure


def slowdowns(scaling: pd.DataFrame) -> Figure:
    """Draw the error of the slowdown over the number of IPUs, a line per series (`scaling_table`).

    Each series was left out of the fit. Colours tell networks apart; series that are missed by more
    than `NAMED_PERCENT` are named where they are missed most. A StudyError without series.
    """
    if scaling.empty:
        raise StudyError("No series of runs is predicted: there is no scaling to draw.")
    rows, error = rows_by_id(), "left_out_error_percent"
    networks = scaling["row_id"].map(lambda row_id: rows[row_id].family)
    names = sorted(set(networks))
    colours = [colour for name, colour in OKABE_ITO.items() if name not in ("black", "yellow")]
    looks_of = zip(itertools.cycle("osD^vPX"), itertools.cycle(colours), strict=False)
    looks = dict(zip(names, looks_of, strict=False))
    with sheet(9.2, 4.8, legend=5) as (figure, (axis,)):
        for (network, series), group in scaling.groupby([networks, "series"], sort=True):
            mark, colour = looks[network]
            look = {"marker": mark, "color": colour, "linewidth": 0.9, "fillstyle": "none"}
            axis.plot(group["ipus"], group[error], label=network, **look)
            worst = group.loc[group[error].abs().idxmax()]
            if abs(worst[error]) > NAMED_PERCENT:
                side = 1 if worst["ipus"] == scaling["ipus"].max() else -1
                beside = {"xytext": (8 * side, 0), "ha": "left" if side == 1 else "right"}
                beside |= {"textcoords": "offset points", "va": "center", "fontsize": 8}
                axis.annotate(series, (worst["ipus"], worst[error]), color=colour, **beside)
        axis.axhline(0, color=OKABE_ITO["black"], linewidth=0.9)
        log_axis(axis, "x", sorted(set(scaling["ipus"])))
        title = "Scaling apart from level, each series left out of the fit"
        axis.set(xlabel="IPUs", ylabel="error of the slowdown, %", title=title)
    return figure
