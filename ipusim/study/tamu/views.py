"""Tables of the TAMU notebook: Tables 1 to 4 beside their predictions, runs, verdicts."""

from __future__ import annotations

from typing import Any

import pandas as pd

from ipusim.errors import unknown_name
from ipusim.study.data.runs import load_run
from ipusim.study.table import Table
from ipusim.study.tamu.study import STUDY, table_frame
from ipusim.study.verdicts.compare import tier_summary
from ipusim.study.verdicts.summary import errors_table

RUNS = {
    "Table 1": "tamu.table1.05",
    "Table 3": "tamu.table3.11",
    "Table 4": "tamu.table4.10",
}
"""Runs on 16 IPUs whose options `run_profile` shows."""

_TITLES = {
    "Table 1": "Table 1: ResNet-50, PyTorch, second epoch, images/s",
    "Table 2": "Table 2: other networks, PyTorch, images/s or items/s",
    "Table 3": "Table 3: ResNet-50, TensorFlow 1.15, images/s",
    "Table 4": "Table 4: autoencoder, images/s (IPU and GPU rows on one assumed network)",
}
_OWN_COLUMNS = {
    "Table 1": {"ipus": "IPUs", "instances": "instances"},
    "Table 2": {"network": "network", "ipus": "IPUs", "micro_batch": "micro-batch"},
    "Table 3": {
        "ipus": "IPUs",
        "micro_batch": "micro-batch",
        "span": "span",
        "accumulation": "accumulated",
        "instances": "instances",
    },
    "Table 4": {"label": "as printed", "accumulation": "accumulated"},
}


def study_table(frame: pd.DataFrame, table: str) -> Table:
    """Show one of Tables 1 to 4 beside its predictions.

    Parameters
    ----------
    frame : pandas.DataFrame
        From `ipusim.study.verdicts.compare.verdicts` on `ipusim.study.tamu.study.study_rows`.
    table : str
        ``"Table 1"`` to ``"Table 4"``.

    Returns
    -------
    Table
        What tells the rows apart, published, the tiers that count, the 80 % interval if there is
        one, error, verdict, and the notes if there are any.

    Raises
    ------
    UnknownNameError
        If there is no such table.
    """
    if table not in _TITLES:
        raise unknown_name("table", table, _TITLES)
    data = table_frame(frame, table)
    columns = dict(_OWN_COLUMNS[table])
    columns |= {
        "published": "published",
        "specification": "specification",
        "calibrated": "calibrated",
    }
    if data["low80"].notna().any():
        columns |= {"low80": "low 80 %", "high80": "high 80 %"}
    columns |= {"error_percent": "error %", "verdict": "verdict"}
    if data["note"].str.len().any():
        columns["note"] = "note"
    return Table(data, caption=_TITLES[table], columns=columns)


def one_ipu_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of Table 3 on one IPU.

    Parameters
    ----------
    frame : pandas.DataFrame
        From `ipusim.study.verdicts.compare.verdicts` on `ipusim.study.tamu.study.study_rows`.

    Returns
    -------
    pandas.DataFrame
        Those of `ipusim.study.tamu.study.table_frame`.
    """
    data = table_frame(frame, "Table 3")
    return data[data["ipus"] == 1]


def first_epoch_table(frame: pd.DataFrame) -> Table:
    """Show the first-epoch column of Table 1.

    Parameters
    ----------
    frame : pandas.DataFrame
        From `ipusim.study.tamu.study.first_epoch_frame`.

    Returns
    -------
    Table
        Seconds of compilation and images per second, published and predicted.
    """
    return Table(
        frame,
        caption="Table 1: first epoch, which contains the compilation",
        columns={
            "ipus": "IPUs",
            "instances": "instances",
            "published_difference_s": "published, epoch 1 - epoch 2, s",
            "compile_s": "predicted compilation, s",
            "published": "published images/s",
            "predicted": "predicted images/s",
            "error_percent": "error %",
            "verdict": "verdict",
        },
    )


def run_profile() -> Table:
    """Show how the runs on 16 IPUs are configured, and what no source gives.

    Returns
    -------
    Table
        Option by option, one column per table; an assumed value says so.
    """
    runs = {table: load_run(run_id) for table, run_id in RUNS.items()}
    names = list(dict.fromkeys(name for run in runs.values() for name in run.options()))
    lines = []
    for name in ("model", *names):
        line = {"option": name.replace("_", " ")}
        for table, run in runs.items():
            value = getattr(run, name)
            line[table] = _plain(value) + (" (assumed)" if name in run.assumed else "")
        lines.append(line)
    return Table(
        pd.DataFrame(lines),
        caption="How the runs on 16 IPUs are simulated",
        columns={"option": "option", **{table: table for table in runs}},
    )


def _plain(value: Any) -> str:
    if value is None:
        return "default"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return f"{len(value) + 1} segments"
    return str(value)


def summary_table(frame: pd.DataFrame) -> Table:
    """Count the verdicts per table and tier, and show the size of the errors.

    Parameters
    ----------
    frame : pandas.DataFrame
        From `ipusim.study.verdicts.compare.verdicts`.

    Returns
    -------
    Table
        Per study, table, metric and tier: rows, median and largest absolute error, bias, counts.
        Tiers without a value are left out.
    """
    summary = tier_summary(frame, by=("study", "table", "metric"))
    names = {STUDY: "TAMU", "results": "results page"}
    source = [
        f"{names.get(study, study)} {table if study == STUDY else ''}".strip()
        for study, table in zip(summary["study"], summary["table"], strict=True)
    ]
    return errors_table(summary.assign(source=source), {"source": "table", "metric": "metric"})


def corrections_table(frame: pd.DataFrame) -> Table:
    """Show the rows whose throughput and time do not belong together, with what they should read.

    Parameters
    ----------
    frame : pandas.DataFrame
        From `ipusim.study.audit.tamu_corrections`.

    Returns
    -------
    Table
        Both ways of mending each row.
    """
    return Table(
        frame,
        caption="Rows whose throughput and time do not belong together",
        columns={
            "table": "table",
            "label": "row",
            "throughput_images_per_s": "printed images/s",
            "time_s": "printed s",
            "work_error_percent": "work off %",
            "time_should_be_s": "if images/s is right, s",
            "throughput_should_be_images_per_s": "if s is right, images/s",
        },
    )


def work_table(frame: pd.DataFrame, table: str) -> Table:
    """Show throughput x time of every row of a table.

    Parameters
    ----------
    frame : pandas.DataFrame
        From `ipusim.study.audit.tamu_work`.
    table : str
        Its name.

    Returns
    -------
    Table
        Images per row, with the range that rounding allows and the deviation from the usual.
    """
    return Table(
        frame,
        caption=f"{table}: throughput x time",
        columns={
            "label": "row",
            "throughput_images_per_s": "images/s",
            "time_s": "s",
            "images": "images",
            "low_images": "low",
            "high_images": "high",
            "work_error_percent": "off the median %",
            "within_rounding": "within rounding",
            "consistent": "within 5 %",
        },
        digits=5,
    )
