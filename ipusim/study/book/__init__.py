"""The workbook: pages, figures, start page, and running the notebooks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ipusim.study.book.page import Page


def open(study: str, output_dir: str | Path = "", **parameters: Any) -> Page:
    """Open the page of a study, with the parameters of its notebook.

    Parameters
    ----------
    study : str
        A file of data/studies without its ending, for example ``"tamu"``.
    output_dir : str or pathlib.Path
        Folder for tables and figures; empty saves none.
    **parameters
        Values of the parameters cell; a list may come as text.

    Raises
    ------
    UnknownNameError
        If there is no such study, or a parameter names a system, model or family there is not.
    ConfigError
        If the study cannot use a parameter.

    Examples
    --------
    >>> from ipusim.study import book
    >>> page = book.open("qwant", batch_sizes="[2, 4]")
    >>> page.batch_sizes, page.changed
    ([2, 4], {'batch_sizes': [2, 4]})
    """
    from ipusim.study.book.page import Page  # the fits write files with this room's help

    return Page(study, output_dir, parameters)
