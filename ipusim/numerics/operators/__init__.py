"""Operators as values, a file for each family."""
