"""The arithmetic itself, compiled by numba."""
