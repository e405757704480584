"""The tables that every study ends with: verdicts, and errors by tier."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from ipusim.study.table import Table
from ipusim.study.verdicts.compare import with_errors


def verdict_table(frame: pd.DataFrame) -> Table:
    """Show every row with its prediction and the verdict of the one global rule.

    Parameters
    ----------
    frame : pandas.DataFrame
        From `ipusim.study.verdicts.compare.verdicts`.

    Returns
    -------
    Table
        Row, unit, published, the three tiers, error of the calibrated one, verdict, note; with the
        80 % interval where there is one.
    """
    columns = {
        "row_id": "row",
        "unit": "unit",
        "published": "published",
        "roofline": "roofline",
        "specification": "specification",
        "calibrated": "calibrated",
    }
    if frame["low80"].notna().any():
        columns |= {"low80": "low 80 %", "high80": "high 80 %"}
    columns |= {"calibrated_error_percent": "error %", "verdict": "verdict", "note": "note"}
    return Table(with_errors(frame), caption="Verdicts", columns=columns)


def errors_table(summary: pd.DataFrame, groups: Mapping[str, str]) -> Table:
    """Show the size of the errors and count the verdicts, by tier.

    Parameters
    ----------
    summary : pandas.DataFrame
        From `ipusim.study.verdicts.compare.tier_summary`.
    groups : mapping of str to str
        Columns that name the groups, and their headings.

    Returns
    -------
    Table
        Per group and tier: rows, median and largest absolute error, bias, counts. Tiers without a
        value are left out.
    """
    return Table(
        summary[summary["rows"] > 0],
        caption="Errors by tier, in % of the published value",
        columns={
            **groups,
            "tier": "tier",
            "rows": "rows",
            "median_abs_error_percent": "median",
            "max_abs_error_percent": "largest",
            "bias_percent": "bias",
            "hit": "hit",
            "near": "near",
            "miss": "miss",
        },
    )
