"""The Qwant study: one C2 card, ResNeXt-101 inference, Tables 1 to 3 and what follows from them."""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from ipusim.machine.system import load_system
from ipusim.report import Report
from ipusim.study import audit
from ipusim.study.data.published import PublishedRow, load_rows, rows_by_id
from ipusim.study.data.runs import load_run
from ipusim.study.parameters import checked
from ipusim.study.predict import report_of
from ipusim.study.specs import load_spec
from ipusim.study.verdicts.summary import with_error
from ipusim.sweeps import sweep

IPUS_PER_CARD = 2
MODEL = "resnext101_32x4d"
PUBLISHED_SYSTEM = "C2"
PUBLISHED_PRECISION = "16.16"
_METRICS = {"latency": "ms/batch", "throughput": "images/s", "efficiency": "images/s/W"}
"""Tables 1 to 3, and their units."""
_TABLES = ("qwant.table1", "qwant.table2", "qwant.table3")


def rows_for(
    batch_sizes: Sequence[int],
    *,
    system: str = PUBLISHED_SYSTEM,
    precision: str = PUBLISHED_PRECISION,
) -> tuple[PublishedRow, ...]:
    """Return the rows of Tables 1 to 3 (latency, throughput, efficiency) for some batch sizes.

    Batch sizes are those of the card; what was not published gets rows with the value NaN. System
    and precision are as in the report, or something else to see its effect beside the published
    numbers. A ConfigError or UnknownNameError refuses what data/studies/qwant.toml does not allow.
    """
    given = {"batch_sizes": list(batch_sizes), "system": system, "precision": precision}
    batch_sizes = checked(load_spec("qwant")["parameters"], given)["batch_sizes"]
    published = rows_by_id()
    template = load_run("qwant.batch2")
    changes: dict[str, Any] = {}
    if precision != PUBLISHED_PRECISION:
        changes |= {"precision": precision, "note": f"published at {PUBLISHED_PRECISION}"}
    machine = load_system(system)
    if machine.name != PUBLISHED_SYSTEM:
        changes |= {"system": machine.name, "stack": machine.default_stack}
        changes["note"] = f"published on {PUBLISHED_SYSTEM}"
    rows = []
    for table, batch in itertools.product(_TABLES, batch_sizes):
        changes |= {"run_id": f"qwant.batch{batch}", "micro_batch": batch // IPUS_PER_CARD}
        row = published.get(f"{table}.batch{batch}")
        if row is None:  # what the table would print
            blank = {"value": math.nan, "printed": "", "label": f"ResNeXt101, batch {batch}"}
            known = published[f"{table}.batch2"]
            row = replace(known, row_id=f"{table}.batch{batch}", source_line="", **blank)
        rows.append(replace(row, run=replace(template, **changes)))
    return tuple(rows)


def latency_rows(batch_sizes: Sequence[int], **changes: str) -> tuple[PublishedRow, ...]:
    """Return the rows of Table 1 among `rows_for`."""
    return tuple(row for row in rows_for(batch_sizes, **changes) if row.metric == "latency")


def metric_frame(frame: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Select one of Tables 1 to 3 from the verdicts by its metric, in its printed unit."""
    rows = frame[(frame["study"] == "qwant") & (frame["metric"] == metric)]
    rows = rows.assign(batch_size=rows["micro_batch"] * IPUS_PER_CARD)
    return with_error(rows).reset_index(drop=True)


def panels(frame: pd.DataFrame) -> pd.DataFrame:
    """Return latency, throughput, efficiency and power over the batch size, apart by ``title``."""
    drawn = [
        metric_frame(frame, metric).assign(title=metric.capitalize(), unit=unit)
        for metric, unit in _METRICS.items()
    ]
    drawn.append(power_frame(frame).assign(title="Power of the card", unit="W"))
    return pd.concat([one.astype({"batch_size": float}) for one in drawn])


def power_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """Return published, specification and calibrated power (W), throughput over efficiency."""
    throughput, efficiency = (metric_frame(frame, name) for name in ("throughput", "efficiency"))
    kinds = ["published", "specification", "calibrated"]
    powers = throughput[kinds] / efficiency[kinds]
    return powers.assign(batch_size=throughput["batch_size"].astype(int))


def audited_power(frame: pd.DataFrame) -> pd.DataFrame:
    """Put the predicted power, NaN where there is none, beside that of the audit."""
    predicted = power_frame(frame).set_index("batch_size")["calibrated"]
    audited = audit.table("qwant_power")
    return audited.assign(predicted_power_w=audited["batch_size"].map(predicted))


def report_for(micro_batch: int, **changes: str) -> Report:
    """Simulate the study's network once, with nothing fitted, and return the whole report."""
    row = rows_for([IPUS_PER_CARD * micro_batch], **changes)[0]
    return report_of(row.run, tier="specification")


def what_if(systems: Iterable[str], micro_batches: Sequence[int]) -> pd.DataFrame:
    """Run the study's network on other systems, each with all its IPUs and its own stack.

    Host input is float32 and not overlapped, as in the study; micro-batches are items per IPU.
    """
    run = {"mode": "inference", "precision": PUBLISHED_PRECISION, "host_dtype": "float32"}
    axes = {"system": list(systems), "micro_batch": list(micro_batches)}
    frame = sweep(MODEL, progress=False, overlap_io=False, **run, **axes)
    return frame.assign(ipus=[load_system(name).ipus for name in frame["system"]])


def published_points(frame: pd.DataFrame) -> pd.DataFrame:
    """Return what was measured with the study's network, per IPU, for the what-if figure.

    ``serial`` is the study's set-up, one batch in flight; of several the latency, which counts them
    all, is NaN. Predicted is the rate of `verdicts` on the same runs.
    """
    predicted = dict(zip(frame["row_id"], frame["calibrated"], strict=True))
    latency = {row.run.run_id: row.value for row in load_rows(metric="latency")}
    lines = []
    for row in load_rows(metric="throughput"):
        run = row.run
        if run.model != MODEL or run.mode != "inference":
            continue
        serial = (run.batches_in_flight or 1) == 1
        latency_ms = latency.get(run.run_id, math.nan) if serial else math.nan
        rates = (row.value / run.chips, predicted.get(row.row_id, math.nan) / run.chips)
        lines.append((load_system(row.system).name, run.micro_batch, latency_ms, *rates))
    rate = "images_per_s_per_ipu"
    names = ["system", "micro_batch", "latency_ms", rate, f"predicted_{rate}"]
    points = pd.DataFrame(lines, columns=names)
    points["serial"] = points["latency_ms"].notna()
    first = points["system"] == load_system(PUBLISHED_SYSTEM).name
    return pd.concat([points[first], points[~first]], ignore_index=True)


def machine_rows() -> tuple[PublishedRow, ...]:
    """Return the published ResNeXt-101 inference rows of later machines, rates and latencies."""
    return tuple(
        row
        for row in load_rows(study="results")
        if row.family == "resnext" and row.run.mode == "inference" and not row.not_modelled
    )
