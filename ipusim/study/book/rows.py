"""Offline pages of every published value: filters, order, and a click to what is behind it."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import pandas as pd

from ipusim.files import read_tables
from ipusim.report.advice import digits
from ipusim.study.book.catalogue import Study, load_specs
from ipusim.study.book.site import COVERAGE, ROWS, render
from ipusim.study.coverage import DERIVED, OPEN, PREDICTED, RESTATED, TAKEN_OVER
from ipusim.study.table import HEADINGS_FILE
from ipusim.study.verdicts.compare import RUN_COLUMNS
from ipusim.study.verdicts.errors import HIT_PERCENT, NEAR_PERCENT, VERDICTS, error_percent
from ipusim.study.verdicts.summary import counted_rows

NO_TEST, NOT_PREDICTED = "no test of their own", "not predicted"
"""Which values are not counted as hits or misses: restated or fitted ones, and those without."""


def rows_html(frame: pd.DataFrame, studies: Sequence[Study] = ()) -> str:
    """Return the page of all rows; it takes filters as ``rows.html#family=bert&mode=training``."""
    frame = frame.assign(left_out=list(counted_rows(frame)["left_out"]))
    rows = [_row(row) for row in frame.to_dict("records")]
    return _page("rows", ROWS, studies, rows, [*VERDICTS, NO_TEST, NOT_PREDICTED])


def coverage_html(frame: pd.DataFrame, studies: Sequence[Study] = ()) -> str:
    """Return the page of `coverage`: where each published value is regenerated, or why not."""
    rows = [
        line | {"name": line["what"], "verdict": line["verdict"] or "none"}
        for line in frame.assign(study=frame["study"].map(_documents())).to_dict("records")
    ]
    for row in rows:
        row["printed"] = row["printed"].replace(";", "; ")  # lists of identifiers
        row["shown"] = {name: _text(row[name]) for name in _titles("coverage")}
        row["details"] = [["row", row["row_id"]], ["page", row["where"]], ["note", row["note"]]]
        row["search"] = f"{row['name']} {row['row_id']}".lower()
        row["counted"] = row["answer"]
    answers = [PREDICTED, DERIVED, RESTATED, TAKEN_OVER, OPEN]
    return _page("coverage", COVERAGE, studies, rows, answers)


def _spec(page: str) -> dict[str, Any]:
    """Return what data/headings.toml says of a page: words, filters and columns."""
    return read_tables(HEADINGS_FILE)["pages"][page]


def _titles(page: str) -> dict[str, str]:
    return {column["key"]: column["title"] for column in _spec(page)["columns"]}


def _page(
    name: str, here: str, studies: Sequence[Study], rows: list[dict[str, Any]], tally: list[str]
) -> str:
    """Fill in a page of rows, which are counted by the kinds of `tally`."""
    spec, titles, blank = _spec(name), _titles(name), {"number": False, "wide": False}
    filters = [
        (key, titles.get(key, key), sorted({row[key] for row in rows if row[key]}))
        for key in spec["filters"]
    ]
    shown = {
        "intro": spec["intro"].format(hit=HIT_PERCENT, near=NEAR_PERCENT),
        "columns": [blank | column for column in spec["columns"]],
        "filters": filters,
    }
    return render("rows.html.j2", here, studies, **spec | shown, rows=rows, tally=tally)


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
    kept, about = _spec("rows")["filters"], (*_spec("rows")["details"], *RUN_COLUMNS)
    details = [
        [key.replace("_", " "), _text(row[key])]
        for key in about
        if key != "label" and _is_known(row[key])
    ]
    plain = {key: value for key, value in known.items() if key in kept or _is_known(value)}
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
    return digits(value) if isinstance(value, float) else str(value)
