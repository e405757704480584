"""Predictions beside published values."""
