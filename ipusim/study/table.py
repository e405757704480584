"""Tables that print the same text everywhere: fixed significant digits, plain HTML, no identifiers.

pandas' own styling puts random identifiers and memory addresses into its output, so two runs never
compare equal; this class prints nothing but the numbers, at a precision that platforms agree on.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from numbers import Integral, Real
from typing import Any

import pandas as pd

from ipusim.errors import StudyError
from ipusim.files import read_tables
from ipusim.markup import template

DEFAULT_DIGITS = 4
MISSING = "-"
_LARGEST_PLAIN = 1e15
_SMALLEST_PLAIN = 1e-6
_UNITS = {"us": "µs", "w": "W", "ipu": "IPU", "ipus": "IPUs", "macs": "MACs"}
VERDICT_MARKS = {"hit": "●", "near": "◐", "miss": "○"}


def format_number(value: float, digits: int = DEFAULT_DIGITS) -> str:
    """Write a number with a fixed count of significant digits, at least 1; "-" for NaN.

    Integers and numbers of more digits keep all digits before the point.

    Examples
    --------
    >>> format_number(1.36), format_number(52345.6), format_number(float("nan"))
    ('1.360', '52,346', '-')
    """
    if isinstance(value, Integral):
        return f"{int(value):,}"
    number = float(value)
    if math.isnan(number):
        return MISSING
    if math.isinf(number):
        return "inf" if number > 0 else "-inf"
    if number == 0:
        return "0"
    if not _SMALLEST_PLAIN <= abs(number) < _LARGEST_PLAIN:
        return f"{number:.{digits - 1}e}"
    # the exponent after rounding: 9.9996 to four digits is 10.00, not 10.000
    exponent = int(f"{abs(number):.{digits - 1}e}".partition("e")[2])
    return f"{number:,.{max(0, digits - 1 - exponent)}f}"


def format_cell(value: object, digits: int = DEFAULT_DIGITS) -> str:
    """Write any cell of a table: a number, a truth value, text, or nothing."""
    if value is None or value is pd.NA:
        return MISSING
    if isinstance(value, bool) or type(value).__name__ == "bool":
        return "yes" if value else "no"
    if isinstance(value, Real):
        return format_number(value, digits)
    mark = VERDICT_MARKS.get(str(value), "")
    return f"{mark} {value}".lstrip()


def format_percent(value: float) -> str:
    """Write an error in percent, signed, one decimal: ``"+3.0"``; ``"-"`` for NaN."""
    if math.isnan(value):
        return MISSING
    text = f"{value:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text


class Table:
    """A data frame, without its index, that prints fixed-format text and HTML under a caption.

    Of the columns to show, in order and by default all, ``"name"`` takes the heading of `heading`,
    ``"name=heading"`` its own, ``"name?"`` leaves the column out where it is empty, a star stands
    for any text, and ``"@group"`` for the columns of a group of data/headings.toml. Numbers have so
    many significant digits, columns whose name ends in ``percent`` one decimal, of
    ``error_percent`` and ``bias_percent`` signed. ``headings`` and ``cells`` are what is printed,
    on ``sides``. A StudyError if a column does not exist.
    """

    def __init__(
        self,
        frame: pd.DataFrame,
        caption: str = "",
        columns: Sequence[str] | None = None,
        digits: int = DEFAULT_DIGITS,
    ) -> None:
        shown = dict(_shown_columns(frame, columns or frame.columns))
        unknown = [name for name in shown if name not in frame.columns]
        if unknown:
            raise StudyError(
                f"The table has no column {unknown[0]!r}: use one of {', '.join(frame.columns)}."
            )
        self.frame = frame
        self.caption = caption
        self.headings = tuple(shown.values())
        by_column = [[_formatted(name, value, digits) for value in frame[name]] for name in shown]
        self.cells = [list(line) for line in zip(*by_column, strict=True)]
        numbers = frame[list(shown)].select_dtypes("number")
        self.sides = tuple("right" if name in numbers else "left" for name in shown)

    def __repr__(self) -> str:
        """Return the table as aligned text."""
        lines = [list(self.headings), *self.cells]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        lines.insert(1, ["-" * width for width in widths])
        text = [
            "  ".join(
                cell.rjust(width) if side == "right" else cell.ljust(width)
                for cell, width, side in zip(line, widths, self.sides, strict=True)
            ).rstrip()
            for line in lines
        ]
        return "\n".join([self.caption, *text] if self.caption else text)

    def _repr_html_(self) -> str:
        """Return the table as an HTML element, without generated identifiers; text is escaped."""
        return template("table.html.j2").render(table=self)


class FoldedTable:
    """A data frame as tables behind one line each, their notes as footnotes.

    The column `by` divides it, in the order of the first appearance; a column ``fold`` holds the
    lines to click, of another they are its heading, its value and the count of rows. All else is as
    for `Table`; a column ``note`` becomes footnotes. ``parts`` holds table and notes of each line,
    the notes in the order of their numbers.
    """

    def __init__(self, frame: pd.DataFrame, by: str, caption: str = "", **look: Any) -> None:
        self.frame = frame
        self.caption = caption
        self.parts: dict[str, tuple[Table, tuple[str, ...]]] = {}
        for value, group in frame.groupby(by, sort=False):
            line = f"{heading(by)}: {format_cell(value)}, {len(group)} rows"
            shown, notes = group.drop(columns=by), ()
            if "note" in shown:
                texts = shown["note"].fillna("")
                notes = tuple(dict.fromkeys(texts[texts != ""]))
                shown = shown.assign(note=[notes.index(t) + 1 if t else "" for t in texts])
                shown["note"] = shown["note"].astype(str)
            self.parts[value if by == "fold" else line] = Table(shown, **look), notes

    def __repr__(self) -> str:
        """Return all tables as aligned text, each under its line."""
        text = [self.caption]
        for line, (table, notes) in self.parts.items():
            text += ["", line, repr(table)]
            text += [f"  {number} {note}" for number, note in enumerate(notes, start=1)]
        return "\n".join(text)

    def _repr_html_(self) -> str:
        """Return the tables as HTML, folded, without generated identifiers."""
        return template("folded.html.j2").render(caption=self.caption, parts=self.parts)


HEADINGS_FILE = "headings.toml"


def heading(name: str) -> str:
    """Return the heading of a column: that of data/headings.toml, or its name with units as read.

    Examples
    --------
    >>> heading("median_time_percent"), heading("batch_12_error_percent")
    ('median time %', 'batch 12')
    """
    headings = read_tables(HEADINGS_FILE)["headings"]
    if name in headings:
        return headings[name]
    for pattern, text in headings.items():
        match = _matching(pattern, name) if "*" in pattern else None
        if match:
            return text.replace("*", match[1])
    words = name.replace("_percent", " %").replace("_per_s", "/s").replace("_", " ").split(" ")
    return " ".join(_UNITS.get(word, word) for word in words)


def _matching(pattern: str, name: str) -> re.Match[str] | None:
    """Match the name of a column with one that may hold a star."""
    return re.fullmatch(re.escape(pattern).replace(r"\*", "(.+)"), name)


def _shown_columns(frame: pd.DataFrame, columns: Iterable[str]) -> Iterator[tuple[str, str]]:
    groups = read_tables(HEADINGS_FILE)["groups"]
    whole = (groups[name[1:]] if name.startswith("@") else [name] for name in columns)
    for column in (name for group in whole for name in group):
        name, _, text = column.partition("=")
        optional = name.endswith("?")
        name = name.removesuffix("?")
        known = [other for other in frame.columns if _matching(name, other)] or [name]
        for match in known:
            empty = match not in frame or (frame[match].isna() | (frame[match] == "")).all()
            if not (optional and empty):
                yield match, text or heading(match)


def _formatted(name: str, value: object, digits: int) -> str:
    """Write one cell by the rule of its column's name."""
    if name.endswith("percent") and isinstance(value, Real):
        signed = name.endswith(("error_percent", "bias_percent")) and "abs" not in name
        if signed:
            return format_percent(float(value))
        return MISSING if math.isnan(float(value)) else f"{float(value):.1f}"
    return format_cell(value, digits)
