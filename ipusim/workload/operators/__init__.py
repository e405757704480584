"""Operators: attributes, work and gradient, a file for each family."""
