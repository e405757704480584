"""The start page of an output folder, made from what is there: the verdict of each study first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd
from markupsafe import Markup

from ipusim.study.book.catalogue import Study, load_spec
from ipusim.study.book.site import START, render
from ipusim.study.table import Table
from ipusim.study.verdicts.compare import tier_summary
from ipusim.study.verdicts.summary import Verdict, verdict_on

_BADGES = {"done": ("hit", "has run"), "failed": ("failed", "failed")}
"""Look and word of a study's state: that it ran does not say that it came out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What the page shows of one study.

    Attributes
    ----------
    name, title, summary : str
        Of the notebook.
    status : str
        ``"done"``, ``"failed"`` or ``"not run"``.
    message : str
        Why it failed.
    files : tuple of str
        Its outputs, relative to the page.
    verdict : Verdict or None
        What its own run came to.
    """

    name: str
    title: str
    summary: str
    status: str
    message: str
    files: tuple[str, ...]
    verdict: Verdict | None = None

    @property
    def look(self) -> str:
        """Class of the badge."""
        return _BADGES.get(self.status, ("idle", ""))[0]

    @property
    def label(self) -> str:
        """Word on the badge."""
        return _BADGES.get(self.status, ("", self.status))[1]

    @property
    def links(self) -> list[tuple[str, str]]:
        """Notebook and tables, each with what its link says; the page to read first."""
        words = {".html": "read the notebook", ".ipynb": "download the notebook"}
        wanted = [name for name in self.files if name.startswith(("notebooks/", "tables/"))]
        order = sorted(wanted, key=lambda name: (not name.endswith(".html"), name))
        return [
            (name, words.get("." + name.rpartition(".")[2], name.partition("/")[2]))
            for name in order
        ]

    @property
    def pictures(self) -> Iterator[tuple[str, str, str]]:
        """Yield each figure small, with its drawing and its name in words."""
        for name in self.files:
            if name.startswith("figures/") and name.endswith(".png"):
                drawing = name.removesuffix("png") + "svg"
                words = name[len("figures/") : -len(".png")].replace("_", " ")
                yield name, drawing if drawing in self.files else name, words


def index_html(
    cards: Sequence[Card],
    frame: pd.DataFrame | None,
    *,
    overview: str = "",
    studies: Sequence[Study] = (),
) -> str:
    """Write the page.

    Parameters
    ----------
    cards : sequence of Card
        The studies, in order.
    frame : pandas.DataFrame or None
        Verdicts on every published row; None when they could not be computed.
    overview : str
        Relative path of the overview figure; empty for none.
    studies : sequence of Study
        What the menu lists.

    Returns
    -------
    str
        One HTML document; style inside, figures by relative path, nothing from the network.
    """
    whole = table = None
    if frame is not None:
        whole = verdict_on([frame], load_spec("fidelity")["verdict"]["restates"])
        errors = tier_summary(frame, by=("study", "metric"))
        if not errors.empty:
            columns = ["study", "metric", "tier", "rows", "hit", "near", "miss"]
            sizes = ["median_abs_error_percent=median %", "max_abs_error_percent=max %"]
            shown = Table(errors, columns=[*columns, *sizes, "bias_percent=bias %"])
            table = Markup(shown.to_html())
    return render(
        "index.html.j2",
        START,
        studies,
        cards=cards,
        whole=whole,
        table=table or "No row is predicted.",
        overview=overview,
    )
