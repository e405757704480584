"""Reading the TOML files of the data folder, each once per process."""

from __future__ import annotations

import tomllib
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
