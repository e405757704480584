"""What the published numbers say about themselves, computed from nothing but the rows."""

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd

from ipusim.errors import unknown_name
from ipusim.study.data.published import by_metric, load_rows

WORK_TABLES = ("Table 3", "Table 4")
"""TAMU's tables that print a throughput and the time of the same epoch."""
WORK_TOLERANCE_PERCENT = 5.0
"""A row whose work differs by more from the others is inconsistent; rounding explains 1 %."""


def qwant_power() -> pd.DataFrame:
    """Compute the card power that Tables 2 and 3 imply: throughput / efficiency.

    Per batch size: throughput (images/s), efficiency (images/s/W), implied power (W) with the range
    that rounding allows, the change from the row before (W, NaN in the first), and whether power
    falls by more than rounding can explain although the batch grows.
    """
    rate, efficiency = by_metric(load_rows(study="qwant"), "throughput", "efficiency")
    frame = pd.DataFrame(
        {
            "batch_size": [run.items_per_step for run in rate["run"]],
            "throughput_images_per_s": rate["value"],
            "efficiency_images_per_s_per_w": efficiency["value"],
            "implied_power_w": rate["value"] / efficiency["value"],
            "low_w": rate["low"] / efficiency["high"],
            "high_w": rate["high"] / efficiency["low"],
        }
    )
    falls = frame["high_w"] < frame["low_w"].shift(1)
    return frame.assign(change_w=frame["implied_power_w"].diff(), falls_beyond_rounding=falls)


def qwant_digit_slip() -> pd.DataFrame:
    """Show what another printed efficiency would make of the power at batch 10 of Table 3.

    9.08 images/s/W differ from the printed 9.68 in one digit; that they were meant is a reading,
    not a fact. Printed and alternative efficiency, each with the power it implies (W) and the mean
    power of the batch sizes beside it (W).
    """
    batch_size, efficiency = 10, 9.08
    frame = qwant_power().set_index("batch_size", drop=False)
    line = frame.loc[batch_size]
    beside = frame[(frame["batch_size"] - batch_size).abs() == 2]
    read = np.array([line["efficiency_images_per_s_per_w"], efficiency])
    return pd.DataFrame(
        {
            "reading": ["printed", "one digit changed"],
            "efficiency_images_per_s_per_w": read,
            "implied_power_w": line["throughput_images_per_s"] / read,
            "neighbours_w": beside["implied_power_w"].mean(),
        }
    )


def qwant_throughput_check() -> pd.DataFrame:
    """Check whether Table 2 is anything but batch / latency of Table 1.

    Per batch size: batch / latency with the range that rounding allows, the published throughput
    (images/s), and whether it lies in that range.
    """
    latency, rate = by_metric(load_rows(study="qwant"), "latency", "throughput")
    batch = pd.Series([run.items_per_step for run in rate["run"]])
    low, high = 1e3 * batch / latency["high"], 1e3 * batch / latency["low"]
    return pd.DataFrame(
        {
            "batch_size": batch,
            "batch_over_latency_per_s": 1e3 * batch / latency["value"],
            "low_per_s": low,
            "high_per_s": high,
            "published_per_s": rate["value"],
            "inside": rate["value"].between(low, high),
        }
    )


def qwant_alternation() -> pd.DataFrame:
    """Compute what each added image per IPU costs in Table 1, and a straight line through it.

    Per micro-batch: latency (ms), cost of the image added since the row before (ms, NaN in the
    first), the least-squares line (ms) and the residual (ms).
    """
    (latency,) = by_metric(load_rows(study="qwant"), "latency")
    micro = np.array([run.micro_batch for run in latency["run"]], dtype=np.float64)
    latency_ms = latency["value"].to_numpy()
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

    Per row with a latency: row_id, label, printed and run batch, throughput (items/s), latency
    (ms), items in flight, batches in flight by the printed and by the run batch, the number that
    the run configuration states (NaN where none), and whether the printed batch differs.
    """
    rows = [row for row in load_rows(study="results") if row.table.endswith("inference")]
    rate, latency = by_metric(rows, "throughput", "latency")
    printed = rate["label"].str.rpartition("batch ")[2].astype(int)
    run = pd.Series([run.items_per_step for run in rate["run"]])
    items = rate["value"] * latency["value"] * 1e-3
    return pd.DataFrame(
        {
            "row_id": rate["row_id"],
            "label": rate["label"],
            "printed_batch": printed,
            "run_batch": run,
            "throughput_items_per_s": rate["value"],
            "latency_ms": latency["value"],
            "items_in_flight": items,
            "batches_by_printed_label": items / printed,
            "batches_as_run": items / run,
            "batches_stated": [run.batches_in_flight for run in rate["run"]],
            "label_differs": printed != run,
        }
    ).astype({"batches_stated": float})


def tamu_work(table: str) -> pd.DataFrame:
    """Multiply throughput and time in every row of a table: the images that the row worked through.

    Every row says that it is one epoch, so the product should be the same in all. An
    UnknownNameError for a table that is none of `WORK_TABLES`.

    Per row: row_id, label, throughput (images/s), time (s), their product with the range that
    rounding allows, the median product of the table, the deviation from it in percent, whether
    rounding explains it, whether the row is consistent (within 5 %), the time that the printed
    throughput needs for the median, and the throughput that the printed time gives.
    """
    if table not in WORK_TABLES:
        raise unknown_name("table", table, WORK_TABLES)
    rate, time = by_metric(load_rows(study="tamu", table=table), "throughput", "epoch_time")
    images, low, high = (rate[end] * time[end] for end in ("value", "low", "high"))
    usual = images.median()
    error = 100.0 * (images / usual - 1.0)
    return pd.DataFrame(
        {
            "row_id": rate["row_id"],
            "label": rate["label"],
            "throughput_images_per_s": rate["value"],
            "time_s": time["value"],
            "images": images,
            "low_images": low,
            "high_images": high,
            "usual_images": usual,
            "work_error_percent": error,
            "within_rounding": (low <= usual) & (usual <= high),
            "consistent": error.abs() <= WORK_TOLERANCE_PERCENT,
            "time_should_be_s": usual / rate["value"],
            "throughput_should_be_images_per_s": usual / time["value"],
        }
    )


def tamu_corrections() -> pd.DataFrame:
    """List the rows of Tables 3 and 4 whose throughput and time do not belong together.

    Lines of `tamu_work` that are not consistent, the table first.
    """
    counted = {table: tamu_work(table) for table in WORK_TABLES}
    frame = pd.concat(counted, names=["table", "line"]).reset_index("table")
    return frame[~frame["consistent"]].reset_index(drop=True)


def work_audit(frames: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return `tamu_work` of tables, with short labels, the band and the ends of each panel in %."""
    frame = pd.concat(frames, names=["table"]).reset_index("table")
    off = frame["work_error_percent"].abs().groupby(frame["table"])
    reach = 1.3 * off.transform("max").clip(lower=10.0)
    band = WORK_TOLERANCE_PERCENT
    return frame.assign(short=frame["label"].map(_short), band=band, reach=reach)


def _short(label: str) -> str:
    """Shorten the label of a row to what tells it from its neighbours."""
    parts = [part for part in label.split(", ") if not part.startswith(("batch-norm", "instances"))]
    return ", ".join(parts)
