"""The validation section as one command: three tiers side by side, and a guard against decline."""

from pathlib import Path

import pandas as pd

from ipusim import files
from ipusim.errors import DataError
from ipusim.files import read_records, write_text
from ipusim.study.predict import TIERS
from ipusim.study.table import Table
from ipusim.study.verdicts.compare import PREDICTED, tier_summary

EXPECTED_FILE = "validate.csv"
GUARDED_TIERS = ("specification", "calibrated")
"""The roofline is a baseline: it may get worse without the simulator getting worse."""
_KEYS, _COUNTS = ["study", "tier"], ["rows", "hit", "near"]

Counts = dict[tuple[str, str], dict[str, int]]
"""Rows, hits and near misses by study and tier."""


def expected_path() -> Path:
    """Return the file that holds the recorded counts."""
    return files.data_dir() / "expected" / EXPECTED_FILE


def _counted(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.set_index(_KEYS)[_COUNTS].astype(int)


def count_verdicts(frame: pd.DataFrame) -> Counts:
    """Count rows, hits and near misses per study and tier."""
    summary = tier_summary(frame, by=("study",))
    return _counted(summary[summary["tier"].isin(GUARDED_TIERS)]).to_dict("index")


def load_expected() -> Counts:
    """Read the recorded counts, as `count_verdicts` gives them."""
    source = expected_path()
    try:
        recorded = pd.DataFrame(read_records(source, [*_KEYS, *_COUNTS]))
        return _counted(recorded).to_dict("index")
    except (DataError, ValueError) as error:
        raise DataError(
            f"{source.name} holds no counts ({error}): run 'ipusim validate --record'."
        ) from error


def record_expected(frame: pd.DataFrame) -> Path:
    """Write the present counts down as the ones that must not fall."""
    counts = pd.DataFrame.from_dict(count_verdicts(frame), orient="index").sort_index()
    return write_text(expected_path(), counts.to_csv(index_label=_KEYS, lineterminator="\n"))


def declines(present: Counts, expected: Counts) -> list[str]:
    """Name every count that has fallen below its record; a near that became a hit is no decline."""
    found = []
    for (study, tier), before in expected.items():
        now = present.get((study, tier), dict.fromkeys(_COUNTS, 0))
        compared = {
            "predicted rows": (now["rows"], before["rows"]),
            "hits": (now["hit"], before["hit"]),
            "hits and nears": (now["hit"] + now["near"], before["hit"] + before["near"]),
        }
        found += [
            f"{study}, {tier}: {what} fell from {old} to {new}."
            for what, (new, old) in compared.items()
            if new < old
        ]
    return found


def validation_tables(frame: pd.DataFrame, *, rows: bool = False) -> list[Table]:
    """Prepare the three-tier tables: every row if asked for, by study and metric, all together."""
    tables: list[Table] = []
    if rows:
        shown = ["row_id", "published", *TIERS, "unit", "verdict", "note"]
        predicted = frame[frame["status"] == PREDICTED]
        tables.append(Table(predicted, caption="Every predicted row", columns=shown))
    by_system = tier_summary(frame, by=("study", "mode", "metric", "system"))
    tables.append(Table(by_system, caption="Errors by study, metric and system"))
    tables.append(Table(tier_summary(frame), caption="Errors over all predicted rows"))
    return tables
