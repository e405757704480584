"""Reading CSV data files, with one clear sentence when a file is damaged."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

from ipusim import paths
from ipusim.errors import DataError


def read_records(path: Path, required: Iterable[str] = ()) -> list[dict[str, str]]:
    """Read a CSV file with a header into one dictionary per line.

    Parameters
    ----------
    path : pathlib.Path
        The file, UTF-8.
    required : iterable of str
        Columns that the caller needs.

    Returns
    -------
    list of dict
        Column name to text; empty cells are empty strings.

    Raises
    ------
    DataError
        If the file is missing, is not UTF-8 CSV, lacks a column, has a line of another length or
        has no line at all.
    """
    try:
        with path.open(newline="", encoding="utf-8") as handle:
            reader = csv.reader(handle, strict=True)
            lines = [line for line in reader if line]
    except OSError as error:
        raise DataError(
            f"The data file {path.name} cannot be read ({error.strerror}): "
            "restore it from the repository."
        ) from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"The data file {path.name} is not a UTF-8 CSV file ({error}): "
            "restore it from the repository."
        ) from error
    if len(lines) < 2:
        raise DataError(f"The data file {path.name} has no rows: restore it from the repository.")
    header, *body = lines
    missing = [name for name in required if name not in header]
    if missing:
        raise DataError(
            f"The data file {path.name} lacks the column {missing[0]!r}: "
            "restore it from the repository."
        )
    for number, line in enumerate(body, start=1):
        if len(line) != len(header):
            raise DataError(
                f"Row {number} of the data file {path.name} has {len(line)} cells instead of "
                f"{len(header)}: restore it from the repository."
            )
    return [dict(zip(header, line, strict=True)) for line in body]


def evidence_records(name: str, required: Iterable[str] = ()) -> list[dict[str, str]]:
    """Read a file of data/evidence, as `read_records` does and with its errors."""
    return read_records(paths.data_dir() / "evidence" / name, required)


def number_cell(record: dict[str, str], column: str, path: Path, kind: type = float) -> float | int:
    """Convert one cell to a number.

    Parameters
    ----------
    record : dict of str to str
        One line of `read_records`.
    column : str
        Which cell.
    path : pathlib.Path
        The file, for the message.
    kind : type
        `float` or `int`.

    Returns
    -------
    float or int
        The value of the cell.

    Raises
    ------
    DataError
        If the cell is not a number of that kind.
    """
    try:
        return kind(record[column])
    except ValueError as error:
        first = next(iter(record.values()))
        raise DataError(
            f"The cell {column!r} of row {first!r} in {path.name} is {record[column]!r}, "
            "which is not a number: restore the file from the repository."
        ) from error
