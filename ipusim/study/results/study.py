"""The results page of Graphcore: its tables beside their predictions, by family."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from ipusim.errors import unknown_name
from ipusim.study.audit_results import batch_labels
from ipusim.study.data.published import PublishedRow, load_rows
from ipusim.study.verdicts.summary import with_error

STUDY = "results"
TABLES = (
    "Bow training",
    "Classic training",
    "Bow inference",
    "Classic inference",
    "MLPerf v2.0",
    "OGB-LSC",
    "time to result",
)
"""The tables of the page, in the order of the notebook."""


def study_rows(chosen: Sequence[str] = ()) -> tuple[PublishedRow, ...]:
    """Return the rows of the page.

    Parameters
    ----------
    chosen : sequence of str
        Model families; empty for all.
    """
    rows = load_rows(study=STUDY)
    return tuple(row for row in rows if not chosen or row.family in chosen)


def table_frame(frame: pd.DataFrame, table: str) -> pd.DataFrame:
    """Select one table of the page from the verdicts, family by family as the page has them.

    Returns
    -------
    pandas.DataFrame
        With batch_as_run, the batch that was run where the printed one is another (NA elsewhere),
        and the error of the calibrated tier.

    Raises
    ------
    UnknownNameError
        If there is no such table.
    """
    if table not in TABLES:
        raise unknown_name("table", table, TABLES)
    wrong = batch_labels().set_index("row_id")["run_batch"].to_dict()
    own = frame[frame["table"] == table]
    own = with_error(own.assign(batch_as_run=own["row_id"].map(wrong).astype("Int64")))
    families = dict.fromkeys(row.family for row in load_rows(study=STUDY))
    order = {family: place for place, family in enumerate(families)}
    placed = own.sort_values("family", key=lambda name: name.map(order), kind="stable")
    return placed.reset_index(drop=True)
