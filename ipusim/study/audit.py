"""What the published numbers say about themselves, computed from nothing but the rows."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from ipusim.errors import DataError, unknown_name
from ipusim.study.data.published import PublishedRow, load_rows

WORK_TABLES = ("Table 3", "Table 4")
"""TAMU's tables that print a throughput and the time of the same epoch."""
WORK_TOLERANCE_PERCENT = 5.0
"""A row whose work differs by more from the others is inconsistent; rounding explains 1 %."""


def _qwant_by_batch() -> dict[int, dict[str, PublishedRow]]:
    """Return Qwant's rows by batch size, then by metric."""
    batches: dict[int, dict[str, PublishedRow]] = {}
    for row in load_rows(study="qwant"):
        batches.setdefault(row.run.items_per_step, {})[row.metric] = row
    return dict(sorted(batches.items()))


def _quotient_bounds(top: PublishedRow, bottom: PublishedRow) -> tuple[float, float, float]:
    """Return top / bottom and the range that the rounding of both printed numbers allows."""
    value = top.value / bottom.value
    low = (top.value - top.half_last_digit) / (bottom.value + bottom.half_last_digit)
    high = (top.value + top.half_last_digit) / (bottom.value - bottom.half_last_digit)
    return value, low, high


def qwant_power() -> pd.DataFrame:
    """Compute the card power that Tables 2 and 3 imply: throughput / efficiency.

    Returns
    -------
    pandas.DataFrame
        Per batch size: throughput (images/s), efficiency (images/s/W), implied power (W) with the
        range that rounding allows, the change from the row before (W, NaN in the first), and
        whether power falls by more than rounding can explain although the batch grows.
    """
    lines = []
    for batch, rows in _qwant_by_batch().items():
        watts, low, high = _quotient_bounds(rows["throughput"], rows["efficiency"])
        lines.append(
            {
                "batch_size": batch,
                "throughput_images_per_s": rows["throughput"].value,
                "efficiency_images_per_s_per_w": rows["efficiency"].value,
                "implied_power_w": watts,
                "low_w": low,
                "high_w": high,
            }
        )
    frame = pd.DataFrame(lines)
    frame["change_w"] = frame["implied_power_w"].diff()
    frame["falls_beyond_rounding"] = frame["high_w"] < frame["low_w"].shift(1)
    return frame


def qwant_digit_slip(batch_size: int = 10, efficiency: float = 9.08) -> pd.DataFrame:
    """Show what another printed efficiency would make of the power at one batch size.

    Parameters
    ----------
    batch_size : int
        Which row of Table 3.
    efficiency : float
        The alternative, in images/s/W. 9.08 differs from the printed 9.68 in one digit; that it
        was meant is a reading, not a fact.

    Returns
    -------
    pandas.DataFrame
        Printed and alternative efficiency, each with the power it implies (W) and the mean power of
        the batch sizes beside it (W).

    Raises
    ------
    DataError
        If Table 3 has no such batch size.
    """
    frame = qwant_power()
    row = frame[frame["batch_size"] == batch_size]
    if row.empty:
        raise DataError(
            f"Table 3 has no batch size {batch_size}: use one of "
            f"{', '.join(str(size) for size in frame['batch_size'])}."
        )
    line = row.iloc[0]
    beside = frame[(frame["batch_size"] - batch_size).abs() == 2]
    printed = float(line["efficiency_images_per_s_per_w"])
    return pd.DataFrame(
        {
            "reading": ["printed", "one digit changed"],
            "efficiency_images_per_s_per_w": [printed, efficiency],
            "implied_power_w": [
                line["throughput_images_per_s"] / value for value in (printed, efficiency)
            ],
            "neighbours_w": [float(beside["implied_power_w"].mean())] * 2,
        }
    )


def qwant_throughput_check() -> pd.DataFrame:
    """Check whether Table 2 is anything but batch / latency of Table 1.

    Returns
    -------
    pandas.DataFrame
        Per batch size: batch / latency with the range that rounding allows, the published
        throughput (images/s), and whether it lies in that range.
    """
    lines = []
    for batch, rows in _qwant_by_batch().items():
        latency, throughput = rows["latency"], rows["throughput"]
        low = 1e3 * batch / (latency.value + latency.half_last_digit)
        high = 1e3 * batch / (latency.value - latency.half_last_digit)
        lines.append(
            {
                "batch_size": batch,
                "batch_over_latency_per_s": 1e3 * batch / latency.value,
                "low_per_s": low,
                "high_per_s": high,
                "published_per_s": throughput.value,
                "inside": low <= throughput.value <= high,
            }
        )
    return pd.DataFrame(lines)


def qwant_alternation() -> pd.DataFrame:
    """Compute what each added image per IPU costs in Table 1, and a straight line through it.

    Returns
    -------
    pandas.DataFrame
        Per micro-batch: latency (ms), cost of the image added since the row before (ms, NaN in the
        first), the least-squares line (ms) and the residual (ms).
    """
    rows = [row["latency"] for row in _qwant_by_batch().values()]
    micro = np.array([row.run.micro_batch for row in rows], dtype=np.float64)
    latency_ms = np.array([row.value for row in rows], dtype=np.float64)
    slope, intercept = np.polyfit(micro, latency_ms, 1)
    line_ms = intercept + slope * micro
    return pd.DataFrame(
        {
            "micro_batch": micro.astype(int),
            "latency_ms": latency_ms,
            "added_image_ms": np.concatenate([[math.nan], np.diff(latency_ms) / np.diff(micro)]),
            "line_ms": line_ms,
            "residual_ms": latency_ms - line_ms,
        }
    )


def littles_law() -> pd.DataFrame:
    """Compute how many batches are in flight in every inference row of the results page.

    Little's law: batches in flight = throughput x latency / batch. With the printed batch it
    exposes wrong labels; with the batch as run it says which kind of latency was measured.

    Returns
    -------
    pandas.DataFrame
        Per row with a latency: row_id, label, printed and run batch, throughput (items/s), latency
        (ms), items in flight, batches in flight by the printed and by the run batch, the number
        that the run configuration states (NaN where none), and whether the printed batch differs.
    """
    rows = [row for row in load_rows(study="results") if row.table.endswith("inference")]
    latency = {row.run.run_id: row for row in rows if row.metric == "latency"}
    lines = []
    for row in rows:
        if row.metric != "throughput" or row.run.run_id not in latency:
            continue
        items = row.value * latency[row.run.run_id].value * 1e-3
        printed = int(row.label.rpartition("batch ")[2])
        run = row.run.items_per_step
        stated = row.run.batches_in_flight
        lines.append(
            {
                "row_id": row.row_id,
                "label": row.label,
                "printed_batch": printed,
                "run_batch": run,
                "throughput_items_per_s": row.value,
                "latency_ms": latency[row.run.run_id].value,
                "items_in_flight": items,
                "batches_by_printed_label": items / printed,
                "batches_as_run": items / run,
                "batches_stated": math.nan if stated is None else float(stated),
                "label_differs": printed != run,
            }
        )
    return pd.DataFrame(lines)


def tamu_work(table: str) -> pd.DataFrame:
    """Multiply throughput and time in every row of a table: the images that the row worked through.

    Every row says that it is one epoch, so the product should be the same in all.

    Parameters
    ----------
    table : {"Table 3", "Table 4"}
        Which table of the TAMU study.

    Returns
    -------
    pandas.DataFrame
        Per row: row_id, label, throughput (images/s), time (s), their product with the range that
        rounding allows, the median product of the table, the deviation from it in percent, whether
        rounding explains it, whether the row is consistent (within 5 %), the time that the printed
        throughput needs for the median, and the throughput that the printed time gives.

    Raises
    ------
    UnknownNameError
        If the table does not print both.
    """
    if table not in WORK_TABLES:
        raise unknown_name("table", table, WORK_TABLES)
    rows = load_rows(study="tamu", table=table)
    times = {row.run.run_id: row for row in rows if row.metric == "epoch_time"}
    lines = []
    for row in rows:
        if row.metric != "throughput" or row.run.run_id not in times:
            continue
        time = times[row.run.run_id]
        slack, slack_s = row.half_last_digit, time.half_last_digit
        lines.append(
            {
                "row_id": row.row_id,
                "label": row.label,
                "throughput_images_per_s": row.value,
                "time_s": time.value,
                "images": row.value * time.value,
                "low_images": (row.value - slack) * (time.value - slack_s),
                "high_images": (row.value + slack) * (time.value + slack_s),
            }
        )
    frame = pd.DataFrame(lines)
    usual = float(frame["images"].median())
    frame["usual_images"] = usual
    frame["work_error_percent"] = 100.0 * (frame["images"] / usual - 1.0)
    frame["within_rounding"] = (frame["low_images"] <= usual) & (usual <= frame["high_images"])
    frame["consistent"] = frame["work_error_percent"].abs() <= WORK_TOLERANCE_PERCENT
    frame["time_should_be_s"] = usual / frame["throughput_images_per_s"]
    frame["throughput_should_be_images_per_s"] = usual / frame["time_s"]
    return frame


def tamu_corrections() -> pd.DataFrame:
    """List the rows of Tables 3 and 4 whose throughput and time do not belong together.

    Returns
    -------
    pandas.DataFrame
        Lines of `tamu_work` that are not consistent, the table first.
    """
    found = [tamu_work(table).assign(table=table) for table in WORK_TABLES]
    frame = pd.concat(found, ignore_index=True)
    frame = frame[~frame["consistent"]]
    return frame[["table", *(name for name in frame.columns if name != "table")]]
