"""What the figures of the results page draw."""

import numpy as np
import pandas as pd

from ipusim.study.audit_results import little_rows

_MACHINES = {"Classic": "Classic (GC200)", "Bow": "Bow"}


def published_and_predicted(frame: pd.DataFrame, mode: str) -> dict[str, pd.DataFrame]:
    """Return the predicted rates of `verdicts` as shares of the published ones, Classic and Bow.

    There is one line per throughput row of the mode ("inference" or "training"), in bands of
    families that both machines share: what is predicted, its 80 % interval and the specification
    tier, over what was published. Beside them the machines, and the families with the end and the
    middle of their band.
    """
    titles = {f"{machine} {mode}": title for machine, title in _MACHINES.items()}
    used = frame[frame["table"].isin(titles) & (frame["metric"] == "throughput")]
    used = used[used["calibrated"].notna()]
    rows = used.assign(machine=used["table"].map(titles))
    places = rows.groupby(["family", "machine"], sort=False)
    widths = places.size().unstack(fill_value=0).max(axis=1)
    ends = (widths + 1).cumsum()
    shares = ["low80", "calibrated", "high80", "specification"]
    rows[shares] = rows[shares].div(rows["published"], axis=0)
    tiers = rows[["calibrated", "specification"]]
    rows["low"], rows["high"] = tiers.min(axis=1).clip(upper=0.6), tiers.max(axis=1).clip(lower=1.7)
    # the rows of a family lie in the middle of its band
    middles = rows["family"].map(ends - widths / 2).astype(float)
    first = middles - places["row_id"].transform("size") / 2
    counts = [(rows["machine"] == title).sum() for title in titles.values()]
    machines = pd.DataFrame({"machine": titles.values(), "count": counts})
    bands = {"family": ends.index, "end": ends, "middle": ends - (widths + 2) / 2}
    return {
        "machines": machines.assign(slots=ends.max() if len(ends) else 0),
        "families": pd.DataFrame(bands).reset_index(drop=True),
        "rows": rows.assign(at=first + places.cumcount()),
    }


def little_tables() -> dict[str, pd.DataFrame]:
    """Return the frameworks, and every row with a latency (`little_rows`) with its place."""
    rows = little_rows()
    names = sorted(set(rows["framework"]))
    # rows of one framework are spread a little, in a fixed order, so that none hides others
    spread = 0.25 * np.sin(2.4 * rows.groupby("framework").cumcount())
    at = rows["framework"].map(names.index) - spread
    return {"frameworks": pd.DataFrame({"framework": names}), "rows": rows.assign(at=at)}
