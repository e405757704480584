"""The start page of an output folder, made from what is there: the verdict of each study first."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from ipusim.study.book.catalogue import Study
from ipusim.study.book.site import START, render
from ipusim.study.specs import load_specs
from ipusim.study.verdicts.summary import Verdict, classes, verdict_on

PICTURES = 3
"""Figures of a study on the start page; its own page has all."""
_BADGES = {"done": ("hit", "has run"), "failed": ("failed", "failed")}
"""Look and word of a study's state: that it ran does not say that it came out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What became of one study; kept as JSON beside its outputs."""

    name: str  # of the study
    status: str = "not run"  # or "done", "up to date", "failed"
    key: str = ""  # digest of everything that the outputs depend on
    message: str = ""  # what went wrong
    notebook: str = ""  # as executed, in the output folder; the partial one after a failure
    files: dict[str, str] = field(default_factory=dict)  # digests, by path in the output folder
    cells: int = 0  # with code, and the seconds of running them; 0 where none was run, and on disk
    seconds: float = 0.0

    @property
    def badge(self) -> tuple[str, str]:
        """Class of the badge on the page and the word on it."""
        return _BADGES.get(self.status, ("idle", self.status))

    @property
    def pictures(self) -> list[tuple[str, str]]:
        """The first figures, without what tells picture and drawing apart, and what they show."""
        names = [name for name in self.files if re.fullmatch(r"figures/.+\.png", name)]
        return [(name.removesuffix(".png"), _shows(Path(name).stem)) for name in names[:PICTURES]]


class Card(NamedTuple):
    """What the page shows of one study."""

    study: Study
    state: State
    verdict: Verdict | None  # what its own run came to


def _shows(figure: str) -> str:
    """Return what a figure of data/studies shows, whichever its parameters; else its name."""
    specs = (study["figures"].items() for study in load_specs().values())
    said = dict(chain.from_iterable(specs)).get(figure, {}).get("alt", "")
    return re.sub(r" of {\w+}", "", said) or figure.replace("_", " ")


def index_html(cards: Sequence[Card], frame: pd.DataFrame | None, *, overview: str = "") -> str:
    """Write the page; without verdicts (None) it has the studies alone."""
    apart = {} if frame is None else classes(frame)
    groups = [(name, verdict_on([rows])) for name, rows in apart.items()]
    return render(
        "index.html.j2",
        START,
        [card.study for card in cards],
        cards=cards,
        whole=None if frame is None else verdict_on([frame]),
        groups=[(name, verdict) for name, verdict in groups if verdict.counted],
        families=[] if frame is None else sorted(frame["family"].unique()),
        overview=overview,
    )
