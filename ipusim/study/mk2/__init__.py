"""Graphcore's MK2 benchmark blog."""
