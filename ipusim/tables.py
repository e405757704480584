"""Reading the TOML files of the data folder, each once per process."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ipusim import paths
from ipusim.errors import DataError


def read_tables(file: str, *, remedy: str = "restore it") -> dict[str, Any]:
    """Return the parsed content of one file.

    Parameters
    ----------
    file : str
        Its place below the data folder, for example "hardware/chips.toml".
    remedy : str, optional
        What a message tells the reader to do about a missing or damaged file.

    Raises
    ------
    DataError
        If the file cannot be read or is not valid TOML.
    """
    return _parse(paths.data_dir() / file, file, remedy)


def sourced_values(
    table: Mapping[str, Any], name: str, file: str, kinds: Mapping[str, type]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the properties of a table of which each has a value and a source.

    Parameters
    ----------
    table : mapping
        As read from the file.
    name, file : str
        Of the table and its file, for messages.
    kinds : mapping of str to type
        Type of every property.

    Returns
    -------
    tuple of dict
        Values and sources by property.

    Raises
    ------
    DataError
        If a property is missing, has no source, or is of another type.
    """
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for key, kind in kinds.items():
        entry = table.get(key)
        if not isinstance(entry, dict) or not entry.get("source") or "value" not in entry:
            raise DataError(
                f"The key {key!r} of {name!r} in {file} must have a value and a source: restore it."
            )
        value = entry["value"]
        if type(value) is not kind:
            raise DataError(
                f"The key {key!r} of {name!r} in {file} has the value {value!r}: "
                f"use a value of type {kind.__name__}."
            )
        values[key], sources[key] = value, entry["source"]
    return values, sources


@cache
def _parse(path: Path, name: str, remedy: str) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(
            f"The data file {name} cannot be read ({error.strerror}): {remedy}."
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(
            f"The data file {name} is not valid TOML and cannot be read ({error}): {remedy}."
        ) from error
