"""Reading data/hardware: every constant with its unit, its source and how far to trust it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ipusim.errors import DataError
from ipusim.tables import read_tables

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


def _tables(stem: str) -> dict[str, Any]:
    return read_tables(f"hardware/{stem}.toml")


def table_names(stem: str) -> tuple[str, ...]:
    """Return the names of the tables of one file, in file order."""
    return tuple(_tables(stem))


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
    for field in ("value", "unit", "source", "label"):
        if field not in entry:
            raise DataError(f"The key {where} has no {field!r}: add it.")
        if field != "value" and not (isinstance(entry[field], str) and entry[field].strip()):
            raise DataError(f"The key {where} has an empty or non-text {field!r}: fill it in.")
    if entry["label"] not in LABELS:
        raise DataError(
            f"The key {where} has the label {entry['label']!r}: use one of {', '.join(LABELS)}."
        )
    if isinstance(entry["value"], bool) or not isinstance(entry["value"], int | float | str):
        raise DataError(f"The key {where} has the value {entry['value']!r}: use a number or text.")
    return Constant(**{field: entry[field] for field in ("value", "unit", "source", "label")})


def read_table(stem: str, name: str, schema: Schema) -> dict[str, Constant]:
    """Read one table of one hardware file and check it against its schema.

    Parameters
    ----------
    stem : str
        One of `FILES`.
    name : str
        The table, spelt as in the file.
    schema : mapping
        Key -> (type, unit) of every constant that must be there; an int is accepted as a float.

    Returns
    -------
    dict of str to Constant
        One entry per key of `schema`, in its order.

    Raises
    ------
    DataError
        If the file is missing or corrupt, or a key is missing or has a wrong type, unit or range.
    """
    return constants_of(_tables(stem).get(name), name, f"hardware/{stem}.toml", schema)


def constants_of(table: object, name: str, file: str, schema: Schema) -> dict[str, Constant]:
    """Check one table of constants against its schema, wherever below the data folder it stands.

    Parameters
    ----------
    table : object
        What was read.
    name, file : str
        The table and its file, for messages.
    schema : mapping
        As for `read_table`, whose result and errors these are.
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
        for subject, table in _tables(stem).items():
            for key, entry in table.items():
                if key == "aliases":
                    continue
                constant = _constant(f"hardware/{stem}.toml", subject, key, entry)
                rows.append(
                    {
                        "file": f"hardware/{stem}.toml",
                        "subject": subject,
                        "name": key,
                        "value": constant.value,
                        "unit": constant.unit,
                        "source": constant.source,
                        "label": constant.label,
                    }
                )
    return pd.DataFrame(rows)
