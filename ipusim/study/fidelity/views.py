"""Tables of the ledger."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from ipusim.study.evidence import (
    memory as evidence_memory,
    operations as evidence,
    pooling as evidence_pooling,
    recurrent as evidence_recurrent,
)
from ipusim.study.table import Table
from ipusim.study.verdicts.errors import error_figures

_TIER_COLUMNS = {
    "tier": "tier",
    "rows": "rows",
    "median_abs_error_percent": "median",
    "mean_abs_error_percent": "mean",
    "p90_abs_error_percent": "90th percentile",
    "max_abs_error_percent": "largest",
    "bias_percent": "bias",
    "hit": "hit",
    "near": "near",
    "miss": "miss",
}


def ledger_table(ledger: pd.DataFrame, caption: str, groups: Mapping[str, str]) -> Table:
    """Show a summary of `ipusim.study.fidelity.ledger.ledger`.

    Parameters
    ----------
    ledger : pandas.DataFrame
    caption : str
    groups : mapping of str to str
        Columns that name the groups, and their headings.
    """
    return Table(
        ledger[ledger["rows"] > 0], caption=caption, columns={**groups, **_TIER_COLUMNS}, digits=3
    )


def worst_table(worst: pd.DataFrame) -> Table:
    """Show the rows of `ipusim.study.fidelity.ledger.worst_rows`."""
    return Table(
        worst,
        caption="The rows that are missed most",
        columns={
            "row_id": "row",
            "label": "as printed",
            "published": "published",
            "specification": "specification",
            "calibrated": "calibrated",
            "unit": "unit",
            "calibrated_error_percent": "error %",
            "recipe": "recipe",
            "assumed": "assumed",
            "note": "note",
        },
    )


def layers_table() -> Table:
    """Show the layers of evidence below whole runs: vertices, operations, layers measured on Mk1.

    Returns
    -------
    Table
        Per kind of operation: rows, median or mean and largest absolute error in percent.
    """
    lines = []
    for layer, table in (
        ("vertices on silicon", evidence.vertices_table()),
        ("operations in IPUModel", evidence.operations_table()),
        ("operations in IPUModel", evidence_pooling.pooling_table()),
        ("operations in IPUModel", evidence_recurrent.recurrent_table()),
        ("layers on silicon, Mk1", evidence.mk1_layers_table()),
        ("memory of compiled networks", evidence_memory.network_memory_table()),
    ):
        frame = getattr(table, "frame", table)
        for row in frame.to_dict("records"):
            names = ("vertex", "operation", "chip", "snapshot", "stage", "category", "use")
            lines.append(
                {
                    "layer": layer,
                    "what": ", ".join(str(row[name]) for name in names if name in row),
                    "rows": row["rows"],
                    **{
                        f"{part}_percent": row.get(f"{part}_abs_error_percent", float("nan"))
                        for part in ("median", "mean", "p90", "max")
                    },
                }
            )
    return Table(pd.DataFrame(lines), caption="Below whole runs: errors in %", digits=3)


def pairs_table(pairs: pd.DataFrame) -> Table:
    """Show the pairs of `ipusim.study.fidelity.ledger.bow_pairs`."""
    return Table(
        pairs,
        caption="The same run on Bow and Classic: how much faster",
        columns={
            "bow_row": "Bow",
            "classic_row": "Classic",
            "label": "as printed (Bow)",
            "published_ratio": "published",
            "predicted_ratio": "predicted",
            "error_percent": "error %",
            "within": "within 10 %",
        },
        digits=3,
    )


def scaling_summary(scaling: pd.DataFrame) -> Table:
    """Summarise slowdowns by series.

    Parameters
    ----------
    scaling : pandas.DataFrame
        From `ipusim.study.fit.scale_out.scaling_table`.
    """
    lines = []
    groups = [*scaling.groupby("series", sort=True), ("all", scaling)]
    for series, group in groups:
        lines.append(
            {
                "series": series,
                "rows": len(group),
                "most_ipus": int(group["ipus"].max()),
                **error_figures(group["left_out_error_percent"], "median", "max", "bias"),
            }
        )
    return Table(
        pd.DataFrame(lines),
        caption="Slowdown against the smallest system of the series, series left out of the fit",
        columns={
            "series": "series",
            "rows": "rows",
            "most_ipus": "most IPUs",
            "median_abs_error_percent": "median error %",
            "max_abs_error_percent": "largest error %",
            "bias_percent": "bias %",
        },
        digits=3,
    )
