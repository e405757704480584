"""Figures of the ledger, and what those draw that data/studies describes."""

import itertools

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ipusim.errors import StudyError
from ipusim.study.book.charts import (
    OKABE_ITO,
    log_axis,
    name_places,
    ratio_axis,
    sheet,
)
from ipusim.study.data.published import rows_by_id
from ipusim.study.fidelity.ledger import time_errors
from ipusim.study.predict import TIERS

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


def errors_by_tier(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the share of rows of `verdicts` within each error, by mode and tier.

    These are cumulative distributions on the rows that all tiers predict.
    """
    shares = []
    for mode, used in time_errors(frame).dropna(subset=list(TIERS)).groupby("mode"):
        for tier in TIERS:
            errors = np.sort(100 * (used[tier] / used["published"] - 1).abs())
            share = 100 * np.arange(1, len(errors) + 1) / len(errors)
            table = {"error_percent": errors, "share_percent": share}
            shares.append(pd.DataFrame(table).assign(mode=mode, tier=tier, count=len(used)))
    return pd.concat(shares, ignore_index=True)


def intervals_of_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """Return every interval of `verdicts` over its published value, by kind of run and error."""
    used = frame[frame["low80"].notna() & frame["published"].gt(0)]
    ends = {name: used[name] / used["published"] for name in ("low80", "calibrated", "high80")}
    kinds = pd.Categorical(used["kind"], used["kind"].unique())
    shown = used.assign(**ends, kind=kinds).sort_values(["kind", "calibrated"], kind="stable")
    shown["inside"] = (shown["low80"] <= 1) & (shown["high80"] >= 1)
    held = shown.groupby("kind", observed=True)["inside"]
    return shown.assign(held=held.transform("sum"), count=held.transform("size"))


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
