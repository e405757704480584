"""Reading data/hardware: every constant with its unit, its source and how far to trust it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from ipusim.errors import DataError, resolve_name, unknown_name
from ipusim.files import data_dir, read_tables

if TYPE_CHECKING:
    import pandas as pd

LABELS = ("verified", "derived", "inferred", "weak", "assumed", "fitted", "recalled")
"""How far a constant can be trusted.

verified: stated or measured in the cited source; derived: arithmetic on cited numbers; inferred:
deduced, not stated; weak: a secondary source; assumed: chosen, no source found; fitted: fitted to
measurements; recalled: from memory, to be checked.
"""

FILES = ("chips", "systems", "hosts", "links", "power", "gpus", "gpu_nodes")
"""Names of the files under data/hardware, without their ending."""

_COSTS = ("cycles", "s", "W", "pJ/B", "pJ/FLOP", "processes")
"""Units of what may be nothing; other zeros would be divided by, or leave nothing to run on."""

Schema = Mapping[str, tuple[type, str]]
"""Key -> (Python type, unit) of each constant that a table must have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """One value of data/hardware.

    Attributes
    ----------
    value : int, float or str
        The value, in `unit`.
    unit : str
        The unit, "-" where there is none.
    source : str
        Where the value comes from.
    label : str
        One of `LABELS`.
    """

    value: int | float | str
    unit: str
    source: str
    label: str


_Kind = TypeVar("_Kind")


def constant(unit: str, meaning: str = "", *, key: str = "", zero: bool = False) -> Any:
    """Declare a field of a kind of hardware: unit, key where the file has another, if 0 is one."""
    return field(metadata={"unit": unit, "meaning": meaning, "key": key, "zero": zero})


def described(kind: type[_Kind]) -> type[_Kind]:
    """List what the fields of a kind of hardware mean in its docstring, as they declare it."""
    entries = [
        f"{one.name} : {one.type.__name__} [{one.metadata['unit']}]\n    {one.metadata['meaning']}"
        for one in fields(kind)
        if one.metadata
    ]
    heading = [inspect.cleandoc(kind.__doc__ or ""), "", "Attributes", "----------"]
    kind.__doc__ = "\n".join([*heading, *entries])
    return kind


def load(kind: type[_Kind], name: str, own: Own | None = None) -> _Kind:
    """Return one chip, link, host, ... by its name in any case, with or without spaces and hyphens.

    `kind` is a dataclass whose ``FILE`` and ``WORD`` say where it stands under data/hardware and
    what a message calls it; its first field takes the name, fields made by `constant` the values of
    that table (one whose type is another kind is loaded by the name that stands there), and
    ``constants`` the same with unit, source and label. `own` are a user's tables beside those of
    data/hardware.
    """
    added = own.tables.get(kind.FILE, {}) if own else {}
    valid = resolve_name(kind.WORD, name, (*added, *names(kind)), table_aliases(kind.FILE))
    return _build(kind, valid, own) if own else _load(kind, valid, data_dir())


@cache
def _load(kind: type[_Kind], name: str, folder: Path) -> _Kind:
    """Build it once per data folder; a comparison of all runs asks for thousands."""
    return _build(kind, name, None)


def _build(kind: type[_Kind], name: str, own: Own | None) -> _Kind:
    hints = get_type_hints(kind)
    declared = {item.name: item.metadata for item in fields(kind) if item.metadata}
    keys = {of: metadata["key"] or of for of, metadata in declared.items()}
    schema = {
        keys[of]: (str if is_dataclass(hints[of]) else hints[of], metadata["unit"])
        for of, metadata in declared.items()
    }
    file, table = f"hardware/{kind.FILE}.toml", _tables(kind.FILE).get(name)
    if own is not None and name in own.tables.get(kind.FILE, {}):
        file, table = own.file, own.table(kind, name, schema)
    constants = constants_of(table, name, file, schema)
    for of, key in keys.items():
        may_be_zero = declared[of]["zero"] or declared[of]["unit"] in _COSTS
        if constants[key].value == 0 and not may_be_zero:
            raise DataError(f"The key {key!r} of {name!r} in {file} is 0: use a number above 0.")
    plain = values(constants, schema)
    parts = {
        of: load(hints[of], plain[key], own) if is_dataclass(hints[of]) else plain[key]
        for of, key in keys.items()
    }
    return kind(**{fields(kind)[0].name: name}, **parts, constants=constants)


@dataclass(frozen=True, slots=True)
class Own:
    """A user's tables, which look like those of data/hardware but may leave out more.

    A table with ``like = NAME`` takes what it does not say from that one, and a bare value stands
    for itself in the unit of its key, assumed.
    """

    file: str
    tables: Mapping[str, Mapping[str, Any]]

    def table(self, kind: type, name: str, schema: Schema) -> dict[str, Any]:
        """Return one of them, completed."""
        given = dict(self.tables[kind.FILE][name])
        like = given.pop("like", None)
        for key, value in given.items():
            if key not in schema:
                raise unknown_name(f"key of {name!r} in {self.file}", key, schema)
            if not isinstance(value, dict):
                about = {"unit": schema[key][1], "source": self.file, "label": "assumed"}
                given[key] = {"value": value} | about
        if like is None:
            return given
        near = resolve_name(kind.WORD, like, names(kind), table_aliases(kind.FILE))
        return {
            key: entry for key, entry in _tables(kind.FILE)[near].items() if key in schema
        } | given


def _tables(stem: str) -> dict[str, Any]:
    return read_tables(f"hardware/{stem}.toml")


def names(kind: type) -> tuple[str, ...]:
    """Return the names that `load` accepts for a kind of hardware, in file order."""
    return tuple(_tables(kind.FILE))


def table_aliases(stem: str) -> dict[str, str]:
    """Return the other spellings that a file lists, each with the name that it stands for."""
    aliases: dict[str, str] = {}
    for name, table in _tables(stem).items():
        listed = table.get("aliases", []) if isinstance(table, dict) else []
        aliases.update(dict.fromkeys(listed, name))
    return aliases


def _constant(file: str, table: str, key: str, entry: object) -> Constant:
    """Check one entry and return it as a `Constant`."""
    where = f"{key!r} of {table!r} in {file}"
    if not isinstance(entry, dict):
        raise DataError(f"The key {where} must be a table with value, unit, source and label.")
    for part in ("value", "unit", "source", "label"):
        if part not in entry:
            raise DataError(f"The key {where} has no {part!r}: add it.")
        if part != "value" and not (isinstance(entry[part], str) and entry[part].strip()):
            raise DataError(f"The key {where} has an empty or non-text {part!r}: fill it in.")
    if entry["label"] not in LABELS:
        raise DataError(
            f"The key {where} has the label {entry['label']!r}: use one of {', '.join(LABELS)}."
        )
    if isinstance(entry["value"], bool) or not isinstance(entry["value"], int | float | str):
        raise DataError(f"The key {where} has the value {entry['value']!r}: use a number or text.")
    return Constant(**{part: entry[part] for part in ("value", "unit", "source", "label")})


def constants_of(table: object, name: str, file: str, schema: Schema) -> dict[str, Constant]:
    """Check one table of constants, wherever below the data folder it stands.

    The schema gives type and unit of every key that must be there; an int is accepted as a float.
    """
    if not isinstance(table, dict):
        raise DataError(f"The data file {file} has no table {name!r}: restore it.")
    constants = {}
    for key, (kind, unit) in schema.items():
        where = f"{key!r} of {name!r} in {file}"
        if key not in table:
            raise DataError(f"The key {where} is missing: add it.")
        constant = _constant(file, name, key, table[key])
        accepted = (int, float) if kind is float else (kind,)
        if not isinstance(constant.value, accepted):
            raise DataError(
                f"The key {where} has the value {constant.value!r}: use a value of type "
                f"{kind.__name__}."
            )
        if constant.unit != unit:
            raise DataError(f"The key {where} has the unit {constant.unit!r}: use {unit!r}.")
        # Written this way round so that NaN is refused too.
        if kind is not str and not 0 <= constant.value < float("inf"):
            raise DataError(
                f"The key {where} has the value {constant.value!r}: use a finite number >= 0."
            )
        constants[key] = constant
    return constants


def values(constants: Mapping[str, Constant], schema: Schema) -> dict[str, Any]:
    """Return the bare values of `constants`, converted to the types of `schema`."""
    return {key: kind(constants[key].value) for key, (kind, _) in schema.items()}


def hardware_table() -> pd.DataFrame:
    """Return every hardware constant with its source, as tidy rows.

    Returns
    -------
    pandas.DataFrame
        Columns file, subject (chip, system, link or power table), name, value, unit, source,
        label; one row per constant, in file order.

    Raises
    ------
    DataError
        If a file is missing or corrupt.
    """
    import pandas as pd  # here, because a simulation does without it and it is slow to import

    rows = []
    for stem in FILES:
        file = f"hardware/{stem}.toml"
        for subject, table in _tables(stem).items():
            for key, entry in table.items():
                if key == "aliases":
                    continue
                constant = _constant(file, subject, key, entry)
                rows.append({"file": file, "subject": subject, "name": key} | asdict(constant))
    return pd.DataFrame(rows)
