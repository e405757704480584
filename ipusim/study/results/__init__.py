"""Graphcore's results page."""
