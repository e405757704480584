"""The Qwant network beside what was published for later machines, and the study's verdicts."""

from __future__ import annotations

import math

import pandas as pd

from ipusim.errors import ConfigError
from ipusim.machine.system import load_system
from ipusim.study.audit import qwant_power
from ipusim.study.book.parameters import check_counts
from ipusim.study.data.published import load_rows
from ipusim.study.qwant.study import (
    MODEL,
    PUBLISHED_SYSTEM,
    check_parameters,
    machine_rows,
    power_frame,
)
from ipusim.study.table import Table
from ipusim.study.verdicts.compare import tier_summary, with_errors
from ipusim.study.verdicts.summary import errors_table

_MOST_MICRO_BATCH = 64


def check_views(
    *,
    breakdown_micro_batches: object,
    what_if_systems: object,
    what_if_micro_batches: object,
    **parameters: object,
) -> None:
    """Refuse parameters of the notebook that it cannot use, before anything is simulated.

    Parameters
    ----------
    breakdown_micro_batches, what_if_micro_batches : list of int
        Items per IPU: whole numbers from 1 to 64, none twice.
    what_if_systems : list of str
        Names of systems.
    **parameters
        Those of `ipusim.study.qwant.study.check_parameters`.

    Raises
    ------
    ConfigError
        Naming the first parameter that is wrong.
    UnknownNameError
        If there is no such system.
    """
    check_parameters(**parameters)
    check_counts("breakdown_micro_batches", breakdown_micro_batches, _MOST_MICRO_BATCH)
    check_counts("what_if_micro_batches", what_if_micro_batches, _MOST_MICRO_BATCH)
    if not isinstance(what_if_systems, list) or not what_if_systems:
        raise ConfigError(
            f"what_if_systems is {what_if_systems!r}: give a list of names of systems."
        )
    for system in what_if_systems:
        load_system(str(system))


def published_points(frame: pd.DataFrame) -> pd.DataFrame:
    """Return what was measured with the study's network, per IPU, for the what-if figure.

    Parameters
    ----------
    frame : pandas.DataFrame
        From `ipusim.study.verdicts.compare.verdicts`, for the predictions of the same runs.

    Returns
    -------
    pandas.DataFrame
        Columns system, micro_batch, latency_ms, images_per_s_per_ipu and
        predicted_images_per_s_per_ipu (calibrated, in the set-up of the row). Latency is NaN
        where several batches are in flight, because it then counts them all.
    """
    predicted = dict(zip(frame["row_id"], frame["calibrated"], strict=True))
    latency = {row.run.run_id: row for row in load_rows() if row.metric == "latency"}
    lines = []
    for row in load_rows():
        run = row.run
        if row.metric != "throughput" or run.model != MODEL or run.mode != "inference":
            continue
        serial = (run.batches_in_flight or 1) == 1
        known = latency.get(run.run_id)
        lines.append(
            {
                "system": load_system(row.system).name,
                "micro_batch": run.micro_batch,
                "latency_ms": known.value if serial and known else math.nan,
                "images_per_s_per_ipu": row.value / (run.replicas or 1),
                "predicted_images_per_s_per_ipu": predicted.get(row.row_id, math.nan)
                / (run.replicas or 1),
            }
        )
    points = pd.DataFrame(lines)
    first = points["system"] == load_system(PUBLISHED_SYSTEM).name
    return pd.concat([points[first], points[~first]], ignore_index=True)


def audited_power(frame: pd.DataFrame) -> pd.DataFrame:
    """Put the predicted power beside the power that the published tables imply.

    Parameters
    ----------
    frame : pandas.DataFrame
        From `ipusim.study.verdicts.compare.verdicts`.

    Returns
    -------
    pandas.DataFrame
        `ipusim.study.audit.qwant_power` with a column predicted_power_w (calibrated, W; NaN where
        the batch size was not predicted).
    """
    predicted = power_frame(frame)[["batch_size", "predicted_power_w"]]
    return qwant_power().merge(predicted, on="batch_size", how="left")


def machine_table(frame: pd.DataFrame) -> Table:
    """Show the published ResNeXt-101 rows of later machines beside their predictions.

    Parameters
    ----------
    frame : pandas.DataFrame
        From `ipusim.study.verdicts.compare.verdicts`, with the rows of
        `ipusim.study.qwant.study.machine_rows` among others.

    Returns
    -------
    Table
        Each row as it was run: network, metric, published, the two tiers that count, error and
        verdict of the calibrated one.
    """
    rows = {row.row_id: row for row in machine_rows()}
    chosen = with_errors(frame[frame["row_id"].isin(rows)])
    runs = [rows[row_id].run for row_id in chosen["row_id"]]
    shown = chosen.assign(
        model=[run.model for run in runs],
        micro_batch=[run.micro_batch for run in runs],
        in_flight=[run.batches_in_flight for run in runs],
    )
    return Table(
        shown,
        caption="ResNeXt-101 on IPU-M2000, each row in its own set-up",
        columns={
            "row_id": "row",
            "model": "network",
            "micro_batch": "micro-batch",
            "in_flight": "in flight",
            "metric": "metric",
            "unit": "unit",
            "published": "published",
            "specification": "specification",
            "calibrated": "calibrated",
            "specification_error_percent": "specification %",
            "calibrated_error_percent": "calibrated %",
            "verdict": "verdict",
        },
    )


def summary_table(frame: pd.DataFrame) -> Table:
    """Count the verdicts per metric and tier, and show the size of the errors.

    Parameters
    ----------
    frame : pandas.DataFrame
        From `ipusim.study.verdicts.compare.verdicts`.

    Returns
    -------
    Table
        Per system, metric and tier: rows, median and largest absolute error, bias, counts. Tiers
        without a value are left out.
    """
    summary = tier_summary(frame, by=("system", "metric"))
    return errors_table(summary, {"system": "system", "metric": "metric"})
