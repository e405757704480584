"""What the figures of the ledger draw."""

import numpy as np
import pandas as pd

from ipusim.study.data.published import rows_by_id
from ipusim.study.fidelity.ledger import time_errors
from ipusim.study.predict import TIERS

NAMED_PERCENT = 12.0
"""Series whose slowdown is missed by more are named in their figure."""


def errors_by_family(frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the families of `verdicts` with their medians of `time_errors`, and every row."""
    rows = time_errors(frame)
    families = sorted(rows["family"].unique())
    # rows of one line are spread a little, in a fixed order, so that none hides others
    spread = 0.22 * np.sin(2.4 * rows.groupby(["family", "mode"]).cumcount())
    rows = rows.assign(at=rows.groupby("family").ngroup() + spread)
    free = time_errors(frame, "specification")
    medians = {
        tier: own.groupby("family")["ratio"].median().reindex(families)
        for tier, own in (("calibrated", rows), ("specification", free))
    }
    shown = pd.DataFrame(medians).rename_axis("family").reset_index()
    low, high = 0.93 * min(0.75, rows["ratio"].min()), 1.07 * max(1.35, rows["ratio"].max())
    return {"families": shown.assign(count=len(rows), low=low, high=high), "rows": rows}


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


def slowdowns(scaling: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the `scaling_table` with its networks, and the row where each series is missed most.

    Of series that are missed by more than `NAMED_PERCENT` alone.
    """
    if scaling.empty:
        return {"series": scaling}
    rows, error = rows_by_id(), "left_out_error_percent"
    networks = [rows[row_id].family for row_id in scaling["row_id"]]
    lines = scaling.assign(network=networks, most=scaling["ipus"].max())
    lines = lines.sort_values(["network", "series"], kind="stable", ignore_index=True)
    worst = lines.loc[lines[error].abs().groupby(lines["series"], sort=False).idxmax()]
    return {"series": lines, "worst": worst[worst[error].abs() > NAMED_PERCENT]}
