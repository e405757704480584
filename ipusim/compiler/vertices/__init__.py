"""Cycles of single vertices on one tile."""
