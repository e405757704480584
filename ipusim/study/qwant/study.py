"""The Qwant study: one C2 card, ResNeXt-101 inference, Tables 1 to 3 and what follows from them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from ipusim.machine.system import load_system
from ipusim.study.audit import qwant_power
from ipusim.study.book.catalogue import load_spec
from ipusim.study.book.charts import Panel
from ipusim.study.book.parameters import checked
from ipusim.study.data.published import PublishedRow, load_rows
from ipusim.study.data.runs import load_run
from ipusim.study.predict import TIERS, Predictor, default_predictor
from ipusim.study.verdicts.compare import with_errors
from ipusim.study.verdicts.summary import with_error

IPUS_PER_CARD = 2
MODEL = "resnext101_32x4d"
PUBLISHED_SYSTEM = "C2"
PUBLISHED_PRECISION = "16.16"
_METRICS = {
    "latency": ("Table 1", "ms/batch"),
    "throughput": ("Table 2", "images/s"),
    "efficiency": ("Table 3", "images/s/W"),
}


def rows_for(
    batch_sizes: Sequence[int],
    *,
    system: str = PUBLISHED_SYSTEM,
    precision: str = PUBLISHED_PRECISION,
) -> tuple[PublishedRow, ...]:
    """Return the rows of Tables 1 to 3 for some batch sizes.

    Parameters
    ----------
    batch_sizes : sequence of int
        Batch sizes of the card; those that were not published get rows with the value NaN.
    system, precision : str
        As in the report, or something else to see its effect beside the published numbers.

    Returns
    -------
    tuple of PublishedRow
        Three rows (latency, throughput, efficiency) per batch size.

    Raises
    ------
    ConfigError, UnknownNameError
        If a value is not what data/studies/qwant.toml allows.
    """
    given = {"batch_sizes": list(batch_sizes), "system": system, "precision": precision}
    checked(load_spec("qwant")["parameters"], given)
    published = {row.row_id: row for row in load_rows(study="qwant")}
    template = load_run("qwant.batch2")
    changes: dict[str, Any] = {}
    if precision != PUBLISHED_PRECISION:
        changes |= {"precision": precision, "note": f"published at {PUBLISHED_PRECISION}"}
    machine = load_system(system)
    if machine.name != PUBLISHED_SYSTEM:
        changes |= {
            "system": machine.name,
            "stack": machine.default_stack,
            "note": f"published on {PUBLISHED_SYSTEM}",
        }
    rows = []
    for metric, (table, unit) in _METRICS.items():
        for batch in batch_sizes:
            row_id = f"qwant.{table.lower().replace(' ', '')}.batch{batch}"
            run = dataclasses.replace(
                template,
                run_id=f"qwant.batch{batch}",
                micro_batch=batch // IPUS_PER_CARD,
                **changes,
            )
            known = published.get(row_id)
            rows.append(
                PublishedRow(
                    row_id=row_id,
                    run=run,
                    study="qwant",
                    table=table,
                    metric=metric,
                    unit=unit,
                    value=known.value if known else math.nan,
                    printed=known.printed if known else "",
                    label=f"ResNeXt101, batch {batch}",
                    source_line=known.source_line if known else "",
                )
            )
    return tuple(rows)


def metric_frame(frame: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Select one of Tables 1 to 3 from the verdicts on rows of `rows_for`, in its printed unit.

    Returns
    -------
    pandas.DataFrame
        The rows of a metric (``"latency"``, ``"throughput"`` or ``"efficiency"``), with
        batch_size, that of the card, and error_percent of the calibrated tier.
    """
    rows = frame[(frame["study"] == "qwant") & (frame["metric"] == metric)]
    rows = rows.assign(batch_size=rows["micro_batch"] * IPUS_PER_CARD)
    return with_error(rows).reset_index(drop=True)


def panels(frame: pd.DataFrame) -> list[Panel]:
    """Prepare the latency, throughput and efficiency figure.

    Parameters
    ----------
    frame : pandas.DataFrame
        From `ipusim.study.verdicts.compare.verdicts` on rows of `rows_for`.

    Returns
    -------
    list of Panel
        One per metric and one for the power behind them, for
        `ipusim.study.book.charts.comparison_panels`.
    """
    drawn = []
    for metric, (_, unit) in _METRICS.items():
        data = metric_frame(frame, metric).sort_values("batch_size")
        drawn.append(
            Panel(
                title=metric.capitalize(),
                unit=unit,
                x=list(data["batch_size"]),
                series={name: list(data[name]) for name in ("published", *TIERS)},
                band=(list(data["low80"]), list(data["high80"])),
            )
        )
    power = power_frame(frame).sort_values("batch_size")
    names = {
        "published": "published_power_w",
        "specification": "specification_power_w",
        "calibrated": "predicted_power_w",
    }
    drawn.append(
        Panel(
            title="Power of the card",
            unit="W",
            x=list(power["batch_size"]),
            series={name: list(power[column]) for name, column in names.items()},
        )
    )
    return drawn


def power_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the card power behind the published and the predicted tables.

    Returns
    -------
    pandas.DataFrame
        Per batch size: published, specification and calibrated power (W), each throughput over
        efficiency.
    """
    throughput, efficiency = (metric_frame(frame, name) for name in ("throughput", "efficiency"))
    kinds = {"published": "published", "specification": "specification", "calibrated": "predicted"}
    powers = {
        f"{name}_power_w": throughput[kind] / efficiency[kind] for kind, name in kinds.items()
    }
    return pd.DataFrame({"batch_size": throughput["batch_size"].astype(int), **powers})


def audited_power(frame: pd.DataFrame) -> pd.DataFrame:
    """Put the predicted power beside that of `ipusim.study.audit.qwant_power`.

    NaN stands where the batch size was not predicted.
    """
    predicted = power_frame(frame)[["batch_size", "predicted_power_w"]]
    return qwant_power().merge(predicted, on="batch_size", how="left")


def report_for(
    micro_batch: int,
    *,
    system: str = PUBLISHED_SYSTEM,
    precision: str = PUBLISHED_PRECISION,
    tier: str = "specification",
    predictor: Predictor | None = None,
) -> Any:
    """Simulate the study's network once, with nothing fitted, and return the whole report."""
    row = rows_for([IPUS_PER_CARD * micro_batch], system=system, precision=precision)[0]
    return (predictor or default_predictor()).simulate(MODEL, tier=tier, **row.run.options())


def what_if(
    systems: Iterable[str],
    micro_batches: Sequence[int],
    *,
    predictor: Predictor | None = None,
) -> pd.DataFrame:
    """Run the study's network on other systems, each with all its IPUs and its own stack.

    Parameters
    ----------
    systems : iterable of str
        Names of systems.
    micro_batches : sequence of int
        Items per IPU.
    predictor : Predictor, optional
        By default the real one.

    Returns
    -------
    pandas.DataFrame
        Per system and micro-batch: IPUs, batch size, latency (ms), throughput (images/s),
        throughput per IPU and power (W; NaN where the report gives none). Host input is float32
        and not overlapped, as in the study.
    """
    engine = predictor or default_predictor()
    lines = []
    for name in systems:
        system = load_system(name)
        for micro_batch in micro_batches:
            report = engine.simulate(
                MODEL,
                system=system.name,
                mode="inference",
                micro_batch=micro_batch,
                replicas=system.ipus,
                precision=PUBLISHED_PRECISION,
                host_dtype="float32",
                overlap_io=False,
            )
            power = getattr(report, "power", None)
            lines.append(
                {
                    "system": system.name,
                    "ipus": system.ipus,
                    "micro_batch": micro_batch,
                    "batch_size": micro_batch * system.ipus,
                    "latency_ms": 1e3 * float(report.latency),
                    "throughput_images_per_s": float(report.throughput),
                    "images_per_s_per_ipu": float(report.throughput) / system.ipus,
                    "power_w": math.nan if power is None else float(power),
                }
            )
    return pd.DataFrame(lines)


def published_points(frame: pd.DataFrame) -> pd.DataFrame:
    """Return what was measured with the study's network, per IPU, for the what-if figure.

    Parameters
    ----------
    frame : pandas.DataFrame
        Verdicts, for the predictions of the same runs.

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
                "images_per_s_per_ipu": row.value / run.chips,
                "predicted_images_per_s_per_ipu": predicted.get(row.row_id, math.nan) / run.chips,
            }
        )
    points = pd.DataFrame(lines)
    first = points["system"] == load_system(PUBLISHED_SYSTEM).name
    return pd.concat([points[first], points[~first]], ignore_index=True)


def machine_rows() -> tuple[PublishedRow, ...]:
    """Return the published ResNeXt-101 inference rows of later machines, rates and latencies."""
    return tuple(
        row
        for row in load_rows(study="results")
        if row.family == "resnext" and row.run.mode == "inference" and not row.not_modelled
    )


def machine_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """Select `machine_rows` from the verdicts, with the error of each tier."""
    rows = with_errors(frame[frame["row_id"].isin([row.row_id for row in machine_rows()])])
    return rows.astype({"batches_in_flight": "Int64"})
