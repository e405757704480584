"""Fits of the calibrated constants."""
