"""What the figures of the TAMU study draw, beside the tables that it shows."""

from collections.abc import Mapping

import pandas as pd

from ipusim.study.audit import WORK_TOLERANCE_PERCENT
from ipusim.study.book.charts import panel
from ipusim.study.tamu.gpus import NUMBERS
from ipusim.study.tamu.memory import STATED_LARGEST
from ipusim.study.tamu.scaling import SERIES_NAMES


def micro_batch_panels(frame: pd.DataFrame) -> pd.DataFrame:
    """Return throughput and time per micro-batch of Table 3 on one IPU (`one_ipu_rows`)."""
    shown = ["published", "specification", "calibrated", "low80", "high80"]
    rates = frame[["micro_batch", *shown]].astype(float)
    times = rates.assign(**{name: 1e3 * rates["micro_batch"] / rates[name] for name in shown})
    drawn = [
        panel(rates, "micro_batch", "Throughput of one IPU", "images/s"),
        panel(times, "micro_batch", "Time per micro-batch", "ms"),
    ]
    return pd.concat(drawn)


def scaling_tables(line: pd.DataFrame, rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return `scaling_line`, and the rows of `scaling_frame`, saying which lie beside the line.

    Of several runs on as many IPUs the one with the fewest instances is on the line.
    """
    order = rows["series"].map(list(SERIES_NAMES.values()).index)
    rows = rows.assign(order=order).sort_values(["order", "ipus", "instances"])
    return {"line": line, "rows": rows.assign(beside=rows.duplicated(["series", "ipus"]))}


def tile_memory(frame: pd.DataFrame) -> pd.DataFrame:
    """Return `memory_by_micro_batch` in kB, with the stated largest micro-batch."""
    sizes = {"live_kb": "always_live_bytes", "peak_kb": "peak_tile_bytes", "tile_kb": "tile_bytes"}
    shown = frame.assign(**{name: frame[column] / 1e3 for name, column in sizes.items()})
    top = 1.15 * shown[["peak_kb", "tile_kb"]].max(axis=None)
    return shown.assign(top_kb=top, stated=STATED_LARGEST[frame["run_id"].iloc[0]])


def accelerators(frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the bars of Figure 1 or 2 (`gpus.bars`) by number of devices, in all and for each."""
    frame = frame.sort_values("devices", kind="stable")
    each = {name: frame[name] / frame["devices"] for name in NUMBERS}
    return {"all devices": frame, "per device": frame.assign(**each)}


def watts(frame: pd.DataFrame) -> pd.DataFrame:
    """Return `per_watt` with what its bars are called."""
    power = frame["quoted_w"].map(", {:,.0f} W".format)
    host = frame["host_in_it"].map({"yes": "", "no": " without host"})
    return frame.assign(bar=frame["machine"] + power + host)


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
