"""Qwant's C2 card."""
