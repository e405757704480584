"""Profiles of software stacks that are read from their file."""

import pytest

from ipusim.compiler.stacks import load_stack
from ipusim.errors import DataError

TABLE = '["sdk-3.x"]'


def test_what_is_no_table_is_no_stack(own_data):
    """A pair of brackets too many makes a list of a stack: that one is missed, and no other."""
    path = own_data / "stacks.toml"
    text = path.read_text(encoding="utf-8")
    assert text.count(TABLE) == 1
    path.write_text(text.replace(TABLE, f"[{TABLE}]"), encoding="utf-8")
    with pytest.raises(DataError, match=r"stacks\.toml has no table 'sdk-3\.x': restore it"):
        load_stack("sdk-3.x")
