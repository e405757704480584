"""The tier without adopted choices: what was decided after seeing residuals, turned back.

``data/adopted.csv`` lists the decisions; those whose switch stands in a data file are turned back
together, and every row is predicted at the specification tier by a process that has only the
changed data. That plans most networks anew, so what it gives is recorded (`record`) in
``data/expected/without_adopted.csv``, beside the golden.
"""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from ipusim import files
from ipusim.errors import DataError, StudyError
from ipusim.files import read_records, write_text
from ipusim.study.cached import PooledPredictor, available_cores
from ipusim.study.data.published import PublishedRow, load_row, load_rows
from ipusim.study.predict import metric_of, request_for

TIER = "without_adopted"
RECORD = Path("expected") / "without_adopted.csv"
_COLUMNS = ("decision", "where", "switch", "without", "seen", "serves")
_SWITCH = re.compile(r"(?P<file>[\w/]+\.toml): (?P<tables>[^:]+): (?P<key>\w+) = (?P<value>\S+)")


def decisions() -> pd.DataFrame:
    """Return the list of adopted decisions, with whether each is turned back in the tier."""
    frame = pd.DataFrame(read_records(files.data_dir() / "adopted.csv", _COLUMNS))
    return frame.assign(switched=[bool(_SWITCH.fullmatch(text)) for text in frame["without"]])


def turn_back(data: Path, switches: Iterable[str]) -> None:
    """Change the values that switches name in a folder of data, or raise a StudyError.

    A switch is "FILE: TABLE, TABLE: KEY = VALUE"; a star stands for every table with that key.
    """
    for switch in switches:
        named = _SWITCH.fullmatch(switch)
        path = data / named["file"]
        wanted = named["tables"].split(", ")
        parts = re.split(r"(?m)^(?=\[)", path.read_text(encoding="utf-8"))
        changed = 0
        for at, part in enumerate(parts):
            title = part.partition("]")[0].strip('["')
            if title in wanted or wanted == ["*"]:
                pattern = rf"(?m)^({named['key']} = {{ value = )[^,]+"
                parts[at], count = re.subn(pattern, rf"\g<1>{named['value']}", part)
                changed += count
        if not changed:
            raise StudyError(f"Nothing in {named['file']} is what the switch {switch!r} names.")
        path.write_text("".join(parts), encoding="utf-8")


def without_adopted(rows: Iterable[PublishedRow] | None = None) -> dict[str, float]:
    """Predict rows at the specification tier without adopted choices, by row; minutes for all."""
    chosen = [row for row in (load_rows() if rows is None else rows) if not row.not_modelled]
    known = decisions()
    with tempfile.TemporaryDirectory() as folder:
        data = Path(shutil.copytree(files.data_dir(), Path(folder) / "data"))
        turn_back(data, known.loc[known["switched"], "without"])
        done = subprocess.run(
            [sys.executable, "-c", f"from {__name__} import _main; _main()"],
            input="\n".join(row.row_id for row in chosen),
            env=os.environ | {"IPUSIM_DATA_DIR": str(data)},
            capture_output=True,
            text=True,
        )
    if done.returncode:
        raise StudyError(f"The tier without adopted choices was not predicted: {done.stderr}")
    return {row_id: float(value) for row_id, value in csv.reader(done.stdout.splitlines())}


def _main() -> None:
    """Predict the rows named on standard input with the data of this process."""
    rows = [load_row(line.strip()) for line in sys.stdin]
    engine = PooledPredictor(available_cores())
    asked = {row.row_id: request_for(row.run, "specification") for row in rows}
    engine.prepare(asked.values())
    for row in rows:
        value = metric_of(engine.answer(asked[row.row_id]), row)
        sys.stdout.write(f"{row.row_id},{value!r}\n")


def record() -> Path:
    """Predict every row without adopted choices and write it down."""
    lines = [f"{row_id},{value!r}" for row_id, value in without_adopted().items()]
    text = "\n".join([f"row_id,{TIER}", *lines, ""])
    return write_text(files.data_dir() / RECORD, text)


def with_tier(frame: pd.DataFrame) -> pd.DataFrame:
    """Add the recorded predictions without adopted choices to a frame of verdicts."""
    try:
        known = pd.read_csv(files.data_dir() / RECORD).set_index("row_id")[TIER]
    except (OSError, KeyError) as error:
        raise DataError(
            f"{RECORD} cannot be read: run python docs/refresh.py --adopted."
        ) from error
    return frame.assign(**{TIER: frame["row_id"].map(known)})
