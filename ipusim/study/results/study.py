"""The results page of Graphcore: its tables beside their predictions, by family."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from ipusim.errors import ConfigError, unknown_name
from ipusim.study.audit_results import batch_labels
from ipusim.study.book.parameters import check_count
from ipusim.study.data.published import PublishedRow, load_rows
from ipusim.study.predict import TIERS
from ipusim.study.verdicts.compare import error_percent

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


def families() -> tuple[str, ...]:
    """Return the model families of the page, as they come."""
    return tuple(dict.fromkeys(row.family for row in load_rows(study=STUDY)))


def check_parameters(*, chosen: object, jobs: object) -> None:
    """Refuse parameters of the notebook that the study cannot use, before anything is simulated.

    Parameters
    ----------
    chosen : list of str
        Model families; empty for all.
    jobs : int
        Worker processes, at least 1.

    Raises
    ------
    ConfigError, UnknownNameError
        Naming the first parameter that is wrong.
    """
    if not isinstance(chosen, list):
        raise ConfigError(f"families is {chosen!r}: give a list of names, empty for all.")
    for name in chosen:
        if name not in families():
            raise unknown_name("family", name, families())
    check_count("jobs", jobs)


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
    """Select one table of the page from the verdicts.

    Parameters
    ----------
    frame : pandas.DataFrame
        From `ipusim.study.verdicts.compare.verdicts` on `study_rows`.
    table : str
        One of `TABLES`.

    Returns
    -------
    pandas.DataFrame
        Per row, family by family: row_id, family, label as printed, batch as run where it differs
        from the printed one (NA elsewhere), metric, unit, published, the three tiers, the interval,
        error of the calibrated tier, verdict, and why nothing is predicted or what must be known.

    Raises
    ------
    UnknownNameError
        If there is no such table.
    """
    if table not in TABLES:
        raise unknown_name("table", table, TABLES)
    labels = {row.row_id: row.label for row in load_rows(study=STUDY)}
    wrong = batch_labels().set_index("row_id")["run_batch"].to_dict()
    own = frame[frame["table"] == table]
    own = own.assign(
        label=own["row_id"].map(labels),
        batch_as_run=own["row_id"].map(wrong).astype("Int64"),
        error_percent=[
            error_percent(predicted, published)
            for predicted, published in zip(own["calibrated"], own["published"], strict=True)
        ],
    )
    order = {family: place for place, family in enumerate(families())}
    shown = ("row_id", "family", "label", "batch_as_run", "metric", "unit", "published", *TIERS)
    ends = ("low80", "high80", "error_percent", "verdict", "note")
    sorted_rows = own.sort_values("family", key=lambda name: name.map(order), kind="stable")
    return sorted_rows[[*shown, *ends]].reset_index(drop=True)
