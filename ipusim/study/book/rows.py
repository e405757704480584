"""One offline page with every published row: filters, order, and a click to what is behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from ipusim.study.book.catalogue import Study
from ipusim.study.book.site import ROWS, render
from ipusim.study.verdicts.compare import (
    HIT_PERCENT,
    NEAR_PERCENT,
    RUN_COLUMNS,
    VERDICT_COLUMNS,
    error_percent,
)

_STUDIES = {
    "qwant": "Qwant, C2 card",
    "tamu": "TAMU, PEARC'22",
    "argonne": "Graphcore at Argonne",
    "results": "Graphcore's results page",
}
_COLUMNS = (
    # key, title, right-aligned, left out on narrow screens
    ("name", "row", False, False),
    ("study", "document", False, True),
    ("system", "machine", False, True),
    ("metric", "what", False, True),
    ("published", "published", True, False),
    ("predicted", "predicted", True, False),
    ("interval", "80 % interval", True, True),
    ("error", "error %", True, False),
    ("verdict", "verdict", False, False),
)
_FILTERS = ("study", "family", "system", "mode", "metric", "verdict")
_DETAILS = (
    "row_id",
    "table",
    "stack",
    "kind",
    "unit",
    "roofline",
    "specification",
    "note",
    *RUN_COLUMNS,
)


def rows_html(frame: pd.DataFrame, studies: Sequence[Study] = ()) -> str:
    """Return the page.

    Parameters
    ----------
    frame : pandas.DataFrame
        From `ipusim.study.verdicts.compare.verdicts`.
    studies : sequence of Study
        Whose pages the menu names.

    Returns
    -------
    str
        One HTML document that needs nothing from the network. Its address takes the filters after
        ``#``, as ``rows.html#family=bert&mode=training``.
    """
    rows = [_row(row) for row in frame[list(VERDICT_COLUMNS)].to_dict("records")]
    titles = {key: title for key, title, _, _ in _COLUMNS}
    filters = [
        (name, titles.get(name, name), sorted({row[name] for row in rows if row[name]}))
        for name in _FILTERS
    ]
    keys = ("key", "title", "number", "wide")
    columns = [dict(zip(keys, line, strict=True)) for line in _COLUMNS]
    return render(
        "rows.html.j2",
        ROWS,
        studies,
        rows=rows,
        columns=columns,
        filters=filters,
        hit=f"{HIT_PERCENT:g}",
        near=f"{NEAR_PERCENT:g}",
    )


def _row(row: dict[str, Any]) -> dict[str, Any]:
    """Return what the page keeps of one row: values to sort by, texts to show, details."""
    error = error_percent(row["calibrated"], row["published"])
    name = row["label"] or row["model"]
    known = {
        "name": name,
        "study": _STUDIES.get(row["study"], row["study"]),
        "published": row["published"],
        "predicted": row["calibrated"],
        "error": error,
        "verdict": row["verdict"] or "not predicted",
        **{key: row[key] or "" for key in ("family", "system", "mode", "metric")},
    }
    shown = {key: _text(value) for key, value in known.items()} | {
        "interval": f"{_text(row['low80'])} to {_text(row['high80'])}"
        if _is_known(row["low80"])
        else "",
        "error": f"{error:+.1f}" if _is_known(error) else "",
        "metric": f"{row['metric']}, {row['unit']}",
    }
    details = [[key.replace("_", " "), _text(row[key])] for key in _DETAILS if _is_known(row[key])]
    plain = {key: value for key, value in known.items() if key in _FILTERS or _is_known(value)}
    return plain | {"shown": shown, "details": details, "search": f"{name} {row['row_id']}".lower()}


def _is_known(value: Any) -> bool:
    return not (value is None or value is pd.NA or value == "" or value != value)


def _text(value: Any) -> str:
    """Return a value to four digits, nothing for one that is missing."""
    if not _is_known(value):
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)
