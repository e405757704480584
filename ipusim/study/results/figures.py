"""The figure of the results page, and what its other figure draws."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ipusim.study.audit_results import little_rows
from ipusim.study.book.charts import INTERVAL, OKABE_ITO, SERIES, log_axis, sheet

_MACHINES = {"Classic": "Classic (GC200)", "Bow": "Bow"}


def published_and_predicted(frame: pd.DataFrame, mode: str) -> Figure:
    """Draw the predicted rates of `verdicts` as shares of the published ones, Classic beside Bow.

    There is one line per throughput row of the mode ("inference" or "training"), in bands of
    families that both panels share: what is predicted, its 80 % interval and the specification
    tier, over what was published.
    """
    names = {f"{machine} {mode}": title for machine, title in _MACHINES.items()}
    used = frame[frame["table"].isin(names) & (frame["metric"] == "throughput")]
    used = used[used["calibrated"].notna()]
    counts = used.groupby(["family", "table"], sort=False).size().unstack(fill_value=0)
    bands = (counts.max(axis=1) + 1).cumsum() if len(used) else pd.Series(dtype=int)
    ends = bands.to_dict()
    height = 1.6 + 0.105 * max(ends.values(), default=0)
    with sheet(9.4, height, across=2, legend=4, sharey=True) as (figure, axes):
        for axis, (table, title) in zip(axes, names.items(), strict=True):
            own = used[used["table"] == table]
            axis.set_title(f"{title}: {len(own)} rows")
            axis.set_xlabel("predicted / published throughput (log)")
            for end in ends.values():
                axis.axhline(end - 0.5, color="#C9CED4", linewidth=0.6)
            if own.empty:
                continue
            # the rows of a family lie in the middle of its band
            sizes = own["family"].map(own["family"].value_counts())
            widths = own["family"].map(counts.max(axis=1))
            first = own["family"].map(ends) - (widths + sizes) / 2
            _draw_shares(axis, own, first + own.groupby("family").cumcount())
        starts = [0, *ends.values()][: len(ends)]
        middles = [(a + b) / 2 - 0.5 for a, b in zip(starts, ends.values(), strict=True)]
        axes[0].set_yticks(middles, list(ends))
        axes[0].set_ylim(max(ends.values(), default=1), -1)
    return figure


def _draw_shares(axis: Axes, own: pd.DataFrame, places: pd.Series) -> None:
    """Draw rows as shares of what was published, each at its place."""
    columns = ["low80", "calibrated", "high80", "specification"]
    scaled = own[columns].div(own["published"], axis=0)
    look = {"color": OKABE_ITO["vermilion"], "alpha": 0.35, "linewidth": 2.4, "label": INTERVAL}
    axis.hlines(places, scaled["low80"], scaled["high80"], **look)
    for tier in ("specification", "calibrated"):
        look = SERIES[tier] | {"linestyle": "none", "markersize": 3.5, "markeredgewidth": 0.8}
        axis.plot(scaled[tier], places, label=tier, **look)
    axis.axvline(1.0, color=OKABE_ITO["black"], linewidth=1.0, label="published")
    log_axis(axis, "x", (0.25, 0.5, 0.67, 0.8, 1, 1.25, 1.5, 2, 3, 4))
    shown = scaled[["calibrated", "specification"]].stack()
    axis.set_xlim(0.9 * min(0.6, shown.min()), 1.1 * max(1.7, shown.max()))
    axis.tick_params(axis="y", length=0)
    axis.tick_params(axis="x", labelsize=8)
    axis.grid(axis="y", visible=False)


def little_tables() -> dict[str, pd.DataFrame]:
    """Return the frameworks, and every row with a latency (`little_rows`) with its place."""
    rows = little_rows()
    names = sorted(set(rows["framework"]))
    # rows of one framework are spread a little, in a fixed order, so that none hides others
    spread = 0.25 * np.sin(2.4 * rows.groupby("framework").cumcount())
    at = rows["framework"].map(names.index) - spread
    return {"frameworks": pd.DataFrame({"framework": names}), "rows": rows.assign(at=at)}
