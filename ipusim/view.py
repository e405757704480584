"""What data say of a table: expressions of its columns, texts filled in, lines and their order."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from ipusim.errors import StudyError

HIT_PERCENT = 10.0
NEAR_PERCENT = 25.0
"""Errors up to which a prediction is called a hit, or near."""

NAMED = {
    "hit": HIT_PERCENT,
    "near": NEAR_PERCENT,
    "tolerance_percent": 5.0,
    "lines": lambda column: np.arange(len(column)),
    "as_they_come": lambda column: pd.factorize(column)[0],
}
"""What expressions may name with an @: bands of verdicts; by how much the work of a row may differ
from that of most rows (`ipusim.study.audit.tamu_work`); functions of a column that number its lines
from 0, each or by its value, in the order in which the values come."""


def values(rows: pd.DataFrame, wanted: Any) -> Any:
    """Return a column, the value of an expression, a text for each line, texts, or a number."""
    if isinstance(wanted, list):
        return [words(one, rows) for one in wanted]
    if not isinstance(wanted, str):
        return wanted
    if wanted in rows:
        return rows[wanted]
    if "{" in wanted:
        return [words(wanted, rows[at : at + 1]) for at in range(len(rows))]
    try:
        return rows.eval(wanted, engine="python", local_dict=NAMED)
    except (pd.errors.UndefinedVariableError, SyntaxError) as error:
        raise StudyError(
            f"The data ask for {wanted!r}, but the table has the columns {', '.join(rows)}: use "
            "those."
        ) from error


def words(text: str, rows: pd.DataFrame) -> str:
    """Fill in the number of lines, and the cells of the first."""
    return text.format(**{"rows": len(rows)} | (rows.iloc[0].to_dict() if len(rows) else {}))


def view(frame: pd.DataFrame, spec: Mapping[str, Any]) -> pd.DataFrame:
    """Return the lines of which ``only`` is true, in the order of the values of ``sort``.

    They get columns by ``with``, then by ``make``, one after the other; where there is a ``make``,
    no other columns stay.
    """
    if "only" in spec:
        frame = frame[values(frame, spec["only"]).astype(bool)]
    if "sort" in spec:
        keys = pd.DataFrame({place: values(frame, key) for place, key in enumerate(spec["sort"])})
        order = keys.reset_index(drop=True).sort_values(list(keys), kind="stable").index
        frame = frame.iloc[order]
    made = spec.get("make", {})
    for name, wanted in (spec.get("with", {}) | made).items():
        frame = frame.assign(**{name: values(frame, wanted)})
    return frame[list(made)] if made else frame
