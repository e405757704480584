"""Offline pages of every published value: filters, order, and a click to what is behind it."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from ipusim.files import read_tables
from ipusim.report.advice import digits
from ipusim.study.book.catalogue import Study
from ipusim.study.book.site import COVERAGE, ROWS, render
from ipusim.study.coverage import DERIVED, OPEN, PREDICTED, RESTATED, TAKEN_OVER
from ipusim.study.specs import load_specs
from ipusim.study.table import HEADINGS_FILE, heading
from ipusim.study.verdicts.compare import RUN_COLUMNS
from ipusim.study.verdicts.errors import HIT_PERCENT, NEAR_PERCENT, VERDICTS, errors_of
from ipusim.study.verdicts.summary import counted_rows
from ipusim.view import view

NO_TEST, NOT_PREDICTED = "no test of their own", "not predicted"
"""Which values are not counted as hits or misses: restated or fitted ones, and those without."""


def rows_html(frame: pd.DataFrame, studies: Sequence[Study] = ()) -> str:
    """Return the page of all rows; it takes filters as ``rows.html#family=bert&mode=training``."""
    left_out = counted_rows(frame)["left_out"]
    verdict = frame["verdict"].replace("", NOT_PREDICTED)
    ends = zip(frame["low80"].map(_text), frame["high80"].map(_text), strict=True)
    error = pd.Series(errors_of(frame, "calibrated"), index=frame.index)
    rows = frame.assign(
        interval=[f"{low} to {high}" if low else "" for low, high in ends],
        error=error,
        verdict=verdict,
        left_out=left_out,
        parts=frame["parts"].map(_parts),
        counted=verdict.mask((frame["verdict"] != "") & (left_out != ""), NO_TEST),
    )
    shown = {
        "error": error.map("{:+.1f}".format, na_action="ignore"),
        "metric": frame["metric"] + ", " + frame["unit"],
    }
    return _page("rows", ROWS, studies, rows, [*VERDICTS, NO_TEST, NOT_PREDICTED], **shown)


def coverage_html(frame: pd.DataFrame, studies: Sequence[Study] = ()) -> str:
    """Return the page of `coverage`: where each published value is regenerated, or why not."""
    answers = [PREDICTED, DERIVED, RESTATED, TAKEN_OVER, OPEN]
    return _page("coverage", COVERAGE, studies, frame, answers)


def _page(
    name: str,
    here: str,
    studies: Sequence[Study],
    frame: pd.DataFrame,
    tally: list[str],
    **shown: pd.Series,
) -> str:
    """Fill in a page of rows, counted by the kinds of `tally`, as data/headings.toml has it.

    A row has values to sort and filter by, some of them made by its ``with``, the texts of its
    columns (those of `shown`, or the values), and the details behind a click.
    """
    spec, blank = read_tables(HEADINGS_FILE)["pages"][name], {"number": False, "wide": False}
    titles = {column["key"]: column["title"] for column in spec["columns"]}
    documents = {study: one.get("document", "") for study, one in load_specs().items()}
    frame = view(frame.assign(study=frame["study"].replace(documents)), spec)
    texts = frame.assign(**shown)[list(titles)].map(_text).to_dict("records")
    behind = [*spec["details"], *(key for key in RUN_COLUMNS if key in frame and key != "label")]
    rows = [
        {
            **{key: row[key] for key in (*titles, *spec["filters"]) if _is_known(row[key])},
            "shown": text,
            "details": [[heading(key), _text(row[key])] for key in behind if _is_known(row[key])],
            "parts": row.get("parts", []),
            "search": f"{row['name']} {row['row_id']}".lower(),
            "counted": row["counted"],
        }
        for row, text in zip(frame.to_dict("records"), texts, strict=True)
    ]
    filled = {
        "intro": spec["intro"].format(hit=HIT_PERCENT, near=NEAR_PERCENT),
        "columns": [blank | column for column in spec["columns"]],
        "filters": [
            (key, titles.get(key, key), sorted({row[key] for row in rows if key in row}))
            for key in spec["filters"]
        ],
    }
    return render("rows.html.j2", here, studies, **spec | filled, rows=rows, tally=tally)


def _parts(text: str) -> list[tuple[str, str, float]]:
    """Return the parts of a step, the longest first: name, ms, share of them all in percent."""
    found = [part.rpartition(" ") for part in text.split("; ") if part]
    whole = sum(float(value) for *_, value in found)
    return [(name, value, round(100.0 * float(value) / whole, 1)) for name, _, value in found]


def _is_known(value: Any) -> bool:
    return not (value is None or value is pd.NA or value == "" or value != value)


def _text(value: Any) -> str:
    """Return a value to four digits, nothing for one that is missing."""
    if not _is_known(value):
        return ""
    return digits(value) if isinstance(value, float) else str(value)
