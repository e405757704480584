"""Properties of data tables: each has a value of its type, and a source."""

from __future__ import annotations

import pytest

from ipusim.errors import DataError
from ipusim.files import sourced_values

KINDS = {"era": int, "folds": bool}
TABLE = {
    "era": {"value": 2, "source": "[S] code"},
    "folds": {"value": True, "source": "[A] seen"},
    "title": "not asked for",
}


def test_values_come_with_their_sources():
    values, sources = sourced_values(TABLE, "sdk", "f.toml", KINDS)
    assert values == {"era": 2, "folds": True}
    assert sources == {"era": "[S] code", "folds": "[A] seen"}


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        (None, "must have a value and a source"),
        (2, "must have a value and a source"),
        ({"value": 2}, "must have a value and a source"),
        ({"value": 2, "source": ""}, "must have a value and a source"),
        ({"source": "[S] code"}, "must have a value and a source"),
        # A truth value is an integer to Python, but not to a reader of the file.
        ({"value": True, "source": "[S] code"}, "has the value True: use a value of type int"),
        ({"value": 2.0, "source": "[S] code"}, r"has the value 2\.0: use a value of type int"),
    ],
)
def test_a_damaged_property_is_named(entry, says):
    with pytest.raises(DataError, match=f"^The key 'era' of 'sdk' in f.toml {says}"):
        sourced_values(TABLE | {"era": entry}, "sdk", "f.toml", KINDS)
