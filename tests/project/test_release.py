"""A release writes its version in every place, or in none."""

import runpy
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RELEASE = runpy.run_path(str(ROOT / ".ci" / "release"))


@pytest.fixture
def tree(tmp_path):
    for name in RELEASE["PLACES"]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_the_version_stands_everywhere(tree):
    RELEASE["rewrite"](tree, "9.8.7", "2030-01-02")
    assert all("9.8.7" in (tree / name).read_text() for name in RELEASE["PLACES"])
    assert "## Unreleased\n\n## 9.8.7 (2030-01-02)\n" in (tree / "CHANGELOG.md").read_text()


def test_nothing_is_written_where_a_place_is_missing(tree):
    (tree / "CHANGELOG.md").write_text("# Changes\n")
    before = (tree / "pyproject.toml").read_text()
    with pytest.raises(SystemExit, match=r"CHANGELOG.md has 0 places"):
        RELEASE["rewrite"](tree, "9.8.7", "2030-01-02")
    assert (tree / "pyproject.toml").read_text() == before


@pytest.mark.parametrize("given", [[], ["1.0"], ["v1.0.0"], ["1.0.0", "2.0.0"]])
def test_what_is_no_version_is_refused(given):
    with pytest.raises(SystemExit, match="Call"):
        RELEASE["main"](given)
