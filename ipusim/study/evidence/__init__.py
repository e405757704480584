"""Comparisons with single operations and compiled networks."""
