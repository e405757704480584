"""Notebooks, pages, figures and the start page."""
