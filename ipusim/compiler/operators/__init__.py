"""Operators as lists of supersteps, a file for each family."""
