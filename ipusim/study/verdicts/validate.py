"""The validation section as one command: three tiers side by side, and a guard against decline."""

import json
from pathlib import Path

import pandas as pd

from ipusim import files
from ipusim.errors import DataError
from ipusim.files import write_text
from ipusim.study.predict import TIERS
from ipusim.study.table import Table
from ipusim.study.verdicts.compare import PREDICTED, tier_summary

EXPECTED_FILE = "validate.json"
GUARDED_TIERS = ("specification", "calibrated")
"""The roofline is a baseline: it may get worse without the simulator getting worse."""

Counts = dict[str, dict[str, dict[str, int]]]


def expected_path() -> Path:
    """Return the file that holds the recorded counts."""
    return files.data_dir() / "expected" / EXPECTED_FILE


def count_verdicts(frame: pd.DataFrame) -> Counts:
    """Count rows, hits and near misses per study and tier."""
    counts: Counts = {}
    for line in tier_summary(frame, by=("study",)).to_dict("records"):
        if line["tier"] in GUARDED_TIERS:
            tiers = counts.setdefault(line["study"], {})
            tiers[line["tier"]] = {key: int(line[key]) for key in ("rows", "hit", "near")}
    return counts


def load_expected() -> Counts:
    """Read the recorded counts, as `count_verdicts` gives them."""
    source = expected_path()
    try:
        counts = json.loads(source.read_text(encoding="utf-8"))
        return {
            study: {
                tier: {key: int(numbers[key]) for key in ("rows", "hit", "near")}
                for tier, numbers in tiers.items()
            }
            for study, tiers in counts.items()
        }
    except OSError as error:
        raise DataError(
            f"{source.name} cannot be read ({error.strerror}): run 'ipusim validate --record'."
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{source.name} is damaged ({error}): run 'ipusim validate --record'."
        ) from error


def record_expected(frame: pd.DataFrame) -> Path:
    """Write the present counts down as the ones that must not fall."""
    text = json.dumps(count_verdicts(frame), indent=2, sort_keys=True) + "\n"
    return write_text(expected_path(), text)


def declines(present: Counts, expected: Counts) -> list[str]:
    """Name every count that has fallen below its record; a near that became a hit is no decline."""
    nothing = {"rows": 0, "hit": 0, "near": 0}
    found = []
    for study, tiers in expected.items():
        for tier, before in tiers.items():
            now = present.get(study, {}).get(tier, nothing)
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
