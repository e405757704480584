"""The published numbers, one row each, under identifiers that never change."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pandas as pd

from ipusim import files
from ipusim.errors import DataError, unknown_name
from ipusim.files import number_cell, read_records
from ipusim.study.data.convergence import load_convergence
from ipusim.study.data.runs import RunConfiguration, load_runs

EPOCH_METRICS = ("epoch_time", "throughput_epoch1", "time_to_train")
"""Metrics that need the number of items that a published time covers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRow:
    """One published number and the run that produced it.

    Attributes
    ----------
    row_id : str
        Stable identifier, for example ``"qwant.table1.batch2"``. Where a published line holds
        several numbers the plain identifier is its throughput and the others carry a suffix
        (``"results.inference.058.latency"``).
    run : RunConfiguration
        How it was run.
    study : str
        ``"qwant"``, ``"tamu"``, ``"argonne"`` or ``"results"``.
    table : str
        Table of the source.
    metric : str
        ``"throughput"``, ``"latency"``, ``"efficiency"`` or a time.
    unit : str
        Unit of `value` as published.
    value : float
        The published number; NaN for a row that exists only as a prediction.
    printed : str
        The number as printed, which fixes its rounding.
    label : str
        What the source prints to name the row (model, variant, framework, batch).
    source_line : str
        Line of the plain-text transcription of the source.
    """

    row_id: str
    run: RunConfiguration
    study: str
    table: str
    metric: str
    unit: str
    value: float
    printed: str
    label: str
    source_line: str

    @property
    def family(self) -> str:
        """Model family of the run."""
        return self.run.family

    @property
    def system(self) -> str:
        """System of the run; empty when it is not known."""
        return self.run.system or ""

    @property
    def stack(self) -> str:
        """Software stack of the run; empty when it is not known."""
        return self.run.stack or ""

    @property
    def not_modelled(self) -> str:
        """Why no prediction is made; empty when one is made."""
        if self.run.not_modelled or self.metric not in EPOCH_METRICS or self.run.epoch_items:
            return self.run.not_modelled
        if self.metric == "time_to_train" and self.run.run_id in load_convergence():
            return ""
        return "how many items the time covers is not stated, and it follows from that alone"

    @property
    def half_last_digit(self) -> float:
        """Largest rounding error of the printed number, in the unit of `value`."""
        decimals = len(self.printed.partition(".")[2])
        return 0.5 * 10.0**-decimals


@dataclass(frozen=True, slots=True, kw_only=True)
class _Metric:
    """One number column of a file: its metric, its unit, and the suffix of its row_id."""

    column: str
    metric: str
    unit: str
    suffix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """One file of data/published."""

    file: str
    study: str
    table: str
    metrics: tuple[_Metric, ...]
    label: tuple[str, ...]
    section: str = ""
    unit_column: str = ""


_THROUGHPUT = _Metric(column="throughput", metric="throughput", unit="items/s")

_TABLES = (
    _Table(
        file="graphcore_results_inference.csv",
        study="results",
        table="inference",
        section="section",
        metrics=(
            _THROUGHPUT,
            _Metric(column="latency_ms", metric="latency", unit="ms", suffix=".latency"),
        ),
        label=("model", "variant", "platform", "framework", "batch_size"),
        unit_column="unit",
    ),
    _Table(
        file="graphcore_results_training.csv",
        study="results",
        table="training",
        section="section",
        metrics=(_THROUGHPUT,),
        label=("model", "variant", "platform", "framework", "batch_size"),
        unit_column="unit",
    ),
    _Table(
        file="graphcore_results_mlperf.csv",
        study="results",
        table="MLPerf v2.0",
        metrics=(_Metric(column="time_to_train_min", metric="time_to_train", unit="min"),),
        label=("division", "model", "platform", "framework"),
    ),
    _Table(
        file="graphcore_results_ogb.csv",
        study="results",
        table="OGB-LSC",
        metrics=(
            _THROUGHPUT,
            _Metric(column="time_to_train_s", metric="time_to_train", unit="s", suffix=".time"),
        ),
        label=("model", "dataset", "platform"),
        unit_column="unit",
    ),
    _Table(
        file="graphcore_results_time_to_result.csv",
        study="results",
        table="time to result",
        metrics=(_Metric(column="time_to_result_s", metric="time_to_result", unit="s"),),
        label=("model", "platform"),
    ),
    _Table(
        file="argonne_results_table.csv",
        study="argonne",
        table="benchmarks",
        metrics=(_THROUGHPUT,),
        label=("model", "variant", "platform", "framework", "batch_size"),
        unit_column="unit",
    ),
    _Table(
        file="tamu_table1.csv",
        study="tamu",
        table="Table 1",
        metrics=(
            _Metric(column="throughput_epoch2_img_s", metric="throughput", unit="images/s"),
            _Metric(
                column="throughput_epoch1_img_s",
                metric="throughput_epoch1",
                unit="images/s",
                suffix=".epoch1",
            ),
        ),
        label=("total_ipus", "instances", "replicas"),
    ),
    _Table(
        file="tamu_table2.csv",
        study="tamu",
        table="Table 2",
        metrics=(_THROUGHPUT,),
        label=("model", "total_ipus_derived"),
    ),
    _Table(
        file="tamu_table3.csv",
        study="tamu",
        table="Table 3",
        metrics=(
            _Metric(column="throughput_img_s", metric="throughput", unit="images/s"),
            _Metric(column="training_time_s", metric="epoch_time", unit="s", suffix=".time"),
        ),
        label=("total_ipus", "bn_span", "batch_size", "num_instances"),
    ),
    _Table(
        file="tamu_table4.csv",
        study="tamu",
        table="Table 4",
        metrics=(
            _Metric(column="throughput_img_s", metric="throughput", unit="images/s"),
            _Metric(column="epoch2_time_s", metric="epoch_time", unit="s", suffix=".time"),
        ),
        label=("hardware", "devices", "micro_batch_size"),
    ),
)

QWANT_FILE = "qwant_c2_resnext101.csv"
_SPELLED = {
    "batch_size": "batch",
    "micro_batch_size": "micro-batch",
    "total_ipus": "IPUs",
    "total_ipus_derived": "IPUs",
    "num_instances": "instances",
    "bn_span": "batch-norm span",
}


def _label(record: dict[str, str], columns: Iterable[str]) -> str:
    """Join the printed cells that name a row; bare numbers get their column's name."""
    parts = []
    for column in columns:
        text = record[column]
        if text:
            bare = text.replace(".", "", 1).isdigit()
            parts.append(f"{_SPELLED.get(column, column)} {text}" if bare else text)
    return ", ".join(parts)


def _run_for(run_id: str, runs: dict[str, RunConfiguration], path: Path) -> RunConfiguration:
    """Return the run of a published line, or say which line has none."""
    if run_id not in runs:
        raise DataError(
            f"Row {run_id!r} of {path.name} has no line in data/runs/configurations.csv: add one."
        )
    return runs[run_id]


def _rows_of(table: _Table, path: Path, runs: dict[str, RunConfiguration]) -> list[PublishedRow]:
    required = ["row_id", "src_line", *table.label, *(item.column for item in table.metrics)]
    rows = []
    for record in read_records(path, required):
        run = _run_for(record["row_id"], runs, path)
        section = record[table.section] if table.section else ""
        for item in table.metrics:
            if not record[item.column]:
                continue
            per_second = item.metric == "throughput" and table.unit_column
            unit = f"{record[table.unit_column]}/s".replace("/s/s", "/s") if per_second else ""
            rows.append(
                PublishedRow(
                    row_id=record["row_id"] + item.suffix,
                    run=run,
                    study=table.study,
                    table=f"{section} {table.table}".strip(),
                    metric=item.metric,
                    unit=unit or item.unit,
                    value=float(number_cell(record, item.column, path)),
                    printed=record[item.column],
                    label=_label(record, table.label),
                    source_line=record["src_line"],
                )
            )
    return rows


def _qwant_rows(path: Path, runs: dict[str, RunConfiguration]) -> list[PublishedRow]:
    columns = ("row_id", "run_id", "table", "batch_size", "metric", "value", "unit", "src_line")
    return [
        PublishedRow(
            row_id=record["row_id"],
            run=_run_for(record["run_id"], runs, path),
            study="qwant",
            table=record["table"],
            metric=record["metric"],
            unit=record["unit"],
            value=float(number_cell(record, "value", path)),
            printed=record["value"],
            label=f"ResNeXt101, batch {record['batch_size']}",
            source_line=record["src_line"],
        )
        for record in read_records(path, columns)
    ]


@lru_cache(maxsize=4)
def _load(folder: Path) -> tuple[PublishedRow, ...]:
    runs = load_runs()
    rows = _qwant_rows(folder / QWANT_FILE, runs)
    for table in _TABLES:
        rows.extend(_rows_of(table, folder / table.file, runs))
    seen: set[str] = set()
    for row in rows:
        if row.row_id in seen:
            raise DataError(
                f"The identifier {row.row_id!r} is used twice in data/published: correct one."
            )
        if not math.isfinite(row.value) or row.value < 0:
            raise DataError(
                f"The published value of {row.row_id!r} is {row.printed!r}, which is not a finite "
                "number of at least 0: restore the file from the repository."
            )
        seen.add(row.row_id)
    return tuple(rows)


def load_rows(
    *, study: str | None = None, table: str | None = None, metric: str | None = None
) -> tuple[PublishedRow, ...]:
    """Return the published rows, all of them or a selection.

    Parameters
    ----------
    study, table, metric : str, optional
        Keep only the rows with that value.

    Returns
    -------
    tuple of PublishedRow
        In the order of the sources: Qwant first, then the results page, Argonne, TAMU.

    Raises
    ------
    DataError
        If a data file is missing or damaged.
    UnknownNameError
        If no row has the given study, table or metric.
    """
    rows = _load(files.data_dir() / "published")
    for kind, wanted in (("study", study), ("table", table), ("metric", metric)):
        if wanted is None:
            continue
        names = sorted({getattr(row, kind) for row in rows})
        if wanted not in names:
            raise unknown_name(kind, wanted, names)
        rows = tuple(row for row in rows if getattr(row, kind) == wanted)
    return rows


def load_row(row_id: str) -> PublishedRow:
    """Return one published row.

    Parameters
    ----------
    row_id : str
        For example ``"qwant.table1.batch2"``.

    Returns
    -------
    PublishedRow
        That row.

    Raises
    ------
    UnknownNameError
        If there is no such row.
    DataError
        If a data file is missing or damaged.
    """
    by_id = {row.row_id: row for row in load_rows()}
    if row_id not in by_id:
        raise unknown_name("row", row_id, by_id)
    return by_id[row_id]


def load_claims(study: str) -> pd.DataFrame:
    """Return the claims that a source makes in its text, outside its tables.

    Parameters
    ----------
    study : str
        ``"argonne"``, ``"mk2"``, ``"qwant"``, ``"results"`` or ``"tamu"``.

    Returns
    -------
    pandas.DataFrame
        The file as text, one line per claim, ``row_id`` first.

    Raises
    ------
    UnknownNameError
        If the study has no claims file.
    DataError
        If the file is missing or damaged.
    """
    claims = {
        "argonne": "argonne_claims.csv",
        "mk2": "graphcore_mk2_blog_claims.csv",
        "qwant": "qwant_claims.csv",
        "results": "graphcore_results_text_claims.csv",
        "tamu": "tamu_claims.csv",
    }
    if study not in claims:
        raise unknown_name("study", study, claims)
    return pd.DataFrame(read_records(files.data_dir() / "published" / claims[study], ("row_id",)))
