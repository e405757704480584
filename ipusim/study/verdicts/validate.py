"""The validation section as one command: tiers side by side, and a guard against decline."""

from pathlib import Path

import pandas as pd

from ipusim import files
from ipusim.errors import DataError
from ipusim.files import read_records, write_text
from ipusim.study.predict import ALL_TIERS
from ipusim.study.table import Table
from ipusim.study.verdicts.compare import PREDICTED, tier_summary

EXPECTED_FILE = "validate.csv"
GUARDED_TIERS = ("specification", "calibrated")
"""The roofline is a baseline: it may get worse without the simulator getting worse."""
_KEYS, _COUNTS = ["study", "tier"], ["rows", "hit", "near"]
_WORDS = {"rows": "predicted rows", "hit": "hits", "near": "hits and nears"}


def expected_path() -> Path:
    """Return the file that holds the recorded counts."""
    return files.data_dir() / "expected" / EXPECTED_FILE


def count_verdicts(frame: pd.DataFrame) -> pd.DataFrame:
    """Count rows, hits and near misses by study and tier."""
    summary = tier_summary(frame, by=("study",))
    guarded = summary[summary["tier"].isin(GUARDED_TIERS)]
    return guarded.set_index(_KEYS)[_COUNTS].astype(int)


def load_expected() -> pd.DataFrame:
    """Read the recorded counts, as `count_verdicts` gives them."""
    source = expected_path()
    try:
        lines = [[line[name] for name in (*_KEYS, *_COUNTS)] for line in read_records(source)]
        recorded = pd.DataFrame(lines, columns=[*_KEYS, *_COUNTS])
        return recorded.set_index(_KEYS).astype(int)
    except (DataError, ValueError) as error:
        raise DataError(
            f"{source.name} holds no counts ({error}): run 'ipusim validate --record'."
        ) from error


def record_expected(frame: pd.DataFrame) -> Path:
    """Write the present counts down as the ones that must not fall."""
    counts = count_verdicts(frame).sort_index()
    return write_text(expected_path(), counts.to_csv(lineterminator="\n"))


def declines(present: pd.DataFrame, expected: pd.DataFrame) -> list[str]:
    """Name every count that has fallen below its record; a near that became a hit is no decline."""
    there = present.reindex(expected.index, fill_value=0)
    was, now = (one.assign(near=one["hit"] + one["near"]) for one in (expected, there))
    fell = (now < was).stack()
    return [
        f"{study}, {tier}: {_WORDS[name]} fell from {was.loc[(study, tier), name]} to "
        f"{now.loc[(study, tier), name]}."
        for study, tier, name in fell[fell].index
    ]


def validation_tables(frame: pd.DataFrame, *, rows: bool = False) -> list[Table]:
    """Prepare the tables of tiers: every row if asked for, by study and metric, all together."""
    tables: list[Table] = []
    if rows:
        tiers = [tier for tier in ALL_TIERS if tier in frame]
        shown = ["row_id", "published", *tiers, "unit", "verdict", "note"]
        predicted = frame[frame["status"] == PREDICTED]
        tables.append(Table(predicted, caption="Every predicted row", columns=shown))
    by_system = tier_summary(frame, by=("study", "mode", "metric", "system"))
    tables.append(Table(by_system, caption="Errors by study, metric and system"))
    tables.append(Table(tier_summary(frame), caption="Errors over all predicted rows"))
    return tables
