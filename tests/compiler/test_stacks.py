"""Profiles of software stacks that are read from their file."""

import pytest

from ipusim import files
from ipusim.compiler.stacks import load_stack
from ipusim.errors import DataError

TABLE = '["sdk-3.x"]'


def test_what_is_no_table_is_no_stack(monkeypatch, tmp_path):
    """A pair of brackets too many makes a list of a stack: that one is missed, and no other."""
    text = (files.data_dir() / "stacks.toml").read_text(encoding="utf-8")
    assert text.count(TABLE) == 1
    changed = text.replace(TABLE, f"[{TABLE}]")
    (tmp_path / "stacks.toml").write_text(changed, encoding="utf-8")
    monkeypatch.setenv(files.DATA_DIR_VARIABLE, str(tmp_path))
    with pytest.raises(DataError, match=r"stacks\.toml has no table 'sdk-3\.x': restore it"):
        load_stack("sdk-3.x")
