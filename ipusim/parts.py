"""A table that grows by parts: in memory, or on disk where it outlives its process."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipusim.errors import ConfigError, why
from ipusim.files import held, replace_file, write_bytes, write_text

if TYPE_CHECKING:
    import pandas as pd

ENDINGS = (".csv", ".parquet")
_MANIFEST = "parts.json"
_PART = "part-{}.json"

Row = dict[str, Any]
"""Values by column."""


class Parts:
    """Parts of a table, each written whole or not at all.

    Those of a .csv or .parquet file lie as JSON in a folder of the same name with ``.parts`` until
    it is complete; without a file everything stays in memory.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._rows: dict[int, Row] = {}
        self._file = file

    @property
    def folder(self) -> Path:
        """Where the parts of a file lie."""
        return self._file.with_name(f"{self._file.name}.parts")

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
            shutil.rmtree(self.folder, ignore_errors=True)
        return frame

    def _part(self, name: int) -> Path:
        return self.folder / _PART.format(f"{name:06d}")


def _text(value: Any) -> Any:
    """Return a list as text, as the command line takes it."""
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else value


@contextmanager
def taken_up(file: str | Path | None, what: str) -> Iterator[Parts]:
    """Take up a table, for this process alone; parts of another (`what`) are refused."""
    if file is None:
        yield Parts()
        return
    parts = Parts(_path(file))
    about = json.dumps({"digest": hashlib.sha256(what.encode()).hexdigest()})
    manifest = parts.folder / _MANIFEST
    with ExitStack() as stack:
        try:
            stack.enter_context(held(parts.folder))
            known = manifest.read_text() if manifest.exists() else None
            if known is None:
                replace_file(manifest, about.encode())
        except BlockingIOError:
            raise ConfigError(
                f"Another process is writing {file}: wait for it or choose another file."
            ) from None
        except (OSError, ValueError) as error:  # a null in the path
            raise ConfigError(
                f"Cannot write {file} ({why(error)}): choose another file."
            ) from error
        if known not in (None, about):
            raise ConfigError(
                f"The folder {parts.folder} holds parts of another sweep, or of another version of "
                "ipusim or its data: remove it or choose another file."
            )
        try:
            yield parts
        finally:
            # A sweep that was refused before anything was done stands in nobody's way.
            if not any(parts.folder.glob(_PART.format("*"))):
                shutil.rmtree(parts.folder, ignore_errors=True)


def _path(file: Any) -> Path:
    """Return the path of a table, or refuse one that cannot be written."""
    try:
        path = Path(file)
    except TypeError as error:
        raise ConfigError(f"The table {file!r} is no path: give one, or leave it out.") from error
    if path.suffix not in ENDINGS:
        raise ConfigError(f"The table {str(file)!r} must end in .csv or .parquet.")
    if path.suffix == ".parquet" and find_spec("pyarrow") is None:
        raise ConfigError(
            "A .parquet file needs pyarrow, which is not installed: pip install "
            "ipusim[cluster], or write .csv."
        )
    return path
