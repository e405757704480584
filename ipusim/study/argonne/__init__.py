"""Graphcore at Argonne."""
