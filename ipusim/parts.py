"""A table that grows by parts: in memory, or on disk where it outlives its process."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ipusim.errors import ConfigError, why
from ipusim.files import hold, replace_file, write_bytes, write_text

if TYPE_CHECKING:
    import pandas as pd

ENDINGS = (".csv", ".parquet")
_MANIFEST = "parts.json"
_PART = "part-{}.json"

Row = dict[str, Any]
"""Values by column."""


class Parts:
    """Parts of a table, each written whole or not at all; those of another (`what`) are refused.

    The parts of a .csv or .parquet file lie in a folder of the same name with ``.parts`` until it
    is complete, as JSON; without a file everything stays in memory.
    """

    def __init__(self, file: str | Path | None, what: str) -> None:
        self._rows: dict[int, Row] = {}
        self._file = None if file is None else _path(file)
        self._about = json.dumps({"digest": hashlib.sha256(what.encode()).hexdigest()})
        self._lock: int | None = None
        self._known = False
        if self._file is None:
            return
        if self._file.suffix not in ENDINGS:
            raise ConfigError(f"The table {str(file)!r} must end in .csv or .parquet.")
        self._folder = self._file.with_name(f"{self._file.name}.parts")
        if self._file.suffix == ".parquet" and find_spec("pyarrow") is None:
            raise ConfigError(
                "A .parquet file needs pyarrow, which is not installed: pip install "
                "ipusim[cluster], or write .csv."
            )

    def __enter__(self) -> Self:
        """Take the folder for this process alone, and see that its parts belong together."""
        if self._file is None:
            return self
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self._folder, os.O_RDONLY)
            if not hold(self._lock):
                self.__exit__()
                raise ConfigError(
                    f"Another process is writing {self._file}: wait for it or choose another file."
                )
            manifest = self._folder / _MANIFEST
            known = manifest.read_text() if manifest.exists() else None
            if known is None:
                replace_file(manifest, self._about.encode())
        except (OSError, ValueError) as error:  # a null in the path
            self.__exit__()
            raise ConfigError(
                f"Cannot write {self._file} ({why(error)}): choose another file."
            ) from error
        if known not in (None, self._about):
            self.__exit__()
            raise ConfigError(
                f"The folder {self._folder} holds parts of another sweep, or of another version of "
                "ipusim or its data: remove it or choose another file."
            )
        self._known = True
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the folder to others."""
        if self._known and not any(self._folder.glob(_PART.format("*"))):
            # A sweep that was refused before anything was done stands in nobody's way.
            shutil.rmtree(self._folder, ignore_errors=True)
        self._known = False
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def known(self, places: Mapping[int, Iterable[int]]) -> set[int]:
        """Return the parts that are there already with the rows of their places, undamaged."""
        if self._file is None:
            return set()
        parts = {name: self._read(name) for name in places}
        sound = {name for name, rows in parts.items() if rows.keys() == set(places[name])}
        for name in sound:
            self._rows |= parts[name]
        return sound

    def _read(self, name: int) -> dict[int, Row]:
        """Return the rows of a part, none of one that is missing or damaged."""
        try:
            part = json.loads(self._part(name).read_bytes())
            return {int(place): row for place, row in part.items()}
        except (OSError, ValueError, AttributeError, RecursionError):
            return {}

    def keep(self, name: int, rows: Mapping[int, Row]) -> None:
        """Keep one part: rows by their place in the table."""
        self._rows |= rows
        if self._file is not None:
            write_text(self._part(name), json.dumps(rows))

    def table(self) -> pd.DataFrame:
        """Return the whole table, its rows in order; on disk it takes the place of its parts."""
        import pandas as pd

        frame = pd.DataFrame([self._rows[place] for place in sorted(self._rows)])
        if self._file is not None:
            texts = {name: frame[name].map(_text) for name in frame if frame[name].dtype == object}
            shown = frame.assign(**texts)
            if self._file.suffix == ".csv":
                write_text(self._file, shown.to_csv(index=False, lineterminator="\n"))
            else:
                write_bytes(self._file, shown.to_parquet(None, engine="pyarrow", index=False))
            shutil.rmtree(self._folder, ignore_errors=True)
        return frame

    def _part(self, name: int) -> Path:
        return self._folder / _PART.format(f"{name:06d}")


def _path(file: Any) -> Path:
    try:
        return Path(file)
    except TypeError as error:
        raise ConfigError(f"The table {file!r} is no path: give one, or leave it out.") from error


def _text(value: Any) -> Any:
    """Return a list as text, as the command line takes it."""
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else value
