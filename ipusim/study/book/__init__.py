"""The workbook: pages, figures, start page, and running the notebooks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ipusim.study.book.page import Page


def open(study: str, output_dir: str | Path = "", **parameters: Any) -> Page:
    """Open the page of a study, with values of its notebook's parameters (a list may come as text).

    The study is a file of data/studies without its ending; tables and figures are saved in
    `output_dir`, none if it is empty. An UnknownNameError refuses a study, system, model or family
    that there is not, a ConfigError a parameter that the study cannot use.

    Examples
    --------
    >>> from ipusim.study import book
    >>> page = book.open("qwant", batch_sizes="[2, 4]")
    >>> page.batch_sizes, page.changed
    ([2, 4], {'batch_sizes': [2, 4]})
    """
    from ipusim.study.book.page import Page  # so that looking at a room loads no figures

    return Page(study, output_dir, parameters)
