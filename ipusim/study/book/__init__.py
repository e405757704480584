"""The workbook: pages, figures, start page, and running the notebooks."""

from ipusim.study.book.page import open_page as open

__all__ = ["open"]
