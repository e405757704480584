"""Supersteps of every operator; a file registers them when it is imported (`state.lowers`)."""
