"""Cycles of single vertices on one tile."""

METHOD_NAMES = ("AMP", "SLIC", "HMAC", "VMAC", "OUTER_PRODUCT")
"""Ways to convolve, by their number in `conv`; here, so that a kept program needs no numpy."""
