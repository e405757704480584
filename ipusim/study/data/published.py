"""The published numbers, one row each, under identifiers that never change."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

import pandas as pd

from ipusim import files
from ipusim.errors import DataError, check_name
from ipusim.files import number_cell, once_per_data_dir, read, read_records
from ipusim.study.data.convergence import load_convergence
from ipusim.study.data.runs import RunConfiguration, load_runs

CLAIMS_FILE = "_claims.csv"
"""Ending of the file with what a study's document says outside its tables, after its name."""
EPOCH_METRICS = ("epoch_time", "throughput_epoch1", "time_to_train", "time_to_result")
"""Metrics that need the number of items that a published time covers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRow:
    """One published number and the run that produced it.

    Its identifier never changes, as "qwant.table1.batch2"; where a published line holds several
    numbers the plain one is its throughput, others carry a suffix, "results.inference.058.latency".
    """

    row_id: str
    run: RunConfiguration
    study: str
    table: str
    metric: str  # throughput, latency, efficiency or a time
    unit: str
    value: float  # as published; NaN for a row that exists only as a prediction
    printed: str  # its text, which fixes its rounding
    restates: str = ""  # what it follows from where it only says again what another row does
    label: str  # what the source prints to name the row: model, variant, framework, batch
    source_line: str  # of the source's plain-text transcription

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
class Number:
    """One number column of a file: metric and unit or their columns, and what it restates."""

    column: str
    metric: str = ""
    unit: str = ""
    suffix: str = ""
    restates: dict[str, str] = field(default_factory=dict)
    metric_column: str = ""
    unit_column: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedTable:
    """One file of data/published, as ``tables.toml`` there describes it."""

    file: str
    study: str
    label: tuple[str, ...]
    numbers: tuple[Number, ...]
    table: str = ""
    section: str = ""
    run: str = "row_id"
    model: str = ""


def _label(record: dict[str, str], table: PublishedTable) -> str:
    """Join the printed cells that name a row; bare numbers get their column's name or word."""
    parts = []
    for column, _, word in (column.partition("=") for column in table.label):
        text = table.model if table.model and column == "model" else record[column]
        if text:
            bare = text.replace(".", "", 1).isdigit()
            parts.append(f"{word or column} {text}" if bare else text)
    return ", ".join(parts)


def _rows_of(
    table: PublishedTable, path: Path, runs: Mapping[str, RunConfiguration]
) -> Iterator[PublishedRow]:
    for record in read_records(path):
        run_id = record[table.run]
        if run_id not in runs:
            raise DataError(
                f"Row {run_id!r} of {path.name} has no line in data/runs/configurations.csv: "
                "add one."
            )
        section = record[table.section] if table.section else ""
        for number in table.numbers:
            if not record[number.column]:
                continue
            metric = number.metric or record[number.metric_column]
            unit = record[number.unit_column] if number.unit_column else number.unit
            # A column of a throughput says items of what, with or without per second.
            if number.unit_column and number.metric == "throughput":
                unit = f"{unit.removesuffix('/s')}/s"
            yield PublishedRow(
                row_id=record["row_id"] + number.suffix,
                run=runs[run_id],
                study=table.study,
                table=f"{section} {table.table}".strip(),
                metric=metric,
                unit=unit,
                value=number_cell(record, number.column, path),
                printed=record[number.column],
                restates=number.restates.get(metric, ""),
                label=_label(record, table),
                source_line=record["src_line"],
            )


def published_tables() -> tuple[PublishedTable, ...]:
    """Return the files with numbers, in the order of their rows."""
    return read(PublishedTable, "published/tables.toml")


@once_per_data_dir
def _load() -> tuple[PublishedRow, ...]:
    runs, folder = load_runs(), files.data_dir() / "published"
    rows = [
        row for table in published_tables() for row in _rows_of(table, folder / table.file, runs)
    ]
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
    """Return the published rows, all of them or those of a study, table or metric.

    They are in the order of the sources: Qwant first, then the results page, Argonne, TAMU. A
    DataError where a data file is damaged, an UnknownNameError where no row has what is asked for.
    """
    rows = _load()
    for kind, wanted in (("study", study), ("table", table), ("metric", metric)):
        if wanted is not None:
            check_name(kind, wanted, sorted({getattr(row, kind) for row in rows}))
            rows = tuple(row for row in rows if getattr(row, kind) == wanted)
    return rows


def rows_by_id() -> dict[str, PublishedRow]:
    """Return every published row by its identifier."""
    return {row.row_id: row for row in load_rows()}


def frame_of(rows: Iterable[Any], *names: str) -> pd.DataFrame:
    """Return attributes of rows as columns, "run.mode" under the name ``mode``."""
    columns = [name.rpartition(".")[2] for name in names]
    return pd.DataFrame(
        [[attrgetter(name)(row) for name in names] for row in rows], columns=columns
    )


def by_metric(rows: Iterable[PublishedRow], *metrics: str) -> pd.DataFrame:
    """Return a line per run that has all metrics, each with the ends of its rounding."""
    names = ("metric", "run.run_id", "row_id", "label", "table", "run", "value", "half_last_digit")
    known = frame_of(rows, *names)
    half = known.pop("half_last_digit")
    known = known.assign(low=known["value"] - half, high=known["value"] + half)
    groups = known.set_index("run_id").groupby("metric")
    lines = groups.get_group(metrics[0])[["row_id", "label", "table", "run"]]
    for metric in metrics:
        numbers = groups.get_group(metric)[["value", "low", "high"]]
        numbers.columns = [metric, f"{metric}_low", f"{metric}_high"]
        lines = lines.join(numbers, how="inner")
    return lines.reset_index(drop=True)


def claiming() -> tuple[str, ...]:
    """Return the studies that have claims."""
    paths = sorted((files.data_dir() / "published").glob(f"*{CLAIMS_FILE}"))
    return tuple(path.name.removesuffix(CLAIMS_FILE) for path in paths)


def load_claims(study: str) -> pd.DataFrame:
    """Return the claims of a study by claim_id, as text: ``value``, ``qualifier`` and all else."""
    check_name("study", study, claiming())
    path = files.data_dir() / "published" / f"{study}{CLAIMS_FILE}"
    claims = pd.DataFrame(read_records(path)).set_index("claim_id", drop=False)
    return claims.rename(columns={"ratio_or_value": "value", "qualifier_note": "qualifier"})
