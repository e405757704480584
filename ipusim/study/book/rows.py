"""Offline pages of every published value: filters, order, and a click to what is behind it."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import pandas as pd

from ipusim.files import read_tables
from ipusim.study.book.catalogue import Study, load_specs
from ipusim.study.book.site import COVERAGE, ROWS, render
from ipusim.study.coverage import DERIVED, OPEN, PREDICTED, RESTATED, TAKEN_OVER
from ipusim.study.table import HEADINGS_FILE
from ipusim.study.verdicts.compare import RUN_COLUMNS
from ipusim.study.verdicts.errors import HIT_PERCENT, NEAR_PERCENT, VERDICTS, error_percent
from ipusim.study.verdicts.summary import counted_rows

_FILTERS = ("study", "family", "system", "mode", "metric", "verdict")
NO_TEST, NOT_PREDICTED = "no test of their own", "not predicted"
"""Which values are not counted as hits or misses: restated or fitted ones, and those without."""
_DETAILS = (
    "row_id",
    "table",
    "stack",
    "kind",
    "unit",
    "roofline",
    "specification",
    "note",
    "left_out",
    *(name for name in RUN_COLUMNS if name != "label"),
)


def rows_html(frame: pd.DataFrame, studies: Sequence[Study] = ()) -> str:
    """Return the page of all rows; it takes filters as ``rows.html#family=bert&mode=training``."""
    frame = frame.assign(left_out=list(counted_rows(frame)["left_out"]))
    return render(
        "rows.html.j2",
        ROWS,
        studies,
        title="Every published row beside its prediction",
        intro="Error: predicted over published, minus one, of the calibrated tier, whose constants "
        f"are fitted without the row's own model family. A hit is within {HIT_PERCENT:g} %, near "
        f"within {NEAR_PERCENT:g} %, a miss above; a rate both as printed and by its time.",
        source="verdicts.csv",
        order="error",
        tally=[*VERDICTS, NO_TEST, NOT_PREDICTED],
        **_listing([_row(row) for row in frame.to_dict("records")], "rows", _FILTERS),
    )


def coverage_html(frame: pd.DataFrame, studies: Sequence[Study] = ()) -> str:
    """Return the page of `coverage`: where each published value is regenerated, or why not."""
    rows = [
        line | {"name": line["what"], "verdict": line["verdict"] or "none"}
        for line in frame.assign(study=frame["study"].map(_documents())).to_dict("records")
    ]
    for row in rows:
        row["printed"] = row["printed"].replace(";", "; ")  # lists of identifiers
        row["shown"] = {column["key"]: _text(row[column["key"]]) for column in _columns("coverage")}
        row["details"] = [["row", row["row_id"]], ["page", row["where"]], ["note", row["note"]]]
        row["search"] = f"{row['name']} {row['row_id']}".lower()
        row["counted"] = row["answer"]
    return render(
        "rows.html.j2",
        COVERAGE,
        studies,
        title="What was published, and where it is regenerated",
        intro="Every table, figure and claim of the five documents: simulated, derived from the "
        "machine or the network alone, a restatement of another row, put into the model (so no "
        "test), or not tested for the reason given.",
        source="coverage.csv",
        order="study",
        tally=[PREDICTED, DERIVED, RESTATED, TAKEN_OVER, OPEN],
        **_listing(rows, "coverage", ("study", "kind", "answer", "verdict")),
    )


def _columns(page: str) -> list[dict[str, Any]]:
    """Return the columns of a page in data/headings.toml."""
    blank = {"number": False, "wide": False}
    return [blank | column for column in read_tables(HEADINGS_FILE)["pages"][page]]


def _listing(rows: list[dict[str, Any]], page: str, by: Sequence[str]) -> dict[str, Any]:
    """Return the rows, columns and filters of a page."""
    titles = {column["key"]: column["title"] for column in _columns(page)}
    return {
        "rows": rows,
        "columns": _columns(page),
        "filters": [
            (name, titles.get(name, name), sorted({row[name] for row in rows if row[name]}))
            for name in by
        ],
    }


def _row(row: dict[str, Any]) -> dict[str, Any]:
    """Return what the page keeps of one row: values to sort by, texts to show, details."""
    error = error_percent(row["calibrated"], row["published"])
    name = row["label"] or row["model"]
    known = {
        "name": name,
        "study": _documents().get(row["study"], row["study"]),
        "published": row["published"],
        "predicted": row["calibrated"],
        "error": error,
        "verdict": row["verdict"] or NOT_PREDICTED,
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
    search = f"{name} {row['row_id']}".lower()
    counted = NO_TEST if row["verdict"] and row["left_out"] else known["verdict"]
    return plain | {
        "shown": shown,
        "details": details,
        "parts": _parts(row["parts"]),
        "search": search,
        "counted": counted,
    }


def _parts(text: str) -> list[tuple[str, str, float]]:
    """Return the parts of a step, the longest first: name, ms, share of them all in percent."""
    found = [part.rpartition(" ") for part in text.split("; ") if part]
    whole = sum(float(value) for *_, value in found)
    return [(name, value, round(100.0 * float(value) / whole, 1)) for name, _, value in found]


@cache
def _documents() -> dict[str, str]:
    """Return what lists call the documents, by the name of their study."""
    return {name: spec.get("document", "") for name, spec in load_specs().items()}


def _is_known(value: Any) -> bool:
    return not (value is None or value is pd.NA or value == "" or value != value)


def _text(value: Any) -> str:
    """Return a value to four digits, nothing for one that is missing."""
    if not _is_known(value):
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)
