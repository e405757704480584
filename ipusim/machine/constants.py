"""Data in which every value has a source: hardware, stacks, frameworks; with unit and trust."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, get_origin, get_type_hints

from ipusim.errors import DataError, check_name, resolve_name
from ipusim.files import completed, once_per_data_dir, read_tables

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

_PARTS = ("value", "unit", "source", "label")
"""Keys of an entry of data/hardware; a property of a stack or framework has value and source."""

_COSTS = ("cycles", "s", "W", "pJ/B", "pJ/FLOP", "processes")
"""Units in which 0 is a valid value, a cost of nothing.

In other units a 0 would be divided by, or leave no hardware to run on, unless the field allows it.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """One value with its source.

    Attributes
    ----------
    value : int, float or str, of a property also bool or list
        The value, in `unit`.
    unit : str
        The unit, "-" where there is none.
    source : str
        Where the value comes from.
    label : str
        One of `LABELS`; empty where the source says it.
    otherwise : int, float, bool or None
        The value without a decision that was taken after seeing residuals (data/adopted.csv), for
        a rate a number that bounds nothing; None where no such decision made the value.
    """

    value: Any
    unit: str = "-"
    source: str
    label: str = ""
    otherwise: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sourced:
    """A kind of thing that data files describe: ``class Chip(Sourced, file=..., word="chip")``.

    `file` names its TOML file below the data folder, without the ending; `word` is the noun for one
    in error messages. An instance is made of one table: the first field takes the table's name, a
    field ``title`` the longer name under that key, the other fields the values of their keys;
    ``constants`` holds these values with unit, source and label.
    """

    FILE: ClassVar[str]
    WORD: ClassVar[str]

    constants: dict[str, Constant] = field(compare=False, repr=False)

    def __init_subclass__(cls, file: str = "", word: str = "") -> None:
        """Store file and word; `dataclass(slots=True)` makes each class again, without them."""
        if file:
            cls.FILE, cls.WORD = file, word


_Kind = TypeVar("_Kind", bound=Sourced)


def constant(unit: str, meaning: str = "", *, key: str = "", zero: bool = False) -> Any:
    """Declare a field of a kind of hardware.

    `key` is its key in the file where that is not the field's name, `zero` allows the value 0.
    """
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


def load(kind: type[_Kind], name: str, own: Own | None = None, *, adopted: bool = True) -> _Kind:
    """Return one chip, link, stack, ... by its name, whatever its case, spaces and hyphens.

    An int is taken for a float, a list for a tuple, and a field whose type is another kind is
    loaded by the name that stands there. Fields made by `constant` must have a unit and a label in
    the file, all have a source. `own` are a user's tables beside those of data/hardware. If not
    `adopted`, a value that has one is replaced by its `Constant.otherwise`.
    """
    added = own.of(kind) if own else {}
    valid = resolve_name(kind.WORD, name, (*added, *names(kind)), aliases(kind))
    return _build(kind, valid, own, adopted) if own else _load(kind, valid, adopted)


@once_per_data_dir
def _load(kind: type[_Kind], name: str, adopted: bool) -> _Kind:
    """Build it once; a comparison of all runs asks for thousands."""
    return _build(kind, name, None, adopted)


def _build(kind: type[_Kind], name: str, own: Own | None, adopted: bool) -> _Kind:
    hints = get_type_hints(kind)
    file, table = f"{kind.FILE}.toml", _tables(kind.FILE).get(name)
    if own is not None and name in own.of(kind):
        file, table = own.file, own.table(kind, name)
    if not isinstance(table, dict):
        raise DataError(f"The data file {file} has no table {name!r}: restore it.")
    constants, values = {}, {}
    for item in _declared(kind):
        key, hint = _key(item), hints[item.name]
        where = f"{key!r} of {name!r} in {file}"
        if key not in table:
            raise DataError(f"The key {where} is missing: add it.")
        part = is_dataclass(hint)
        plain = str if part else get_origin(hint) or hint
        constants[key] = found = _constant(where, table[key], measured=bool(item.metadata))
        _check(found, plain, item.metadata, where)
        if not adopted and found.otherwise is not None:
            found = replace(found, value=found.otherwise)
            _check(found, plain, item.metadata, where)
        values[item.name] = (
            load(hint, found.value, own, adopted=adopted) if part else plain(found.value)
        )
    about = {_named(kind): name, "title": table.get("title", name)}
    values |= {item.name: about[item.name] for item in fields(kind) if item.name in about}
    return kind(**values, constants=constants)


def _named(kind: type[Sourced]) -> str:
    """Return the field that takes the name of a table."""
    return next(item.name for item in fields(kind) if item.name != "constants")


def _declared(kind: type[Sourced]) -> list[Field[Any]]:
    """Return the fields that take a value of a table."""
    about = {_named(kind), "title", "constants"}
    return [item for item in fields(kind) if item.name not in about]


def _key(item: Field[Any]) -> str:
    return item.metadata.get("key") or item.name


@dataclass(frozen=True, slots=True)
class Own:
    """A user's tables, which look like those of data/hardware but may leave out more.

    A table with ``like = NAME`` takes the keys that it leaves out from the table NAME of
    data/hardware. A bare value is in the unit of its key and gets the label "assumed".
    """

    file: str
    tables: Mapping[str, Mapping[str, Any]]

    def of(self, kind: type[Sourced]) -> Mapping[str, Any]:
        """Return those of a kind of hardware by name."""
        return self.tables.get(Path(kind.FILE).name, {})

    def table(self, kind: type, name: str) -> dict[str, Any]:
        """Return one of these tables with the missing parts of its entries and its missing keys."""
        units = {_key(item): item.metadata["unit"] for item in _declared(kind)}
        given = dict(self.of(kind)[name])
        like = given.pop("like", None)
        # A table of data/hardware, copied whole, also says what no prediction reads.
        known = units | dict.fromkeys(key for table in _tables(kind.FILE).values() for key in table)
        for key, value in given.items():
            check_name(f"key of {name!r} in {self.file}", key, known)
            if key in units and not isinstance(value, dict):
                about = {"unit": units[key], "source": self.file, "label": "assumed"}
                given[key] = {"value": value} | about
        if like is None:
            return given
        near = _tables(kind.FILE)[resolve_name(kind.WORD, like, names(kind), aliases(kind))]
        return {key: entry for key, entry in near.items() if key in units} | given


@once_per_data_dir
def _tables(file: str) -> dict[str, Any]:
    """Return the tables of a file by name, completed from the ones that they are like."""
    return completed(read_tables(f"{file}.toml"), f"{file}.toml")


def names(kind: type[Sourced]) -> tuple[str, ...]:
    """Return the names that `load` accepts for a kind of hardware, in file order."""
    return tuple(_tables(kind.FILE))


def aliases(kind: type[Sourced]) -> dict[str, str]:
    """Return the other spellings that its file lists, each with the name that it stands for."""
    found: dict[str, str] = {}
    for name, table in _tables(kind.FILE).items():
        listed = table.get("aliases", []) if isinstance(table, dict) else []
        found.update(dict.fromkeys(listed, name))
    return found


def _constant(where: str, entry: object, *, measured: bool = True) -> Constant:
    """Check one entry and return it as a `Constant`; what is `measured` has a unit and a label."""
    parts = _PARTS if measured else ("value", "source")
    if not isinstance(entry, dict):
        raise DataError(f"The key {where} must be a table with {', '.join(parts)}.")
    for part in parts:
        if part not in entry:
            raise DataError(f"The key {where} has no {part!r}: add it.")
        if part != "value" and not (isinstance(entry[part], str) and entry[part].strip()):
            raise DataError(f"The key {where} has an empty or non-text {part!r}: fill it in.")
    if measured and entry["label"] not in LABELS:
        raise DataError(
            f"The key {where} has the label {entry['label']!r}: use one of {', '.join(LABELS)}."
        )
    return Constant(**{part: entry[part] for part in parts}, otherwise=entry.get("otherwise"))


def _check(found: Constant, kind: type, declared: Mapping[str, Any], where: str) -> None:
    """Raise `DataError` for a value of another type, or of another unit or range than declared."""
    value, accepted = found.value, {float: (int, float), tuple: list}.get(kind, kind)
    # A truth value is an integer to Python, but not to a reader of the file.
    if not isinstance(value, accepted) or isinstance(value, bool) != (kind is bool):
        raise DataError(
            f"The key {where} has the value {value!r}: use a value of type {kind.__name__}."
        )
    if declared and found.unit != declared["unit"]:
        raise DataError(f"The key {where} has the unit {found.unit!r}: use {declared['unit']!r}.")
    # Written this way round so that NaN is refused too.
    if declared and kind is not str and not 0 <= value < float("inf"):
        raise DataError(f"The key {where} has the value {value!r}: use a finite number >= 0.")
    if declared and value == 0 and not (declared["zero"] or found.unit in _COSTS):
        raise DataError(f"The key {where} is 0: use a number above 0.")


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

    Examples
    --------
    >>> table = ipusim.hardware_table().query("subject == 'Bow' and name == 'clock_hz'")
    >>> table[["value", "unit", "label"]].values.tolist()
    [[1850000000, 'Hz', 'verified']]
    """
    import pandas as pd  # here, because a simulation does without it and it is slow to import

    rows = []
    for stem in FILES:
        file = f"hardware/{stem}.toml"
        for subject, table in _tables(f"hardware/{stem}").items():
            for key, entry in table.items():
                if key == "aliases":
                    continue
                found = _constant(f"{key!r} of {subject!r} in {file}", entry)
                said = {part: getattr(found, part) for part in _PARTS}
                rows.append({"file": file, "subject": subject, "name": key} | said)
    return pd.DataFrame(rows)
