"""Where the files of ipusim are, how they are read and checked, how they are written whole.

A file of data is read by the type hints of a dataclass (`read`): CSV has one record per line, TOML
one per table. Whatever is wrong with a file is said in one sentence.
"""

import csv
import errno
import os
import stat
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, wraps
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, get_args, get_origin, get_type_hints

from ipusim.errors import DataError, IpuSimError, StudyError, nearest_name, why

DATA_DIR_VARIABLE = "IPUSIM_DATA_DIR"
"""Environment variable that points at another data folder, for example an edited copy."""

_PACKAGE = Path(__file__).resolve().parent
TEMPLATES = _PACKAGE / "templates"
"""What pages are filled in from."""

_FILE_MODE = 0o644
_NO_FILE = "it is no regular file"
_RESTORE = "restore it from the repository"
_TRUTH = {"true": True, "false": False}
_Record = TypeVar("_Record")
_Answer = TypeVar("_Answer")
_Given = ParamSpec("_Given")


@cache
def _locate(name: str, package: Path) -> Path:
    """Return the folder `name` of the wheel, or else of the checkout around the package."""
    inside_wheel = package / name
    in_checkout = package.parent / name
    if inside_wheel.is_dir():
        return inside_wheel
    if in_checkout.is_dir() and (package.parent / "pyproject.toml").is_file():
        return in_checkout
    raise DataError(
        f"The folder {name!r} is neither inside the installed package nor beside it: "
        "reinstall ipusim or run it from a complete checkout."
    )


def data_dir() -> Path:
    """Return the existing folder that holds ``hardware/``, ``runs/`` and the other data files.

    The one that the environment variable IPUSIM_DATA_DIR names, or the copy inside an installed
    wheel, or ``data/`` of the checkout; a DataError if there is none.
    """
    override = os.environ.get(DATA_DIR_VARIABLE)
    if not override:
        return _locate("data", _PACKAGE)
    folder = Path(override)
    if not folder.is_dir():
        raise DataError(
            f"{DATA_DIR_VARIABLE} names {override!r}, which is not a folder: "
            "set it to a copy of the data folder or unset it."
        )
    return folder


def notebooks_dir() -> Path:
    """Return the existing folder of the study notebooks, found like `data_dir`."""
    return _locate("notebooks", _PACKAGE)


def once_per_data_dir(ask: Callable[_Given, _Answer]) -> Callable[_Given, _Answer]:
    """Remember what a function answers, apart for every data folder."""

    @cache
    def answers(_folder: Path, *given: Any, **named: Any) -> _Answer:
        return ask(*given, **named)

    return wraps(ask)(lambda *given, **named: answers(data_dir(), *given, **named))


class _Table(dict[str, Any]):
    """A table of a TOML file, or a line of CSV; a key that it lacks is a DataError."""

    def __init__(self, entries: Mapping[str, Any], file: str, place: str = "") -> None:
        self.where = f"{place}in {file}"
        super().__init__(
            (key, _Table(entry, file, f"of {key!r} ") if isinstance(entry, dict) else entry)
            for key, entry in entries.items()
        )

    def __missing__(self, key: str) -> Any:
        raise DataError(f"The entry {key!r} {self.where} is missing: {_RESTORE}.")


@once_per_data_dir
def read_tables(file: str) -> dict[str, Any]:
    """Return the parsed content of one TOML file below the data folder."""
    with _reading(file, "valid TOML"):
        return _Table(tomllib.loads((data_dir() / file).read_text(encoding="utf-8")), file)


def completed(tables: Mapping[str, Any], file: str) -> dict[str, Any]:
    """Give each table what it does not say from the one above it that its key `like` names."""
    found: dict[str, Any] = {}
    for name, table in tables.items():
        if isinstance(table, dict) and "like" in table:
            near = found.get(str(table["like"]))
            if not isinstance(near, dict):
                raise DataError(
                    f"The table {name!r} in {file} is like {table['like']!r}: "
                    "name a table above it."
                )
            shared = {key: entry for key, entry in near.items() if key != "aliases"}
            table = shared | {key: entry for key, entry in table.items() if key != "like"}
        found[name] = table
    return found


@contextmanager
def _reading(name: str, kind: str) -> Iterator[None]:
    """Say in one sentence why a file cannot be read, or is not of its kind."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"The data file {name} cannot be read ({error.strerror}): {_RESTORE}."
        ) from error
    except (ValueError, csv.Error) as error:
        raise DataError(
            f"The data file {name} is not {kind} and cannot be read ({error}): {_RESTORE}."
        ) from error


def read_records(path: Path) -> list[dict[str, str]]:
    """Read a UTF-8 CSV file with a header into one dictionary of texts per line.

    A DataError if the file is missing, is not UTF-8 CSV, has a line of another length or has no
    line at all; and for a column that it lacks, where a line is asked for it.
    """
    with _reading(path.name, "a UTF-8 CSV file"), path.open(newline="", encoding="utf-8") as handle:
        lines = [line for line in csv.reader(handle, strict=True) if line]
    if len(lines) < 2:
        raise DataError(f"The data file {path.name} has no rows: {_RESTORE}.")
    header, *body = lines
    for number, line in enumerate(body, start=1):
        if len(line) != len(header):
            raise DataError(
                f"Row {number} of the data file {path.name} has {len(line)} cells instead of "
                f"{len(header)}: {_RESTORE}."
            )
    return [_Table(dict(zip(header, line, strict=True)), path.name) for line in body]


def evidence_records(name: str) -> list[dict[str, str]]:
    """Read a file of data/evidence, as `read_records` does and with its errors."""
    return read_records(data_dir() / "evidence" / name)


def number_cell(record: dict[str, str], column: str, path: Path) -> float:
    """Convert one cell of `read_records` to a number; a DataError where it is none."""
    first = next(iter(record.values()))
    return _value(float, record[column], f"{column!r} of {first!r} in {path.name}", record)


@once_per_data_dir
def read(
    kind: type[_Record], file: str, *, table: str = "", strict: bool = False
) -> tuple[_Record, ...]:
    """Read a file below the data folder into a dataclass.

    The type hints of `kind` say what a column or key holds: text, a whole number, a number, truth
    ("true", "false"), one of several texts (Literal), any of these or nothing (``| None``), a tuple
    of texts (separated by spaces in CSV) or of dataclasses, another dataclass, a dict as it stands,
    or what a function makes of it or refuses (``Annotated[Any, function]``). A field with a default
    may be left out or empty. The columns of CSV are named as the fields (others are passed over, or
    refused if `strict`); the tables of TOML, or those in one `table` of it, are records: the first
    field takes the name of the table, every key must be a field. A DataError says what is missing,
    damaged or of another type.
    """
    path = data_dir() / file
    if path.suffix == ".csv":
        lines = read_records(path)
        filled = [{name: text for name, text in line.items() if text} for line in lines]
        return tuple(
            _record(kind, given, line, path.name, strict=strict)
            for given, line in zip(filled, lines, strict=True)
        )
    tables = read_tables(file)
    first = fields(kind)[0].name
    return tuple(
        _record(kind, {first: name} | entry, {first: name}, file, strict=True)
        for name, entry in (tables.get(table, {}) if table else tables).items()
    )


def _record(
    kind: type[_Record],
    given: Mapping[str, Any],
    line: Mapping[str, str],
    file: str,
    *,
    strict: bool = False,
) -> _Record:
    """Build a record from what is given of it; `line` starts with what names it in messages."""
    row = next(iter(line.values()))
    hints = get_type_hints(kind, include_extras=True)
    values = {}
    for item in fields(kind):
        if item.name in given:
            where = f"{item.name!r} of {row!r} in {file}"
            values[item.name] = _value(hints[item.name], given[item.name], where, line)
        elif item.default is not MISSING:
            values[item.name] = item.default
        elif item.default_factory is not MISSING:
            values[item.name] = item.default_factory()
        elif item.name in line and hints[item.name] is str:
            values[item.name] = ""
        else:
            raise DataError(f"The entry {item.name!r} of {row!r} in {file} is missing: add it.")
    unknown = [name for name in given if name not in hints] if strict else []
    if unknown:
        raise DataError(
            f"The entry {unknown[0]!r} of {row!r} in {file} is unknown: did you mean "
            f"{nearest_name(unknown[0], hints)!r}?"
        )
    return kind(**values)


def _value(hint: Any, given: Any, where: str, line: Mapping[str, str]) -> Any:
    """Return what a type hint makes of a cell of text or of a value of a TOML file."""
    choices = get_args(hint)
    if get_origin(hint) is Annotated:
        try:
            return choices[1](given)
        except IpuSimError as error:
            raise DataError(f"The entry {where} is wrong. {error}") from error
    if get_origin(hint) is Literal:
        if given not in choices:
            raise DataError(f"The entry {where} is {given!r}: use one of {', '.join(choices)}.")
        return given
    if NoneType in choices:
        return _value(choices[0], given, where, line)
    if get_origin(hint) is tuple:
        parts = given.split() if isinstance(given, str) else given
        return tuple(_value(choices[0], part, where, line) for part in parts)
    if is_dataclass(hint) and isinstance(given, dict):
        return _record(hint, given, line, where.rpartition(" in ")[2], strict=True)
    hint = get_origin(hint) or hint
    try:
        if isinstance(given, str) and hint in (int, float, bool):
            return _TRUTH[given] if hint is bool else hint(given)
    except (KeyError, ValueError):
        pass
    kinds = {float: (int, float)}.get(hint, hint)
    if not isinstance(given, kinds) or (isinstance(given, bool) and hint is not bool):
        words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
        raise DataError(f"The entry {where} is {given!r}: use {words.get(hint, 'a table')}.")
    return hint(given)


def check_file(path: Path, most_bytes: int) -> None:
    """Raise an OSError for what need not end, as a device or a pipe, or has more bytes."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, _NO_FILE)
    if found.st_size > most_bytes:
        raise OSError(errno.EFBIG, f"it has {found.st_size} bytes, where {most_bytes} are most")


def replace_file(path: Path, content: bytes, *, sync: bool = False) -> None:
    """Write a file in one step: a reader sees the old content or the new, never a part.

    Its folder must be there; with `sync` the content is on disk before the old one goes. An OSError
    leaves nothing behind. A link is followed, and what is no regular file stays what it is: a
    terminal is written to, a pipe or a folder is an OSError.
    """
    import tempfile  # with shutil and random, which reading needs not

    path = Path(os.path.realpath(path))
    with suppress(FileNotFoundError):
        kind = path.stat().st_mode
        if stat.S_ISCHR(kind):
            path.write_bytes(content)
            return
        if not stat.S_ISREG(kind):
            raise OSError(errno.EINVAL, _NO_FILE)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as handle:
            handle.write(content)
            if sync:
                handle.flush()
                os.fsync(handle.fileno())
        Path(temporary).chmod(_FILE_MODE)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Make a folder and keep it for this process; a BlockingIOError where another one has it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        # Windows has no such lock: there two processes must be kept apart by hand.
        with suppress(ImportError):
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def write_bytes(path: str | Path, content: bytes, *, sync: bool = False) -> Path:
    """Write a file as `replace_file` does, with its folder; a StudyError where that cannot be."""
    try:
        file = Path(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, content, sync=sync)
    except (OSError, TypeError, ValueError) as error:  # what is no path, or holds a null
        raise StudyError(
            f"Cannot write {path} ({why(error)}): choose another place, or make room there."
        ) from error
    return file


def write_text(path: str | Path, content: str) -> Path:
    """Write a UTF-8 text file as `write_bytes` does."""
    return write_bytes(path, content.encode("utf-8"))
