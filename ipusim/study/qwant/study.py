"""The Qwant study: one C2 card, ResNeXt-101 inference, Tables 1 to 3 and what follows from them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from ipusim.errors import ConfigError
from ipusim.machine.system import load_system
from ipusim.study.book.charts import Panel
from ipusim.study.data.published import PublishedRow, load_rows
from ipusim.study.data.runs import load_run
from ipusim.study.predict import TIERS, Predictor, default_predictor
from ipusim.study.table import Table
from ipusim.study.verdicts.compare import error_percent, verdict_of

IPUS_PER_CARD = 2
MODEL = "resnext101_32x4d"
PUBLISHED_SYSTEM = "C2"
PUBLISHED_PRECISION = "16.16"
PRECISIONS = ("16.16", "16.32", "32.32")
_METRICS = {
    "latency": ("Table 1", "ms/batch"),
    "throughput": ("Table 2", "images/s"),
    "efficiency": ("Table 3", "images/s/W"),
}


def check_parameters(
    *,
    batch_sizes: Sequence[int],
    system: str = PUBLISHED_SYSTEM,
    precision: str = PUBLISHED_PRECISION,
) -> None:
    """Refuse notebook parameters that the study cannot use.

    Parameters
    ----------
    batch_sizes : sequence of int
        Batch sizes of the card: even, at least 2, none twice.
    system : str
        Name of a system with at least two IPUs.
    precision : str
        ``"16.16"``, ``"16.32"`` or ``"32.32"``.

    Raises
    ------
    ConfigError
        Naming the first parameter that is wrong.
    UnknownNameError
        If there is no such system.
    """
    if not isinstance(batch_sizes, list | tuple | range) or not batch_sizes:
        raise ConfigError(f"batch_sizes is {batch_sizes!r}: give a list of even numbers from 2 up.")
    for size in batch_sizes:
        if isinstance(size, bool) or not isinstance(size, int) or size < 2 or size % 2:
            raise ConfigError(
                f"The batch size {size!r} cannot be shared by two IPUs: "
                "use even numbers of at least 2."
            )
    if len(set(batch_sizes)) < len(batch_sizes):
        raise ConfigError(f"batch_sizes holds a number twice: {list(batch_sizes)}; name each once.")
    if precision not in PRECISIONS:
        raise ConfigError(
            f"The precision {precision!r} is unknown: use one of {', '.join(PRECISIONS)}."
        )
    if load_system(system).ipus < IPUS_PER_CARD:
        raise ConfigError(f"The system {system!r} has one IPU: choose one with at least two.")


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
        As `check_parameters`.
    """
    check_parameters(batch_sizes=batch_sizes, system=system, precision=precision)
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


def _batches(frame: pd.DataFrame) -> list[int]:
    """Return the batch size in each row_id."""
    return [int(row_id.rpartition("batch")[2]) for row_id in frame["row_id"]]


def metric_frame(frame: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Select one of Tables 1 to 3 from the verdicts.

    Parameters
    ----------
    frame : pandas.DataFrame
        From `ipusim.study.verdicts.compare.verdicts` on rows of `rows_for`.
    metric : str
        ``"latency"``, ``"throughput"`` or ``"efficiency"``.

    Returns
    -------
    pandas.DataFrame
        Per batch size: micro-batch, published value, the three tiers, interval, error and verdict
        of the calibrated tier; in the unit of the published table.

    Raises
    ------
    ConfigError
        If there is no such metric.
    """
    if metric not in _METRICS:
        raise ConfigError(f"The metric {metric!r} is unknown: use one of {', '.join(_METRICS)}.")
    chosen = frame[(frame["study"] == "qwant") & (frame["metric"] == metric)]
    batches = _batches(chosen)
    pairs = list(zip(chosen["calibrated"], chosen["published"], strict=True))
    return pd.DataFrame(
        {
            "batch_size": batches,
            "micro_batch": [batch // IPUS_PER_CARD for batch in batches],
            "published": chosen["published"].to_numpy(),
            **{tier: chosen[tier].to_numpy() for tier in TIERS},
            "low80": chosen["low80"].to_numpy(),
            "high80": chosen["high80"].to_numpy(),
            "error_percent": [error_percent(*pair) for pair in pairs],
            "verdict": [verdict_of(*pair) for pair in pairs],
        }
    )


def metric_table(frame: pd.DataFrame, metric: str) -> Table:
    """Show one of Tables 1 to 3 beside the predictions.

    Parameters
    ----------
    frame : pandas.DataFrame
        From `ipusim.study.verdicts.compare.verdicts` on rows of `rows_for`.
    metric : str
        ``"latency"``, ``"throughput"`` or ``"efficiency"``.

    Returns
    -------
    Table
        With a caption that names the table and its unit.

    Raises
    ------
    ConfigError
        If there is no such metric.
    """
    data = metric_frame(frame, metric)
    shown = ["batch_size", "micro_batch", "published", *TIERS, "error_percent", "verdict"]
    if data["low80"].notna().any():
        shown[-2:-2] = ["low80", "high80"]
    name, unit = _METRICS[metric]
    return Table(data[shown], caption=f"{name}: {metric}, {unit}")


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
    """Compute the card power behind the published and the predicted tables.

    Parameters
    ----------
    frame : pandas.DataFrame
        From `ipusim.study.verdicts.compare.verdicts` on rows of `rows_for`.

    Returns
    -------
    pandas.DataFrame
        Per batch size: published, specification and calibrated power (W), each throughput /
        efficiency, and the error of the last in percent.
    """
    throughput, efficiency = (metric_frame(frame, name) for name in ("throughput", "efficiency"))
    published, specification, predicted = (
        throughput[name] / efficiency[name] for name in ("published", "specification", "calibrated")
    )
    return pd.DataFrame(
        {
            "batch_size": throughput["batch_size"],
            "published_power_w": published,
            "specification_power_w": specification,
            "predicted_power_w": predicted,
            "error_percent": [
                error_percent(*pair) for pair in zip(predicted, published, strict=True)
            ],
        }
    )


def report_for(
    micro_batch: int,
    *,
    system: str = PUBLISHED_SYSTEM,
    precision: str = PUBLISHED_PRECISION,
    tier: str = "calibrated",
    predictor: Predictor | None = None,
) -> Any:
    """Simulate the study's network once, for looking inside.

    Parameters
    ----------
    micro_batch : int
        Items per IPU.
    system, precision : str
        As in the report, or something else.
    tier : str
        ``"calibrated"`` or ``"specification"``.
    predictor : Predictor, optional
        By default the real one.

    Returns
    -------
    ipusim.report.Report
        The full report.
    """
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


def machine_rows() -> tuple[PublishedRow, ...]:
    """Return the published ResNeXt-101 inference rows of the later machines.

    Returns
    -------
    tuple of PublishedRow
        Throughput and latency rows of the results page.
    """
    return tuple(
        row
        for row in load_rows(study="results")
        if row.family == "resnext" and row.run.mode == "inference" and not row.not_modelled
    )
