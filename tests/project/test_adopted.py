"""Decisions taken after seeing residuals are listed, and the list points at what exists."""

import csv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LABEL = "[A]"


def test_every_adopted_decision_is_listed_with_its_switch():
    with (ROOT / "data" / "adopted.csv").open(newline="") as stream:
        listed = list(csv.DictReader(stream))
    assert all(all(line.values()) for line in listed)
    files = [*(ROOT / "ipusim").rglob("*.py"), *(ROOT / "data").rglob("*.toml")]
    labelled = {
        path.relative_to(ROOT).as_posix() for path in files if LABEL in path.read_text("utf-8")
    }
    # Notes on single runs say it themselves.
    labelled = {name for name in labelled if not name.startswith("data/runs")}
    assert labelled == {line["where"] for line in listed}
