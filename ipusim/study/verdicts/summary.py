"""What verdicts come to: errors of rows and groups, and the box that opens every page."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from ipusim.markup import template
from ipusim.runtime.calibration import load_calibration
from ipusim.study.table import format_percent
from ipusim.study.verdicts.errors import VERDICTS, errors_of, sizes_of


def with_error(frame: pd.DataFrame) -> pd.DataFrame:
    """Add ``error_percent``, the signed error of the calibrated tier, and its ``size_percent``."""
    errors, sizes = (of(frame, "calibrated") for of in (errors_of, sizes_of))
    return frame.assign(error_percent=errors, size_percent=sizes)


def classes(frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Divide `verdicts` by mode, and networks of the known families from new ones."""
    known = frame["family"].isin(load_calibration().known_families)
    return {
        f"{mode}, {name}": rows[rows["mode"] == mode]
        for mode in ("inference", "training")
        for name, rows in (("known families", frame[known]), ("new networks", frame[~known]))
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a page comes to: how many of the published values are a test, and how they came out."""

    rows: int
    hit: int
    near: int
    miss: int
    typical_percent: float  # median size of the counted values' errors; NaN where none is
    worst_percent: float  # signed, as printed
    worst_row: str
    left_out: str  # how many values are not counted, and why
    rests_on: str = ""  # in words, as the conclusion; see data/studies
    conclusion: str = ""
    changed: str = ""  # parameters of the page that are not those of the notebook

    @property
    def counted(self) -> int:
        """Values that are a test."""
        return self.hit + self.near + self.miss

    def lines(self) -> list[str]:
        """Return the verdict as sentences, the counts first."""
        size = "no value to compare"
        if self.counted:
            size = f"error: typical {self.typical_percent:.1f} %, worst "
            size += f"{format_percent(self.worst_percent)} % ({self.worst_row})"
        notes = {
            "not counted": self.left_out,
            "rests on": self.rests_on,
            "run with": self.changed and f"{self.changed}; the counts are those of this run",
        }
        return [
            f"{self.counted} of {self.rows} values are a test: "
            f"{self.hit} hit, {self.near} near, {self.miss} miss",
            size,
            *(f"{name}: {text}" for name, text in notes.items() if text),
            *([self.conclusion] if self.conclusion and not self.changed else []),
        ]

    def __repr__(self) -> str:
        """Return the verdict as text."""
        return "\n".join(["Verdict", *(f"  {line}" for line in self.lines())])

    def _repr_html_(self) -> str:
        """Return the verdict as a box: counts as a bar, then the sentences."""
        return template("verdict.html.j2").render(verdict=self, lines=self.lines())


def counted_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """Say of every row or claim whether it is a test of the model, or in ``left_out`` why not."""
    errors = frame if "error_percent" in frame else with_error(frame)
    judged = frame["verdict"].isin(VERDICTS)
    # a row without prediction is not called fitted
    left_out = frame.get("left_out", pd.Series("", index=frame.index))
    return pd.DataFrame(
        {
            "row": frame["row_id" if "row_id" in frame else "claim_id"],
            "error_percent": errors["error_percent"],
            "size_percent": errors.get("size_percent", errors["error_percent"].abs()),
            "verdict": frame["verdict"],
            "left_out": left_out.where(judged, "have no prediction or no published number"),
        }
    )


def verdict_on(frames: Sequence[pd.DataFrame], **words: str) -> Verdict:
    """Count the values of a page, rows or claims, that are a test, and how they came out."""
    rows = pd.concat([counted_rows(frame) for frame in frames], ignore_index=True)
    tests = rows[rows["left_out"] == ""]
    sizes = tests["size_percent"]
    worst = tests.loc[sizes.idxmax()] if sizes.notna().any() else None
    reasons = rows.loc[rows["left_out"] != "", "left_out"].value_counts(sort=False)
    return Verdict(
        rows=len(rows),
        **{name: int((tests["verdict"] == name).sum()) for name in VERDICTS},
        typical_percent=float(sizes.median()),
        worst_percent=math.nan if worst is None else float(worst["error_percent"]),
        worst_row="" if worst is None else str(worst["row"]),
        left_out=", ".join(f"{count} {reason}" for reason, count in reasons.items()),
        **words,
    )
